<?php declare(strict_types=1);

namespace Counterfoil\Internal;

use Closure, ErrorException, Redis, RedisCluster, RedisClusterException, RedisException, ReflectionFunction;
use Counterfoil\{CounterfoilException, Misconfigured, NotCounted, OutcomeUnknown};
use Predis\{ClientInterface, Connection\Replication\ReplicationInterface, PredisException};

/** The options of a Counterfoil and its connection to Redis, which its families share. */
final class Session {
    private const SCRIPTS = __DIR__ . '/../../lua';
    private const PAUSE_US = 50_000;
    /** The shortest time that an attempt gets, for connecting and for a reply each. */
    private const ATTEMPT_S = 0.2;
    /** The time that a probe gets. */
    public const PROBE_S = 0.1;
    /** The time for which the end of a program sends its sums, and the pause between attempts. */
    private const END_S = 5.0;
    private const END_PAUSE_US = 500_000;
    /** The reasons of errors with which an outage begins. */
    private const DOWN = ['UNREACHABLE', 'no reply', 'LOADING', 'BUSY', 'CLUSTERDOWN', 'MASTERDOWN'];
    /** @var ?array<string, string> SHA-1 by the name of the script */
    private static ?array $hashes = null;
    private ?Driver $driver = null;
    private ?string $server = null;
    private bool $isBroken = false;
    private int $process;
    /** When the calls inside of `within` end, as a time of hrtime. */
    private ?int $deadline = null;
    private bool $isOver = false;
    /** True if a call that failed is not repeated. */
    private bool $isOnce = false;
    /** @var array<string, Outage> of the server, or of partitions of a cluster */
    private array $outages = [];
    /** True if `connect` made the connection: then only this package repeats a command. */
    public readonly bool $isOwn;

    /** @param object $client the application's, or a closure or Connector that makes one */
    public function __construct(
        private readonly object $client,
        public readonly string $namespace,
        private readonly float $retryFor,
        public readonly Values $values,
        public readonly ?Closure $onError,
    ) {
        if ($retryFor < 0 || $retryFor > 30) throw new Misconfigured('retryFor', 'expected 0 to 30 seconds');
        $this->isOwn = $client instanceof Connector;
        $this->process = getmypid();
    }

    /**
     * Sends the call, and the same call again until there is a reply or the deadline has passed.
     *
     * @return list<string|int>
     * @throws CounterfoilException
     */
    public function send(Call $call): array {
        self::$hashes ??= require self::SCRIPTS . '/sha1.php';
        [$isSha, $script] = [true, self::$hashes[$call->script]];
        $words = [...$call->keys, ...$call->fence, ...$call->args, ...$call->tail];
        [$began, $deadline] = [hrtime(true), $this->deadline()];
        while (true) {
            $wasUnsure = $call->isUnsure;
            $this->refuseInOutage($call);
            try {
                $driver = $this->driver(self::secondsTo($deadline));
                $this->isBroken = $call->isUnsure = true;  // a signal handler may end the call
                $reply = $driver->evaluate($isSha, $script, count($call->keys), $words, self::secondsTo($deadline));
                $this->isBroken = false;
                if ($reply[0] === 'PASSED') throw new OutcomeUnknown('PASSED', 'another process uses the name of this caller');
                if ($reply[0] === 'EXPIRED' || $reply[0] === 'MISMATCH') $call->isUnsure = $wasUnsure;
                return $reply;
            } catch (CounterfoilException $error) {
                // connect anew: a late reply could be taken for that of another call, and another server may not be READONLY
                $this->isBroken = $isPassing = Driver::isPassing($error);
                // the library may have sent the call over another connection before this refusal
                $mayFollowAnother = $call->isUnsure && $call->fence !== [] && $error->reason !== 'NOSCRIPT'
                    && !$this->isOwn && $this->driver->resends;
                $call->isUnsure = $wasUnsure || $error instanceof OutcomeUnknown || $mayFollowAnother;
            }
            if ($error->reason === 'NOSCRIPT' && $isSha) {
                [$isSha, $script] = [false, file_get_contents(self::SCRIPTS . "/$call->script.lua")];
                continue;
            }
            if (!$isPassing || !$this->pause($deadline)) break;
        }
        // a single attempt that fails at once does not show an outage
        $hasWaited = !$this->isOnce || hrtime(true) - $began > self::PROBE_S * 1e9;
        if ($isPassing && $hasWaited && in_array($error->reason, self::DOWN, true)) $this->outage($call->keys[0])->begin($error);
        if (!$call->isUnsure || $error instanceof OutcomeUnknown) throw $error;
        // the error is about the last send, and an earlier one may have been executed
        throw Driver::lost($error->getMessage(), $error->getPrevious());
    }

    /** Returns when a call that begins now ends at the latest, as a time of hrtime. */
    public function deadline(): int {
        return $this->deadline ?? hrtime(true) + (int) ($this->retryFor * 1e9);
    }

    /** Returns for how long an attempt may take. */
    public static function secondsTo(int $deadline): float {
        return max(($deadline - hrtime(true)) / 1e9, self::ATTEMPT_S);
    }

    /** Pauses before another attempt, and returns false if there is no time for one. */
    public function pause(int $deadline, int $us = self::PAUSE_US): bool {
        if ($this->isOver) $us = max($us, self::END_PAUSE_US);
        if ($this->isOnce || hrtime(true) + $us * 1000 + self::ATTEMPT_S * 1e9 > $deadline) return false;
        usleep($us);
        return true;
    }

    /** Calls a function whose calls have one deadline. */
    public function within(Closure $calls, bool $isRead = false): mixed {
        if ($this->deadline !== null) return $calls();
        $this->deadline = hrtime(true) + (int) ($this->retryFor * ($isRead ? 0.5e9 : 1e9));
        try {
            return $calls();
        } finally {
            if (!$this->isOver) $this->deadline = null;
        }
    }

