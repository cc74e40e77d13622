<?php declare(strict_types=1);

namespace Counterfoil\Internal;

use Closure, PDO, PDOException;
use Counterfoil\{Misconfigured, NotCounted};

/** Exact values: what MySQL holds plus what is pending in Redis (lua/README.md, "Reading the exact value"). */
trait ExactValue {
    /** The database that was found to be the right one. */
    private ?string $database = null;

    private function exactValue(string $id, ?array $table): int {
        self::checkId($id);
        if ($this->session->database === null) {
            return $this->daemon()->value("{$this->session->namespace}/{$this->name}", $id);
        }
        $deadline = $this->session->deadline();
        $known = $this->ask(0, $deadline);
        $isWide = $known['settings']['wide'] ?? false;
        $partitions = $isWide ? range(0, $known['partitions'] - 1) : [crc32($id) % $known['partitions']];
        for ($attempt = 0; $attempt < 10; $attempt++, usleep(20_000)) {
            $pending = [];
            foreach ($partitions as $partition) $pending[$partition] = $this->pending($partition, $id, $deadline);
            $rows = $this->query($id, $table, $pending);
            if ($this->database !== $rows[0]['database_id']) $this->checkDatabase($rows[0]['database_id'], $deadline);
            $this->database = $rows[0]['database_id'];
            $value = filter_var($rows[0]['value'], FILTER_VALIDATE_INT, FILTER_NULL_ON_FAILURE) ?? NAN;
            $ledgers = array_column($rows, null, 'partition_no');
            foreach ($pending as $partition => $of) {
                $sum = $this->sum($id, $of, $ledgers[$partition] ?? ['seq' => 0, 'position' => null]);
                // a crash of Redis may have reverted an incarnation that has no batch in the ledger
                $isProven = isset($ledgers[$partition]) || [$of[4], $of[5]] === ['0', '0']
                    || $this->pending($partition, $id, $deadline)[0] === $of[0];
                if ($sum === null || !$isProven) continue 2;
                $value += $sum;
            }
            return is_int($value) ? $value : throw new NotCounted('RANGE', 'the value is not an integer of 64 bits');
        }
        throw new NotCounted('behind', 'the database is behind Redis, or Redis was set back: ask the primary', isTemporary: true);
    }

    /** @return list<string|int> incarnation, seq, nonce, in flight, batch, buffer */
    private function pending(int $partition, string $id, int $deadline): array {
        $keys = $this->keys($partition, 'buffer', 'batch', 'meta');
        return array_slice($this->read('buffered_read', $keys, [$id], $deadline), 1);
    }

    /** Returns what the stored value lacks of a partition, or null if both are not of one moment. */
    private function sum(string $id, array $pending, array $ledger): int|float|null {
        [, $seq, $nonce, $inFlight, $batch, $buffer] = $pending;
        [$seq, $a, $position] = [(int) $seq, (int) $ledger['seq'], $ledger['position']];
        if ($a === $seq && $a !== 0 && $ledger['nonce'] !== ltrim($nonce, '0')) {
            throw new NotCounted('set back', 'Redis was set back; the daemon corrects it within a minute', isTemporary: true);
        }
        return match (true) {
            $a === $seq && $position === null => (int) $buffer,
            $a === $seq && $inFlight === 1 => (strcmp($id, $position) <= 0 ? 0 : (int) $batch) + (int) $buffer,
            $a === $seq - 1 && $position === null && $inFlight === 1 => (int) $batch + (int) $buffer,
            default => null,
        };
    }

    /** @return list<array<string, mixed>> the stored value, and the ledger of each partition, in one statement */
    private function query(string $id, ?array $table, array $pending): array {
        $name = fn(string $name): string => '`' . str_replace('`', '``', $name) . '`';
        [$source, $key, $column] = array_map($name, $table ?? ['counterfoil_values', 'id', 'value']);
        $own = $table === null ? 'v.family = f.number AND ' : '';
        $ledger = '(l.partition_no = ? AND l.incarnation = CAST(CONV(?, 16, 10) AS UNSIGNED))';
        $sql = "SELECT f.database_id, COALESCE(v.$column, 0) AS value, l.partition_no, l.seq, LOWER(HEX(l.nonce)) AS nonce, l.position "
            . "FROM counterfoil_families f LEFT JOIN $source v ON {$own}v.$key = ? LEFT JOIN counterfoil_ledger l "
            . 'ON l.family = f.number AND (' . implode(' OR ', array_fill(0, count($pending), $ledger))
            . ') WHERE f.namespace = ? AND f.name = ?';
        $args = [$id];
        foreach ($pending as $partition => [$incarnation]) array_push($args, $partition, $incarnation ?: '0');
        $database = $this->session->database;
        try {
            $database = $database instanceof Closure ? $database() : $database;
            if ($database->inTransaction()) {
                throw new Misconfigured('transaction', 'value cannot read within an open transaction, whose snapshot may be old');
            }
            $statement = $database->prepare($sql);
            $isRead = $statement !== false && $statement->execute([...$args, $this->session->namespace, $this->name]);
            if (!$isRead) throw new PDOException(implode(' ', ($statement ?: $database)->errorInfo()));
            return $statement->fetchAll(PDO::FETCH_ASSOC) ?: throw new Misconfigured('UNCONFIGURED', 'the database lacks the family');
        } catch (PDOException $error) {
            throw new NotCounted('database', $error->getMessage(), isTemporary: true, previous: $error);
        }
    }
}
