<?php declare(strict_types=1);

namespace Counterfoil\Internal;

use Counterfoil\Misconfigured;
use Closure, Redis, RedisCluster, RedisClusterException, RedisException;
use Predis\{Client, PredisException};

/** Makes the package's own connections. Their libraries are set up to send no command twice. */
final class Connector {
    private const SCHEMES = ['redis' => 'tcp', 'rediss' => 'tls', 'unix' => 'unix', 'redis+unix' => 'unix'];
    /** @var list<array<string, string|int>> parameters as Predis names them */
    private readonly array $nodes;
    private readonly bool $isCluster;
    /** A name that differs for each server. */
    public readonly string $address;
    private readonly bool $hasTls;
    /** @var array<string, mixed> options of PHP's streams */
    private readonly array $tls;

    /** @param string|list<string> $url */
    public function __construct(
        string|array $url,
        private readonly float $timeout,
        private readonly string $library,
        ?string $tlsCa = null,
        bool $tlsVerify = true,
    ) {
        $isInstalled = ['phpredis' => extension_loaded('redis'), 'predis' => class_exists(Client::class)];
        if (!($isInstalled[$library] ?? false)) {
            throw new Misconfigured('library', "$library is not installed: expected the extension redis (phpredis), or the package predis/predis");
        }
        $this->isCluster = is_array($url);
        $this->nodes = array_map(self::parse(...), (array) $url)
            ?: throw new Misconfigured('url', 'expected at least one node');
        $this->address = sha1(json_encode([$url, $tlsCa, $tlsVerify]));  // a password does not belong into APCu
        $this->tls = ($tlsCa === null ? [] : ['cafile' => $tlsCa])
            + ($tlsVerify ? [] : ['verify_peer' => false, 'verify_peer_name' => false]);
        $this->hasTls = $this->nodes[0]['scheme'] === 'tls';
        if ($this->tls === [] || $this->hasTls) return;
        throw new Misconfigured('tlsCa', 'tlsCa and tlsVerify need an address with rediss://');
    }

    /** @param float $limit how many seconds connecting may take, if the option `timeout` is not lower */
    public function __invoke(float $limit): Redis|RedisCluster|Client {
        $connect = fn() => $this->library === 'predis' ? $this->predis($limit) : $this->phpRedis($limit);
        return $this->hasTls ? $this->explained($connect) : $connect();
    }

    /** Connects. PHP reports what is wrong with a certificate in warnings only, so they go into the exception. */
    private function explained(Closure $connect): Redis|RedisCluster|Client {
        $warnings = '';
        set_error_handler(function (int $level, string $text) use (&$warnings): bool {
            $warnings .= " $text";
            return true;
        });
        try {
            $client = $connect();
            if ($client instanceof Client && !$this->isCluster) $client->connect();
            return $client;
        } catch (RedisException|RedisClusterException|PredisException $error) {
            if (stripos($warnings . $error->getMessage(), 'certificate') === false) throw $error;
            throw Driver::unsent($error, "$warnings: the option tlsCa names the authority of the server, tlsVerify: false"
                . ' accepts any');
        } finally {
            restore_error_handler();
        }
    }

    private function phpRedis(float $limit): Redis|RedisCluster {
        $node = $this->nodes[0];
        $tls = $node['scheme'] === 'tls' ? 'tls://' : '';
        $auth = array_values(array_intersect_key($node, ['username' => 0, 'password' => 0])) ?: null;
        if ($this->isCluster) {
            $seeds = array_map(fn(array $node): string => "$tls$node[host]:$node[port]", $this->nodes);
            $context = $this->tls === [] ? [] : [$this->tls];
            return new RedisCluster(null, $seeds, min($this->timeout, $limit), $this->timeout, false, $auth, ...$context);
        }
        [$timeouts, $database] = [[$this->timeout, $this->timeout], $node['database'] ?? 0];
        return PhpRedis::open($limit, new Redis(), $tls . $node['host'], $node['port'], $timeouts, $auth, $database, $this->tls);
    }

    private function predis(float $limit): Client {
        $timeouts = ['timeout' => min($this->timeout, $limit), 'read_write_timeout' => $this->timeout];
        if ($this->tls !== []) $timeouts['ssl'] = $this->tls;
        if (!$this->isCluster) return new Client($this->nodes[0] + $timeouts);
        // the nodes that the cluster names later get the credentials of the first one
        $parameters = array_diff_key($this->nodes[0], ['host' => 0, 'port' => 0]) + $timeouts;
        $client = new Client($this->nodes, ['cluster' => 'redis', 'parameters' => $parameters]);
        $client->getConnection()->setRetryLimit(0);
        return $client;
    }

    private static function parse(string $url): array {
        $parts = parse_url(str_replace('unix:///', 'unix://localhost/', $url)) ?: [];
        $scheme = self::SCHEMES[$parts['scheme'] ?? '']
            ?? throw new Misconfigured('url', "expected redis://, rediss:// or unix://, not $url");
        parse_str($parts['query'] ?? '', $query);
        $path = rawurldecode($parts['path'] ?? '');
        // both libraries put brackets around an address of IPv6
        [$host, $port] = $scheme === 'unix' ? [$path, 0] : [trim($parts['host'], '[]'), $parts['port'] ?? 6379];
        return ['scheme' => $scheme, 'host' => $host, 'port' => $port] + array_filter([
            // without a 0: Predis would send SELECT 0, which a user may not be allowed to
            'database' => (int) ($query['db'] ?? ($scheme === 'unix' ? 0 : ltrim($path, '/'))),
            'path' => $scheme === 'unix' ? $path : '',
            'username' => $query['user'] ?? rawurldecode($parts['user'] ?? ''),
            'password' => $query['password'] ?? rawurldecode($parts['pass'] ?? ''),
        ]);
    }
}
