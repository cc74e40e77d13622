<?php declare(strict_types=1);

namespace Counterfoil\Internal;

use Closure;
use Counterfoil\{CounterfoilException, Misconfigured, NotCounted, OutcomeUnknown};

/** A family: its settings and epochs, which it asks Redis for, and its calls. */
abstract class Family {
    protected const KIND = '';
    private const FRESH_NS = 30_000_000_000;
    /** The largest number of a call. */
    private const MAX_N = 2 ** 53;
    /** Numbers grow by random steps, so that two machines that were resumed from one snapshot use different ones. */
    private const MAX_STEP = 2 ** 20;
    private const CONFIGURING_NS = 3_000_000_000;
    /** The interval at which the daemon takes the names of families that were announced. */
    private const WANTED_US = 200_000;
    protected const ROUNDS = 10;
    private const ID_BYTES = 255;

    /** @var array<int, array> by home: the last reply of family_epoch, and until when it may be used */
    protected array $known = [];
    /** @var list<list<string|int>> callers without a call in flight, each with the number of its last call */
    protected array $callers = [];
    /** The call of sums under way. An interrupt may leave it to be repeated, so its caller makes no other call until then. */
    protected ?Call $sent = null;
    protected int $process;
    /** Namespace and name. */
    protected readonly string $path;

    /** @internal use Counterfoil */
    public function __construct(protected readonly Session $session, public readonly string $name) {
        $this->process = getmypid();
        $this->path = "$session->namespace/$name";
        if (preg_match('#^([a-z0-9_.-]{1,64}(/|$)){2}$#D', $this->path) === 1) return;
        throw new Misconfigured('BADKEY', "a name has 1 to 64 of a-z, 0-9, _, . and -, not $this->path");
    }

    /**
     * Makes a counting call.
     *
     * If the connection breaks within the last number of a reply, the libraries return the digits that have arrived, as if
     * the number were whole. So a call whose numbers matter has one more item at its end, which counts nothing.
     *
     * @return array the reply: `OK` or `DUP` with the words behind it, or `MISMATCH` for a call that was not executed, because it
     *     was made for other settings
     * @throws CounterfoilException
     */
    protected function count(Call $call): array {
        if ($call->error !== null) throw $call->error;
        $this->forgetParent();
        for ($isFirst = true; ; $isFirst = false) {
            if ($call->fence === []) {
                ['epoch' => $epoch, 'generation' => $generation] = $this->ask($call->partition, $call->of);
                [$request, $stored] = $call->request ?? [null, null];
                if ($request !== null && $call->tail === []) $call->tail = [1, $request, $stored ?? $generation];
                // a call may be made within another one, as by a signal handler: it takes another caller
                [$caller, $n] = array_pop($this->callers) ?? ['', self::MAX_N];
                if ($n > self::MAX_N - self::MAX_STEP) [$caller, $n] = [bin2hex(random_bytes(8)), 0];
                $call->fence = [$caller, $n + random_int(1, self::MAX_STEP), $epoch, ''];
            }
            $reply = $this->session->send($call);
            if ($call !== $this->sent) $this->callers[] = $call->fence;
            if ($reply[0] === 'MISMATCH' && $call->isUnsure) throw new OutcomeUnknown('MISMATCH', 'the family has changed in Redis');
            if ($reply[0] !== 'EXPIRED') return $reply;
            $this->forgetEpoch($call->partition);
            // A call that was sent once, and that no library repeats, was not executed, and is made anew. A call with a
            // request keeps the generation if it may have been executed: then it counts once in any case.
            $isUnsure = $call->isUnsure || !$this->session->isOwn;
            if (!$isFirst || $isUnsure && $call->request === null) throw self::forgotten();
            $call->fence = [];
            if (!$isUnsure) $call->tail = [];
        }
    }

    /** Makes a call that only reads, or is safe to repeat in any case. */
    protected function read(string $script, array $keys, array $args): array {
        try {
            return $this->session->send(new Call($script, $keys, $args));
        } catch (OutcomeUnknown $error) {
            $isPassing = Driver::isPassing($error);
            $class = $isPassing ? NotCounted::class : Misconfigured::class;
            throw new $class($error->reason, $error->getMessage(), isTemporary: $isPassing, previous: $error->getPrevious());
        }
    }

    /** Makes a read that needs the settings at the home of a partition's calls. */
    protected function readOfHome(string $script, int $partition, array $names, array $keys, string|int $arg): array {
        $keys = [...$this->keys($this->home($partition), 'calls', ...$names), ...$keys];
        for ($i = 0; $i < self::ROUNDS; $i++) {
            $reply = $this->read($script, $keys, [$arg, '']);
            if ($reply[0] === 'OK') return $reply;
            if ($reply[0] !== 'MISMATCH') break;
            $this->askAnew($partition);
            usleep(100_000);
        }
        throw new NotCounted($reply[0], "$script $arg of $this->name", isTemporary: $reply[0] === 'NOCALENDAR');
    }

