<?php declare(strict_types=1);

namespace Counterfoil\Internal;

/** A source of exact values: the daemons, or the memory of `Counterfoil\Testing`. */
interface Values {
    /**
     * @param string $family with its namespace
     * @param list<string> $ids
     * @return list<?int> in the order of the ids; null where only the application makes the row, and has not
     */
    public function values(Session $session, string $family, array $ids): array;
}
