<?php declare(strict_types=1);

namespace Counterfoil\Internal;

use Counterfoil\{CounterfoilException, NotCounted, OutcomeUnknown};
use Generator, Throwable;

/** A family with `later`: hits are summed, and the sums are sent at the end of the request or process, or by `flush`. */
abstract class SummingFamily extends Family {
    /** The number of parts that the key of a sum has, such as a page and a visitor. */
    protected const PARTS = 1;
    /** The largest number of sums in a call. A script takes one more, which may be needed at the end, see Family::count. */
    protected const PER_CALL = 999;
    /** True if a call may count in several partitions of one home. */
    protected const SPANS_PARTITIONS = false;
    private const LATER_SUMS = 100_000;

    /** @var ?array<int, self> the families that have sums, which are sent at the end of the script at the latest */
    private static ?array $waiting = null;
    private static bool $isOver = false;
    /** @var array<string, array<int>> how many sums the end of the script has dropped, by family and outcome */
    private static array $lost = [];
    /** @var array<int> sums of `later`, by a key that joins their parts, see `addSum` */
    private array $sums = [];
    private bool $isSending = false;
    /** @var list<array{string, int, CounterfoilException}> sums that were dropped, and that `onError` has not received yet */
    private array $dropped = [];

    /**
     * Sends what `later` took. Sums that fail for a temporary reason, or because the daemon refuses the family, stay for the
     * next flush; the others are dropped. Does nothing within another flush, as in a signal handler.
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
        while ([$id, $n, $error] = array_pop($this->dropped)) {
            $this->session->onError?->__invoke($this->name, $id, $n, $error);  // which may throw
        }
        if ($this->sums === []) unset(self::$waiting[spl_object_id($this)]);
        if ($errors !== []) throw reset($errors);
    }

    /** Sends the sums that are left. A shutdown function of the application may exit before PHP calls `flushAtEnd`. */
    public function __destruct() {
        if ($this->sums !== []) self::flushAtEnd();
    }

    /**
     * Adds to the sums of this process.
     *
     * @param string ...$parts the parts of the key. All but the last one have 255 bytes at most: one byte has the length of each
     */
    protected function addSum(int $n, string ...$parts): void {
        if (isset($this->known[0])) {
            $settings = $this->known[0]['settings'];
            $this->refuseRowless($this->idOf($parts, $settings), $settings);
        }
        $this->forgetParent();
        for ($key = '', $i = 0; $i < static::PARTS - 1; $i++) $key .= chr(strlen($parts[$i]));
        $key .= implode($parts);
        if (!isset($this->sums[$key]) && count($this->sums) >= self::LATER_SUMS) {
            throw new NotCounted('BUSY', 'later holds ' . self::LATER_SUMS . ' other sums', isTemporary: true);
        }
        self::sum($this->sums[$key] ?? 0, $n);  // throws beyond 64 bits
        self::register();
        $own = spl_object_id($this);
        // nothing is called in these lines, so no signal handler can run between them
        self::$waiting[$own] = $this;
        $sum = &$this->sums[$key];
        $sum += $n;
        if (self::$isOver) $this->flush();
    }

    /** Counts an item at once, and returns its result. */
    protected function countOne(array $item): mixed {
        return $this->session->within(function () use ($item): mixed {
            for ($round = 0; ; $round++) {
                $result = current($this->outcomesOf($this->callsOf([$item])->current()));
                if (!$result instanceof CounterfoilException) return $result;
                if (!self::hasMoved($result) || $round === self::ROUNDS) throw $result;
            }
        });
    }