    /** Asks again for the settings at the home of a partition, and at that of partition 0, whose settings choose partitions. */
    protected function askAnew(int $partition): void {
        $this->ask($partition, isFresh: true);
        if ($this->home($partition) !== 0) $this->ask(isFresh: true);
    }

    /** Forgets the callers of the parent process: a forked child needs names of its own. */
    protected function forgetParent(): void {
        if ($this->process !== getmypid()) [$this->callers, $this->process] = [[], getmypid()];
    }

    /**
     * Returns the reply of family_epoch for the home of a partition, less than 30 s old. Ask for that of partition 0 first: it
     * has the number of partitions, and its connection shows whether Redis is a cluster.
     *
     * @param ?int $of the number of partitions for which a call was made; throws if there is another number now
     * @return array{until: int, epoch: string, generation: string, partitions: int, settings: array<string, mixed>}
     */
    protected function ask(int $partition = 0, ?int $of = null, bool $isFresh = false): array {
        $now = hrtime(true);
        $home = $this->home($partition);
        $known = $this->known[$home] ?? null;
        if ($isFresh || $now >= ($known['until'] ?? 0)) {
            $keys = $this->fence($partition);
            $known = $this->session->shared(static::KIND, $keys[0]) ?? $known;
            if ($isFresh || $now >= ($known['until'] ?? 0)) {
                [, $epoch, $generation, , $partitions, $settings] = $this->askRedis($keys, $known);
                $known = ['until' => $now + self::FRESH_NS, 'epoch' => $epoch, 'generation' => $generation,
                    'partitions' => (int) $partitions, 'settings' => json_decode($settings, true)];
                $this->session->share(static::KIND, $keys[0], $known);
            }
            $this->known[$home] = $known;
        }
        if ($of === null || $of === $known['partitions']) return $known;
        // with another number of partitions the reconciler may not drain the one that was chosen
        $this->known = [];
        throw new Misconfigured('MISMATCH', "$this->name has {$known['partitions']} partitions now, not $of");
    }

    /** Asks Redis for the epoch. Throws if the family is not configured, or not as it was known. */
    private function askRedis(array $keys, ?array $known): array {
        $args = [static::KIND, $known['partitions'] ?? '', '', ''];
        $ask = function () use (&$reply, $keys, $args): bool {
            $reply = $this->awaitConfigured($keys, $args);
            return true;
        };
        $refusal = $this->session->outageOf($this->path)->refusal($ask);
        if ($refusal !== null) throw $refusal;
        if ($reply === null) $ask();
        if ($reply[0] === 'OK') return $reply;
        $this->known = [];
        $this->session->share(static::KIND, $keys[0], null);
        $isOther = $reply[1] !== static::KIND;
        throw new Misconfigured($reply[0], "$this->path " . ($isOther ? "is $reply[1], not " . static::KIND : "has $reply[2] partitions now"));
    }

    /** Returns the reply of family_epoch, as soon as a daemon has configured the family. */
    private function awaitConfigured(array $keys, array $args): array {
        $end = min(hrtime(true) + self::CONFIGURING_NS, $this->session->deadline());
        $keys = [...$keys, ...str_replace(':calls', ':requests', $keys)];
        while (($reply = $this->read('family_epoch', $keys, $args))[0] === 'UNCONFIGURED') {
            $refusal = $reply[1] ?? '';
            if ($refusal !== '') throw new Misconfigured('UNCONFIGURED', "the daemon refuses $this->path: $refusal");
            $why = $this->announce();
            if ($this->session->pause($end, self::WANTED_US)) continue;
            $error = self::unconfigured($this->path, $why);
            $this->session->outageOf($this->path)->begin($error);
            throw $error;
        }
        return $reply;
    }

    public static function unconfigured(string $family, string $why): NotCounted {
        $what = "no daemon has configured $family: declare it in counterfoil.toml, and run the daemon$why";
        return new NotCounted('UNCONFIGURED', $what, isTemporary: true);
    }

    /** Announces the family to the daemon, whose configuration may have a pattern for it. Returns why that failed, or ''. */
    private function announce(): string {
        try {
            $isNoted = $this->read('family_want', ['cf1:wanted'], [$this->path])[0] === 'OK';
            return $isNoted ? '' : '; cf1:wanted is full, since no daemon takes names';
        } catch (CounterfoilException $error) {
            return "; the daemon was not asked for it: {$error->getMessage()}";
        }
    }

    protected function forgetEpoch(int $partition): void {
        $home = $this->home($partition);
        $this->known[$home]['until'] = 0;
        $this->session->share(static::KIND, $this->keys($home, 'calls')[0], $this->known[$home]);
    }

    /** Returns the partition that remembers the calls of a partition. */
    protected function home(int $partition): int {
        return $this->session->isCluster() ? $partition : 0;
    }

    protected function partitionOf(int $hash): int {
        return $hash % $this->ask()['partitions'];
    }

    /** @return list<string> */
    protected function keys(int $partition, string ...$names): array {
        $tag = "cf1:{{$this->path}/$partition}:";
        foreach ($names as &$name) $name = $tag . $name;
        return $names;
    }

