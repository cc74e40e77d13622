<?php declare(strict_types=1);

namespace Counterfoil\Internal;

use Closure, ErrorException, Redis, RedisCluster, RedisClusterException, RedisException;
use Counterfoil\{CounterfoilException, Misconfigured, NotCounted, OutcomeUnknown};
use Predis\{ClientInterface, PredisException};

/** What the families of a Counterfoil share: its options, and the connection to Redis. */
final class Session {
    private const SCRIPTS = __DIR__ . '/../../lua';
    private const PAUSE_US = 50_000;
    /** @var ?array<string, string> SHA-1 by the name of the script */
    private static ?array $hashes = null;
    private ?Driver $driver = null;
    private bool $isBroken = false;
    private int $process;
    private readonly int $retryForNs;
    /** When the calls that belong together end, as a time of hrtime: 0 if one failed then, so that no other is sent. */
    private ?int $deadline = null;
    /** If nothing but this package sends a command twice. */
    public readonly bool $isOwn;

    /** @param object $client the application's, or a closure or Connector that makes one */
    public function __construct(
        private readonly object $client,
        public readonly string $namespace,
        float $retryFor,
        public readonly Daemons $daemons,
        public readonly ?Closure $onError,
    ) {
        if ($retryFor < 0 || $retryFor > 30) throw new Misconfigured('retryFor', 'expected 0 to 30 seconds');
        $this->retryForNs = (int) ($retryFor * 1e9);
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
        // another node of a cluster may be available
        if ($this->deadline === 0 && !$this->isCluster()) {
            $error = new NotCounted('no connection', 'the call before had no reply', isTemporary: true);
            throw $call->isUnsure ? Driver::lost($error->getMessage()) : $error;
        }
        self::$hashes ??= require self::SCRIPTS . '/sha1.php';
        [$isSha, $script] = [true, self::$hashes[$call->script]];
        $words = [...$call->keys, ...$call->fence, ...$call->args, ...$call->tail];
        $deadline = $this->deadline();
        while (true) {
            $wasUnsure = $call->isUnsure;
            try {
                $driver = $this->driver();
                $this->isBroken = $call->isUnsure = true;  // a signal handler may end the call
                $reply = $driver->evaluate($isSha, $script, count($call->keys), $words);
                $this->isBroken = false;
                if ($reply[0] === 'PASSED') throw new OutcomeUnknown('PASSED', 'another process uses the name of this caller');
                if ($reply[0] === 'EXPIRED' || $reply[0] === 'MISMATCH') $call->isUnsure = $wasUnsure;
                return $reply;
            } catch (CounterfoilException $error) {
                // a late reply must not be taken for another one, another server may not be READONLY, a full one stays full
                $this->isBroken = $isPassing = $error->isTemporary && !in_array($error->reason, ['OOM', 'MISCONF'], true);
                // the library of the application may have sent it before it was refused
                $mayFollowAnother = $call->isUnsure && $call->fence !== [] && $error->reason !== 'NOSCRIPT'
                    && !$this->isOwn && $this->driver->resends;
                $call->isUnsure = $wasUnsure || $error instanceof OutcomeUnknown || $mayFollowAnother;
            }
            if ($error->reason === 'NOSCRIPT' && $isSha) {
                [$isSha, $script] = [false, file_get_contents(self::SCRIPTS . "/$call->script.lua")];
                continue;
            }
            if ($isPassing && hrtime(true) <= $deadline) {
                usleep(self::PAUSE_US);
                continue;
            }
            if ($isPassing && $this->deadline !== null) $this->deadline = 0;
            if (!$call->isUnsure || $error instanceof OutcomeUnknown) throw $error;
            // it does not tell what came of earlier arrivals of the call
            throw Driver::lost($error->getMessage(), $error->getPrevious());
        }
    }

    /** Returns when a call that begins now ends, as a time of hrtime. */
    public function deadline(): int {
        return $this->deadline ?? hrtime(true) + $this->retryForNs;
    }

    /** Calls a function whose calls have one deadline. */
    public function within(Closure $calls): mixed {
        if ($this->deadline !== null) return $calls();
        $this->deadline = hrtime(true) + $this->retryForNs;
        try {
            return $calls();
        } finally {
            $this->deadline = null;
        }
    }

    /** Sets the deadline of all calls behind the end of the script. */
    public function end(): void {
        $this->deadline = hrtime(true) + $this->retryForNs;
    }

    /** Returns if each partition remembers its calls itself: known once there was a connection. */
    public function isCluster(): bool {
        return $this->driver !== null && $this->driver->isCluster;
    }

    /** Returns what another request of this machine noted of a home, under its kind and key, if there is APCu. */
    public function shared(string $home): ?array {
        if (!function_exists('apcu_fetch')) return null;
        try {
            return apcu_fetch("counterfoil {$this->driver()->address} $home") ?: null;
        } catch (CounterfoilException) {
            return null;
        }
    }

    /** Notes it for other requests. It says itself how long its epoch may be used. */
    public function share(string $home, ?array $known): void {
        if (function_exists('apcu_store')) apcu_store("counterfoil {$this->driver->address} $home", $known, 3600);
    }

    /** Returns the connection: a new one at first, after a failure, and in a forked process. */
    private function driver(): Driver {
        $isForked = $this->process !== getmypid();
        if ($this->driver !== null && !$isForked && !$this->isBroken) return $this->driver;
        try {
            if (is_callable($this->client)) {
                $this->driver?->close();
                $this->driver = self::driverOf(($this->client)());
            } else {
                $this->driver ??= self::driverOf($this->client);
                if ($isForked || $this->isBroken) $this->driver->reconnect();
            }
        } catch (RedisException|RedisClusterException|PredisException|ErrorException $error) {
            throw Driver::unsent($error);
        }
        [$this->isBroken, $this->process] = [false, getmypid()];
        return $this->driver;
    }

    private static function driverOf(mixed $client): Driver {
        return match (true) {
            $client instanceof Redis, $client instanceof RedisCluster => new PhpRedis($client),
            $client instanceof ClientInterface => new Predis($client),
            default => throw new Misconfigured('client', 'expected Redis, RedisCluster or Predis\Client'),
        };
    }
}
