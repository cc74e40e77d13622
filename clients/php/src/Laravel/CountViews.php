<?php declare(strict_types=1);

namespace Counterfoil\Laravel;

use Closure, Throwable;
use Illuminate\Database\Eloquent\Model;
use Illuminate\Http\Request;
use Psr\Log\LoggerInterface;
use Symfony\Component\HttpFoundation\Response;

/**
 * Counts a view of a page after its response, if the status is below 400:
 *
 *     Route::get('/products/{product}', ...)->middleware(CountViews::of('product_views', 'product'));
 */
final class CountViews {
    public function __construct(private readonly PageViews $views, private readonly LoggerInterface $log) {}

    /**
     * Returns the middleware.
     *
     * @param string $parameter a parameter of the route: an id, or a model
     * @param bool $repeats as in PageViews
     */
    public static function of(string $family, string $parameter, bool $repeats = true): string {
        return self::class . ":$family,$parameter," . ($repeats ? 'repeats' : 'once');
    }

    public function handle(Request $request, Closure $next, string $family, string $parameter, string $repeats): Response {
        $response = $next($request);
        $id = $request->route($parameter);
        if ($id instanceof Model) $id = $id->getKey();
        $views = $request->attributes->get(self::class, []);
        if ($response->getStatusCode() < 400 && $id !== null) $views[] = [$family, $id, $repeats === 'repeats'];
        $request->attributes->set(self::class, $views);
        return $response;
    }

    /** Laravel calls it when the response was sent. */
    public function terminate(Request $request): void {
        foreach ($request->attributes->get(self::class, []) as [$family, $id, $repeats]) {
            try {
                $this->views->count($request, $family, $id, $repeats);
            } catch (Throwable $error) {
                $this->log->error("counterfoil: a view of $id in $family: {$error->getMessage()}");
            }
        }
        $request->attributes->remove(self::class);  // a route may have this middleware twice
    }
}
