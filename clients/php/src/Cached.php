<?php declare(strict_types=1);

namespace Counterfoil;

use Closure, Throwable;
use Counterfoil\Internal\{Family, ValuesById};

/** Counters whose changes return the new value, within bounds. */
final class Cached extends Family {
    use ValuesById;

    protected const KIND = 'cached';
    private const SEEDS = 10;
    /** @internal */
    public ?Closure $readRow = null;

    /**
     * Changes the counter, and returns its new value.
     *
     * @param string|int $id
     * @param int $delta
     * @throws CounterfoilException NotCounted with the reason RANGE and the current value beyond the bounds
     */
    public function incr(mixed $id, mixed $delta = 1): int {
        return $this->change($id, (string) self::checkDelta($delta));
    }

    /**
     * Changes the counter once for a request, however often and in whichever process it is made, and returns the value that it
     * had then. A request that the bounds refused is refused again.
     *
     * @param string|int $request names the request: 1 to 64 bytes
     * @param string|int $id
     * @param int $delta
     * @param ?string $epoch as in `Buffered::addOnce`
     * @throws CounterfoilException like incr
     */
    public function incrOnce(mixed $request, mixed $id, mixed $delta = 1, ?string $epoch = null): int {
        return $this->change($id, (string) self::checkDelta($delta), [self::checkRequest($request), $epoch]);
    }

    /**
     * Returns the epoch to be stored with a job before `incrOnce` is called for the first time.
     *
     * @param string|int $request
     * @param string|int $id
     * @throws CounterfoilException
     */
    public function requestEpoch(mixed $request, mixed $id): string {
        self::checkRequest($request);
        $id = self::checkId($id);
        return $this->session->within(fn(): string => $this->ask($this->partitionOf(crc32($id)), isFresh: true)['generation']);
    }

    /**
     * Sets the counter, and returns its new value.
     *
     * @param string|int $id
     * @param int $value
     * @throws CounterfoilException like incr
     */
    public function set(mixed $id, mixed $value): int {
        return $this->change($id, '=' . self::checkDelta($value));
    }

    /**
     * Returns the value.
     *
     * @param string|int $id
     * @throws CounterfoilException
     */
    public function get(mixed $id): int {
        $id = self::checkId($id);
        return $this->session->within(fn(): int => $this->seeded($id, function () use ($id): string|int {
            $this->checkRow($id);
            $keys = $this->keys($this->partitionOf(crc32($id)), 'base', 'buffer', 'batch', 'meta');
            $args = [1, '', bin2hex(random_bytes(8)), '', $id, $id];  // the id twice, see Family::count
            $word = $this->read('cached_get', $keys, $args)[1];
            if ($word !== 'UNCONFIGURED') return $word;
            throw new NotCounted($word, "$this->name in the partition of $id", isTemporary: true);
        }), isRead: true);
    }

    private function change(mixed $id, string $change, ?array $request = null): int {
        $id = self::checkId($id);
        return $this->session->within(fn(): int => $this->seeded($id, function () use ($id, $change, $request): string {
            $this->checkRow($id);
            $args = [$request === null ? 0 : 1, 2, $id, $change, '', 0];  // the second pair counts nothing, see Family::count
            $call = $this->call('cached_incr', crc32($id), ['base', 'buffer', 'batch', 'meta'], $args, $request);
            $word = explode(' ', (string) $this->count($call)[1])[0];
            return preg_replace('/^BEFORE:/', '', $this->known($word, $call->partition));
        }));
    }

    /** Makes a call. While Redis does not have the counter, seeds it from its row, and makes the call again. */
    private function seeded(string $id, Closure $call): int {
        for ($seeds = 0; $seeds <= self::SEEDS; $seeds++) {
            $word = (string) $call();
            $parts = explode(':', $word);
            if ($parts[0] !== 'MISS') return self::number($word);
            $row = $this->row($id) ?? '-';  // read after the ticket was received: a value that was read before may be out of date
            $partition = $this->partitionOf(crc32($id));
            $keys = [$this->fence($partition)[0], ...$this->keys($partition, 'base')];
            $seeded = $this->read('cached_seed', $keys, ['', '', $id, $parts[1], $row])[1];
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
