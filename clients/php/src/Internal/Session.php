<?php declare(strict_types=1);

namespace Counterfoil\Internal;

use Closure, ErrorException, PDO, Redis, RedisCluster, RedisClusterException, RedisException;
use Counterfoil\{CounterfoilException, Misconfigured, NotCounted, OutcomeUnknown};
use Predis\{ClientInterface, PredisException};

/** What the families of a Counterfoil share: its options, and the connection to Redis. */
final class Session {
    private const SCRIPTS = __DIR__ . '/../../lua';
    private const PAUSE_US = 50_000;
    /** @var ?array<string, string> SHA-1 by the name of the script */
    private static ?array $hashes = null;
    /** @var list<?Driver> those of the parent process, kept open: closing one could end the parent's TLS session */
    private static array $inherited = [];
    private ?Driver $driver = null;
    private bool $isBroken = false;
    private int $process;
    private readonly int $retryForNs;
    /** When the calls that belong together end, as a time of hrtime. */
    private ?int $deadline = null;
    /** If one of them failed then, so that the others are not sent. */
    private bool $isGivenUp = false;
    /** If the script has ended, and sums were sent. */
    public bool $isOver = false;
    /** If nothing but this package sends a command twice. */
    public readonly bool $isOwn;
    /** If each partition remembers its calls itself: known once there was a connection. */
    public bool $isCluster = false;

    /** @param object $client the application's, or a closure or Connector that makes one */
    public function __construct(
        private readonly object $client,
        public readonly string $namespace,
        float $retryFor,
        public readonly ?string $daemon,
        public readonly ?string $token,
        public readonly PDO|Closure|null $database,
        public readonly ?Closure $onError,
    ) {
        if ($retryFor < 0 || $retryFor > 30) throw new Misconfigured('retryFor', 'expected 0 to 30 seconds');
        $this->retryForNs = (int) ($retryFor * 1e9);
        $this->isOwn = $client instanceof Connector;
        $this->process = getmypid();
    }

    /**
     * Sends a script's call, and the same call again until there is a reply or the deadline has passed.
     *
     * @param list<string|int> $words keys and arguments
     * @param bool $wasLost if an earlier arrival may have been executed; true afterwards if this one may
     * @return list<string|int> the reply, with `LOST` behind `EXPIRED` if an earlier reply to this call was lost
     * @throws CounterfoilException
     */
    public function call(
        string $script,
        int $numberOfKeys,
        array $words,
        bool &$wasLost = false,
    ): array {
        self::$hashes ??= require self::SCRIPTS . '/sha1.php';
        $deadline = $this->deadline ?? hrtime(true) + $this->retryForNs;
        $code = self::$hashes[$script];
        $isSha = true;
        $isLost = $wasLost;
        while (true) {
            try {
                // another node of a cluster may be available
                if ($this->deadline !== null && $this->isGivenUp && !$this->isCluster) {
                    throw new NotCounted('no connection', 'the call before had no reply', isTemporary: true);
                }
                $isReady = $this->driver !== null && !$this->isBroken && $this->process === getmypid();
                $driver = $isReady ? $this->driver : $this->connect();
                $this->isBroken = $wasLost = true;  // a signal handler may end the call
                $reply = $driver->evaluate($isSha, $code, $numberOfKeys, $words);
                $this->isBroken = false;
                return $isLost && $reply[0] === 'EXPIRED' ? ['EXPIRED', 'LOST'] : $reply;
            } catch (CounterfoilException $error) {
                // a late reply must not be taken for another one, and another server may not be READONLY
                $this->isBroken = $error->isTemporary;
                $isLost = $isLost || $error->reason === 'no reply';
                $wasLost = $isLost || $error instanceof OutcomeUnknown;
            }
            if ($error->reason === 'NOSCRIPT' && $isSha) {
                [$isSha, $code] = [false, file_get_contents(self::SCRIPTS . "/$script.lua")];
                continue;
            }
            if ($error->isTemporary && hrtime(true) <= $deadline) usleep(self::PAUSE_US);
            // a process may have been suspended for long
            $this->isGivenUp = $error->isTemporary && hrtime(true) > $deadline;
            if ($error->isTemporary && !$this->isGivenUp) continue;
            // the last error does not tell what came of earlier arrivals of the call
            if (!$isLost) throw $error;
            [$message, $previous] = [$error->getMessage(), $error->getPrevious()];
            throw new OutcomeUnknown('no reply', $message, isTemporary: true, previous: $previous);
        }
    }

    /** Calls a function whose calls have one deadline. */
    public function within(Closure $calls): mixed {
        $outer = $this->deadline;
        if ($outer === null) $this->isGivenUp = false;
        $this->deadline ??= hrtime(true) + $this->retryForNs;
        try {
            return $calls();
        } finally {
            $this->deadline = $outer;
        }
    }

    /** Sets the deadline of all calls behind the end of the script. */
    public function end(): void {
        if ($this->isOver) return;
        [$this->isOver, $this->isGivenUp, $this->deadline] = [true, false, hrtime(true) + $this->retryForNs];
    }

    /** Returns what another request of this machine noted of a home, if there is APCu. */
    public function shared(string $home): ?array {
        if (!function_exists('apcu_fetch')) return null;
        try {
            $driver = $this->driver ?? $this->connect();
            return apcu_fetch("counterfoil $driver->address $home") ?: null;
        } catch (CounterfoilException) {
            return null;
        }
    }

    /** Notes it for other requests. It says itself how long its epoch may be used. */
    public function share(string $home, ?array $known): void {
        if (!function_exists('apcu_store')) return;
        apcu_store("counterfoil {$this->driver->address} $home", $known, 3600);
    }

    /** Connects for the first time, anew after a failure, or in a forked process. */
    private function connect(): Driver {
        $isForked = $this->process !== getmypid();
        try {
            if (is_callable($this->client)) {
                $isForked ? self::$inherited[] = $this->driver : $this->driver?->close();
                $this->driver = self::driverOf(($this->client)());
            } else {
                $this->driver ??= self::driverOf($this->client);
                if ($isForked || $this->isBroken) $this->driver->reconnect();
            }
        } catch (RedisException|RedisClusterException|PredisException|ErrorException $error) {
            throw Driver::unsent($error);
        }
        $this->isCluster = $this->driver->isCluster;
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
