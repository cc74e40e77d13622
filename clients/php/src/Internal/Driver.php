<?php declare(strict_types=1);

namespace Counterfoil\Internal;

/** One client object of a Redis library. Its constructor refuses options that change what is sent or received. */
abstract class Driver {
    /** @param string $address what tells this server and database number from others */
    protected function __construct(public readonly bool $isCluster, public readonly string $address) {}

    /**
     * Sends EVALSHA or EVAL once.
     *
     * @param string $script the SHA-1 of a script, or its text
     * @param list<string> $keys
     * @param list<string|int> $args
     * @return list<string|int>
     * @throws Failure
     */
    abstract public function evaluate(bool $isSha, string $script, array $keys, array $args): array;

    /** Closes the connection, so that a late reply is not taken for that of another command. */
    abstract public function close(): void;

    /** Closes the connection of the object, and makes a new one. */
    abstract public function reconnect(): void;
}
