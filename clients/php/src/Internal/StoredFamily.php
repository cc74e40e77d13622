<?php declare(strict_types=1);

namespace Counterfoil\Internal;

use Closure, PDO, PDOException;
use Counterfoil\{Misconfigured, NotCounted};

/** A family whose values are in MySQL: exact ones are these plus what is pending in Redis. */
abstract class StoredFamily extends Family {
    private const DAEMON_S = 12;  // the daemon replies within 10 s
    private const DAEMON_PAUSE_US = 50_000;
    private const LEDGER = '(l.partition_no = ? AND l.incarnation = CAST(CONV(?, 16, 10) AS UNSIGNED))';
    /** @internal @var ?array{string, string, string} */
    public ?array $table = null;

    /** Returns the exact value (lua/README.md, "Reading the exact value"). */
    protected function exactValue(string $id): int {
        if ($this->session->database === null) return $this->daemonValue($id);
        ['partitions' => $of, 'settings' => $settings] = $this->ask();
        if (isset($settings['table']) && $this->table === null) {
            throw new Misconfigured('table', "expected the table of the application that has the values of $this->name");
        }
        $partitions = ($settings['wide'] ?? false) ? range(0, $of - 1) : [crc32($id) % $of];
        for ($attempt = 0; $attempt < 10; $attempt++, usleep(20_000)) {
            $pending = [];
            foreach ($partitions as $partition) $pending[$partition] = $this->pending($partition, $id);
            $rows = $this->query($id, $pending);
            $this->askRedis($this->fence(0), $this->ask(), $rows[0]['database_id']);
            $ledgers = array_column($rows, null, 'partition_no');
            $parts = [[$rows[0]['value']]];
            foreach ($pending as $partition => $of) {
                $parts[] = $this->missing($id, $partition, $of, $ledgers[$partition] ?? null);
            }
            if (!in_array(null, $parts, true)) return self::sum(...array_merge(...$parts));
        }
        throw new NotCounted('behind', 'the database is behind Redis: ask the primary', isTemporary: true);
    }

    /** Returns the value that the daemon reads, and asks again while the daemon is unavailable. */
    protected function daemonValue(string $id): int {
        $daemon = $this->session->daemon
            ?? throw new Misconfigured('daemon', 'expected the option `daemon`, or another way to read rows');
        $query = ['family' => "{$this->session->namespace}/$this->name", 'id' => $id];
        $url = rtrim($daemon, '/') . '/api/v1/values?' . http_build_query($query, '', '&', PHP_QUERY_RFC3986);
        $header = $this->session->token === null ? [] : ["Authorization: Bearer {$this->session->token}"];
        $http = ['timeout' => self::DAEMON_S, 'ignore_errors' => true, 'follow_location' => 0, 'header' => $header];
        for ($deadline = $this->session->deadline(); ; usleep(self::DAEMON_PAUSE_US)) {
            set_error_handler(fn(): bool => false);  // that of the application may throw
            $stream = @fopen($url, 'r', false, stream_context_create(['http' => $http]));
            $reply = $stream === false ? null : json_decode((string) @stream_get_contents($stream), true);
            restore_error_handler();
            $line = $stream === false ? '' : stream_get_meta_data($stream)['wrapper_data'][0];
            $status = (int) substr(strstr($line, ' ') ?: '', 1);
            $value = $reply['values'][0]['value'] ?? null;
            if ($status === 200 && is_int($value)) return $value;
            $problem = $stream === false ? error_get_last()['message'] ?? '' : $reply['error'] ?? 'no valid reply';
            if ($status >= 300 && $status < 500 && $status !== 429) throw new Misconfigured("daemon $status", $problem);
            if (hrtime(true) <= $deadline) continue;
            throw new NotCounted($stream === false ? 'no daemon' : "daemon $status", $problem, isTemporary: true);
        }
    }

    /** @return list<string|int> incarnation, seq, nonce, in flight, batch, buffer */
    private function pending(int $partition, string $id): array {
        $keys = $this->keys($partition, 'buffer', 'batch', 'meta');
        return array_slice($this->read('buffered_read', $keys, [$id]), 1);
    }

    /** Returns what is to be added to the stored value for a partition, or null if both are not of one moment. */
    private function missing(string $id, int $partition, array $pending, ?array $ledger): ?array {
        [$incarnation, $seq, $nonce, $inFlight, $batch, $buffer] = $pending;
        // a crash of Redis may have reverted an incarnation that has no batch in the ledger
        $isUnproven = $ledger === null && [$batch, $buffer] !== ['0', '0'];
        if ($isUnproven && $this->pending($partition, $id)[0] !== $incarnation) return null;
        $ledger ??= ['seq' => 0, 'nonce' => '', 'position' => null];
        $position = $ledger['position'];
        $behind = (int) $seq - (int) $ledger['seq'];
        if ($behind === 0 && (int) $seq !== 0 && $ledger['nonce'] !== ltrim($nonce, '0')) {
            throw new NotCounted('set back', 'Redis was set back: the daemon corrects it', isTemporary: true);
        }
        return match (true) {
            $behind === 0 && $position === null => [$buffer],
            $behind === 0 && $inFlight === 1 => [strcmp($id, $position) <= 0 ? 0 : $batch, $buffer],
            $behind === 1 && $position === null && $inFlight === 1 => [$batch, $buffer],
            default => null,
        };
    }

    /** @return list<array<string, mixed>> the stored value, and the ledger of each partition, in one statement */
    private function query(string $id, array $pending): array {
        $quoted = fn(string $name): string => '`' . str_replace(['`', '.'], ['``', '`.`'], $name) . '`';
        [$source, $key, $column] = array_map($quoted, $this->table ?? ['counterfoil_values', 'id', 'value']);
        $own = $this->table === null ? 'v.family = f.number AND ' : '';
        $ledgers = implode(' OR ', array_fill(0, count($pending), self::LEDGER));
        $sql = "SELECT f.database_id, COALESCE(v.$column, 0) AS value, l.partition_no, l.seq, l.position,"
            . ' LOWER(HEX(l.nonce)) AS nonce FROM counterfoil_families f'
            . " LEFT JOIN $source v ON {$own}v.$key = ?"
            . " LEFT JOIN counterfoil_ledger l ON l.family = f.number AND ($ledgers)"
            . ' WHERE f.namespace = ? AND f.name = ?';
        $args = [$id];
        foreach ($pending as $partition => [$incarnation]) array_push($args, $partition, $incarnation ?: '0');
        $database = $this->session->database;
        try {
            $database = $database instanceof Closure ? $database() : $database;
            if ($database->inTransaction()) {
                throw new Misconfigured('transaction', 'the snapshot of an open transaction may be old');
            }
            $statement = $database->prepare($sql);
            $statement->execute([...$args, $this->session->namespace, $this->name]);
            $rows = $statement->fetchAll(PDO::FETCH_ASSOC);
        } catch (PDOException $error) {
            throw new NotCounted('database', $error->getMessage(), isTemporary: true, previous: $error);
        }
        return $rows ?: throw new Misconfigured('UNCONFIGURED', 'the database lacks the family');
    }
}
