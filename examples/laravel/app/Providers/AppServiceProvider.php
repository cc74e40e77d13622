<?php

namespace App\Providers;

use Illuminate\Support\Facades\Route;
use Illuminate\Support\ServiceProvider;

final class AppServiceProvider extends ServiceProvider {
    public function boot(): void {
        Route::middleware([])->group(base_path('routes/web.php'));
    }
}
