<?php declare(strict_types=1);

namespace Counterfoil\Internal;

use Closure;
use Counterfoil\{CounterfoilException, Misconfigured, NotCounted, OutcomeUnknown};

/** A family: its settings and epochs as Redis has them, and calls with these. */
abstract class Family {
    protected const KIND = '';
    private const FRESH_NS = 30_000_000_000;
    private const TIMES = 10;
    /** @var array<int, array> by home: the last reply of family_epoch, and until when it may be used */
    private array $known = [];
    /** @var array<string, string> beginnings of keys by partition */
    private array $tags = [];

    /** @internal use Counterfoil */
    public function __construct(protected readonly Session $session, public readonly string $name) {
        if (preg_match('/^[a-z0-9_.-]{1,64}$/D', $name) !== 1) {
            throw new Misconfigured('BADKEY', "the name of a family has 1 to 64 of a-z, 0-9, _, . and -, not \"$name\"");
        }
    }

    /**
     * Makes a counting call. Libraries take a number at the end of a reply for whole when the connection breaks within it,
     * so calls whose numbers matter have one more item behind them, which counts nothing.
     *
     * @return array the reply: `OK`, `DUP` or `OUTSIDE`, and the words behind it
     * @throws CounterfoilException
     */
    protected function count(string $script, int $partition, array $keys, array $args, int $deadline): array {
        $session = $this->session;
        for ($first = true; ; $first = false) {
            $epoch = $this->ask($partition, $deadline)['epoch'];
            [$caller, $n] = $session->takeCaller();
            $keysAndFence = [...$this->fence($partition), ...$keys];
            [$reply, $wasLost] = $session->send($script, $keysAndFence, [$caller, $n, $epoch, '', ...$args], $deadline);
            if ($reply[0] !== 'PASSED') $session->returnCaller($caller, $n);
            if ($reply[0] !== 'PASSED' && $reply[0] !== 'EXPIRED') return $reply;
            $this->forgetEpoch($partition);
            if ($reply[0] === 'PASSED' || $wasLost || !$first || !$session->connection->isOwn) throw self::unknown($reply[0]);
        }
    }

    /** Makes a call for the slice of time that is current here, and anew for the server's if it replies that it has another one. */
    protected function atTime(Closure $call): array {
        $nowMs = (int) (microtime(true) * 1000);
        for ($attempt = 0; $attempt < self::TIMES; $attempt++) {
            $reply = $call($nowMs);
            if ($reply[0] !== 'OUTSIDE') return $reply;
            $nowMs = (int) $reply[1];
        }
        throw new NotCounted('OUTSIDE', 'the clock of Redis changes too fast', isTemporary: true);
    }

    /** Makes a call that only reads, or is safe to repeat in any case. */
    protected function read(string $script, array $keys, array $args, int $deadline): array {
        try {
            return $this->session->send($script, $keys, $args, $deadline)[0];
        } catch (OutcomeUnknown $error) {
            throw new NotCounted($error->reason, $error->getMessage(), isTemporary: $error->isTemporary, previous: $error);
        }
    }

    /**
     * Returns what family_epoch replied for the home of a partition less than 30 s ago.
     *
     * @return array{until: int, epoch: string, before: string, partitions: int, settings: array<string, mixed>}
     */
    protected function ask(int $partition, int $deadline, bool $isFresh = false): array {
        $asked = hrtime(true);
        $home = $this->session->isCluster() ? $partition : 0;
        $known = $this->known[$home] ?? null;
        if (!$isFresh && $known !== null && $asked < $known['until']) return $known;
        $fence = $this->fence($home);
        $shared = $this->session->shared($fence[0]);
        if (!$isFresh && $shared !== null && $asked < $shared['until'] && $shared['epoch'] !== ($known['epoch'] ?? '')) {
            return $this->known[$home] = $shared;
        }
        $known ??= $shared;
        do {
            $reply = $this->askRedis($fence, $known['partitions'] ?? '', $deadline);
            // the daemon configures a Redis that was emptied within about a second
            $isWaiting = $reply[0] === 'UNCONFIGURED' && $known !== null && hrtime(true) < min($deadline, $asked + 3_000_000_000);
        } while ($isWaiting && usleep(200_000) === null);
        if ($reply[0] !== 'OK') {
            $this->known = [];
            $this->session->share($fence[0], null);
            throw $this->misconfigured($reply);
        }
        [, $epoch, $before, , $partitions, $settings] = $reply;
        $known = ['until' => $asked + self::FRESH_NS, 'epoch' => $epoch, 'before' => $before,
            'partitions' => (int) $partitions, 'settings' => json_decode($settings, true)];
        $this->session->share($fence[0], $known);
        return $this->known[$home] = $known;
    }