    /** Sets the deadline of all calls that are made after the end of the script. */
    public function end(): void {
        if ($this->isOver) return;
        // a call of a web request gets one attempt, since a visitor may be waiting for a free worker
        $this->isOnce = PHP_SAPI !== 'cli';
        $this->deadline = hrtime(true) + (int) (1e9 * ($this->isOnce ? min($this->retryFor, self::END_S) : self::END_S));
        $this->isOver = true;
        if (Parked::isAvailable()) return;
        foreach ($this->outages as $outage) $outage->end();
    }

    /** Returns if Redis is a cluster, where each partition remembers its own calls. It is false before the first connection. */
    public function isCluster(): bool {
        return $this->driver !== null && $this->driver->isCluster;
    }

    /** Returns a name that differs for each server, '' if none is known. It needs no connection. */
    public function server(): string {
        $this->server ??= match (true) {
            $this->client instanceof Connector => $this->client->address,
            // the address of a server behind a Sentinel is known only after the Sentinel was asked
            $this->client instanceof ClientInterface && !$this->client->getConnection() instanceof ReplicationInterface
                => Predis::addressOf($this->client),
            $this->client instanceof Closure => self::placeOf($this->client) . " $this->namespace",
            default => $this->driver?->address,
        };
        return $this->server ?? '';
    }

    /** Returns the reply of family_epoch that another request of this machine has stored in APCu, for the home with this key. */
    public function shared(string $kind, string $home): ?array {
        if (!Shared::isEnabled() || $this->outage($home)->isKnown()) return null;
        try {
            return Shared::fetch("{$this->address()} $kind $home");
        } catch (CounterfoilException) {
            return null;
        }
    }

    /** Stores a reply of family_epoch for other requests. Its `until` says how long its epoch may be used. */
    public function share(string $kind, string $home, ?array $known): void {
        if (Shared::isEnabled()) Shared::store("{$this->address()} $kind $home", $known, 3600);
    }

    /** Returns the name of the server that an epoch belongs to. Unless `connect` made the connection, this connects. */
    private function address(): string {
        return $this->isOwn ? $this->client->address : $this->driver(self::secondsTo($this->deadline()))->address;
    }

    /** Returns the outage of the server, or in a cluster of the home that the key names. */
    private function outage(string $key): Outage {
        $server = $this->serverOrSelf();
        $isCluster = $this->driver?->isCluster ?? Shared::fetch("cluster $server") !== null;
        if ($isCluster) $server .= ' ' . strstr($key, '}', true);
        return $this->outages[$server] ??= new Outage($server, 'Redis');
    }

    /** Returns the outage of a family that is not configured. */
    public function outageOf(string $family): Outage {
        $key = "{$this->serverOrSelf()} $family";
        return $this->outages[$key] ??= new Outage($key);
    }

    private function serverOrSelf(): string {
        return $this->server() ?: getmypid() . ' ' . spl_object_id($this);
    }

    private function refuseInOutage(Call $call): void {
        $error = $this->outage($call->keys[0])->refusal(fn(): bool => $this->replies($call));
        if ($error !== null) throw $call->isUnsure ? Driver::lost($error->getMessage()) : $error;
    }

    /** Asks for the epoch of the call's family. Returns if the outage is over: any reply, unless the server is not ready. */
    private function replies(Call $call): bool {
        $home = strstr($call->keys[0], '}', true);
        $names = ['calls', 'calls_before', 'requests', 'requests_before'];
        $words = [...array_map(fn(string $name): string => "$home}:$name", $names), '', '', '', ''];
        try {
            $this->driver(self::PROBE_S)->evaluate(true, self::$hashes['family_epoch'], count($names), $words, self::PROBE_S);
            return true;
        } catch (CounterfoilException $error) {
            $this->isBroken = Driver::isPassing($error);
            return !in_array($error->reason, self::DOWN, true);
        }
    }

    /** Returns the connection: a new one at first, after a failure, and in a forked process. */
    private function driver(float $limit): Driver {
        $isForked = $this->process !== getmypid();
        if ($this->driver !== null && !$isForked && !$this->isBroken) return $this->driver;
        try {
            if (is_callable($this->client)) {
                $this->driver?->close();
                $this->driver = self::driverOf($this->isOwn ? ($this->client)($limit) : ($this->client)());
            } else {
                $this->driver ??= self::driverOf($this->client);
                if ($isForked || $this->isBroken) $this->driver->reconnect($limit);
            }
        } catch (RedisException|RedisClusterException|PredisException|ErrorException $error) {
            throw Driver::unsent($error);
        }
        [$this->isBroken, $this->process] = [false, getmypid()];
        // so that the next request knows it, even if it cannot connect
        if ($this->driver->isCluster && $this->server() !== '') Shared::store("cluster {$this->server()}", true);
        return $this->driver;
    }

    private static function driverOf(mixed $client): Driver {
        return match (true) {
            $client instanceof Driver => $client,
            $client instanceof Redis, $client instanceof RedisCluster => new PhpRedis($client),
            $client instanceof ClientInterface => new Predis($client),
            default => throw new Misconfigured('client', 'expected Redis, RedisCluster or Predis\Client'),
        };
    }

    /** Returns a name of a closure, by the place where it is written and the plain values that it uses. */
    private static function placeOf(Closure $closure): string {
        $function = new ReflectionFunction($closure);
        $values = array_filter($function->getStaticVariables(), is_scalar(...));
        return sha1(serialize([$function->getFileName(), $function->getStartLine(), $values]));
    }
}
