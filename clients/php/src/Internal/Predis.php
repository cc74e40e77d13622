<?php declare(strict_types=1);

namespace Counterfoil\Internal;

use Exception, Traversable;
use Counterfoil\Misconfigured;
use Predis\ClientInterface;
use Predis\Connection\{Cluster\ClusterInterface, NodeConnectionInterface};
use Predis\Response\{ErrorInterface, ServerException};

/** A client of Predis. */
final class Predis implements Driver {
    /** @var list<NodeConnectionInterface> the nodes that a cluster began with: Predis drops those that failed, until none is left */
    private readonly array $nodes;

    public function __construct(private readonly ClientInterface $client) {
        $connection = $client->getConnection();
        $this->nodes = $connection instanceof Traversable ? iterator_to_array($connection, false) : [$connection];
    }

    public function check(): void {
        if ($this->client->getOptions()->prefix !== null) {
            throw new Misconfigured('prefix', 'this option of Predis changes keys: give counterfoil a client without it');
        }
    }

    public function isCluster(): bool {
        return $this->client->getConnection() instanceof ClusterInterface;
    }

    public function address(): string {
        $of = fn(object $node): mixed => $node instanceof NodeConnectionInterface
            ? array_intersect_key($node->getParameters()->toArray(), array_flip(['host', 'port', 'path', 'database'])) : spl_object_id($node);
        return json_encode(array_map($of, $this->nodes));
    }

    public function evaluate(string $command, string $script, array $keys, array $args): array {
        $connection = $this->client->getConnection();
        try {
            if ($connection instanceof NodeConnectionInterface && !$connection->isConnected()) $connection->connect();
        } catch (Exception $error) {
            throw Failure::unsent($error);
        }
        $call = $this->client->createCommand($command, [$script, count($keys), ...$keys, ...$args]);
        try {
            $reply = $this->client->executeCommand($call);
        } catch (ServerException $error) {
            throw Failure::refused($error->getMessage(), $error);
        } catch (Exception $error) {  // also what an error handler makes of a warning of PHP
            throw Failure::lost($error->getMessage(), $error);
        }
        if ($reply instanceof ErrorInterface) throw Failure::refused($reply->getMessage());
        return is_array($reply) && $reply !== [] ? $reply : throw Failure::lost('half a reply');
    }

    public function close(): void {
        $this->client->disconnect();
        $connection = $this->client->getConnection();
        foreach ($connection instanceof ClusterInterface ? $this->nodes : [] as $node) $connection->add($node);
    }
}
