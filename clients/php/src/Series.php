<?php declare(strict_types=1);

namespace Counterfoil;

use DateTimeImmutable, DateTimeZone, Exception;
use Counterfoil\Internal\Family;

/** Counts over time, e.g. in each of the last 120 minutes. */
final class Series extends Family {
    protected const KIND = 'series';
    private const NAME_BYTES = 200;

    /**
     * Counts into the current slice of each window.
     *
     * @throws CounterfoilException
     */
    public function add(string|int $name, int|float $n = 1): void {
        $name = (string) $name;
        self::checkId($name, self::NAME_BYTES);
        if (self::checkDelta($n) < 1) throw new NotCounted('BADARG', 'expected an n of 1 or more');
        $deadline = $this->session->deadline();
        $partition = $this->partitionOf($name, $deadline);
        $settings = $this->ask($partition, $deadline)['settings'];
        $windows = array_map(fn(array $window): string => "series:{$window[0]}:$name", $settings['windows']);
        $keys = $this->keys($partition, 'open', 'schedule', 'names', 'idle', ...$windows);
        [$status, $word] = $this->atTime(function (int $nowMs) use ($settings, $partition, $keys, $name, $n, $deadline): array {
            $precisions = $this->precisions($settings, intdiv($nowMs, 1000));
            return $this->count('series_add', $partition, $keys, [count($precisions), ...$precisions, $name, $n], $deadline);
        });
        if ($status === 'DUP') $word = preg_replace('/^1:/', '', $word);
        if ($word !== '') self::number($word);
    }

    /**
     * Returns a window: the start of each slice in Unix seconds, and its count, the oldest first. The last slice is not over.
     *
     * @param string $label of a window of the family, e.g. `60s` or `day`
     * @return list<array{int, int}>
     * @throws CounterfoilException
     */
    public function get(string|int $name, string $label): array {
        $name = (string) $name;
        self::checkId($name, self::NAME_BYTES);
        $deadline = $this->session->deadline();
        $settings = $this->ask(0, $deadline)['settings'];
        $slices = array_column($settings['windows'], 1, 0)[$label]
            ?? throw new NotCounted('BADARG', "the family has no window $label");
        $keys = $this->keys($this->partitionOf($name, $deadline), "series:$label:$name");
        [, $nowMs, $text] = $this->read('series_get', $keys, [''], $deadline);
        $words = $text === '' ? [] : explode(' ', $text);
        $counts = [];
        for ($i = 0; $i + 1 < count($words); $i += 2) $counts[$words[$i]] = (int) $words[$i + 1];
        $starts = $this->starts($label, $slices, intdiv((int) $nowMs, 1000), $settings['time_zone'] ?? 'UTC');
        return array_map(fn(int $start): array => [$start, $counts[$start] ?? 0], array_slice($starts, 0, -1));
    }

    /** @return list<string> the windows as series_add takes them: LABEL SLICE SLICES KEEP */
    private function precisions(array $settings, int $now): array {
        $kept = $settings['keep'] ?? [];
        return array_map(function (array $window) use ($settings, $kept, $now): string {
            [$label, $slices] = $window;
            [$slice, $called] = [(string) (int) $label, '*'];
            if ($slice === '0') {
                $zone = $settings['time_zone'] ?? 'UTC';
                [$start, $end] = $this->starts($label, 1, $now, $zone);
                [$slice, $called] = ["$start-$end", self::day($start, $zone)->format('Y-m-d')];
            }
            $keep = in_array($label, $kept, true) ? (count($kept) > 1 ? "$label/" : '') . "$called/" : '-';
            return "$label $slice $slices $keep";
        }, $settings['windows']);
    }

    /** @return list<int> when the window's slices start, the oldest first, and then when the last one ends */
    private function starts(string $label, int $slices, int $now, string $zone): array {
        $length = (int) $label;
        if ($length > 0) {
            $end = (intdiv($now, $length) + 1) * $length;
            return range($end - $slices * $length, $end, $length);
        }
        $day = self::day($now, $zone);
        $first = $label === 'month' ? $day->modify('first day of this month') : $day;
        return array_map(
            fn(int $i): int => $first->modify(sprintf('%+d %s', $i, $label))->setTime(0, 0)->getTimestamp(),
            range(1 - $slices, 1),
        );
    }

    /** Returns the start of the local day. */
    private static function day(int $now, string $zone): DateTimeImmutable {
        try {
            return (new DateTimeImmutable("@$now"))->setTimezone(new DateTimeZone($zone))->setTime(0, 0);
        } catch (Exception $error) {
            throw new Misconfigured('time zone', $error->getMessage(), previous: $error);
        }
    }
}
