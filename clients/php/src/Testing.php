<?php declare(strict_types=1);

namespace Counterfoil;

use Counterfoil\Internal\{Driver, Session, Values};

/**
 * Redis and the daemon in memory, for tests of applications: the same calls, results and errors. It does not test the protocol,
 * no server fails, and nothing is saved.
 */
final class Testing extends Driver implements Values {
    private const SLICES = 120;
    private const AHEAD_S = 60;
    private const ACTIVITY_S = 300;
    private const LIMIT = 2 ** 53;
    /** @var array<string, string> the name of a script by its SHA-1 */
    private readonly array $scripts;
    /** @var array<string, string> the kinds, by family */
    private array $kinds = [];
    /** @var array<string, array<int>> the values, by family and id */
    private array $values = [];
    /** @var array<string, array<int|string>> the words that were returned for requests, by family, request and id */
    private array $requests = [];
    /** @var array<string, array<int>> the counts of slices, by family and name, then label and start */
    private array $slices = [];
    /** @var array<string, array{list<array{int, int}>, array<int>}> by family and page: times and views, times of visitors */
    private array $pages = [];
    /** @var array<string, array<true>> the visitors of a scope and day, by family and id */
    private array $seen = [];

    /**
     * Returns a client whose counters are in memory.
     *
     * @param array<string, array{ids?: string, separator?: string, min?: int, max?: int, windows?: list<string>}> $families
     *     settings by the name of the family: a regular expression of ids, bounds of a cached counter, labels of a series
     */
    public static function counterfoil(string $namespace, array $families = []): Counterfoil {
        return new Counterfoil(new self($families), $namespace);
    }

    /** @param array<string, array> $families */
    private function __construct(private readonly array $families) {
        parent::__construct(false, 'memory ' . bin2hex(random_bytes(8)));
        $this->scripts = array_flip(require __DIR__ . '/../lua/sha1.php');
    }

    public function close(): void {}

    public function reconnect(float $limit): void {}

    public function evaluate(bool $isSha, string $script, int $numberOfKeys, array $words, float $limit): array {
        [$keys, $args] = [array_slice($words, 0, $numberOfKeys), array_slice($words, $numberOfKeys)];
        preg_match('#^cf1:\{(\S+)/0\}#', $keys[0], $tag);
        $behindFence = array_slice($args, 4);
        return match ($this->scripts[$script]) {
            'family_epoch' => $this->epoch($tag[1], $args[0]),
            'buffered_add' => $this->add($tag[1], $behindFence),
            'cached_incr' => ['OK', $this->once($tag[1], $behindFence[2], array_slice($behindFence, 6),
                fn(): int|string => $this->change($tag[1], $behindFence[2], $behindFence[3])), 0],
            'cached_get' => ['OK', $this->values[$tag[1]][$args[4]] ?? 0],
            'series_add' => $this->addToSlices($tag[1], $behindFence),
            'series_get' => $this->window($tag[1], substr(strstr($keys[3], ":series:$args[0]:"), strlen(":series:$args[0]:")), $args[0]),
            'activity_touch' => $this->touch($tag[1], $behindFence),
            'activity_now' => $this->now($tag[1], substr(strstr($keys[1], ':views:0:'), 9)),
            'visitors_first' => $this->visit($tag[1], $behindFence),
        };
    }

    public function values(Session $session, string $family, array $ids): array {
        return array_map(fn(string $id): int => $this->values[$family][$id] ?? 0, $ids);
    }

    private function epoch(string $family, string $kind): array {
        $this->kinds[$family] ??= $kind;
        if ($this->kinds[$family] !== $kind) return ['MISMATCH', $this->kinds[$family], 1, ''];
        $settings = $this->settings($family);
        return ['OK', 'epoch', 'generation', $kind, 1, json_encode([
            'ids' => $settings['ids'] ?? '[\s\S]{1,255}',
            'ids_in_words' => isset($settings['ids']) ? "what matches $settings[ids]" : '1 to 255 bytes of UTF-8',
            'separator' => $settings['separator'] ?? '/',
            'labels' => $settings['windows'] ?? ['60s', 'day'],
            'stripes' => 1,
            'wide' => false,
        ])];
    }

