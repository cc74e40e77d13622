<?php declare(strict_types=1);

namespace Counterfoil;

use Closure, Throwable;
use Counterfoil\Internal\StoredFamily;

/** Counters whose changes return the new value, within bounds. */
final class Cached extends StoredFamily {
    protected const KIND = 'cached';
    private const SEEDS = 10;
    /** @internal */
    public ?Closure $readRow = null;

    /**
     * Changes the counter, and returns its new value.
     *
     * @throws CounterfoilException NotCounted with the reason RANGE and the current value beyond the bounds
     */
    public function incr(string|int $id, int|float $delta = 1): int {
        return $this->change($id, (string) self::checkDelta($delta));
    }

    /**
     * Changes the counter once for a request, however often and wherever it is run again, and returns the value that it had
     * then. A refusal by the bounds stays, too.
     *
     * @param string $request names the request: 1 to 64 bytes
     * @param ?string $epoch as in `Buffered::addOnce`
     * @throws CounterfoilException like incr
     */
    public function incrOnce(string $request, string|int $id, int|float $delta = 1, ?string $epoch = null): int {
        self::checkId($request, 64, isText: false);
        return $this->change($id, (string) self::checkDelta($delta), [$request, $epoch]);
    }

    /**
     * Returns the epoch to be stored with a job before `incrOnce` is called for the first time.
     *
     * @throws CounterfoilException
     */
    public function requestEpoch(string $request, string|int $id): string {
        self::checkId($request, 64, isText: false);
        return $this->ask($this->partitionOf(crc32(self::checkId($id))), isFresh: true)['generation'];
    }

    /**
     * Sets the counter, and returns its new value.
     *
     * @throws CounterfoilException like incr
     */
    public function set(string|int $id, int|float $value): int {
        return $this->change($id, '=' . self::checkDelta($value));
    }

    /**
     * Returns the value.
     *
     * @throws CounterfoilException
     */
    public function get(string|int $id): int {
        $id = $this->checkRow($id);
        $keys = $this->keys($this->partitionOf(crc32($id)), 'base', 'buffer', 'batch', 'meta');
        $args = [1, '', bin2hex(random_bytes(8)), $id, $id];  // see Family::count
        return $this->seeded($id, function () use ($keys, $args): string|int {
            $word = $this->read('cached_get', $keys, $args)[1];
            if ($word !== 'UNCONFIGURED') return $word;
            throw new NotCounted($word, "$this->name in the partition of $args[3]", isTemporary: true);
        });
    }

    /**
     * Returns the exact value, of MySQL and Redis together; `get` returns the same from Redis.
     *
     * @throws CounterfoilException
     */
    public function value(string|int $id): int {
        return $this->exactValues([self::checkId($id)])[0];
    }

    /**
     * Returns the exact values of many counters, in the order of their ids: a request for 1,000 of them.
     *
     * @param iterable<string|int> $ids
     * @return list<int>
     * @throws CounterfoilException
     */
    public function values(iterable $ids): array {
        return $this->exactValues(self::checkIds($ids));
    }

    private function change(string|int $id, string $change, ?array $request = null): int {
        $id = $this->checkRow($id);
        return $this->seeded($id, function () use ($id, $change, $request): string {
            $args = [$request === null ? 0 : 1, 2, $id, $change, '', 0];  // see Family::count
            $call = $this->call('cached_incr', crc32($id), ['base', 'buffer', 'batch', 'meta'], $args, $request);
            $word = explode(' ', (string) $this->count($call)[1])[0];
            return preg_replace('/^BEFORE:/', '', $this->known($word, $call->partition));
        });
    }

    /** Makes a call, and again with the row of the counter as long as Redis does not have it. */
    private function seeded(string $id, Closure $call): int {
        for ($seeds = 0; $seeds <= self::SEEDS; $seeds++) {
            $word = (string) $call();
            $parts = explode(':', $word);
            if ($parts[0] !== 'MISS') return self::number($word);
            $row = $this->row($id) ?? '-';  // read after the ticket was received, never before
            $partition = $this->partitionOf(crc32($id));
            $keys = [$this->fence($partition)[0], ...$this->keys($partition, 'base')];
            $seeded = $this->read('cached_seed', $keys, ['', $id, $parts[1], $row])[1];
            if ($seeded === 'NOROW' || $seeded === 'BEYOND') throw new NotCounted($seeded);
        }
        throw new NotCounted('MISS', 'the counter was deleted whenever its row was read', isTemporary: true);
    }

    private function row(string $id): ?int {
        if ($this->readRow === null) return $this->findValues([$id])[0];
        try {
            return ($this->readRow)($id);
        } catch (Throwable $error) {
            $isOurs = $error instanceof CounterfoilException;
            throw $isOurs ? $error : new NotCounted('row', $error->getMessage(), previous: $error);
        }
    }
}
