<?php

declare(strict_types=1);

namespace Counterfoil\Internal;

use Closure;
use Counterfoil\CounterfoilException;
use Counterfoil\Misconfigured;

/** Sends calls until Redis replies, each under the name of a caller. */
final class Sender
{
    private const PAUSE_US = 50_000;
    /** @var list<array{string, int}> callers without a call in flight, each with the number of its last call */
    private array $callers = [];
    private int $process = 0;

    public function __construct(public readonly Connection $connection, private readonly float $retryFor)
    {
        if ($retryFor < 0 || $retryFor > 30) {
            throw new Misconfigured('retryFor', 'expected 0 to 30 seconds');
        }
    }

    /** Returns the time in nanoseconds at which a call that begins now is not repeated any more. */
    public function deadline(): int
    {
        return hrtime(true) + (int) ($this->retryFor * 1e9);
    }

    /**
     * Takes a caller, and the number of its next call. A call that arrives while another one is in flight, e.g. from a signal
     * handler, takes another caller. A child process inherits none.
     *
     * @return array{string, int}
     */
    public function takeCaller(): array
    {
        if ($this->process !== getmypid()) {
            [$this->callers, $this->process] = [[], getmypid()];
        }
        [$name, $n] = array_pop($this->callers) ?? [bin2hex(random_bytes(8)), 0];
        return [$name, $n + 1];
    }

    /** Returns a caller whose call was settled by a reply. */
    public function returnCaller(string $name, int $n): void
    {
        $this->callers[] = [$name, $n];
    }

    /**
     * Sends a script's call, and the same call again until there is a reply or the deadline has passed.
     *
     * @return array{list<string|int>, bool} the reply, and if an earlier reply to this call was lost
     * @throws CounterfoilException
     */
    public function send(string $script, array $keys, array $args, int $deadline): array
    {
        [$command, $code] = ['evalSha', Scripts::sha1($script)];
        return $this->repeat(function () use (&$command, &$code, $script, $keys, $args): array {
            try {
                return $this->connection->evaluate($command, $code, $keys, $args);
            } catch (Failure $failure) {
                if ($failure->reply !== 'NOSCRIPT') {
                    throw $failure;
                }
                [$command, $code] = ['eval', Scripts::source($script)];
                return $this->connection->evaluate($command, $code, $keys, $args);
            }
        }, $deadline);
    }

    /** Returns what the attempt returns, and if a reply was lost before. */
    public function repeat(Closure $attempt, int $deadline): array
    {
        for ($wasLost = false; ; usleep(self::PAUSE_US)) {
            if (isset($failure) && hrtime(true) > $deadline) {
                throw $failure->outcome($wasLost);
            }
            try {
                return [$attempt(), $wasLost];
            } catch (Failure $failure) {
                $wasLost = $wasLost || $failure->isSent && $failure->reply === '';
                if (!$failure->isTemporary()) {
                    throw $failure->outcome($wasLost);
                }
            }
        }
    }
}
