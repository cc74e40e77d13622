<?php declare(strict_types=1);

namespace Counterfoil;

use Counterfoil\Internal\Family;
use DateTimeImmutable, DateTimeZone, Exception;

/** Counts over time, e.g. in each of the last 120 minutes. */
final class Series extends Family {
    protected const KIND = 'series';
    private const NAME_BYTES = 200;
    /** What PHP takes for abbreviations, without summer time. */
    private const ZONES = ['CET' => 'Europe/Brussels', 'EET' => 'Europe/Athens', 'MET' => 'Europe/Brussels', 'WET' => 'Europe/Lisbon'];

    /**
     * Counts into the current slice of each window.
     *
     * @param int|float $n an integer of 1 or more
     * @throws CounterfoilException
     */
    public function add(string|int $name, int|float $n = 1): void {
        [$name, $n] = [$this->checkRow($name, self::NAME_BYTES), self::checkDelta($n, 1)];
        $reply = $this->atTime(function (int $nowMs) use ($name, $n): array {
            $settings = $this->ask()['settings'];
            $names = ['open', 'schedule', 'names', 'idle'];
            $args = [count($settings['windows'])];
            foreach ($settings['windows'] as [$label, $slices]) {
                $names[] = "series:$label:$name";
                $args[] = self::precision($settings, $label, $slices, intdiv($nowMs, 1000));
            }
            return $this->count($this->call('series_add', crc32($name), $names, [...$args, $name, $n]));
        });
        self::pendingOf($reply, totals: 0);
    }

    /**
     * Returns a window: the start of each slice in Unix seconds, and its count, the oldest first. The last slice is not
     * over.
     *
     * @param string $label of a window of the family, e.g. `60s` or `day`
     * @return list<array{int, int}>
     * @throws CounterfoilException
     */
    public function get(string|int $name, string $label): array {
        $name = $this->checkRow($name, self::NAME_BYTES);
        $settings = $this->ask()['settings'];
        $slices = array_column($settings['windows'], 1, 0)[$label]
            ?? throw new NotCounted('BADARG', "the family has no window $label");
        $keys = $this->keys($this->partitionOf(crc32($name)), "series:$label:$name");
        [, $nowMs, $text] = $this->read('series_get', $keys, ['']);
        preg_match_all('/(\d+) (\d+)/', $text, $counted);
        $counts = array_combine($counted[1], $counted[2]);
        for ($i = 1 - $slices; $i <= 0; $i++) {
            $start = self::start($settings, $label, intdiv((int) $nowMs, 1000), $i);
            $window[] = [$start, (int) ($counts[$start] ?? 0)];
        }
        return $window;
    }

    /** Returns a window as series_add takes it: LABEL SLICE SLICES KEEP. */
    private static function precision(array $settings, string $label, int $slices, int $now): string {
        $kept = $settings['keep'] ?? [];
        [$slice, $called] = [(int) $label, '*'];
        if ($slice === 0) {
            $start = self::start($settings, $label, $now);
            $slice = "$start-" . self::start($settings, $label, $now, 1);
            $called = self::day($settings, $start)->format('Y-m-d');
        }
        $prefix = count($kept) > 1 ? "$label/$called/" : "$called/";
        return "$label $slice $slices " . (in_array($label, $kept, true) ? $prefix : '-');
    }

    /** Returns when a slice starts: the current one, or the one so many slices behind it. */
    private static function start(array $settings, string $label, int $now, int $slices = 0): int {
        $length = (int) $label;
        if ($length > 0) return (intdiv($now, $length) + $slices) * $length;
        $day = self::day($settings, $now);
        $first = $label === 'month' ? $day->modify('first day of this month') : $day;
        return self::midnight($first->modify("$slices $label"))->getTimestamp();
    }

    /** Returns the start of the local day. */
    private static function day(array $settings, int $now): DateTimeImmutable {
        $name = $settings['time_zone'] ?? 'UTC';
        try {
            $zone = new DateTimeZone(self::ZONES[$name] ?? $name);
        } catch (Exception $error) {
            throw new Misconfigured('time zone', "PHP does not know $name", previous: $error);
        }
        return self::midnight((new DateTimeImmutable("@$now"))->setTimezone($zone));
    }

    /** Returns when the day begins, the first time if clocks show midnight twice: PHP may return the second. */
    private static function midnight(DateTimeImmutable $time): DateTimeImmutable {
        $midnight = new DateTimeImmutable($time->format('Y-m-d'), $time->getTimezone());
        $at = $midnight->getTimestamp();
        $at += $midnight->getOffset() - $midnight->setTimestamp($at - 86_400)->getOffset();
        $first = (new DateTimeImmutable("@$at"))->setTimezone($time->getTimezone());
        return $first->format('Y-m-d H:i') === $midnight->format('Y-m-d H:i') ? $first : $midnight;
    }
}
