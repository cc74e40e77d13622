<?php declare(strict_types=1);

namespace Counterfoil;

use Counterfoil\Internal\{Call, SummingFamily};
use DateTimeInterface;

/** Counts over time, e.g. in each of the last 120 minutes. */
final class Series extends SummingFamily {
    protected const KIND = 'series';
    protected const PARTS = 2;  // name and time
    protected const PER_CALL = 100;
    private const NAME_BYTES = 200;
    private const CALENDARS = ['calendar:day', 'calendar:month'];

    /**
     * Counts into the current slice of each window, or into those of another time.
     *
     * @param string|int $name
     * @param int $n 1 or more
     * @param DateTimeInterface|int|float|null $at when it happened, or Unix seconds; null for now
     * @throws CounterfoilException
     */
    public function add(mixed $name, mixed $n = 1, DateTimeInterface|int|float|null $at = null): void {
        [$name, $n] = [self::checkId($name, self::NAME_BYTES), self::checkDelta($n, 1)];
        $this->countOne([$name, self::millis($at), $n]);
    }

    /**
     * Adds to the sums of this process; see Buffered::later. Without `at` they count in the slice in which Redis takes them.
     *
     * @param string|int $name
     * @param int $n 1 or more
     * @param DateTimeInterface|int|float|null $at as in `add`
     * @throws CounterfoilException
     */
    public function later(mixed $name, mixed $n = 1, DateTimeInterface|int|float|null $at = null): void {
        [$name, $n] = [self::checkId($name, self::NAME_BYTES), self::checkDelta($n, 1)];
        $this->addSum($n, $name, self::millis($at));
    }

    /**
     * Returns a window: the start of each slice in Unix seconds, and its count, the oldest first. The last slice is not
     * over.
     *
     * @param string|int $name
     * @param string $label of a window of the family, e.g. `60s` or `day`
     * @return list<array{int, int}>
     * @throws CounterfoilException
     */
    public function get(mixed $name, string $label): array {
        $name = self::checkId($name, self::NAME_BYTES);
        return $this->session->within(function () use ($name, $label): array {
            $this->checkRow($name);
            $labels = $this->ask()['settings']['labels'];
            if (!in_array($label, $labels, true)) throw new NotCounted('BADARG', "the family has no window $label");
            $partition = $this->partitionOf(crc32($name));
            $window = $this->keys($partition, "series:$label:$name");
            [, $starts, $counts] = $this->readOfHome('series_get', $partition, self::CALENDARS, $window, $label);
            $pair = fn(string $start, string $count): array => [(int) $start, (int) $count];
            return array_map($pair, explode(' ', $starts), explode(' ', $counts));
        }, isRead: true);
    }

    protected function callOf(array $some, array $known): Call {
        [$names, $args, $items] = [['buffer', 'meta', 'names', 'idle'], [], []];
        foreach ($some as $i => [$partition, $key, $name, [, $at, $n]]) {
            foreach ($known['settings']['labels'] as $label) $names[] = "series:$label:$name";
            array_push($args, $name, $n, $at);
            $items[$key] = [$name, $at, $n, $i + 1];
        }
        $keys = [...$this->fence($partition), ...$this->keys($this->home($partition), ...self::CALENDARS),
            ...$this->keys($partition, ...$names)];
        return new Call('series_add', $keys, $args, $partition, $known['partitions'], $items);
    }

    protected function resultOf(array $reply, array $item): ?int {
        return self::pendingOf($reply, $item[3]);
    }

    /** Returns a time in Unix milliseconds, or '' for now. */
    private static function millis(DateTimeInterface|int|float|null $at): string {
        if ($at === null) return '';
        $ms = $at instanceof DateTimeInterface ? (float) $at->format('U.u') * 1000 : $at * 1000;
        if ($ms >= 0 && $ms < 1e15) return (string) (int) $ms;
        throw new NotCounted('BADTIME', 'expected a DateTimeInterface, or Unix seconds');
    }
}
