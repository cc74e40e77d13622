<?php declare(strict_types=1);

namespace Counterfoil;

use Counterfoil\Internal\{Session, ExactValue, Family};

/** Counters whose hits are summed in Redis until the daemon saves them. */
final class Buffered extends Family {
    use ExactValue;

    protected const KIND = 'buffered';
    private const PAIRS = 999;  // of one call, and one more behind them
    private const LATER_IDS = 100_000;

    /** @var array<string, int> sums of `later`, and the process that they belong to */
    private array $sums = [];
    private int $process = 0;
    private bool $isFlushedAtEnd = false;
    /** Where the hits of this object go in a wide family. */
    private ?int $widePartition = null;

    /** @internal use Counterfoil::buffered */
    public function __construct(Session $session, string $name, private readonly ?array $table = null) {
        parent::__construct($session, $name);
    }

    /**
     * Counts, and returns what the id then has pending in Redis: null if it was counted but that reply was lost.
     *
     * @throws CounterfoilException
     */
    public function add(string|int $id, int|float $delta = 1): ?int {
        self::checkId($id = (string) $id);
        self::checkDelta($delta);
        $deadline = $this->session->deadline();
        $partition = $this->partitionOfHit($id, $this->ask(0, $deadline));
        $args = [(int) max(1, min(1000, abs($delta))), 2, $id, $delta, $id, 0];  // see Family::count
        $reply = $this->count('buffered_add', $partition, $this->keys($partition, 'buffer', 'meta'), $args, $deadline);
        if (is_int($reply[2] ?? null)) return $reply[2];
        [$result] = self::results($reply, [[$partition, 0]]);
        return $result instanceof NotCounted ? throw $result : $result;
    }

    /**
     * Counts many pairs with few calls. Pairs fail one by one.
     *
     * @param iterable<array{string|int, int}|int> $pairs pairs of id and delta, or deltas by id
     * @return array<int|null|CounterfoilException> the result of each pair, under its key, as `add` returns or throws it
     */
    public function addMany(iterable $pairs): array {
        $deadline = $this->session->deadline();
        $results = $items = $calls = [];
        foreach ($pairs as $key => $pair) {
            [$id, $delta] = is_array($pair) ? $pair : [$key, $pair];
            $results[$key] = null;
            try {
                self::checkId($id = (string) $id);
                $items[$key] = [$id, self::checkDelta($delta)];
            } catch (NotCounted $error) {
                $results[$key] = $error;
            }
        }
        try {
            $known = $items === [] ? [] : $this->ask(0, $deadline);
        } catch (CounterfoilException $error) {
            return array_replace($results, array_fill_keys(array_keys($items), $error));
        }
        foreach ($items as $key => [$id, $delta]) {
            $partition = $this->partitionOfHit($id, $known);
            $calls[$this->session->isCluster() ? $partition : 0][] = [$partition, $key, $id, $delta];
        }
        foreach ($calls as $all) {
            usort($all, fn(array $a, array $b): int => $a[0] <=> $b[0]);
            foreach (array_chunk($all, self::PAIRS) as $call) {
                try {
                    $done = $this->addCall($call, $deadline);
                } catch (CounterfoilException $error) {
                    $done = array_fill_keys(array_column($call, 1), $error);
                }
                foreach ($done as $key => $result) $results[$key] = $result;
            }
        }
        return $results;
    }

    /**
     * Counts once for a request, however often and wherever it is run again.
     *
     * @param string $request names the request: 1 to 64 bytes
     * @param ?string $epoch what `requestEpoch` returned, stored with the job before the first send
     * @return bool false if it was counted before
     * @throws CounterfoilException
     */
    public function addOnce(string $request, string|int $id, int|float $delta = 1, ?string $epoch = null): bool {
        [$id, $delta] = [(string) $id, self::checkDelta($delta)];
        $deadline = $this->session->deadline();
        $partition = $this->partitionOfRequest($request, $id, $deadline);
        $caller = 'request:' . strlen($request) . ":$request:$id";
        [$buffer, $meta] = $this->keys($partition, 'buffer', 'meta');
        $keys = [...$this->fence($partition), $buffer, $meta];
        $isGiven = $epoch !== null;
        for ($wasLost = false; ; $wasLost = $wasLost || $isLost) {
            $known = $this->ask($partition, $deadline);
            $epoch ??= $known['epoch'];
            if ($epoch !== $known['epoch'] && $epoch !== $known['before'] || hrtime(true) > $deadline) {
                throw self::unknown('EXPIRED');
            }
            $args = [$caller, 1, $known['before'], '', self::hits([$delta]), 1, $id, $delta];
            [$reply, $isLost] = $this->session->send('buffered_add', $keys, $args, $deadline);
            if ($reply[0] === 'PASSED') throw self::unknown('PASSED');
            if ($reply[0] !== 'EXPIRED') {
                $result = self::results($reply, [[$partition, 0]])[0];
                if ($result instanceof NotCounted) throw $result;
                return $reply[0] === 'OK';
            }
            $this->forgetEpoch($partition);
            if (!$isGiven && !$wasLost && !$isLost && $this->session->connection->isOwn) $epoch = null;
        }
    }