    private function add(string $family, array $args): array {
        [$requests, , $pairs] = $args;
        $words = [];
        foreach (array_chunk(array_slice($args, 3, 2 * $pairs), 2) as $i => [$id, $delta]) {
            $request = $i < $requests ? array_slice($args, 3 + 2 * $pairs) : [];
            $words[] = $this->once($family, $id, $request, function () use ($family, $id, $delta): int|string {
                $sum = ($this->values[$family][$id] ?? 0) + $delta;
                return is_int($sum) ? $this->values[$family][$id] = $sum : 'RANGE';
            });
        }
        return ['OK', 0, ...$words];
    }

    private function change(string $family, string $id, string $change): int|string {
        $settings = $this->settings($family);
        $value = $this->values[$family][$id] ?? 0;
        $new = $change[0] === '=' ? (int) substr($change, 1) : $value + (int) $change;
        if ($new < ($settings['min'] ?? PHP_INT_MIN) || $new > ($settings['max'] ?? PHP_INT_MAX)) return "RANGE:$value";
        return abs($new) < self::LIMIT ? $this->values[$family][$id] = $new : 'BEYOND';
    }

    /** @param array{}|array{int, string, string} $request */
    private function once(string $family, string $id, array $request, callable $change): int|string {
        if ($request === []) return $change();
        $known = &$this->requests[$family]["$request[1] $id"];
        return $known === null ? $known = $change() : "BEFORE:$known";
    }

    private function addToSlices(string $family, array $args): array {
        $words = [];
        foreach (array_chunk($args, 3) as [$name, $n, $at]) {
            $at = $at === '' ? time() : intdiv((int) $at, 1000);
            $slices = [];
            foreach (json_decode($this->epoch($family, 'series')[5], true)['labels'] as $label) {
                if ($at >= self::start($label, self::SLICES - 1)) $slices[] = "$label " . self::start($label, 0, $at);
            }
            $words[] = $slices === [] || $at > time() + self::AHEAD_S ? 'BADTIME' : 1;
            if (end($words) !== 1) continue;
            $counts = &$this->slices["$family $name"];
            foreach ($slices as $slice) $counts[$slice] = ($counts[$slice] ?? 0) + $n;
        }
        return ['OK', 0, ...$words];
    }

    private function window(string $family, string $name, string $label): array {
        $starts = array_map(fn(int $age): int => self::start($label, $age), range(self::SLICES - 1, 0));
        $counts = array_map(fn(int $start): int => $this->slices["$family $name"]["$label $start"] ?? 0, $starts);
        return ['OK', implode(' ', $starts), implode(' ', $counts)];
    }

    /** Returns the start of a slice, in UTC: `$age` slices before that of the time `$at`. */
    private static function start(string $label, int $age, ?int $at = null): int {
        $at ??= time();
        if ($label === 'month') return gmmktime(0, 0, 0, (int) gmdate('n', $at) - $age, 1, (int) gmdate('Y', $at));
        $length = $label === 'day' ? 86_400 : (int) $label;
        return (intdiv($at, $length) - $age) * $length;
    }

    private function touch(string $family, array $args): array {
        for ($i = 2, $words = []; $i < count($args); $i += 3 + $args[$i + 2]) {
            [$page, $views, $visitors] = [$args[$i], $args[$i + 1], array_slice($args, $i + 3, $args[$i + 2])];
            $this->pages["$family $page"][0][] = [time(), $views];
            foreach ($visitors as $visitor) $this->pages["$family $page"][1][$visitor] = time();
            $words[] = 1;
        }
        return ['OK', 0, ...$words];
    }

    private function now(string $family, string $page): array {
        [$views, $visitors] = $this->pages["$family $page"] ?? [[], []];
        $isRecent = fn(int $at): bool => $at > time() - self::ACTIVITY_S;
        $views = array_column(array_filter($views, fn(array $one): bool => $isRecent($one[0])), 1);
        return ['OK', array_sum($views), count(array_filter($visitors, $isRecent))];
    }

    private function visit(string $family, array $args): array {
        for ($i = 1, $words = []; $i < count($args); $i += 2 + $args[$i + 1]) {
            foreach (array_slice($args, $i + 2, $args[$i + 1]) as $visitor) {
                $seen = &$this->seen["$family $args[$i]"][$visitor];
                $words[] = $isNew = $seen === null ? 1 : 0;
                $this->values[$family][$args[$i]] = ($this->values[$family][$args[$i]] ?? 0) + $isNew;
                $seen = true;
            }
        }
        return ['OK', 0, ...$words];
    }

    private function settings(string $family): array {
        return $this->families[substr(strstr($family, '/'), 1)] ?? [];
    }
}
