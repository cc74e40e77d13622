<?php declare(strict_types=1);

namespace Counterfoil;

use Counterfoil\Internal\{Call, Family};
use DateTimeInterface;

/** Counts over time, e.g. in each of the last 120 minutes. */
final class Series extends Family {
    protected const KIND = 'series';
    private const NAME_BYTES = 200;
    private const CALENDARS = ['calendar:day', 'calendar:month'];

    /**
     * Counts into the current slice of each window, or into those of another time.
     *
     * @param int|float $n an integer of 1 or more
     * @param DateTimeInterface|int|float|null $at when it happened, or Unix seconds; null for now
     * @throws CounterfoilException
     */
    public function add(string|int $name, int|float $n = 1, DateTimeInterface|int|float|null $at = null): void {
        [$name, $n, $at] = [$this->checkRow($name, self::NAME_BYTES), self::checkDelta($n, 1), self::millis($at)];
        $reply = $this->countAnew(function () use ($name, $n, $at): Call {
            ['settings' => $settings, 'partitions' => $of] = $this->ask();
            $partition = crc32($name) % $of;
            $names = ['buffer', 'meta', 'names', 'idle'];
            foreach ($settings['labels'] as $label) $names[] = "series:$label:$name";
            $keys = [...$this->fence($partition), ...$this->keys($this->home($partition), ...self::CALENDARS),
                ...$this->keys($partition, ...$names)];
            return new Call('series_add', $keys, [$name, $n, $at], $partition, $of);
        });
        self::pendingOf($reply);
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
        $labels = $this->ask()['settings']['labels'];
        if (!in_array($label, $labels, true)) throw new NotCounted('BADARG', "the family has no window $label");
        $partition = $this->partitionOf(crc32($name));
        $window = $this->keys($partition, "series:$label:$name");
        [, $starts, $counts] = $this->readOfHome('series_get', $partition, self::CALENDARS, $window, $label);
        $pair = fn(string $start, string $count): array => [(int) $start, (int) $count];
        return array_map($pair, explode(' ', $starts), explode(' ', $counts));
    }

    /** Returns a time in Unix milliseconds, or nothing for now. */
    private static function millis(DateTimeInterface|int|float|null $at): int|string {
        if ($at === null) return '';
        $ms = $at instanceof DateTimeInterface ? (float) $at->format('U.u') * 1000 : $at * 1000;
        if ($ms >= 0 && $ms < 1e15) return (int) $ms;
        throw new NotCounted('BADTIME', 'expected a DateTimeInterface, or Unix seconds');
    }
}
