<?php declare(strict_types=1);

namespace Counterfoil;

use Counterfoil\Internal\{Call, StoredFamily};
use Generator, Throwable;

/** Counters whose hits are summed in Redis until the daemon saves them. */
final class Buffered extends StoredFamily {
    protected const KIND = 'buffered';
    private const PAIRS = 999;  // of one call, and one more behind them
    private const LATER_IDS = 100_000;

    /** @var ?array<int, self> those with sums, which are sent at the end of the script at the latest */
    private static ?array $waiting = null;
    private static bool $isOver = false;
    /** @var array<string, int> sums of `later` */
    private array $sums = [];
    private bool $isSending = false;
    /** @var list<array{string, int, CounterfoilException}> sums that were dropped, until `onError` has them */
    private array $dropped = [];
    /** Where the hits of this object go in a wide family, modulo its partitions. */
    private ?int $wideHash = null;

    /**
     * Counts, and returns what the id then has pending in Redis: null if it was counted but that reply was lost.
     *
     * @throws CounterfoilException
     */
    public function add(string|int $id, int|float $delta = 1): ?int {
        [$delta, $id] = [self::checkDelta($delta), $this->checkRow($id)];
        $args = [0, 1, 2, $id, $delta, $id, 0];  // one hit and two pairs, see Family::count
        $hash = $this->hashOf($id, $this->ask()['settings']);
        return self::pendingOf($this->count($this->call('buffered_add', $hash, ['buffer', 'meta'], $args)));
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
                $items[$key] = [self::checkId($id), self::checkDelta($delta)];
            } catch (CounterfoilException $error) {
                $results[$key] = $error;
            }
        }
        $this->session->within(function () use ($items, &$results): void {
            foreach ($this->callsOf($items) as $call) {
                foreach ($this->addCall($call) as $key => $result) $results[$key] = $result;
            }
        });
        return $results;
    }

    /**
     * Counts once for a request, however often and wherever it is run again. Redis remembers a request for an hour, or as
     * long as the family's `remember_requests`.
     *
     * @param string $request names the request: 1 to 64 bytes
     * @param ?string $epoch what `requestEpoch` returned, stored with the job before the first send: then it never counts
     *     twice. By default the current one
     * @return bool false if it was counted before
     * @throws CounterfoilException
     */
    public function addOnce(string $request, string|int $id, int|float $delta = 1, ?string $epoch = null): bool {
        self::checkId($request, 64, isText: false);
        [$delta, $id] = [self::checkDelta($delta), $this->checkRow($id)];
        $hash = $this->hashOfRequest($request, $id);
        $args = [1, 1, 2, $id, $delta, $id, 0];  // one request, see Family::count
        $call = $this->call('buffered_add', $hash, ['buffer', 'meta'], $args, [$request, $epoch]);
        $reply = $this->count($call);
        $isDup = $reply[0] === 'DUP';
        if ($isDup) preg_match('/(?:^| )1:(\S+)/', $reply[1], $word);
        $word = $this->known($isDup ? $word[1] ?? null : $reply[2], $call->partition);
        $isBefore = is_string($word) && str_starts_with($word, 'BEFORE:');
        if ($word !== null) self::number($isBefore ? substr($word, 7) : $word);
        return !$isBefore;
    }

    /**
     * Returns the epoch to be stored with a job before `addOnce` is called for the first time.
     *
     * @throws CounterfoilException
     */
    public function requestEpoch(string $request, string|int $id): string {
        $partition = $this->partitionOf($this->hashOfRequest($request, $this->checkRow($id)));
        return $this->ask($partition, isFresh: true)['generation'];
    }

    /**
     * Adds to the sums of this process, which are sent at the end of the request, behind its response, or by `flush`.
     * Behind that end it sends the sum itself.
     *
     * @throws CounterfoilException NotCounted with the reason BUSY if the sums have 100,000 other ids
     */
    public function later(string|int $id, int|float $delta = 1): void {
        [$id, $delta] = [self::checkId($id), self::checkDelta($delta)];
        $this->refuseIfKnown($id);
        $this->forgetParent();
        if (!isset($this->sums[$id]) && count($this->sums) >= self::LATER_IDS) {
            throw new NotCounted('BUSY', 'later holds ' . self::LATER_IDS . ' other ids', isTemporary: true);
        }
        self::sum($this->sums[$id] ?? 0, $delta);  // throws beyond 64 bits
        if (self::$waiting === null) {
            // behind the functions that are registered later
            register_shutdown_function(static fn() => register_shutdown_function(self::flushAtEnd(...)));
        }
        $own = spl_object_id($this);
        // no signal handler runs in between, since nothing is called
        self::$waiting[$own] = $this;
        $sum = &$this->sums[$id];
        $sum += $delta;
        if (self::$isOver) $this->flush();
    }

    /**
     * Sends what `later` took. Sums that fail for a temporary reason stay for the next flush, unless the script ends; the
     * others are dropped. Does nothing within another flush, i.e. in a signal handler.
     *
     * @throws CounterfoilException the first error
     */
    public function flush(): void {
        $this->forgetParent();
        if ($this->isSending) return;
        $this->isSending = true;
        try {
            $errors = $this->session->within($this->sendSums(...));
        } finally {
            $this->isSending = false;
        }
        while ([$id, $delta, $error] = array_pop($this->dropped)) {
            $this->session->onError?->__invoke($this->name, $id, $delta, $error);  // which may throw
        }
        $own = spl_object_id($this);
        if ($this->sums === []) unset(self::$waiting[$own]);
        if ($errors !== []) throw reset($errors);
    }

    /**
     * Returns the exact value, of MySQL and Redis together.
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

    /** Sends what is left, also if a function that PHP calls at the end exits before it calls `flushAtEnd`. */
    public function __destruct() {
        if ($this->sums !== []) self::flushAtEnd();
    }

    private static function flushAtEnd(): void {
        self::$isOver = true;
        if (self::$waiting !== [] && function_exists('fastcgi_finish_request')) fastcgi_finish_request();
        foreach (self::$waiting as $family) $family->session->end();
        for ($round = 1; $round <= 3; $round++) {
            foreach (self::$waiting as $family) {
                try {
                    $family->isSending = false;  // the script may have ended within a flush
                    $family->flush();
                } catch (CounterfoilException $error) {
                    $warnings[] = "counterfoil: $family->name: {$error->getMessage()}";
                } catch (Throwable $thrown) {  // by onError, a signal handler or a function that connects
                }
            }
        }
        // a handler of the application may throw
        if (isset($warnings)) trigger_error(implode('; ', $warnings), E_USER_WARNING);
        if (isset($thrown)) throw $thrown;
    }

    /** The sums of the parent process are the parent's. */
    protected function forgetParent(): void {
        if ($this->process !== getmypid()) [$this->sums, $this->sent, $this->dropped] = [[], null, []];
        parent::forgetParent();
    }

    /** @return array<CounterfoilException> by id why some sums were not counted */
    private function sendSums(): array {
        // the call that a signal handler interrupted, perhaps after it was executed
        $errors = $this->sent?->isUnsure ? $this->settle() : [];
        $items = [];
        foreach ($this->sums as $id => $delta) $items[$id] = [(string) $id, $delta];
        foreach ($this->callsOf($items) as $this->sent) $errors += $this->settle();
        return $errors;
    }

    /** Makes the call of sums, and takes out those that were counted, or are dropped. */
    private function settle(): array {
        $call = $this->sent;
        $results = $this->addCall($call);
        $errors = array_filter($results, fn(mixed $result): bool => $result instanceof CounterfoilException);
        foreach ($call->items as $key => [$id, $delta]) {
            $error = $errors[$key] ?? null;
            if ($error instanceof NotCounted && $error->isTemporary && !self::$isOver) continue;
            if ($error !== null) $this->dropped[] = [$id, $delta, $error];
            // no signal handler runs in between, since nothing is called
            $this->sums[$key] -= $delta;
            unset($call->items[$key]);
            if ($this->sums[$key] === 0) unset($this->sums[$key]);
        }
        if ($errors === []) $this->callers[] = $call->fence;
        $this->sent = null;
        return $errors;
    }

    private function hashOf(string $id, array $settings): int {
        return $settings['wide'] ? $this->wideHash ??= random_int(0, 0xffffffff) : crc32($id);
    }

    private function hashOfRequest(string $request, string $id): int {
        self::checkId($request, 64, isText: false);
        return crc32($this->ask()['settings']['wide'] ? $request : $id);
    }

    /** @return array<int|null|CounterfoilException> the result of each item, by its key */
    private function addCall(Call $call): array {
        try {
            $reply = $this->count($call);
        } catch (CounterfoilException $error) {
            return array_fill_keys(array_keys($call->items), $error);
        }
        return array_map(function (array $item) use ($reply): int|null|NotCounted {
            try {
                return self::pendingOf($reply, $item[2], $item[3]);
            } catch (NotCounted $error) {
                return $error;
            }
        }, $call->items);
    }

    /**
     * Makes calls of up to 999 items each.
     *
     * @param array<array{string, int}> $items id and delta
     * @return Generator<Call>
     */
    private function callsOf(array $items): Generator {
        if ($items === []) return;
        try {
            ['partitions' => $of, 'settings' => $settings] = $this->ask();
        } catch (CounterfoilException $error) {
            yield new Call('buffered_add', items: $items, error: $error);
            return;
        }
        $homes = [];
        foreach ($items as $key => [$id, $delta]) {
            try {
                $this->refuseRowless($id, $settings);
            } catch (NotCounted $error) {
                yield new Call('buffered_add', items: [$key => [$id, $delta]], error: $error);
                continue;
            }
            $partition = $this->hashOf($id, $settings) % $of;
            $homes[$this->home($partition)][$partition][] = [$partition, $key, $id, $delta];
        }
        foreach ($homes as $groups) {
            foreach (array_chunk(array_merge(...$groups), self::PAIRS) as $chunk) yield $this->callOf($chunk, $of);
        }
    }

    /** @param list<array{int, int|string, string, int}> $chunk partition, key, id and delta, by partition */
    private function callOf(array $chunk, int $of): Call {
        $items = $hits = $pairs = [];
        foreach ($chunk as $i => [$partition, $key, $id, $delta]) {
            // sums stand for several hits: how many only decides when a sync is due
            $hits[$partition] = min(1000, ($hits[$partition] ?? 0) + max(1, abs($delta)));
            $pairs[$partition][] = $id;
            $pairs[$partition][] = $delta;
            $items[$key] = [$id, $delta, $i + 1, count($pairs)];
        }
        array_push($pairs[$partition], $id, 0);  // see Family::count
        [$keys, $args] = [$this->fence($partition), [0]];
        foreach ($pairs as $partition => $words) {
            array_push($keys, ...$this->keys($partition, 'buffer', 'meta'));
            array_push($args, $hits[$partition], count($words) / 2, ...$words);
        }
        return new Call('buffered_add', $keys, $args, $partition, $of, $items);
    }
}
