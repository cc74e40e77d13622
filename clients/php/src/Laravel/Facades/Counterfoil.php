<?php declare(strict_types=1);

namespace Counterfoil\Laravel\Facades;

use Illuminate\Support\Facades\Facade;

/**
 * @method static \Counterfoil\Buffered buffered(string $family)
 * @method static \Counterfoil\Cached cached(string $family)
 * @method static \Counterfoil\Series series(string $family)
 * @method static \Counterfoil\Activity activity(string $family)
 * @method static \Counterfoil\Visitors visitors(string $family)
 * @method static void flush()
 */
final class Counterfoil extends Facade {
    protected static function getFacadeAccessor(): string {
        return \Counterfoil\Counterfoil::class;
    }
}