    /**
     * Makes the calls that count some items.
     *
     * @param array<array> $items the parts of the key and a number each
     * @return Generator<Call>
     */
    protected function callsOf(array $items): Generator {
        if ($items === []) return;
        try {
            $known = $this->ask();
        } catch (CounterfoilException $error) {
            yield new Call('', items: $items, error: $error);
            return;
        }
        $groups = [];
        foreach ($items as $key => $item) {
            try {
                $id = $this->idOf($item, $known['settings']);
                $this->refuseRowless($id, $known['settings']);
            } catch (NotCounted $error) {
                yield new Call('', items: [$key => $item], error: $error);
                continue;
            }
            $partition = $this->hashOf($id, $item, $known['settings']) % $known['partitions'];
            $group = static::SPANS_PARTITIONS ? $this->home($partition) : $partition;
            $groups[$group][$partition][] = [$partition, $key, $id, $item];
        }
        foreach ($groups as $partitions) {
            foreach (array_chunk(array_merge(...$partitions), static::PER_CALL) as $some) yield $this->callOf($some, $known);
        }
    }

    /** @return array the result of each item, or its error, by its key */
    protected function outcomesOf(Call $call): array {
        try {
            $reply = $this->count($call);
            if ($reply[0] === 'MISMATCH') {
                $this->askAnew($call->partition);
                throw new NotCounted('MISMATCH', 'the family changes in Redis', isTemporary: true);
            }
        } catch (CounterfoilException $error) {
            return array_fill_keys(array_keys($call->items), $error);
        }
        return array_map(function (array $item) use ($reply): mixed {
            try {
                return $this->resultOf($reply, $item);
            } catch (NotCounted $error) {
                return $error;
            }
        }, $call->items);
    }

    /** Returns the id, name or page of an item, or of the parts of a sum. */
    protected function idOf(array $item, array $settings): string {
        return $item[0];
    }

    /** Returns the hash that chooses the partition of an item. */
    protected function hashOf(string $id, array $item, array $settings): int {
        return crc32($id);
    }

    /**
     * Returns the call that counts some items.
     *
     * @param list<array{int, int|string, string, array}> $some partition, key, id and item; in the order of partitions
     */
    abstract protected function callOf(array $some, array $known): Call;

    /** Returns the result of an item of a call. */
    abstract protected function resultOf(array $reply, array $item): mixed;

    /** Forgets the sums of the parent process, which sends them itself. */
    protected function forgetParent(): void {
        if ($this->process !== getmypid()) [$this->sums, $this->sent, $this->dropped] = [[], null, []];
        parent::forgetParent();
    }

    private static function register(): void {
        if (self::$waiting !== null) return;
        self::$waiting = [];
        // registered once more at the end, to run after the functions that the application registers later
        register_shutdown_function(static fn() => register_shutdown_function(self::flushAtEnd(...)));
    }

    private static function flushAtEnd(): void {
        self::$isOver = true;
        foreach (['fastcgi_finish_request', 'litespeed_finish_request'] as $finish) {
            if (self::$waiting !== [] && function_exists($finish)) $finish();
        }
        foreach (self::$waiting as $family) $family->session->end();
        for ($round = 1; $round <= 3; $round++) {
            foreach (self::$waiting as $family) {
                try {
                    $family->isSending = false;  // the script may have ended within a flush
                    $family->flush();
                } catch (CounterfoilException) {  // its sums are in `lost`
                } catch (Throwable $thrown) {  // of `onError`, a signal handler or a closure that connects
                }
            }
        }
        foreach (self::$lost as $family => $sums) {
            foreach ($sums as $outcome => $number) $warnings[] = "counterfoil: $family: $number sums are dropped, $outcome";
        }
        // after all sums, since an error handler of the application may throw
        if (isset($warnings)) trigger_error(implode('; ', $warnings), E_USER_WARNING);
        if (isset($thrown)) throw $thrown;
    }

    /** @return array<CounterfoilException> the errors of the sums that were not counted, by their keys */
    private function sendSums(): array {
        // first repeats a call that a signal handler has interrupted: Redis may have executed it
        $errors = $this->sent?->isUnsure ? $this->settle() : [];
        $errors += $this->send($this->sums);
        if ($errors !== []) return $errors;
        if (Shared::fetch("waiting {$this->key()}") !== null) Shared::delete("waiting {$this->key()}");
        // Redis takes sums again, so those of earlier requests are sent as well
        foreach ($this->parked()?->take() ?? [] as $key => $n) {
            self::register();
            self::$waiting[spl_object_id($this)] = $this;
            $this->sums[$key] = self::sum($this->sums[$key] ?? 0, $n);
        }
        return $this->send($this->sums);
    }

