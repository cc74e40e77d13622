<?php declare(strict_types=1);

namespace Counterfoil\Internal;

use Redis, RedisCluster, RedisException;
use Counterfoil\Misconfigured;
use Predis\Client;

/** Makes the package's own connections, whose libraries send nothing twice. */
final class Connector {
    /** @var list<array<string, string|int>> parameters as Predis names them */
    private readonly array $nodes;

    /** @param list<string> $urls */
    public function __construct(array $urls, private readonly bool $isCluster, private readonly float $timeout) {
        $this->nodes = array_map(self::parse(...), $urls) ?: throw new Misconfigured('url', 'expected at least one node');
    }

    public function phpRedis(): Redis|RedisCluster {
        $node = $this->nodes[0];
        $host = fn(array $node): string => $node['path'] ?? ($node['scheme'] === 'tls' ? 'tls://' : '') . $node['host'];
        $auth = array_values(array_intersect_key($node, ['username' => 0, 'password' => 0]));
        if ($this->isCluster) {
            $seeds = array_map(fn(array $node): string => $host($node) . ":{$node['port']}", $this->nodes);
            return new RedisCluster(null, $seeds, $this->timeout, $this->timeout, false, $auth ?: null);
        }
        $redis = new Redis();
        $isReady = $redis->connect($host($node), isset($node['path']) ? 0 : $node['port'], $this->timeout, null, 0, $this->timeout)
            && ($auth === [] || $redis->auth($auth)) && (!isset($node['database']) || $redis->select($node['database']));
        if (!$isReady) throw new RedisException($redis->getLastError() ?? "cannot connect to {$host($node)}");
        $redis->setOption(Redis::OPT_MAX_RETRIES, 0);
        return $redis;
    }

    public function predis(): Client {
        $timeouts = ['timeout' => $this->timeout, 'read_write_timeout' => $this->timeout];
        if (!$this->isCluster) return new Client($this->nodes[0] + $timeouts);
        // nodes that the cluster names have the credentials of the first
        $parameters = array_diff_key($this->nodes[0], ['host' => 0, 'port' => 0]) + $timeouts;
        $client = new Client($this->nodes, ['cluster' => 'redis', 'parameters' => $parameters]);
        $client->getConnection()->setRetryLimit(0);
        return $client;
    }

    private static function parse(string $url): array {
        $parts = parse_url(preg_replace('#^(redis\+)?unix:///#', 'unix://localhost/', $url)) ?: [];
        $scheme = ['redis' => 'tcp', 'rediss' => 'tls', 'unix' => 'unix'][$parts['scheme'] ?? '']
            ?? throw new Misconfigured('url', "expected redis://, rediss:// or unix://, not $url");
        [$user, $password, $path] = array_map(fn(string $part): string => rawurldecode($parts[$part] ?? ''), ['user', 'pass', 'path']);
        parse_str($parts['query'] ?? '', $query);
        return array_filter($scheme === 'unix' ? [
            'scheme' => $scheme,
            'path' => $path,
            'username' => $query['user'] ?? '',
            'password' => $query['password'] ?? '',
            'database' => (int) ($query['db'] ?? 0),
        ] : [
            'scheme' => $scheme,
            'host' => $parts['host'],
            'port' => $parts['port'] ?? 6379,
            'username' => $user,
            'password' => $password,
            'database' => (int) ltrim($path, '/'),
        ]);
    }
}
