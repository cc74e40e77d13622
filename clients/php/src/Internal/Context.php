<?php

declare(strict_types=1);

namespace Counterfoil\Internal;

use Closure;
use PDO;

/** What the families of a Counterfoil share. */
final class Context
{
    private ?bool $isCluster = null;
    private ?string $address = null;

    public function __construct(
        public readonly Sender $sender,
        public readonly string $namespace,
        public readonly ?Daemon $daemon,
        public readonly PDO|Closure|null $database,
        public readonly ?Closure $onError,
    ) {
    }

    public function isCluster(): bool
    {
        return $this->isCluster ??= $this->fromConnection(fn(Connection $connection): bool => $connection->isCluster());
    }

    /** Returns what another request of this machine noted of a home, if there is APCu. */
    public function shared(string $home): ?array
    {
        return $this->hasApcu() ? (apcu_fetch($this->key($home)) ?: null) : null;
    }

    /** Notes it for other requests; it has its own time of expiry. */
    public function share(string $home, ?array $known): void
    {
        if ($this->hasApcu()) {
            $known === null ? apcu_delete($this->key($home)) : apcu_store($this->key($home), $known, 3600);
        }
    }

    private function hasApcu(): bool
    {
        return function_exists('apcu_enabled') && apcu_enabled();
    }

    private function key(string $home): string
    {
        $this->address ??= $this->fromConnection(fn(Connection $connection): string => $connection->address());
        return "counterfoil {$this->address} $home";
    }

    private function fromConnection(Closure $read): mixed
    {
        return $this->sender->repeat(fn(): mixed => $read($this->sender->connection), $this->sender->deadline())[0];
    }
}
