<?php declare(strict_types=1);

namespace Counterfoil;

use Counterfoil\Internal\StoredFamily;

/** Counters whose hits are summed in Redis until the daemon saves them. */
final class Buffered extends StoredFamily {
    protected const KIND = 'buffered';
    private const PAIRS = 999;  // of one call, and one more behind them
    private const LATER_IDS = 100_000;

    /** @var array<string, int> sums of `later`, and the process that they belong to */
    private array $sums = [];
    private int $process = 0;
    private bool $isSending = false;
    /** The call of sums that is under way: its items, `of` and `call` of addCall, and how many items are settled. */
    private ?array $sent = null;
    /** @var list<array{string, int, CounterfoilException}> sums that were dropped, until `onError` has them */
    private array $dropped = [];
    /** Where the hits of this object go in a wide family, modulo its partitions. */
    private ?int $wideHash = null;
    /** @var array<int, list<string>> keys of a hit by partition */
    private array $hitKeys = [];

    /**
     * Counts, and returns what the id then has pending in Redis: null if it was counted but that reply was lost.
     *
     * @throws CounterfoilException
     */
    public function add(string|int $id, int|float $delta = 1): ?int {
        $id = self::checkId($id);
        $delta = self::checkDelta($delta);
        $known = $this->ask();
        $partition = $this->partitionOfHit($id, $known);
        $args = [1, 2, $id, $delta, $id, 0];  // one hit and two pairs, see Family::count
        $keys = $this->hitKeys[$partition] ??= $this->fenced($partition, 'buffer', 'meta');
        return self::pendingOf($this->count('buffered_add', $partition, $known['partitions'], $keys, $args));
    }

    /**
     * Counts many pairs with few calls. Pairs fail one by one.
     *
     * @param iterable<array{string|int, int}|int> $pairs pairs of id and delta, or deltas by id
     * @return array<int|null|CounterfoilException> the result of each pair, as `add` returns or throws it, under its key;
     *     under the next free number if an earlier pair has the same key
     */
    public function addMany(iterable $pairs): array {
        $results = $items = [];
        foreach ($pairs as $key => $pair) {
            [$id, $delta] = is_array($pair) ? $pair + [null, null] : [$key, $pair];
            if (array_key_exists($key, $results)) $results[] = null;
            else $results[$key] = null;
            $key = array_key_last($results);
            try {
                $items[] = [$key, self::checkId($id), self::checkDelta($delta)];
            } catch (CounterfoilException $error) {
                $results[$key] = $error;
            }
        }
        return $this->session->within(function () use ($items, $results): array {
            try {
                $calls = $this->callsOf($items);
            } catch (CounterfoilException $error) {
                return array_replace($results, array_fill_keys(array_column($items, 0), $error));
            }
            return array_replace($results, ...array_map(fn(array $call): array => $this->addCall(...$call), $calls));
        });
    }

    /**
     * Counts once for a request, however often and wherever it is run again.
     *
     * @param string $request names the request: 1 to 64 bytes
     * @param ?string $epoch what `requestEpoch` returned, stored with the job before the first send; without it Redis is
     *     asked for one
     * @return bool false if it was counted before
     * @throws CounterfoilException
     */
    public function addOnce(string $request, string|int $id, int|float $delta = 1, ?string $epoch = null): bool {
        [$id, $delta] = [self::checkId($id), self::checkDelta($delta)];
        $epoch ??= $this->requestEpoch($request, $id);
        [$partition, $of] = $this->partitionOfRequest($request, $id);
        $keys = $this->fenced($partition, 'buffer', 'meta');
        $caller = 'request:' . strlen($request) . ":$request:$id";
        $knows = fn(array $known): bool => $epoch === $known['epoch'] || $epoch === $known['before'];
        $wasLost = false;
        do {
            try {
                $known = $this->ask($partition);
                if (!$knows($known)) $known = $this->ask($partition, isFresh: true);  // it may be newer
                $this->checked($known, $of);
            } catch (CounterfoilException $error) {
                throw $wasLost ? new OutcomeUnknown($error->reason, $error->getMessage(), previous: $error) : $error;
            }
            if (!$knows($known)) throw self::unknown('EXPIRED');
            $words = [...$keys, $caller, 1, $known['before'], '', 1, 1, $id, $delta];
            $reply = $this->session->call('buffered_add', count($keys), $words, wasLost: $wasLost);
            if ($reply[0] === 'PASSED') throw self::unknown('PASSED');
            $wasLost = isset($reply[1]) && $reply[0] === 'EXPIRED';
            if ($reply[0] === 'EXPIRED') $this->forgetEpoch($partition);
        } while ($reply[0] === 'EXPIRED');
        self::pendingOf($reply);
        return $reply[0] === 'OK';
    }

