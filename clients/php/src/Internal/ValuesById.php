<?php declare(strict_types=1);

namespace Counterfoil\Internal;

use Closure;
use Counterfoil\CounterfoilException;

/** The exact values of counters, by their ids. */
trait ValuesById {
    use StoredValues;

    /**
     * Returns the exact value, of MySQL and Redis together.
     *
     * @param string|int $id
     * @param int|string|Closure(CounterfoilException): int|null $default what a page shows if no exact value arrives in time;
     *     a closure gets the error
     * @throws CounterfoilException
     */
    public function value(mixed $id, int|string|Closure|null $default = null): int {
        return $this->exactValues([$id], $default)[0];
    }

    /**
     * Returns the exact values of many counters, in the order of their ids: a request for 1,000 of them.
     *
     * @param iterable<string|int> $ids
     * @param int|string|list<int>|Closure(CounterfoilException): (int|list<int>)|null $default as in `value`: one for all, or
     *     a list in the order of the ids
     * @return list<int>
     * @throws CounterfoilException
     */
    public function values(iterable $ids, int|string|array|Closure|null $default = null): array {
        return $this->exactValues(self::listOf($ids), $default);
    }

    protected function valueId(mixed $given): string {
        return self::checkId($given);
    }
}
