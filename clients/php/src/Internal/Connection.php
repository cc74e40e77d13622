<?php declare(strict_types=1);

namespace Counterfoil\Internal;

use Closure, Exception, Redis, RedisCluster;
use Counterfoil\Misconfigured;
use Predis\ClientInterface;

/** The connection to Redis: an object that was given, or one that a closure makes, again after a loss and in each process. */
final class Connection {
    /** @var list<?Driver> connections of the parent process, kept open: closing one could end the parent's TLS session */
    private static array $inherited = [];
    private ?Driver $driver = null;
    private bool $isBroken = false;
    private int $process;

    /** @param bool $isOwn if the package made it, so that nothing sends a command twice */
    public function __construct(private readonly object $given, public readonly bool $isOwn) {
        $this->process = getmypid();
    }

    /** @throws Failure */
    public function isCluster(): bool {
        return $this->driver()->isCluster();
    }

    /** Refuses a client that got other options since. */
    public function check(): void {
        $this->driver?->check();
    }

    /** @throws Failure */
    public function address(): string {
        return $this->driver()->address();
    }

    /**
     * Sends EVALSHA or EVAL once; see Driver.
     *
     * @throws Failure
     */
    public function evaluate(string $command, string $script, array $keys, array $args): array {
        try {
            return $this->driver()->evaluate($command, $script, $keys, $args);
        } catch (Failure $failure) {
            // its late reply must not be taken for that of another command, and READONLY may concern this server only
            $this->isBroken = $failure->isTemporary();
            throw $failure;
        }
    }

    private function driver(): Driver {
        $isForked = $this->process !== getmypid();
        if ($this->driver !== null && !$isForked && !$this->isBroken) return $this->driver;
        $isGiven = !$this->given instanceof Closure;
        if ($isForked && !$isGiven) [self::$inherited[], $this->driver] = [$this->driver, null];
        try {
            $old = $this->driver ?? ($isGiven ? self::over($this->given) : null);
            if ($isForked || $this->isBroken) $old?->close();
            $this->driver = $isGiven ? $old : self::over(($this->given)());
        } catch (Misconfigured $error) {
            throw $error;
        } catch (Exception $error) {
            throw Failure::unsent($error);
        }
        [$this->isBroken, $this->process] = [false, getmypid()];
        return $this->driver;
    }

    private static function over(mixed $client): Driver {
        $driver = match (true) {
            $client instanceof Redis, $client instanceof RedisCluster => new PhpRedis($client),
            $client instanceof ClientInterface => new Predis($client),
            default => throw new Misconfigured('client', 'expected Redis, RedisCluster or Predis, not ' . get_debug_type($client)),
        };
        $driver->check();
        return $driver;
    }
}