    protected function forgetEpoch(int $partition): void {
        $home = $this->session->isCluster() ? $partition : 0;
        if (!isset($this->known[$home])) return;
        $this->known[$home]['until'] = 0;
        $this->session->share($this->fence($home)[0], $this->known[$home]);
    }

    protected function partitionOf(string $id, int $deadline): int {
        return crc32($id) % $this->ask(0, $deadline)['partitions'];
    }

    /** @return list<string> */
    protected function keys(int $partition, string ...$names): array {
        $tag = $this->tags[$partition] ??= "cf1:{{$this->session->namespace}/{$this->name}/$partition}:";
        foreach ($names as &$name) $name = $tag . $name;
        return $names;
    }

    /** @return list<string> the keys with which a counting call begins: those of its home */
    protected function fence(int $partition): array {
        $home = $this->session->isCluster() ? $partition : 0;
        return $this->keys($home, 'calls', 'calls_before');
    }

    protected static function unknown(string $status): OutcomeUnknown {
        return new OutcomeUnknown($status, $status === 'PASSED'
            ? 'another process uses the name of this caller'
            : 'Redis lost its memory, or the call took too long');
    }

    protected function daemon(): Daemon {
        return $this->session->daemon
            ?? throw new Misconfigured('daemon', 'give the URL of the daemon in the option `daemon`, or another way to read rows');
    }

    /** Returns the number that a script replied; a word is the reason of a refusal. */
    protected static function number(int|string $word): int {
        if (is_int($word) || preg_match('/^-?\d+$/D', $word) === 1) return (int) $word;
        [$reason, $value] = [...explode(':', $word), null];
        throw new NotCounted($reason, value: $value === null ? null : (int) $value);
    }

    /** Refuses an id that is not 1 to $max bytes of UTF-8. */
    protected static function checkId(string $id, int $max = 255, bool $isText = true): void {
        if ($id === '' || strlen($id) > $max || $isText && preg_match('//u', $id) !== 1) {
            throw new NotCounted('BADID', "expected 1 to $max bytes" . ($isText ? ' of UTF-8' : ''));
        }
    }

    /** Refuses what is not an integer: PHP makes a float of an integer that leaves its 64 bits. */
    protected static function checkDelta(int|float $delta): int {
        return is_int($delta) ? $delta : throw new NotCounted('BADARG', "expected an integer of 64 bits, not $delta");
    }

    /** Refuses a database that is not the one that the family's hits go to. */
    protected function checkDatabase(string $database, int $deadline): void {
        $reply = $this->askRedis($this->fence(0), '', $deadline, $database);
        if ($reply[0] !== 'OK') throw $this->misconfigured($reply);
    }

    private function askRedis(array $fence, int|string $partitions, int $deadline, string $database = ''): array {
        $this->session->connection->check();
        try {
            return $this->session->send('family_epoch', $fence, [static::KIND, $partitions, $database, ''], $deadline)[0];
        } catch (OutcomeUnknown $error) {
            if ($error->isTemporary) throw new NotCounted('no epoch', $error->getMessage(), isTemporary: true, previous: $error);
            throw new Misconfigured($error->reason, $error->getMessage(), previous: $error);
        }
    }

    private function misconfigured(array $reply): Misconfigured {
        $family = "{$this->session->namespace}/{$this->name}";
        return new Misconfigured($reply[0], $reply[0] === 'UNCONFIGURED'
            ? "this Redis does not know the family $family. Check its name and the number of the database; otherwise declare "
                . 'it in counterfoil.toml of the daemon (`counterfoil init` creates its tables), and start the daemon'
            : "the family $family is of the kind {$reply[1]} with {$reply[2]} partitions, and its hits go to the database "
                . "{$reply[3]}: this is not the kind " . static::KIND . ', the number that was known, or the given database');
    }
}
