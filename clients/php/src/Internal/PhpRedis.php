<?php declare(strict_types=1);

namespace Counterfoil\Internal;

use Counterfoil\Misconfigured;
use ErrorException, Redis, RedisCluster, RedisClusterException, RedisException, ReflectionClass;

/** A Redis or RedisCluster object of phpredis. */
final class PhpRedis extends Driver {
    /** Options that change keys or values. */
    private const CHANGING = [
        Redis::OPT_PREFIX => 'prefix',
        Redis::OPT_SERIALIZER => 'serializer',
        Redis::OPT_COMPRESSION => 'compression',
    ];
    /** The arguments of `open`, and the options. After a failure the object has lost them. */
    private readonly array $origin;
    private readonly array $options;

    public function __construct(private readonly Redis|RedisCluster $redis) {
        foreach (self::CHANGING as $option => $name) {
            if ($redis->getOption($option)) throw new Misconfigured($name, 'it changes keys or values');
        }
        if ($redis instanceof RedisCluster) {
            parent::__construct(true, json_encode($redis->_masters()));
            return;
        }
        if (!$redis->isConnected()) $redis->ping();
        [$host, $port, $database] = [$redis->getHost(), max(0, $redis->getPort()), $redis->getDBNum()];
        $timeouts = [(float) $redis->getTimeout(), (float) $redis->getReadTimeout()];
        $this->origin = [$host, $port, $timeouts, $redis->getAuth(), $database];
        foreach ((new ReflectionClass($redis))->getConstants() as $name => $option) {
            // `open` sets this timeout: as an option, 0 would not mean that there is none
            if (str_starts_with($name, 'OPT_') && $name !== 'OPT_READ_TIMEOUT') $options[$option] = $redis->getOption($option);
        }
        $this->options = $options;
        parent::__construct(false, "$host $port $database");
    }

    /** @param array{float, float} $timeouts for connecting, and for a reply. Until it is connected, `$limit` limits both. */
    public static function open(float $limit, Redis $redis, string $host, int $port, array $timeouts, mixed $auth, int $db, array $tls = []): Redis {
        $context = $tls === [] ? [] : [['stream' => $tls]];
        [$connect, $reply] = array_map(fn(float $timeout): float => self::least($timeout, $limit), $timeouts);
        $isReady = $redis->connect($host, $port, $connect, null, 0, $reply, ...$context)
            && (!$auth || $redis->auth($auth))
            && ($db === 0 || $redis->select($db));
        self::limit($redis, $timeouts[1]);
        return $isReady ? $redis : throw new RedisException((string) $redis->getLastError());
    }

    public function close(): void {
        $this->redis->close();
    }

    public function reconnect(float $limit): void {
        $this->close();
        if ($this->isCluster) return;
        self::open($limit, $this->redis, ...$this->origin);
        foreach ($this->options as $option => $value) $this->redis->setOption($option, $value);
    }

    public function evaluate(bool $isSha, string $script, int $numberOfKeys, array $words, float $limit): array {
        $redis = $this->redis;
        if ($redis->getMode() !== Redis::ATOMIC) {
            throw new Misconfigured('MULTI', 'the connection is within a transaction or a pipeline');
        }
        // otherwise phpredis 5, when a connection breaks within a reply, connects anew, and waits there for the rest of the reply
        $retries = $redis->getOption(Redis::OPT_MAX_RETRIES);
        $redis->setOption(Redis::OPT_MAX_RETRIES, 0);
        $timeout = $this->isCluster ? null : (float) $redis->getReadTimeout();
        if ($timeout !== null) self::limit($redis, self::least($timeout, $limit));
        $redis->clearLastError();
        try {
            $reply = $isSha ? $redis->evalSha($script, $words, $numberOfKeys)
                : $redis->eval($script, $words, $numberOfKeys);
            if (is_array($reply) && is_string($reply[0] ?? null)) return $reply;
            throw new RedisException($redis->getLastError() ?? 'half a reply');
        } catch (RedisException|RedisClusterException|ErrorException $error) {
            $isDown = str_contains($error->getMessage(), 'CLUSTERDOWN');
            $refusal = $redis->getLastError() ?? ($isDown ? 'CLUSTERDOWN' : null);
            throw $refusal === null ? self::lost($error->getMessage(), $error) : self::refused($refusal, $error);
        } finally {
            $redis->setOption(Redis::OPT_MAX_RETRIES, $retries);
            if ($timeout !== null) self::limit($redis, $timeout);
        }
    }

    /** Returns the lower time. A timeout of 0 stands for PHP's default, and one below 0 for none. */
    private static function least(float $timeout, float $limit): float {
        return $timeout > 0 ? min($timeout, $limit) : $limit;
    }

    /** Sets the timeout of replies. For 0 it sets PHP's default, since the option 0 would leave no time. */
    private static function limit(Redis $redis, float $timeout): void {
        $redis->setOption(Redis::OPT_READ_TIMEOUT, $timeout ?: (float) ini_get('default_socket_timeout'));
    }
}
