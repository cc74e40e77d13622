<?php declare(strict_types=1);

namespace Counterfoil\Internal;

use Closure;
use Counterfoil\NotCounted;

/** The exact values of a family: what MySQL has plus what is pending in Redis. The daemon reads both. */
trait StoredValues {
    /** Returns the id for an argument of `values`. */
    abstract protected function valueId(mixed $given): string;

    /** @return list<int> the exact values, or the defaults if they do not arrive in time */
    private function exactValues(array $given, mixed $default): array {
        $read = fn(): array => $this->findValues(array_map($this->valueId(...), $given));
        try {
            return array_map(intval(...), $this->session->within($read, isRead: true));
        } catch (NotCounted $error) {
            if (!$error->isTemporary || $default === null) throw $error;
        }
        if ($default instanceof Closure) $default = $default($error);
        $defaults = is_array($default) ? array_values($default) : array_fill(0, count($given), $default);
        if (count($defaults) === count($given)) return array_map(intval(...), $defaults);
        throw new NotCounted('BADARG', 'expected a default for each id', previous: $error);
    }

    /**
     * @param list<string> $ids
     * @return list<?int> null where only the application makes the row of a cached counter, and has not
     */
    protected function findValues(array $ids): array {
        return $this->session->values->values($this->session, $this->path, $ids);
    }

    private static function listOf(iterable $given): array {
        return is_array($given) ? array_values($given) : iterator_to_array($given, false);
    }
}
