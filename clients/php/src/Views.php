<?php declare(strict_types=1);

namespace Counterfoil;

use Closure, Jaybizzle\CrawlerDetect\CrawlerDetect;

/** Counts views of pages, without those of crawlers, and optionally without repeats of a visitor. */
final class Views {
    /**
     * @param string $secret the key of the hash that names visitors: a secret of the application
     * @param bool|Closure(string): bool $bots true counts crawlers, too. A function gets the User-Agent, and returns true for that
     *     of a crawler. A request without a User-Agent is one of a crawler
     * @throws Misconfigured if crawlers do not count, and nothing detects them
     */
    public function __construct(
        private readonly Counterfoil $counterfoil,
        private readonly string $secret,
        private readonly bool|Closure $bots = false,
    ) {
        if ($bots === false && !class_exists(CrawlerDetect::class)) {
            throw new Misconfigured('BOTS', 'nothing detects crawlers: run "composer require jaybizzle/crawler-detect", '
                . 'or set "bots" to true to count them, or to a function that detects them');
        }
    }

    /**
     * Counts a view, and returns false if it is left out: of a crawler, a prefetch or a repeat.
     *
     * @param string|int $id
     * @param string $family of kind visitors if repeats do not count: then each visitor counts once a day, in UTC
     * @param array<string, mixed> $server the headers and the address of the request, under the names of `$_SERVER`
     * @param bool $repeats whether each view of a visitor counts
     * @param ?string $visitor by default a keyed hash of the address and the User-Agent, so no cookie is needed
     * @throws CounterfoilException
     */
    public function count(string $family, mixed $id, array $server, bool $repeats = true, ?string $visitor = null): bool {
        if ($this->leavesOut($server)) return false;
        if (!$repeats) {
            return $this->counterfoil->visitors($family)->firstVisit($id, gmdate('Y-m-d'), $visitor ?? $this->visitor($server));
        }
        $this->counterfoil->buffered($family)->add($id);
        return true;
    }

    /**
     * Returns the visitor of a request: a keyed hash (HMAC-SHA-256) of address and User-Agent.
     *
     * @param array<string, mixed> $server `REMOTE_ADDR` is the visitor's address, not a proxy's
     */
    public function visitor(array $server): string {
        return hash_hmac('sha256', ($server['REMOTE_ADDR'] ?? '') . "\n" . ($server['HTTP_USER_AGENT'] ?? ''), $this->secret);
    }

    /**
     * Returns if a request comes from a crawler that does not count, or for a page that may never be shown: a prefetch, or HEAD.
     *
     * @param array<string, mixed> $server as in `count`
     */
    public function leavesOut(array $server): bool {
        $purpose = ($server['HTTP_SEC_PURPOSE'] ?? '') . ($server['HTTP_PURPOSE'] ?? '');
        if (str_contains($purpose, 'prefetch') || ($server['REQUEST_METHOD'] ?? '') === 'HEAD') return true;
        if ($this->bots === true) return false;
        $userAgent = $server['HTTP_USER_AGENT'] ?? '';
        if ($userAgent === '') return true;
        return $this->bots === false ? (new CrawlerDetect())->isCrawler($userAgent) : ($this->bots)($userAgent);
    }
}
