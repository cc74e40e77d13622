<?php declare(strict_types=1);

namespace Counterfoil\Internal;

use Closure;
use Counterfoil\{CounterfoilException, Misconfigured, NotCounted, OutcomeUnknown};

/** A family: its settings and epochs as Redis has them, and calls with these. */
abstract class Family {
    protected const KIND = '';
    private const FRESH_NS = 30_000_000_000;
    /** The largest number of a call. */
    private const MAX_N = 2 ** 53;
    /** Numbers grow by random steps, which differ in two machines that were resumed from one snapshot. */
    private const MAX_STEP = 2 ** 20;
    private const CONFIGURING_NS = 3_000_000_000;
    /** The daemon takes what is wanted so often. */
    private const WANTED_US = 200_000;
    protected const ROUNDS = 10;
    private const ID_BYTES = 255;

    /** @var array<int, array> by home: the last reply of family_epoch, and until when it may be used */
    protected array $known = [];
    /** @var list<list<string|int>> callers without a call in flight, each with the number of its last call */
    protected array $callers = [];
    /** A call that may be repeated later, so that its caller makes no other. */
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
     * Makes a counting call. Libraries take a number at the end of a reply for whole when the connection breaks
     * within it, so calls whose numbers matter have one more item behind them, which counts nothing.
     *
     * @return array the reply: `OK` or `DUP`, and the words behind it, or `MISMATCH`: made for other settings, not executed
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
                // a call that is made within another one has a caller of its own
                [$caller, $n] = array_pop($this->callers) ?? ['', self::MAX_N];
                if ($n > self::MAX_N - self::MAX_STEP) [$caller, $n] = [bin2hex(random_bytes(8)), 0];
                $call->fence = [$caller, $n + random_int(1, self::MAX_STEP), $epoch, ''];
            }
            $reply = $this->session->send($call);
            if ($call !== $this->sent) $this->callers[] = $call->fence;
            if ($reply[0] === 'MISMATCH' && $call->isUnsure) throw new OutcomeUnknown('MISMATCH', 'the family has changed in Redis');
            if ($reply[0] !== 'EXPIRED') return $reply;
            $this->forgetEpoch($call->partition);
            // the only send of a call that nothing repeats was not executed; a request of the same generation counts once
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

    /** Asks for the settings again, which are those of partition 0, and for those at another home. */
    protected function askAnew(int $partition): void {
        $this->ask($partition, isFresh: true);
        if ($this->home($partition) !== 0) $this->ask(isFresh: true);
    }

    /** A child process inherits no caller. */
    protected function forgetParent(): void {
        if ($this->process !== getmypid()) [$this->callers, $this->process] = [[], getmypid()];
    }

    /**
     * Returns what family_epoch replied for the home of a partition less than 30 s ago. Begin with that of partition 0.
     *
     * @param ?int $of how many partitions the family has to have
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
        // the reconciler may not drain a partition of another number
        $this->known = [];
        throw new Misconfigured('MISMATCH', "$this->name has {$known['partitions']} partitions now, not $of");
    }

    /** Returns the reply of family_epoch, of a family that is as it was known. */
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

    /** Announces the family to the daemon, which may know it. Returns why that failed. */
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
     * @param ?array{string, ?string} $request of its first pair: the name, and the generation that is stored with it
     */
    protected function call(string $script, int $hash, array $names, array $args, ?array $request = null): Call {
        $of = $this->ask()['partitions'];
        $keys = [...$this->fence($hash % $of), ...$this->keys($hash % $of, ...$names)];
        if ($request !== null) array_push($keys, ...$this->keys($this->home($hash % $of), 'requests', 'requests_before'));
        return new Call($script, $keys, $args, $hash % $of, $of, request: $request);
    }

    /** Refuses a request's word that Redis may have forgotten, and forgets the epoch: there is another generation. */
    protected function known(string|int|null $word, int $partition): string|int|null {
        if ($word !== 'EXPIRED') return $word;
        $this->forgetEpoch($partition);
        throw self::forgotten();
    }

    /** @return list<string> the first keys of a counting call: those that remember the calls */
    protected function fence(int $partition): array {
        return $this->keys($this->home($partition), 'calls', 'calls_before');
    }

    /** Refuses what is neither an integer nor 1 to $max bytes of UTF-8: a caller without strict types would pass false as 0. */
    protected static function checkId(mixed $id, int $max = self::ID_BYTES, bool $isText = true): string {
        if (is_int($id)) return (string) $id;
        // json_encode refuses what is not UTF-8, in less time than a regular expression
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
        // the delimiter is a character that patterns have in escaped form only
        if (strlen($id) <= self::ID_BYTES && preg_match("\x01\\A(?:{$settings['ids']})\\z\x01u", $id) === 1) return;
        $given = json_encode($id, JSON_UNESCAPED_SLASHES | JSON_UNESCAPED_UNICODE);
        throw new NotCounted('BADID', "$given can have no row, expected {$settings['ids_in_words']}");
    }

    /** Refuses what is not an integer: PHP makes a float of an integer that leaves its 64 bits. */
    protected static function checkDelta(mixed $delta, int $least = PHP_INT_MIN): int {
        if (is_int($delta) && $delta >= $least) return $delta;
        throw new NotCounted('BADARG', "expected an integer of 64 bits from $least on, not " . json_encode($delta));
    }

    /** Adds up, in an order in which only a sum that leaves 64 bits does so, which is refused. */
    protected static function sum(int|float|string ...$parts): int {
        sort($parts, SORT_NUMERIC);
        for ($sum = 0; $parts !== [];) $sum += $sum > 0 ? array_shift($parts) : array_pop($parts);
        return is_int($sum) ? $sum : throw new NotCounted('RANGE', 'the sum is not an integer of 64 bits');
    }

    /** Returns the number that a script replied, which lacks digits if the reply was cut. A word is why it refused. */
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
     * @param int $pair its number in the call, from 1
     * @param int $totals how many totals of partitions are before it in the reply
     */
    protected static function pendingOf(array $reply, int $pair = 1, int $totals = 1): ?int {
        if ($reply[0] === 'OK') return self::number($reply[$totals + $pair]);
        // those that were refused then, e.g. "3:FULL 7:RANGE"
        return preg_match("/\b$pair:([A-Z]+)/", $reply[1], $refused) === 1 ? self::number($refused[1]) : null;
    }

    protected static function forgotten(): OutcomeUnknown {
        return new OutcomeUnknown('EXPIRED', 'Redis lost its memory, or the call took too long');
    }
}
