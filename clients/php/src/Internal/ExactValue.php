<?php declare(strict_types=1);

namespace Counterfoil\Internal;

use Closure, PDO, PDOException;
use Counterfoil\{Misconfigured, NotCounted};

/** Exact values: what MySQL holds plus what is pending in Redis (lua/README.md, "Reading the exact value"). */
trait ExactValue {
    private function exactValue(string $id): int {
        if ($this->session->database === null) return $this->daemonValue($id);
        ['partitions' => $count, 'settings' => $settings] = $this->ask();
        $partitions = ($settings['wide'] ?? false) ? range(0, $count - 1) : [crc32($id) % $count];
        for ($attempt = 0; $attempt < 10; $attempt++, usleep(20_000)) {
            $pending = [];
            foreach ($partitions as $partition) $pending[$partition] = $this->pending($partition, $id);
            $rows = $this->query($id, $pending);
            $this->checkDatabase($rows[0]['database_id']);
            $ledgers = array_column($rows, null, 'partition_no');
            $sums = [$rows[0]['value']];
            foreach ($pending as $partition => $of) $sums[] = $this->missing($id, $partition, $of, $ledgers[$partition] ?? null);
            if (!in_array(null, $sums, true)) return self::sum(...$sums);
        }
        throw new NotCounted('behind', 'the database is behind Redis, or Redis was set back: ask the primary', isTemporary: true);
    }

    private function daemonValue(string $id): int {
        return $this->session->daemon->value("{$this->session->namespace}/$this->name", $id);
    }

    /** @return list<string|int> incarnation, seq, nonce, in flight, batch, buffer */
    private function pending(int $partition, string $id): array {
        return array_slice($this->read('buffered_read', $this->keys($partition, 'buffer', 'batch', 'meta'), [$id]), 1);
    }

    /** Returns what the stored value lacks of a partition, or null if both are not of one moment. */
    private function missing(string $id, int $partition, array $pending, ?array $ledger): ?int {
        [$incarnation, $seq, $nonce, $inFlight, $batch, $buffer] = $pending;
        // a crash of Redis may have reverted an incarnation that has no batch in the ledger
        $isUnproven = $ledger === null && [$batch, $buffer] !== ['0', '0'];
        if ($isUnproven && $this->pending($partition, $id)[0] !== $incarnation) return null;
        [$behind, $position] = [(int) $seq - (int) ($ledger['seq'] ?? 0), $ledger['position'] ?? null];
        if ($behind === 0 && $ledger !== null && $ledger['nonce'] !== ltrim($nonce, '0')) {
            throw new NotCounted('set back', 'Redis was set back; the daemon corrects it within a minute', isTemporary: true);
        }
        return match (true) {
            $behind === 0 && $position === null => (int) $buffer,
            $behind === 0 && $inFlight === 1 => self::sum(strcmp($id, $position) <= 0 ? 0 : $batch, $buffer),
            $behind === 1 && $position === null && $inFlight === 1 => self::sum($batch, $buffer),
            default => null,
        };
    }

    /** @return list<array<string, mixed>> the stored value, and the ledger of each partition, in one statement */
    private function query(string $id, array $pending): array {
        $quoted = fn(string $name): string => '`' . str_replace('`', '``', $name) . '`';
        [$source, $key, $column] = array_map($quoted, $this->table ?? ['counterfoil_values', 'id', 'value']);
        $own = $this->table === null ? 'v.family = f.number AND ' : '';
        $ledgers = array_fill(0, count($pending), '(l.partition_no = ? AND l.incarnation = CAST(CONV(?, 16, 10) AS UNSIGNED))');
        $sql = "SELECT f.database_id, COALESCE(v.$column, 0) AS value, l.partition_no, l.seq, LOWER(HEX(l.nonce)) AS nonce,"
            . " l.position FROM counterfoil_families f LEFT JOIN $source v ON {$own}v.$key = ?"
            . ' LEFT JOIN counterfoil_ledger l ON l.family = f.number AND (' . implode(' OR ', $ledgers) . ')'
            . ' WHERE f.namespace = ? AND f.name = ?';
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