    /**
     * Returns the epoch to be stored with a job before `addOnce` is called for the first time.
     *
     * @throws CounterfoilException
     */
    public function requestEpoch(string $request, string|int $id): string {
        $deadline = $this->session->deadline();
        $partition = $this->partitionOfRequest($request, (string) $id, $deadline);
        return $this->ask($partition, $deadline, isFresh: true)['epoch'];
    }

    /**
     * Adds to the sums of this process, which are sent at the end of the request, behind its response, or by `flush`.
     *
     * @throws NotCounted with the reason BUSY if the sums have 100,000 other ids
     */
    public function later(string|int $id, int|float $delta = 1): void {
        self::checkId((string) $id);
        self::checkDelta($delta);
        // the sums of the parent are the parent's
        if ($this->process !== getmypid()) [$this->sums, $this->process] = [[], getmypid()];
        if (!isset($this->sums[$id]) && count($this->sums) >= self::LATER_IDS) {
            throw new NotCounted('BUSY', 'later holds ' . self::LATER_IDS . ' other ids', isTemporary: true);
        }
        $sum = ($this->sums[$id] ?? 0) + $delta;
        $this->sums[$id] = is_int($sum) ? $sum : throw new NotCounted('RANGE', 'the sum is beyond 64 bits');
        if ($this->isFlushedAtEnd) return;
        $this->isFlushedAtEnd = true;
        // behind the functions that are registered later
        register_shutdown_function(fn() => register_shutdown_function($this->flushAtEnd(...)));
    }

    /**
     * Sends what `later` took. Sums that fail for a temporary reason stay for the next flush, and the others are dropped.
     *
     * @throws CounterfoilException the first error, with the number of ids in its message
     */
    public function flush(): void {
        if ($this->process !== getmypid() || $this->sums === []) return;
        [$sums, $this->sums] = [$this->sums, []];
        $errors = array_filter($this->addMany($sums), fn(mixed $result): bool => $result instanceof CounterfoilException);
        foreach ($errors as $id => $error) {
            if ($error instanceof NotCounted && $error->isTemporary) {
                $this->sums[$id] = $sums[$id];
            } elseif ($this->session->onError !== null) {
                ($this->session->onError)($this->name, (string) $id, $sums[$id], $error);
            }
        }
        if ($errors === []) return;
        $first = reset($errors);
        $message = count($errors) . ' of ' . count($sums) . " ids; the first: {$first->getMessage()}";
        throw new ($first::class)($first->reason, $message, isTemporary: $first->isTemporary, previous: $first);
    }

    /**
     * Returns the exact value, of MySQL and Redis together.
     *
     * @throws CounterfoilException
     */
    public function value(string|int $id): int {
        return $this->exactValue((string) $id, $this->table);
    }

    private function flushAtEnd(): void {
        if ($this->process !== getmypid() || $this->sums === []) return;
        if (function_exists('fastcgi_finish_request')) fastcgi_finish_request();
        try {
            $this->flush();
        } catch (CounterfoilException $error) {
            trigger_error("counterfoil: {$this->name}: {$error->getMessage()}", E_USER_WARNING);
        }
    }

    private function partitionOfHit(string $id, array $known): int {
        ['partitions' => $partitions, 'settings' => $settings] = $known;
        return ($settings['wide'] ?? false) ? $this->widePartition ??= random_int(0, $partitions - 1) : crc32($id) % $partitions;
    }

    /** Counts the items of one call, and returns the results by key. */
    private function addCall(array $items, int $deadline): array {
        $keys = $args = $groups = [];
        foreach ($items as $item) $groups[$item[0]][] = $item;
        foreach ($groups as $partition => $group) {
            array_push($keys, ...$this->keys($partition, 'buffer', 'meta'));
            $isLast = $partition === array_key_last($groups);
            array_push($args, self::hits(array_column($group, 3)), count($group) + (int) $isLast);
            foreach ($group as [, , $id, $delta]) array_push($args, $id, $delta);
        }
        array_push($args, $id, 0);  // see Family::count
        return self::results($this->count('buffered_add', $items[0][0], $keys, $args, $deadline), $items);
    }

    /** Returns the result of each item by its key. */
    private static function results(array $reply, array $items): array {
        $words = [];
        if ($reply[0] === 'DUP') {
            preg_match_all('/(\d+):(\w+)/', $reply[1], $refused);
            $words = array_combine($refused[1], $refused[2]);
        }
        $results = [];
        [$at, $last] = [0, null];
        foreach ($items as $i => [$partition, $key]) {
            $at += $partition === $last ? 1 : 2;  // behind the total of the partition
            $last = $partition;
            $word = $reply[0] === 'OK' ? $reply[$at] : $words[$i + 1] ?? null;
            try {
                $results[$key] = $word === null ? null : self::number($word);
            } catch (NotCounted $error) {
                $results[$key] = $error;
            }
        }
        return $results;
    }

    /** Returns how many hits the deltas stand for: they only decide when a sync is due. */
    private static function hits(array $deltas): int {
        return (int) max(1, min(1000, array_sum(array_map('abs', $deltas))));
    }

    private function partitionOfRequest(string $request, string $id, int $deadline): int {
        self::checkId($id);
        if ($request === '' || strlen($request) > 64) throw new NotCounted('BADARG', 'expected a request of 1 to 64 bytes');
        $isWide = $this->ask(0, $deadline)['settings']['wide'] ?? false;
        return $this->partitionOf($isWide ? $request : $id, $deadline);
    }
}
