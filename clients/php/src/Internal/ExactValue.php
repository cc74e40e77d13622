<?php declare(strict_types=1);

namespace Counterfoil\Internal;

use Closure, PDO, PDOException;
use Counterfoil\{Misconfigured, NotCounted};

/** Exact values: what MySQL holds plus what is pending in Redis (lua/README.md, "Reading the exact value"). */
trait ExactValue {
    private function exactValue(string $id, ?array $table): int {
        self::checkId($id);
        if ($this->session->database === null) {
            return $this->daemon()->value("{$this->session->namespace}/{$this->name}", $id);
        }
        $deadline = $this->session->deadline();
        $family = $this->ask(0, $deadline);
        $partitions = ($family['settings']['wide'] ?? false) ? range(0, $family['partitions'] - 1)
            : [crc32($id) % $family['partitions']];
        for ($attempt = 1; $attempt <= 10 && hrtime(true) <= $deadline || $attempt === 1; $attempt++) {
            $pending = $this->pending($partitions, $id, $deadline);
            [$value, $ledgers] = $this->stored($id, $table, $pending);
            $value = $this->sum($id, $value, $pending, $ledgers, $deadline);
            if (is_float($value)) throw new NotCounted('RANGE', 'the value is beyond 64 bits');
            if ($value !== null) return $value;
            usleep(20_000);
        }
        throw new NotCounted('behind', 'the database is behind Redis, or Redis was set back: ask the primary', isTemporary: true);
    }

    /** @return array<int, array> what each partition has pending: incarnation, seq, nonce, in flight, batch, buffer */
    private function pending(array $partitions, string $id, int $deadline): array {
        $pending = [];
        foreach ($partitions as $partition) {
            $keys = $this->keys($partition, 'buffer', 'batch', 'meta');
            $pending[$partition] = array_slice($this->read('buffered_read', $keys, [$id], $deadline), 1);
        }
        return $pending;
    }

    /** @return array{int, array<int, array>} the value that is stored, and the ledger of each partition, of one moment */
    private function stored(string $id, ?array $table, array $pending): array {
        $name = fn(string $name): string => '`' . str_replace('`', '``', $name) . '`';
        [$source, $key, $column] = array_map($name, $table ?? ['counterfoil_values', 'id', 'value']);
        $own = $table === null ? 'v.family = f.number AND ' : '';
        $ledgers = implode(' OR ', array_fill(0, count($pending),
            '(l.partition_no = ? AND l.incarnation = CAST(CONV(?, 16, 10) AS UNSIGNED))'));
        $sql = "SELECT COALESCE(v.$column, 0) AS value, l.partition_no, l.seq, LOWER(HEX(l.nonce)) AS nonce, l.position "
            . "FROM counterfoil_families f LEFT JOIN $source v ON {$own}v.$key = ? "
            . "LEFT JOIN counterfoil_ledger l ON l.family = f.number AND ($ledgers) WHERE f.namespace = ? AND f.name = ?";
        $args = [$id];
        foreach ($pending as $partition => [$incarnation]) {
            array_push($args, $partition, $incarnation === '' ? '0' : $incarnation);
        }
        $rows = $this->query($sql, [...$args, $this->session->namespace, $this->name]);
        $value = filter_var($rows[0]['value'] ?? throw new Misconfigured('UNCONFIGURED', 'the database does not have the family'),
            FILTER_VALIDATE_INT);
        return [is_int($value) ? $value : throw new NotCounted('RANGE', 'the row holds no integer of 64 bits'),
            array_column($rows, null, 'partition_no')];
    }

    /** Returns value and pending added up, or null if they are not of one moment. */
    private function sum(string $id, int $value, array $pending, array $ledgers, int $deadline): int|float|null {
        foreach ($pending as $partition => [$incarnation, $seq, $nonce, $inFlight, $batch, $buffer]) {
            [$seq, $a] = [(int) $seq, (int) ($ledgers[$partition]['seq'] ?? 0)];
            $position = $ledgers[$partition]['position'] ?? null;
            if ($a === $seq && $a !== 0 && $ledgers[$partition]['nonce'] !== (ltrim($nonce, '0') ?: '0')) {
                throw new NotCounted('set back', 'Redis was set back; the daemon corrects it within a minute', isTemporary: true);
            }
            $isApplied = match (true) {
                $a === $seq && $position === null => true,
                $a === $seq && $inFlight === 1 => strcmp($id, $position) <= 0,
                $a === $seq - 1 && $position === null && $inFlight === 1 => false,
                default => null,
            };
            if ($isApplied === null) return null;
            // a crash of Redis may have reverted an incarnation that has no batch in the ledger
            if ($a === 0 && ((int) $batch !== 0 || (int) $buffer !== 0)
                && $this->pending([$partition], $id, $deadline)[$partition][0] !== $incarnation) {
                return null;
            }
            $value += (int) $buffer + ($isApplied ? 0 : (int) $batch);
        }
        return $value;
    }

    /** @return list<array<string, mixed>> */
    private function query(string $sql, array $args): array {
        $database = $this->session->database;
        try {
            $database = $database instanceof Closure ? $database() : $database;
            if ($database->inTransaction()) {
                throw new Misconfigured('transaction', 'value cannot read within an open transaction, whose snapshot may be old');
            }
            $statement = $database->prepare($sql);
            if ($statement === false || !$statement->execute($args)) {
                throw new PDOException(implode(' ', ($statement ?: $database)->errorInfo()));
            }
            return $statement->fetchAll(PDO::FETCH_ASSOC);
        } catch (PDOException $error) {
            throw new NotCounted('database', $error->getMessage(), isTemporary: true, previous: $error);
        }
    }
}
