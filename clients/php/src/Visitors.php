<?php declare(strict_types=1);

namespace Counterfoil;

use Counterfoil\Internal\StoredFamily;
use DateTimeImmutable;

/** Counts each visitor of a scope, e.g. of a shop, once a day. */
final class Visitors extends StoredFamily {
    protected const KIND = 'visitors';

    /**
     * Counts the visitor, and returns if it is the first visit to the scope on that day.
     *
     * @param string $day `YYYY-MM-DD`
     * @param string|int $visitor 1 to 255 bytes of any kind
     * @throws CounterfoilException
     */
    public function firstVisit(string|int $scope, string $day, string|int $visitor): bool {
        [$id, $visitor] = [$this->idOf($scope, $day), self::checkId($visitor, isText: false)];
        $args = [1, $id, 2, $visitor, $visitor];  // see Family::count
        $reply = $this->count($this->call('visitors_first', crc32($id), ['buffer', 'meta', "seen:$id"], $args));
        return self::number($reply[0] === 'OK' ? $reply[2] : $reply[1]) === 1;
    }

    /**
     * Returns the exact number of visitors of the scope on that day, of MySQL and Redis together.
     *
     * @throws CounterfoilException
     */
    public function value(string|int $scope, string $day): int {
        return $this->exactValues([$this->idOf($scope, $day)])[0];
    }

    /**
     * Returns the exact numbers of visitors of many scopes and days, in their order.
     *
     * @param iterable<array{string|int, string}> $days scopes and days
     * @return list<int>
     * @throws CounterfoilException
     */
    public function values(iterable $days): array {
        $ids = [];
        foreach ($days as [$scope, $day]) $ids[] = $this->idOf($scope, $day);
        return $this->exactValues($ids);
    }

    private function idOf(string|int $scope, string $day): string {
        $date = DateTimeImmutable::createFromFormat('!Y-m-d', $day);
        if ($date === false || $date->format('Y-m-d') !== $day) {
            throw new NotCounted('BADID', "expected a day like 2014-09-20, not $day");
        }
        return $this->checkRow(self::checkId($scope) . $this->ask()['settings']['separator'] . $day);
    }
}