    /** @param array<int> $sums */
    private function send(array $sums, int $round = 0): array {
        $items = $errors = [];
        foreach ($sums as $key => $n) $items[$key] = [...self::partsOf((string) $key), $n];
        foreach ($this->callsOf($items) as $this->sent) $errors += $this->settle($round);
        return $errors;
    }

    /** Makes the call of some sums, and removes from the process those that were counted, put into APCu, or dropped. */
    private function settle(int $round = 0): array {
        $call = $this->sent;
        $errors = array_filter($this->outcomesOf($call), fn(mixed $result): bool => $result instanceof CounterfoilException);
        if ($errors !== [] && self::hasMoved(reset($errors)) && $round < self::ROUNDS) {
            $this->sent = null;
            return $this->send(array_intersect_key($this->sums, $call->items), $round + 1);
        }
        $kept = array_filter($errors, self::keepsSum(...));
        $numbers = array_map(fn(array $item): int => $item[static::PARTS], $call->items);
        $left = self::$isOver ? array_intersect_key($numbers, $kept) : [];
        if ($left !== []) $left = $this->parked()?->put($left) ?? $left;
        if ($kept !== [] && $left === [] && Shared::add("waiting {$this->key()}", true)) {
            error_log("counterfoil: sums of $this->path wait: " . reset($kept)->getMessage());
        }
        foreach ($left as $key => $n) $this->drop($key, $n, $kept[$key] ?? reset($kept));
        foreach ($numbers as $key => $n) {
            if (isset($kept[$key]) && !self::$isOver) continue;
            if (isset($errors[$key]) && !isset($kept[$key])) $this->drop($key, $n, $errors[$key]);
            // nothing is called in these lines, so no signal handler can run between them
            $this->sums[$key] -= $n;
            unset($call->items[$key]);
            if ($this->sums[$key] === 0) unset($this->sums[$key]);
        }
        if ($errors === []) $this->callers[] = $call->fence;
        $this->sent = null;
        return self::$isOver ? array_diff_key($errors, array_diff_key($kept, $left)) : $errors;
    }

    private function drop(string|int $key, int $n, CounterfoilException $error): void {
        if (self::$isOver) {
            $outcome = $error instanceof OutcomeUnknown ? 'outcome unknown' : 'not counted';
            $number = &self::$lost[$this->name]["$outcome: {$error->getMessage()}"];
            $number++;
        }
        $this->dropped[] = [$this->subjectOf($key), $n, $error];
    }

    /** Returns the sums that wait in APCu for later requests; null if they cannot wait there. */
    private function parked(): ?Parked {
        return Parked::isAvailable() && $this->session->server() !== '' ? new Parked($this->key()) : null;
    }

    private static function keepsSum(CounterfoilException $error): bool {
        return $error instanceof NotCounted && $error->isTemporary || $error->reason === 'UNCONFIGURED';
    }

    /** Returns if a call was made for settings that have changed, so that it has to be made anew. */
    private static function hasMoved(CounterfoilException $error): bool {
        return $error instanceof NotCounted && $error->reason === 'MISMATCH';
    }

    /** @return list<string> */
    private static function partsOf(string $key): array {
        [$parts, $at] = [[], static::PARTS - 1];
        for ($i = 0; $i < static::PARTS - 1; $i++) {
            $parts[] = substr($key, $at, ord($key[$i]));
            $at += ord($key[$i]);
        }
        return [...$parts, substr($key, $at)];
    }

    private function subjectOf(string|int $key): string {
        return $this->idOf(self::partsOf((string) $key), $this->known[0]['settings'] ?? ['separator' => '/']);
    }

    /** Returns a name that differs for each family of the machine. */
    private function key(): string {
        return "{$this->session->server()} $this->path " . static::KIND;
    }
}
