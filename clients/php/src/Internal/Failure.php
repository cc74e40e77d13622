<?php declare(strict_types=1);

namespace Counterfoil\Internal;

use Counterfoil\{CounterfoilException, Misconfigured, NotCounted, OutcomeUnknown};
use RuntimeException, Throwable;

/** A command without a result: Redis refused it, its reply was lost, or it was never sent. */
final class Failure extends RuntimeException {
    private const TEMPORARY = [
        'no connection', 'no reply', 'LOADING', 'BUSY', 'CLUSTERDOWN', 'MASTERDOWN', 'TRYAGAIN', 'READONLY',
    ];
    private const REFUSED = ['OOM', 'MISCONF', 'NOREPLICAS', 'WRONGTYPE', 'BADSTATE'];
    private const MISCONFIGURED = [
        'NOAUTH', 'WRONGPASS', 'AUTH', 'DB index', 'BADARG', 'BADKEY', 'CROSSSLOT', 'MOVED', 'ASK', 'NOSCRIPT',
    ];

    public readonly bool $isTemporary;

    /** @param string $reason `no connection`, `no reply`, or the code of the error that Redis replied */
    private function __construct(public readonly string $reason, string $message, ?Throwable $previous) {
        parent::__construct($message, 0, $previous);
        $this->isTemporary = in_array($reason, self::TEMPORARY, true);
    }

    /** An error that Redis replied. */
    public static function refused(string $error, ?Throwable $previous = null): self {
        // Redis 6.2 puts the code of a command within a script into the text
        $codes = implode('|', [...self::TEMPORARY, ...self::REFUSED, ...self::MISCONFIGURED]);
        preg_match("/^(?:ERR Error running script.* -?(?=(?:$codes) ))?([A-Z]+)/", $error, $code);
        return new self($code[1] ?? 'ERR', $error, $previous);
    }

    /** A command that may have been executed, or may still be: no reply arrived. */
    public static function lost(string $message, ?Throwable $previous = null): self {
        return new self('no reply', $message, $previous);
    }

    /** A command that was not sent, since there was no connection. */
    public static function unsent(Throwable $error): self {
        preg_match('/\b(NOAUTH|WRONGPASS|LOADING|(?<=ERR )AUTH|DB index)\b/', $error->getMessage(), $refusal);
        return new self($refusal[1] ?? 'no connection', $error->getMessage(), $error);
    }

    /**
     * Returns what the caller receives.
     *
     * @param bool $wasLost if this reply or an earlier one to the same call was lost
     * @param bool $isRead if the call counts nothing
     */
    public function outcome(bool $wasLost, bool $isRead): CounterfoilException {
        $class = match (true) {
            $wasLost && !$isRead => OutcomeUnknown::class,
            $this->isTemporary, in_array($this->reason, self::REFUSED, true) => NotCounted::class,
            $isRead, in_array($this->reason, self::MISCONFIGURED, true) => Misconfigured::class,
            default => OutcomeUnknown::class,  // the script may have been refused in the middle
        };
        return new $class($this->reason, $this->getMessage(), isTemporary: $this->isTemporary, previous: $this);
    }
}
