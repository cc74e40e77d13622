<?php declare(strict_types=1);

namespace Counterfoil\Internal;

use Closure, PDO;
use Counterfoil\{CounterfoilException, Misconfigured};

/** What the families of a Counterfoil share: it sends their calls, each under the name of a caller, until Redis replies. */
final class Session {
    private const SCRIPTS = __DIR__ . '/../../lua';
    private const PAUSE_US = 50_000;
    private static ?array $hashes = null;
    /** @var list<array{string, int}> callers without a call in flight, each with the number of its last call */
    private array $callers = [];
    private int $process = 0;
    private readonly int $retryForNs;
    private ?bool $isCluster = null;
    private ?string $address = null;

    public function __construct(
        public readonly Connection $connection,
        public readonly string $namespace,
        float $retryFor,
        public readonly ?Daemon $daemon,
        public readonly PDO|Closure|null $database,
        public readonly ?Closure $onError,
    ) {
        if ($retryFor < 0 || $retryFor > 30) throw new Misconfigured('retryFor', 'expected 0 to 30 seconds');
        $this->retryForNs = (int) ($retryFor * 1e9);
    }

    /** Returns the time of hrtime after which a call that begins now is not repeated. */
    public function deadline(): int {
        return hrtime(true) + $this->retryForNs;
    }

    /**
     * Takes a caller, and the number of its next call. A call that is made while another one is in flight, e.g. by a signal
     * handler, takes another caller. A child process inherits none.
     *
     * @return array{string, int}
     */
    public function takeCaller(): array {
        if ($this->process !== getmypid()) [$this->callers, $this->process] = [[], getmypid()];
        [$name, $n] = array_pop($this->callers) ?? [bin2hex(random_bytes(8)), 0];
        return [$name, $n + 1];
    }

    /** Returns a caller whose call was settled by a reply. */
    public function returnCaller(string $name, int $n): void {
        $this->callers[] = [$name, $n];
    }

    /**
     * Sends a script's call, and the same call again until there is a reply or the deadline has passed.
     *
     * @return array{list<string|int>, bool} the reply, and if an earlier reply to this call was lost
     * @throws CounterfoilException
     */
    public function send(string $script, array $keys, array $args, int $deadline): array {
        self::$hashes ??= require self::SCRIPTS . '/sha1.php';
        [$command, $code, $wasLost] = ['evalSha', self::$hashes[$script], false];
        while (true) {
            try {
                return [$this->connection->evaluate($command, $code, $keys, $args), $wasLost];
            } catch (Failure $failure) {
                $wasLost = $wasLost || $failure->isLost();
            }
            if ($failure->reply === 'NOSCRIPT' && $command === 'evalSha') {
                [$command, $code] = ['eval', file_get_contents(self::SCRIPTS . "/$script.lua")];
            } else {
                $this->pause($failure, $wasLost, $deadline);
            }
        }
    }

    public function isCluster(): bool {
        return $this->isCluster ??= $this->ofConnection($this->connection->isCluster(...));
    }

    /** Returns what another request of this machine noted of a home, if there is APCu. */
    public function shared(string $home): ?array {
        return self::hasApcu() ? (apcu_fetch($this->sharedKey($home)) ?: null) : null;
    }

    /** Notes it for other requests. It says itself how long its epoch may be used. */
    public function share(string $home, ?array $known): void {
        if (self::hasApcu()) apcu_store($this->sharedKey($home), $known, 3600);
    }

    private static function hasApcu(): bool {
        return function_exists('apcu_enabled') && apcu_enabled();
    }

    private function sharedKey(string $home): string {
        $this->address ??= $this->ofConnection($this->connection->address(...));
        return "counterfoil {$this->address} $home";
    }

    /** Returns what needs a connection. */
    private function ofConnection(Closure $read): mixed {
        for ($deadline = $this->deadline(); ;) {
            try {
                return $read();
            } catch (Failure $failure) {
                $this->pause($failure, false, $deadline);
            }
        }
    }

    /** Waits before a repeat, or throws what the caller receives if there is none. */
    private function pause(Failure $failure, bool $wasLost, int $deadline): void {
        if ($failure->isTemporary()) usleep(self::PAUSE_US);
        // a process may have been suspended for long
        if (!$failure->isTemporary() || hrtime(true) > $deadline) throw $failure->outcome($wasLost);
    }
}
