<?php declare(strict_types=1);

namespace Counterfoil\Internal;

use RuntimeException, Throwable;
use Counterfoil\{CounterfoilException, Misconfigured, NotCounted, OutcomeUnknown};

/** A command without a result: Redis refused it, its reply was lost, or it was never sent. */
final class Failure extends RuntimeException {
    private const TEMPORARY = ['LOADING', 'BUSY', 'CLUSTERDOWN', 'MASTERDOWN', 'TRYAGAIN', 'READONLY'];
    private const REFUSED = ['OOM', 'MISCONF', 'NOREPLICAS', 'WRONGTYPE', 'BADSTATE'];
    private const MISCONFIGURED = ['NOAUTH', 'WRONGPASS', 'BADARG', 'BADKEY', 'CROSSSLOT', 'MOVED', 'ASK', 'NOSCRIPT'];

    /** The code of the error that Redis replied, or '' if no reply arrived. */
    public readonly string $reply;

    private function __construct(string $message, bool $isReply, public readonly bool $isSent, ?Throwable $previous) {
        $this->reply = $isReply ? self::codeOf($message) : '';
        parent::__construct($message, 0, $previous);
    }

    /** An error that Redis replied. */
    public static function refused(string $error, ?Throwable $previous = null): self {
        return new self($error, true, true, $previous);
    }

    /** A command that may have been executed: no reply arrived. */
    public static function lost(string $message, ?Throwable $previous = null): self {
        return new self($message, false, true, $previous);
    }

    /** A command that was not sent, since there was no connection. */
    public static function unsent(Throwable $previous): self {
        $message = $previous->getMessage();
        $isReply = preg_match('/\b(NOAUTH|WRONGPASS|LOADING|(?:ERR) .*(?:AUTH|DB index).*)/', $message, $error) === 1;
        return new self($isReply ? $error[1] : $message, $isReply, false, $previous);
    }

    /** Returns if the command may have been executed, or may still be. */
    public function isLost(): bool {
        return $this->isSent && $this->reply === '';
    }

    /** Returns if a repeat may succeed. */
    public function isTemporary(): bool {
        return $this->reply === '' || in_array($this->reply, self::TEMPORARY, true);
    }

    /** Returns what the caller receives, if an earlier reply to the same call was lost or not. */
    public function outcome(bool $wasLost): CounterfoilException {
        $code = $this->reply === '' ? ($wasLost ? 'no reply' : 'no connection') : $this->reply;
        $class = match (true) {
            $wasLost => OutcomeUnknown::class,
            $this->isTemporary(), in_array($code, self::REFUSED, true) => NotCounted::class,
            !$this->isSent, in_array($code, self::MISCONFIGURED, true) => Misconfigured::class,
            default => OutcomeUnknown::class,  // the script may have been refused in the middle
        };
        return new $class($code, $this->getMessage(), isTemporary: $this->isTemporary(), previous: $this);
    }

    private static function codeOf(string $error): string {
        // Redis 6.2 puts the code of a command within a script into the text
        $codes = implode('|', [...self::TEMPORARY, ...self::REFUSED, ...self::MISCONFIGURED]);
        if (preg_match("/^ERR Error running script.* -?($codes) /", $error, $within) === 1) return $within[1];
        return preg_match('/^[A-Z]+/', $error, $code) === 1 ? $code[0] : 'ERR';
    }
}
