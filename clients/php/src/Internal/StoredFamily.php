<?php declare(strict_types=1);

namespace Counterfoil\Internal;

/** A family whose values are in MySQL: exact ones are these plus what is pending in Redis, as the daemon reads them. */
abstract class StoredFamily extends Family {
    /**
     * @param list<string> $ids
     * @return list<int> in the order of the ids
     */
    protected function exactValues(array $ids): array {
        return array_map(fn(?int $value): int => $value ?? 0, $this->findValues($ids));
    }

    /**
     * @param list<string> $ids
     * @return list<?int> null where only the application makes the row of a cached counter, and has not
     */
    protected function findValues(array $ids): array {
        return $this->session->daemons->values($this->session, "{$this->session->namespace}/$this->name", $ids);
    }

    /** @return list<string> */
    protected static function checkIds(iterable $ids): array {
        $checked = [];
        foreach ($ids as $id) $checked[] = self::checkId($id);
        return $checked;
    }
}
