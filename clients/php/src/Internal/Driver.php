<?php declare(strict_types=1);

namespace Counterfoil\Internal;

/** One client object of a Redis library. */
interface Driver {
    public function isCluster(): bool;

    /** Refuses a client whose options change what is sent or received. */
    public function check(): void;

    /** Returns what tells this server and database number from others. */
    public function address(): string;

    /**
     * Sends EVALSHA or EVAL once, on a new connection after `close`.
     *
     * @param 'evalSha'|'eval' $command
     * @param list<string> $keys
     * @param list<string|int> $args
     * @return list<string|int>
     * @throws Failure
     */
    public function evaluate(string $command, string $script, array $keys, array $args): array;

    /** Closes the connection, after a lost reply or a fork. */
    public function close(): void;
}
