<?php declare(strict_types=1);

namespace Counterfoil\Laravel;

use Closure;
use Counterfoil\{CounterfoilException, Views};
use Illuminate\Http\Request;

/** Counts views of pages by the rules of `config/counterfoil.php`. */
final class PageViews {
    public function __construct(
        private readonly Views $views,
        private readonly bool $staff,
        private readonly ?Closure $visitor,
    ) {}

    /**
     * Counts a view, and returns false if it is left out: of a crawler, a prefetch, staff or a repeat.
     *
     * @param string $family of kind visitors if repeats do not count: then each visitor counts once a day, in UTC
     * @param bool $repeats whether each view of a visitor counts
     * @throws CounterfoilException
     */
    public function count(Request $request, string $family, string|int $id, bool $repeats = true): bool {
        if (!$this->staff && $request->user()?->can('staff')) return false;
        // Laravel's address, which is that of the client behind trusted proxies
        $server = ['REMOTE_ADDR' => $request->ip()] + $request->server->all();
        $visitor = $repeats || $this->visitor === null ? null : ($this->visitor)($request);
        return $this->views->count($family, $id, $server, $repeats, $visitor);
    }
}
