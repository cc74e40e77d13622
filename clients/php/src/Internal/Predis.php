<?php

declare(strict_types=1);

namespace Counterfoil\Internal;

use Counterfoil\Misconfigured;
use Predis\ClientInterface;
use Predis\Connection\AggregateConnectionInterface;
use Predis\Connection\Cluster\ClusterInterface;
use Predis\PredisException;
use Predis\Response\ErrorInterface;
use Predis\Response\ServerException;

/** A client of Predis. */
final class Predis implements Driver
{
    public function __construct(private readonly ClientInterface $client)
    {
        if ($client->getOptions()->prefix !== null) {
            throw new Misconfigured('prefix', 'give counterfoil a client of its own, without this option');
        }
    }

    public function isCluster(): bool
    {
        return $this->client->getConnection() instanceof ClusterInterface;
    }

    public function address(): string
    {
        $connection = $this->client->getConnection();
        $nodes = $connection instanceof \Traversable ? iterator_to_array($connection, false) : [$connection];
        $nodes = array_map(function (object $node): string {
            $parameters = method_exists($node, 'getParameters') ? $node->getParameters()->toArray() : [spl_object_id($node)];
            return implode(' ', array_intersect_key($parameters, array_flip(['host', 'port', 'path', 'database', 0])));
        }, $nodes);
        sort($nodes);
        return implode(',', $nodes);
    }

    public function evaluate(string $command, string $script, array $keys, array $args): array
    {
        $connection = $this->client->getConnection();
        try {
            if (!$connection instanceof AggregateConnectionInterface && !$connection->isConnected()) {
                $connection->connect();
            }
        } catch (PredisException $error) {
            throw Failure::unsent($error);
        }
        try {
            $call = $this->client->createCommand(strtoupper($command), [$script, count($keys), ...$keys, ...$args]);
            $reply = $this->client->executeCommand($call);
        } catch (ServerException $error) {
            throw Failure::refused($error->getMessage(), $error);
        } catch (PredisException $error) {
            throw Failure::lost($error->getMessage(), $error);
        }
        if ($reply instanceof ErrorInterface) {  // with the option `exceptions` off
            throw Failure::refused($reply->getMessage());
        }
        return is_array($reply) ? $reply : throw Failure::lost('no reply');
    }

    public function close(): void
    {
        $this->client->disconnect();
    }

    public function reconnect(): void
    {
        $this->client->disconnect();
    }
}
