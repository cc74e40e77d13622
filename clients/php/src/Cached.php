<?php declare(strict_types=1);

namespace Counterfoil;

use Closure, Throwable;
use Counterfoil\Internal\{ExactValue, Session, Family};

/** Counters whose changes return the new value, within bounds. */
final class Cached extends Family {
    use ExactValue;

    protected const KIND = 'cached';
    private const TICKET_MS = 30_000;
    private const SEEDS = 10;

    /**
     * @internal use Counterfoil::cached
     * @param ?Closure(string): int $readRow
     */
    public function __construct(Session $session, string $name, private readonly ?Closure $readRow, private readonly ?array $table = null) {
        parent::__construct($session, $name);
    }

    /**
     * Changes the counter, and returns its new value.
     *
     * @throws CounterfoilException NotCounted with the reason RANGE and the current value beyond the bounds
     */
    public function incr(string|int $id, int|float $delta = 1): int {
        return $this->change((string) $id, (string) self::checkDelta($delta));
    }

    /**
     * Sets the counter, and returns its new value.
     *
     * @throws CounterfoilException like incr
     */
    public function set(string|int $id, int|float $value): int {
        return $this->change((string) $id, '=' . self::checkDelta($value));
    }

    /**
     * Returns the value.
     *
     * @throws CounterfoilException
     */
    public function get(string|int $id): int {
        return $this->seeded((string) $id, function (int $partition, int $deadline) use ($id): string|int {
            $args = [self::TICKET_MS, '', bin2hex(random_bytes(8)), (string) $id, (string) $id];
            return $this->read('cached_get', $this->keys($partition, 'base', 'buffer', 'batch'), $args, $deadline)[1];
        });
    }

    /**
     * Returns the exact value, of MySQL and Redis together; `get` returns the same from Redis.
     *
     * @throws CounterfoilException
     */
    public function value(string|int $id): int {
        return $this->exactValue((string) $id, $this->table);
    }

    private function change(string $id, string $change): int {
        return $this->seeded($id, function (int $partition, int $deadline) use ($id, $change): string|int {
            $settings = $this->ask($partition, $deadline)['settings'];
            $args = [self::TICKET_MS, $settings['min'] ?? '', $settings['max'] ?? '', 2, $id, $change, '', 0];  // see Family::count
            $keys = $this->keys($partition, 'base', 'buffer', 'batch', 'meta');
            return explode(' ', (string) $this->count('cached_incr', $partition, $keys, $args, $deadline)[1])[0];
        });
    }

    /** Makes a call, and again with the row of the counter as long as Redis does not have it. */
    private function seeded(string $id, Closure $call): int {
        self::checkId($id);
        $deadline = $this->session->deadline();
        $partition = $this->partitionOf($id, $deadline);
        for ($seeds = 0; $seeds <= self::SEEDS; $seeds++) {
            $word = $call($partition, $deadline);
            $parts = explode(':', (string) $word);
            if ($parts[0] === 'SUM') {  // beyond 2^53
                $sum = (int) $parts[1] + (int) $parts[2] + (int) $parts[3];
                return is_int($sum) ? $sum : throw new NotCounted('RANGE', 'the value is beyond 64 bits');
            }
            if ($parts[0] !== 'MISS') return self::number($word);
            $retain = $this->ask($partition, $deadline)['settings']['retain'];
            $seed = [$retain, '', $id, $parts[1], $this->row($id)];  // read after the ticket was received, never before
            $this->read('cached_seed', $this->keys($partition, 'base'), $seed, $deadline);
        }
        throw new NotCounted('MISS', 'the counter was deleted again and again while its row was read', isTemporary: true);
    }

    private function row(string $id): int {
        try {
            return $this->readRow !== null ? ($this->readRow)($id)
                : $this->daemon()->value("{$this->session->namespace}/{$this->name}", $id);
        } catch (CounterfoilException $error) {
            throw $error;
        } catch (Throwable $error) {
            throw new NotCounted('row', $error->getMessage(), previous: $error);
        }
    }
}
