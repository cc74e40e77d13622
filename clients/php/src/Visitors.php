<?php declare(strict_types=1);

namespace Counterfoil;

use Closure, DateTimeImmutable;
use Counterfoil\Internal\{Call, StoredValues, SummingFamily};

/** Counts each visitor of a scope, e.g. of a shop, once a day. */
final class Visitors extends SummingFamily {
    use StoredValues;

    protected const KIND = 'visitors';
    protected const PARTS = 3;  // scope, day and visitor

    /**
     * Counts the visitor, and returns if it is the first visit to the scope on that day.
     *
     * @param string|int $scope
     * @param string $day `YYYY-MM-DD`
     * @param string|int $visitor 1 to 255 bytes of any kind
     * @throws CounterfoilException
     */
    public function firstVisit(mixed $scope, mixed $day, mixed $visitor): bool {
        return $this->countOne([...self::checkDay($scope, $day), self::checkId($visitor, isText: false), 1]) === 1;
    }

    /**
     * Adds a visitor to those of this process; see Buffered::later.
     *
     * @param string|int $scope
     * @param string $day `YYYY-MM-DD`
     * @param string|int $visitor 1 to 255 bytes of any kind
     * @throws CounterfoilException
     */
    public function later(mixed $scope, mixed $day, mixed $visitor): void {
        $this->addSum(1, ...[...self::checkDay($scope, $day), self::checkId($visitor, isText: false)]);
    }

    /**
     * Returns the exact number of visitors of the scope on that day, of MySQL and Redis together.
     *
     * @param string|int $scope
     * @param int|string|Closure(CounterfoilException): int|null $default as in `Buffered::value`
     * @throws CounterfoilException
     */
    public function value(mixed $scope, mixed $day, int|string|Closure|null $default = null): int {
        return $this->exactValues([[$scope, $day]], $default)[0];
    }

    /**
     * Returns the exact numbers of visitors of many scopes and days, in their order.
     *
     * @param iterable<array{string|int, string}> $days scopes and days
     * @param int|string|list<int>|Closure(CounterfoilException): (int|list<int>)|null $default as in `Buffered::values`
     * @return list<int>
     * @throws CounterfoilException
     */
    public function values(iterable $days, int|string|array|Closure|null $default = null): array {
        return $this->exactValues(self::listOf($days), $default);
    }

    protected function valueId(mixed $given): string {
        return $this->checkRow($this->idOf(self::checkDay(...$given), $this->ask()['settings']));
    }

    protected function idOf(array $item, array $settings): string {
        return "$item[0]$settings[separator]$item[1]";
    }

    protected function callOf(array $some, array $known): Call {
        $ids = $items = [];
        foreach ($some as [$partition, $key, $id, $item]) $ids[$id][$key] = $item;
        [$names, $args] = [['buffer', 'meta'], [count($ids)]];
        foreach ($ids as $id => $visits) {
            $names[] = "seen:$id";
            foreach ($visits as $key => $item) $items[$key] = [...$item, count($items) + 1];
            array_push($args, (string) $id, count($visits), ...array_column($visits, 2));
        }
        // the last visitor comes twice: the second one counts nothing, see Family::count
        $args[count($args) - count($visits) - 1]++;
        $args[] = end($args);
        $keys = [...$this->fence($partition), ...$this->keys($partition, ...$names)];
        return new Call('visitors_first', $keys, $args, $partition, $known['partitions'], $items);
    }

    protected function resultOf(array $reply, array $item): int {
        return self::number($reply[end($item) + ($reply[0] === 'OK' ? 1 : 0)]);
    }

    /** @return array{string, string} */
    private static function checkDay(mixed $scope, mixed $day): array {
        $date = is_string($day) ? DateTimeImmutable::createFromFormat('!Y-m-d', $day) : false;
        if ($date !== false && $date->format('Y-m-d') === $day) return [self::checkId($scope), $day];
        throw new NotCounted('BADID', 'expected a day like 2014-09-20, not ' . (is_string($day) ? $day : get_debug_type($day)));
    }
}
