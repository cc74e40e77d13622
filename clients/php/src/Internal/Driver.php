<?php declare(strict_types=1);

namespace Counterfoil\Internal;

use Counterfoil\{CounterfoilException, Misconfigured, NotCounted, OutcomeUnknown};
use Throwable;

/** A client object of a Redis library. Its constructor refuses options that change what is sent or received. */
abstract class Driver {
    /** The reasons of errors after which the same call may succeed. */
    private const PASSING = ['no reply', 'UNREACHABLE', 'LOADING', 'BUSY', 'CLUSTERDOWN', 'MASTERDOWN', 'NOREPLICAS', 'TRYAGAIN',
        'READONLY'];

    /**
     * @param string $address what tells this server and database number from others
     * @param bool $resends if the library sends a call again after a lost reply, unless it is told not to
     */
    protected function __construct(
        public readonly bool $isCluster,
        public readonly string $address,
        public readonly bool $resends = false,
    ) {}

    /**
     * Sends EVALSHA or EVAL once.
     *
     * @param string $script the SHA-1 of a script, or its text
     * @param list<string|int> $words keys and arguments
     * @param float $limit for how many seconds the reply is awaited, unless the client has a lower limit
     * @return list<string|int>
     * @throws CounterfoilException what came of this arrival of the call
     */
    abstract public function evaluate(bool $isSha, string $script, int $numberOfKeys, array $words, float $limit): array;

    /** Closes the connection, so that a late reply is not taken for that of another command. */
    abstract public function close(): void;

    /** Closes the connection of the object, and makes a new one. */
    abstract public function reconnect(float $limit): void;

    /** Returns the error of a call that was not sent, since there was no connection. */
    public static function unsent(Throwable $error, string $hint = ''): CounterfoilException {
        preg_match('/\b(NOAUTH|WRONGPASS|LOADING|(?<=ERR )AUTH|DB index)\b/', $error->getMessage(), $code);
        return self::coded($code[0] ?? 'UNREACHABLE', $error->getMessage() . $hint, $error);
    }

    /** Returns the error of a call without a reply: it may have been executed, or may still be. */
    public static function lost(string $message, ?Throwable $previous = null): OutcomeUnknown {
        return new OutcomeUnknown('no reply', $message, previous: $previous);
    }

    /** Returns the error of a call to which Redis replied with an error. */
    public static function refused(string $error, ?Throwable $previous = null): CounterfoilException {
        // the reply on a connection that Redis closes again
        if (str_starts_with($error, 'ERR max number of clients')) return self::coded('UNREACHABLE', $error, $previous);
        // Redis 6.2 puts the code of a command within a script into the text
        preg_match('/^(?:ERR Error running script.*: -?)?([A-Z]+)\b/', $error, $code);
        return self::coded($code[1] ?? 'ERR', $error, $previous);
    }

    /** Returns if the same call may succeed. */
    public static function isPassing(CounterfoilException $error): bool {
        return in_array($error->reason, self::PASSING, true);
    }

    private static function coded(string $code, string $message, ?Throwable $previous): CounterfoilException {
        $isTemporary = in_array($code, [...self::PASSING, 'OOM', 'MISCONF'], true);
        $class = match ($code) {
            'WRONGTYPE', 'BADSTATE' => NotCounted::class,
            'NOAUTH', 'WRONGPASS', 'AUTH', 'DB index',  // refused before anything was sent
            'BADARG', 'BADKEY', 'CROSSSLOT', 'MOVED', 'ASK', 'NOSCRIPT' => Misconfigured::class,
            // the script may have been refused in the middle
            default => $isTemporary ? NotCounted::class : OutcomeUnknown::class,
        };
        return new $class($code, $message, isTemporary: $isTemporary, previous: $previous);
    }
}
