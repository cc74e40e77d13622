<?php declare(strict_types=1);

namespace Counterfoil\Internal;

use Counterfoil\{Misconfigured, NotCounted};
use ErrorException;
use Predis\{ClientInterface, PredisException};
use Predis\Connection\{Cluster\ClusterInterface, NodeConnectionInterface, Replication\ReplicationInterface};
use Predis\Response\{ErrorInterface, ServerException};

/** A client of Predis. */
final class Predis extends Driver {
    /** @var list<NodeConnectionInterface> the nodes of a cluster, since Predis drops those that failed */
    private readonly array $nodes;

    public function __construct(private readonly ClientInterface $client) {
        if ($client->getOptions()->prefix !== null) throw new Misconfigured('prefix', 'it changes keys');
        $connection = $client->getConnection();
        $isCluster = $connection instanceof ClusterInterface;
        $this->nodes = $isCluster ? iterator_to_array($connection, false) : [];
        if ($isCluster && !$this->nodes) throw new NotCounted('no connection', 'no node knows a cluster', isTemporary: true);
        $server = $connection instanceof ReplicationInterface ? $connection->getMaster() : $connection;
        $address = fn(NodeConnectionInterface $node): string => "$node/{$node->getParameters()->database}";
        $isNode = $connection instanceof NodeConnectionInterface;
        // the parameter `retry` of Predis 3.4
        $repeats = $isNode && method_exists($of = $server->getParameters(), 'isDisabledRetry') && !$of->isDisabledRetry();
        parent::__construct($isCluster, implode(' ', array_map($address, $this->nodes ?: [$server])), !$isNode || $repeats);
        if ($isNode) $connection->connect();
    }

    public function close(): void {
        $this->client->disconnect();
    }

    public function reconnect(): void {
        $this->close();
        $connection = $this->client->getConnection();
        if ($connection instanceof NodeConnectionInterface) $connection->connect();
        foreach ($this->nodes as $node) $connection->add($node);
    }

    public function evaluate(bool $isSha, string $script, int $numberOfKeys, array $words): array {
        try {
            $call = $this->client->createCommand($isSha ? 'EVALSHA' : 'EVAL', [$script, $numberOfKeys, ...$words]);
            $reply = $this->client->executeCommand($call);
        } catch (ServerException $error) {
            throw self::refused($error->getMessage(), $error);
        } catch (PredisException|ErrorException $error) {  // also what an error handler makes of a warning of PHP
            throw self::lost($error->getMessage(), $error);
        }
        if ($reply instanceof ErrorInterface) throw self::refused($reply->getMessage());
        return is_array($reply) && $reply !== [] ? $reply : throw self::lost('half a reply');
    }
}
