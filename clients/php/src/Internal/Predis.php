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
        if ($isCluster && !$this->nodes) throw new NotCounted('UNREACHABLE', 'no node knows a cluster', isTemporary: true);
        $isNode = $connection instanceof NodeConnectionInterface;
        // Predis 3.4 and later repeat commands by themselves, unless the parameter `retry` disables it
        $repeats = $isNode && method_exists($of = $connection->getParameters(), 'isDisabledRetry') && !$of->isDisabledRetry();
        parent::__construct($isCluster, self::addressOf($client), !$isNode || $repeats);
        if ($isNode) $connection->connect();
    }

    /** Returns a name that differs for each server. */
    public static function addressOf(ClientInterface $client): string {
        $connection = $client->getConnection();
        $nodes = match (true) {
            $connection instanceof ClusterInterface => iterator_to_array($connection, false),
            $connection instanceof ReplicationInterface => [$connection->getMaster()],
            default => [$connection],
        };
        $address = fn(NodeConnectionInterface $node): string => "$node/{$node->getParameters()->database}";
        return implode(' ', array_map($address, $nodes));
    }

    public function close(): void {
        $this->client->disconnect();
    }

    public function reconnect(float $limit): void {
        $this->close();
        $connection = $this->client->getConnection();
        if ($connection instanceof NodeConnectionInterface) $connection->connect();
        foreach ($this->nodes as $node) $connection->add($node);
    }

    public function evaluate(bool $isSha, string $script, int $numberOfKeys, array $words, float $limit): array {
        $streams = $this->streams();
        foreach ($streams as [$stream, $timeout]) self::limit($stream, $timeout > 0 ? min($timeout, $limit) : $limit);
        try {
            $call = $this->client->createCommand($isSha ? 'EVALSHA' : 'EVAL', [$script, $numberOfKeys, ...$words]);
            $reply = $this->client->executeCommand($call);
        } catch (ServerException $error) {
            throw self::refused($error->getMessage(), $error);
        } catch (PredisException|ErrorException $error) {  // an error handler makes an ErrorException of a warning of PHP
            throw self::lost($error->getMessage(), $error);
        } finally {
            foreach ($streams as [$stream, $timeout]) if (is_resource($stream)) self::limit($stream, $timeout);
        }
        if ($reply instanceof ErrorInterface) throw self::refused($reply->getMessage());
        return is_array($reply) && $reply !== [] ? $reply : throw self::lost('half a reply');
    }

    /** @return list<array{resource, float}> connected streams with their timeouts; none with Predis 3, which hides its streams */
    private function streams(): array {
        [$connection, $streams] = [$this->client->getConnection(), []];
        foreach ($connection instanceof NodeConnectionInterface ? [$connection] : $this->nodes as $node) {
            $stream = $node->isConnected() ? $node->getResource() : null;
            $timeout = (float) ($node->getParameters()->read_write_timeout ?? ini_get('default_socket_timeout'));
            if (is_resource($stream)) $streams[] = [$stream, $timeout > 0 ? $timeout : -1.0];
        }
        return $streams;
    }

    /** @param resource $stream */
    private static function limit(mixed $stream, float $timeout): void {
        stream_set_timeout($stream, (int) floor($timeout), (int) (fmod($timeout, 1) * 1e6));
    }
}
