<?php

use App\Http\Controllers\ProductController;
use Counterfoil\Laravel\CountViews;
use Illuminate\Support\Facades\Route;

Route::get('/products', [ProductController::class, 'index']);
Route::get('/products/{product}', [ProductController::class, 'show'])->middleware(CountViews::of('product_views', 'product'));
Route::post('/products/{product}/views', [ProductController::class, 'view']);
Route::post('/products/{product}/visits', [ProductController::class, 'visit']);
Route::post('/products/{product}/saves', [ProductController::class, 'save']);
Route::put('/saves/{save}', [ProductController::class, 'move']);
Route::delete('/saves/{save}', [ProductController::class, 'unsave']);
