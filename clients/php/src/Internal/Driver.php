<?php declare(strict_types=1);

namespace Counterfoil\Internal;

use Counterfoil\{CounterfoilException, Misconfigured, NotCounted, OutcomeUnknown};
use Throwable;

/** A client object of a Redis library. Its constructor refuses options that change what is sent or received. */
abstract class Driver {
    /** The reasons of temporary errors: the same call may succeed later. */
    private const PASSING = ['no reply', 'UNREACHABLE', 'LOADING', 'BUSY', 'CLUSTERDOWN', 'MASTERDOWN', 'NOREPLICAS', 'TRYAGAIN',
        'READONLY'];

    /**
     * @param string $address a name that differs for each server and database number
     * @param bool $resends if the library may send a call again by itself after a lost reply
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
     * @param float $limit how many seconds the reply may take, if the client's own limit is not lower
     * @return list<string|int>
     * @throws CounterfoilException the outcome of this send of the call
     */
    abstract public function evaluate(bool $isSha, string $script, int $numberOfKeys, array $words, float $limit): array;

    /** Closes the connection. A late reply would be taken for that of the next command. */
    abstract public function close(): void;

    /** Closes the client's connection, and makes a new one with the same client. */
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
        // the reply on a new connection that Redis closes at once
        if (str_starts_with($error, 'ERR max number of clients')) return self::coded('UNREACHABLE', $error, $previous);
        // for an error of a command in a script, Redis 6.2 puts the code into the text
        preg_match('/^(?:ERR Error running script.*: -?)?([A-Z]+)\b/', $error, $code);
        return self::coded($code[1] ?? 'ERR', $error, $previous);
    }

    /** Returns if the same call may succeed later. */
    public static function isPassing(CounterfoilException $error): bool {
        return in_array($error->reason, self::PASSING, true);
    }

    private static function coded(string $code, string $message, ?Throwable $previous): CounterfoilException {
        $isTemporary = in_array($code, [...self::PASSING, 'OOM', 'MISCONF'], true);
        $class = match ($code) {
            'WRONGTYPE', 'BADSTATE' => NotCounted::class,
            'NOAUTH', 'WRONGPASS', 'AUTH', 'DB index',  // refused before anything was sent
            'BADARG', 'BADKEY', 'CROSSSLOT', 'MOVED', 'ASK', 'NOSCRIPT' => Misconfigured::class,
            // any other error may come from the middle of a script, which has counted a part
            default => $isTemporary ? NotCounted::class : OutcomeUnknown::class,
        };
        return new $class($code, $message, isTemporary: $isTemporary, previous: $previous);
    }
}