    /**
     * Returns the epoch to be stored with a job before `addOnce` is called for the first time.
     *
     * @throws CounterfoilException
     */
    public function requestEpoch(string $request, string|int $id): string {
        return $this->ask($this->partitionOfRequest($request, self::checkId($id))[0], isFresh: true)['epoch'];
    }

    /**
     * Adds to the sums of this process, which are sent at the end of the request, behind its response, or by `flush`.
     * Behind that end it sends the sum itself.
     *
     * @throws CounterfoilException NotCounted with the reason BUSY if the sums have 100,000 other ids
     */
    public function later(string|int $id, int|float $delta = 1): void {
        [$id, $delta] = [self::checkId($id), self::checkDelta($delta)];
        if ($this->process === 0) {
            // behind the functions that are registered later
            register_shutdown_function(fn() => register_shutdown_function($this->flushAtEnd(...)));
        }
        // the sums of the parent are the parent's
        if ($this->process !== getmypid()) [$this->sums, $this->sent, $this->dropped] = [[], null, []];
        $this->process = getmypid();
        if (!isset($this->sums[$id]) && count($this->sums) >= self::LATER_IDS) {
            throw new NotCounted('BUSY', 'later holds ' . self::LATER_IDS . ' other ids', isTemporary: true);
        }
        self::sum($this->sums[$id] ?? 0, $delta);  // throws beyond 64 bits
        $this->sums[$id] ??= 0;
        $this->sums[$id] += $delta;  // in one step, also for signal handlers
        if ($this->session->isOver) $this->flush();
    }

    /**
     * Sends what `later` took. Sums that fail for a temporary reason stay for the next flush, and the others are dropped.
     * Does nothing within another flush, i.e. in a signal handler.
     *
     * @throws CounterfoilException the first error, with the number of ids in its message
     */
    public function flush(): void {
        if ($this->process !== getmypid() || $this->isSending) return;
        $this->isSending = true;
        $all = count($this->sums);
        try {
            $errors = $this->session->within($this->sendSums(...));
        } finally {
            $this->isSending = false;
        }
        while ([$id, $delta, $error] = array_pop($this->dropped)) {
            $this->session->onError?->__invoke($this->name, $id, $delta, $error);  // which may throw
        }
        if ($errors === []) return;
        $error = reset($errors);
        $message = count($errors) . " of $all ids; the first: {$error->getMessage()}";
        $class = $error::class;
        throw new $class($error->reason, $message, isTemporary: $error->isTemporary, previous: $error);
    }

    /**
     * Returns the exact value, of MySQL and Redis together.
     *
     * @throws CounterfoilException
     */
    public function value(string|int $id): int {
        return $this->exactValue(self::checkId($id));
    }

    /** Sends what is left, also if a function that PHP calls at the end exits before it calls `flushAtEnd`. */
    public function __destruct() {
        $this->flushAtEnd();
    }

    private function flushAtEnd(): void {
        if ($this->process !== getmypid() || [$this->sums, $this->dropped] === [[], []]) return;
        if (function_exists('fastcgi_finish_request')) fastcgi_finish_request();
        $this->session->end();
        $this->isSending = false;  // the script may have ended within a flush
        try {
            $this->flush();
        } catch (CounterfoilException $error) {
            $this->sums = [];
            trigger_error("counterfoil: $this->name: {$error->getMessage()}", E_USER_WARNING);
        }
    }

    /** @return array<CounterfoilException> by id why some sums were not counted */
    private function sendSums(): array {
        // the call that a signal handler interrupted, perhaps after it was executed
        $errors = ($this->sent['call'][1] ?? false) ? $this->sendCall() : [];
        $items = [];
        foreach ($this->sums as $id => $delta) $items[] = [$id, (string) $id, $delta];
        try {
            $calls = $items === [] ? [] : $this->callsOf($items);
        } catch (CounterfoilException $error) {
            $this->sent = ['items' => $items, 'settled' => 0];
            return $this->settle(array_fill_keys(array_column($items, 0), $error));
        }
        foreach ($calls as [$items, $of]) {
            $this->sent = ['items' => $items, 'of' => $of, 'call' => [], 'settled' => 0];
            $errors += $this->sendCall();
        }
        return $errors;
    }