    /**
     * Returns a counting call in the partition of a hash.
     *
     * @param ?array{string, ?string} $request the request of its first pair: the name, and the generation that a job has stored
     */
    protected function call(string $script, int $hash, array $names, array $args, ?array $request = null): Call {
        $of = $this->ask()['partitions'];
        $keys = [...$this->fence($hash % $of), ...$this->keys($hash % $of, ...$names)];
        if ($request !== null) array_push($keys, ...$this->keys($this->home($hash % $of), 'requests', 'requests_before'));
        return new Call($script, $keys, $args, $hash % $of, $of, request: $request);
    }

    /** Returns the word for a request. For `EXPIRED`, which shows another generation of requests, forgets the epoch and throws. */
    protected function known(string|int|null $word, int $partition): string|int|null {
        if ($word !== 'EXPIRED') return $word;
        $this->forgetEpoch($partition);
        throw self::forgotten();
    }

    /** @return list<string> the first keys of a counting call: those that remember the calls */
    protected function fence(int $partition): array {
        return $this->keys($this->home($partition), 'calls', 'calls_before');
    }

    /**
     * Returns an id as text. Refuses anything but an integer, or a string of 1 to $max bytes of UTF-8. The parameter has no type,
     * because in code without strict types PHP would turn false into 0.
     */
    protected static function checkId(mixed $id, int $max = self::ID_BYTES, bool $isText = true): string {
        if (is_int($id)) return (string) $id;
        // json_encode fails for what is not UTF-8, and takes less time than a regular expression
        if (is_string($id) && $id !== '' && strlen($id) <= $max && (!$isText || json_encode($id) !== false)) return $id;
        $given = is_string($id) ? '' : ', not ' . get_debug_type($id);
        throw new NotCounted('BADID', "expected an integer, or a string of 1 to $max bytes" . ($isText ? ' of UTF-8' : '') . $given);
    }

    /** Refuses a name of a request that is not 1 to 64 bytes. */
    protected static function checkRequest(mixed $request): string {
        return self::checkId($request, 64, isText: false);
    }

    /** Refuses an id, a name or a page that can have no row. */
    protected function checkRow(string $id): string {
        $this->refuseRowless($id, $this->ask()['settings']);
        return $id;
    }

    protected function refuseRowless(string $id, array $settings): void {
        // the delimiter \x01 cannot be in the pattern, where such a character is escaped
        if (strlen($id) <= self::ID_BYTES && preg_match("\x01\\A(?:{$settings['ids']})\\z\x01u", $id) === 1) return;
        $given = json_encode($id, JSON_UNESCAPED_SLASHES | JSON_UNESCAPED_UNICODE);
        throw new NotCounted('BADID', "$given can have no row, expected {$settings['ids_in_words']}");
    }

    /** Refuses anything but an integer. An integer beyond 64 bits is a float in PHP. */
    protected static function checkDelta(mixed $delta, int $least = PHP_INT_MIN): int {
        if (is_int($delta) && $delta >= $least) return $delta;
        throw new NotCounted('BADARG', "expected an integer of 64 bits from $least on, not " . json_encode($delta));
    }

    /**
     * Adds up. Refuses a sum beyond 64 bits. Positive and negative parts alternate, so that no step leaves 64 bits if the sum
     * does not.
     */
    protected static function sum(int|float|string ...$parts): int {
        sort($parts, SORT_NUMERIC);
        for ($sum = 0; $parts !== [];) $sum += $sum > 0 ? array_shift($parts) : array_pop($parts);
        return is_int($sum) ? $sum : throw new NotCounted('RANGE', 'the sum is not an integer of 64 bits');
    }

    /** Returns the number that a script replied, or throws if it is a word, which says why the hit was refused. */
    protected static function number(int|string $word): int {
        if (is_int($word) || preg_match('/^[A-Z]/', $word) === 0) return (int) $word;
        $parts = explode(':', $word);
        $value = isset($parts[1]) ? (int) $parts[1] : null;
        $message = $value === null ? '' : "the value stays $value";
        throw new NotCounted($parts[0], $message, $value, isTemporary: $parts[0] === 'NOCALENDAR');
    }

    /**
     * Returns what a script replied for a pair, or null if an earlier arrival of the call counted it.
     *
     * @param int $pair the number of the pair in the call, from 1
     * @param int $totals how many totals of partitions are in front of it in the reply
     */
    protected static function pendingOf(array $reply, int $pair = 1, int $totals = 1): ?int {
        if ($reply[0] === 'OK') return self::number($reply[$totals + $pair]);
        // DUP is followed by the pairs that were refused, e.g. "3:FULL 7:RANGE"
        return preg_match("/\b$pair:([A-Z]+)/", $reply[1], $refused) === 1 ? self::number($refused[1]) : null;
    }

    protected static function forgotten(): OutcomeUnknown {
        return new OutcomeUnknown('EXPIRED', 'Redis lost its memory, or the call took too long');
    }
}
