<?php declare(strict_types=1);

namespace Counterfoil\Internal;

use Redis, RedisCluster, RuntimeException;
use Counterfoil\Misconfigured;
use Predis\Client;

/** Makes the package's own connections, whose libraries send nothing twice. */
final class Connector {
    /** @var list<array{tls: bool, host: string, port: int, path: string, auth: list<string>, database: int}> */
    private readonly array $nodes;

    /** @param list<string> $urls */
    public function __construct(array $urls, private readonly bool $isCluster, private readonly float $timeout) {
        $this->nodes = array_map(self::parse(...), $urls) ?: throw new Misconfigured('url', 'expected at least one node');
    }

    public function phpRedis(): Redis|RedisCluster {
        $node = $this->nodes[0];
        if ($this->isCluster) {
            $seeds = array_map(fn(array $node): string => ($node['tls'] ? 'tls://' : '') . "{$node['host']}:{$node['port']}", $this->nodes);
            return new RedisCluster(null, $seeds, $this->timeout, $this->timeout, false, $node['auth'] ?: null);
        }
        $redis = new Redis();
        $host = $node['path'] !== '' ? $node['path'] : ($node['tls'] ? 'tls://' : '') . $node['host'];
        if (!$redis->connect($host, $node['path'] !== '' ? 0 : $node['port'], $this->timeout, null, 0, $this->timeout)) {
            throw new RuntimeException("cannot connect to $host");
        }
        $redis->setOption(Redis::OPT_MAX_RETRIES, 0);
        $isReady = ($node['auth'] === [] || $redis->auth($node['auth'])) && ($node['database'] === 0 || $redis->select($node['database']));
        return $isReady ? $redis : throw new RuntimeException((string) $redis->getLastError());
    }

    public function predis(): Client {
        $parameters = array_map(fn(array $node): array => array_filter([
            'scheme' => $node['path'] !== '' ? 'unix' : ($node['tls'] ? 'tls' : 'tcp'),
            'host' => $node['host'],
            'port' => $node['port'],
            'path' => $node['path'],
            'username' => isset($node['auth'][1]) ? $node['auth'][0] : null,
            'password' => $node['auth'][1] ?? $node['auth'][0] ?? null,
            'database' => $node['database'],
            'timeout' => $this->timeout,
            'read_write_timeout' => $this->timeout,
        ]), $this->nodes);
        if (!$this->isCluster) return new Client($parameters[0]);
        $client = new Client($parameters, ['cluster' => 'redis', 'parameters' => array_diff_key($parameters[0], ['host' => 0, 'port' => 0])]);
        $client->getConnection()->setRetryLimit(0);
        return $client;
    }

    private static function parse(string $url): array {
        $parts = parse_url(str_contains($url, '://') ? preg_replace('#^(redis\+)?unix:///#', 'unix://localhost/', $url) : "redis://$url");
        if ($parts === false || !in_array($parts['scheme'] ?? '', ['redis', 'rediss', 'unix'], true)) {
            throw new Misconfigured('url', "expected redis://, rediss:// or unix://, not $url");
        }
        $isUnix = $parts['scheme'] === 'unix';
        parse_str($parts['query'] ?? '', $query);
        return [
            'tls' => $parts['scheme'] === 'rediss',
            'host' => $parts['host'],
            'port' => $parts['port'] ?? 6379,
            'path' => $isUnix ? rawurldecode($parts['path']) : '',
            'auth' => $isUnix ? array_values(array_filter([$query['user'] ?? '', $query['password'] ?? ''], 'strlen'))
                : array_values(array_filter(array_map('rawurldecode', [$parts['user'] ?? '', $parts['pass'] ?? '']), 'strlen')),
            'database' => (int) ($isUnix ? $query['db'] ?? 0 : ltrim($parts['path'] ?? '', '/')),
        ];
    }
}
