<?php

namespace App\Http\Controllers;

use App\Models\{Product, Save};
use Counterfoil\Laravel\Facades\Counterfoil;
use Counterfoil\Laravel\PageViews;
use Illuminate\Http\{JsonResponse, Request, Response};
use Illuminate\Support\Facades\DB;
use Illuminate\View\View;

final class ProductController {
    public function index(Request $request): View|JsonResponse {
        $ids = Product::orderBy('id')->pluck('id')->all();
        // null if the daemon does not reply; a page may also pass the numbers of its rows as a default
        $exact = fn(string $family): array =>
            rescue(fn(): array => Counterfoil::buffered($family)->values($ids), array_fill(0, count($ids), null), false);
        [$views, $saves] = [$exact('product_views'), $exact('product_saves')];
        $products = array_map(fn(int $id, ?int $views, ?int $saves): array => compact('id', 'views', 'saves'), $ids, $views, $saves);
        $isPage = str_contains((string) $request->header('Accept'), 'text/html');
        return $isPage ? view('products', ['products' => $products]) : response()->json($products);
    }

    public function show(int $product): View {
        return view('product', ['product' => Product::findOrFail($product)]);
    }

    public function view(Request $request, int $product, PageViews $views): JsonResponse {
        return response()->json(['counted' => $views->count($request, 'product_views', $product)]);
    }

    public function visit(Request $request, int $product, PageViews $views): JsonResponse {
        return response()->json(['counted' => $views->count($request, 'product_visitors', $product, repeats: false)]);
    }

    public function save(Request $request, int $product): JsonResponse {
        $save = DB::transaction(fn(): Save => Save::create(['product_id' => $product, 'user_id' => (int) $request->json('user_id')]));
        return response()->json(['id' => $save->id], 201);
    }

    public function move(Request $request, int $save): JsonResponse {
        DB::transaction(function () use ($request, $save): void {
            Save::lockForUpdate()->findOrFail($save)->update(['product_id' => (int) $request->json('product_id')]);
        });
        return response()->json([]);
    }

    public function unsave(int $save): Response {
        DB::transaction(fn() => Save::lockForUpdate()->findOrFail($save)->delete());
        return response()->noContent();
    }
}
