<?php declare(strict_types=1);

namespace Counterfoil;

use Counterfoil\Internal\{Session, ExactValue, Family};

/** Counts each visitor of a scope, e.g. of a shop, once a day. */
final class Visitors extends Family {
    use ExactValue;

    protected const KIND = 'visitors';

    /** @internal use Counterfoil::visitors */
    public function __construct(Session $session, string $name, private readonly ?array $table = null) {
        parent::__construct($session, $name);
    }

    /**
     * Counts the visitor, and returns if it is the first visit to the scope on that day.
     *
     * @param string $day `YYYY-MM-DD`
     * @param string $visitor 1 to 255 bytes of any kind
     * @throws CounterfoilException
     */
    public function firstVisit(string|int $scope, string $day, string|int $visitor): bool {
        $id = self::idOf($scope, $day);
        self::checkId((string) $visitor, isText: false);
        $deadline = $this->session->deadline();
        $partition = $this->partitionOf($id, $deadline);
        $args = [$this->ask($partition, $deadline)['settings']['remember'], 1, $id, 2, (string) $visitor, (string) $visitor];
        $reply = $this->count('visitors_first', $partition, $this->keys($partition, 'buffer', 'meta', "seen:$id"), $args, $deadline);
        return self::number(explode(' ', (string) $reply[$reply[0] === 'OK' ? 2 : 1])[0]) === 1;
    }

    /**
     * Returns the exact number of visitors of the scope on that day, of MySQL and Redis together.
     *
     * @throws CounterfoilException
     */
    public function value(string|int $scope, string $day): int {
        return $this->exactValue(self::idOf($scope, $day), $this->table);
    }

    private static function idOf(string|int $scope, string $day): string {
        if (preg_match('/^(\d{4})-(\d\d)-(\d\d)$/D', $day, $date) !== 1 || !checkdate((int) $date[2], (int) $date[3], (int) $date[1])) {
            throw new NotCounted('BADARG', "expected a day like 2014-09-20, not $day");
        }
        self::checkId((string) $scope);
        self::checkId("$scope/$day");
        return "$scope/$day";
    }
}