    private function sendCall(): array {
        return $this->settle($this->addCall($this->sent['items'], $this->sent['of'], $this->sent['call']));
    }

    /** Takes out the sums that were counted, or are dropped. */
    private function settle(array $results): array {
        $errors = array_filter($results, fn(mixed $result): bool => $result instanceof CounterfoilException);
        foreach ($this->sent['items'] as $i => [$key, $id, $delta]) {
            $error = $errors[$key] ?? null;
            if ($i < $this->sent['settled'] || ($error instanceof NotCounted && $error->isTemporary)) continue;
            if ($error !== null) $this->dropped[] = [$id, $delta, $error];
            // no signal handler runs in between, since nothing is called
            $this->sums[$key] -= $delta;
            $this->sent['settled'] = $i + 1;
            if ($this->sums[$key] === 0) unset($this->sums[$key]);
        }
        if ($errors === []) $this->callers[] = $this->sent['call'][2];
        $this->sent = null;
        return $errors;
    }

    private function partitionOfHit(string $id, array $known): int {
        $hash = $known['settings']['wide'] ? $this->wideHash ??= random_int(0, 0xffffffff) : crc32($id);
        return $hash % $known['partitions'];
    }

    /** @return array{int, int} the partition, and how many there are */
    private function partitionOfRequest(string $request, string $id): array {
        $length = strlen($request);
        if ($length < 1 || $length > 64) throw new NotCounted('BADARG', 'a request has 1 to 64 bytes');
        ['partitions' => $of, 'settings' => $settings] = $this->ask();
        return [crc32($settings['wide'] ? $request : $id) % $of, $of];
    }

    /**
     * @param list<array{int|string, string, int}> $items key, id and delta
     * @return list<array{list<array>, int}> arguments of addCall
     */
    private function callsOf(array $items): array {
        ['partitions' => $of] = $known = $this->ask();
        $calls = $homes = [];
        foreach ($items as [$key, $id, $delta]) {
            $partition = $this->partitionOfHit($id, $known);
            $homes[$this->session->isCluster ? $partition : 0][] = [$key, $id, $delta, $partition];
        }
        foreach ($homes as $all) {
            foreach (array_chunk($all, self::PAIRS) as $call) $calls[] = [$call, $of];
        }
        return $calls;
    }

    /**
     * Counts up to 999 items with one call, and returns the result of each by its key.
     *
     * @param list<array{int|string, string, int, int}> $items key, id, delta and partition
     */
    private function addCall(array $items, int $of, ?array &$call = null): array {
        usort($items, fn(array $a, array $b): int => $a[3] <=> $b[3]);
        $keys = $this->fenced($items[0][3]);
        $groups = $args = $results = [];
        foreach ($items as [, $id, $delta, $partition]) $groups[$partition][] = [$id, $delta];
        $groups[$partition][] = [$id, 0];  // see Family::count
        foreach ($groups as $partition => $pairs) {
            array_push($keys, ...$this->keys($partition, 'buffer', 'meta'));
            // sums stand for several hits: how many only decides when a sync is due
            $hits = array_sum(array_map(abs(...), array_column($pairs, 1)));
            array_push($args, (int) max(1, min(1000, $hits)), count($pairs), ...array_merge(...$pairs));
        }
        try {
            $reply = $this->count('buffered_add', $items[0][3], $of, $keys, $args, $call);
        } catch (CounterfoilException $error) {
            return array_fill_keys(array_column($items, 0), $error);
        }
        $totals = array_flip(array_keys($groups));
        foreach ($items as $i => [$key, , , $partition]) {
            try {
                $results[$key] = self::pendingOf($reply, $i + 1, $totals[$partition] + 1);
            } catch (NotCounted $error) {
                $results[$key] = $error;
            }
        }
        return $results;
    }

    /**
     * Returns what a pair has pending, or null if an earlier arrival of the call counted it.
     *
     * @param int $totals how many totals of partitions are before it in the reply
     */
    private static function pendingOf(array $reply, int $pair = 1, int $totals = 1): ?int {
        $word = $reply[0] === 'OK' ? $reply[$totals + $pair] : self::refused($reply[1])[$pair] ?? null;
        return $word === null || is_int($word) ? $word : self::number($word);
    }
}
