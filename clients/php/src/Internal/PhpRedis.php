<?php declare(strict_types=1);

namespace Counterfoil\Internal;

use Counterfoil\Misconfigured;
use ErrorException, Redis, RedisCluster, RedisClusterException, RedisException, ReflectionClass;

/** A Redis or RedisCluster object of phpredis. */
final class PhpRedis extends Driver {
    private const CHANGING = [
        Redis::OPT_PREFIX => 'prefix',
        Redis::OPT_SERIALIZER => 'serializer',
        Redis::OPT_COMPRESSION => 'compression',
    ];
    /** How to connect anew, which an object that failed has forgotten: see originOf. */
    private array $origin = [];

    public function __construct(private readonly Redis|RedisCluster $redis) {
        foreach (self::CHANGING as $option => $name) {
            if ($redis->getOption($option)) throw new Misconfigured($name, 'it changes keys or values');
        }
        if ($redis instanceof Redis) $this->origin = self::originOf($redis);
        $address = json_encode($this->origin[0] ?? $redis->_masters());
        parent::__construct($redis instanceof RedisCluster, $address);
    }

    /** Returns host, port and database, further arguments of connect, the credentials, and the options. */
    private static function originOf(Redis $redis): array {
        if (!$redis->isConnected()) $redis->ping();
        foreach ((new ReflectionClass($redis))->getConstants() as $name => $option) {
            // connect sets the timeout, and 0 as an option would not mean none
            if (str_starts_with($name, 'OPT_') && $name !== 'OPT_READ_TIMEOUT') $options[$option] = $redis->getOption($option);
        }
        $address = [$redis->getHost(), max(0, $redis->getPort()), $redis->getDBNum()];
        $timeouts = [(float) $redis->getTimeout(), null, 0, (float) $redis->getReadTimeout()];
        return [$address, $timeouts, $redis->getAuth(), $options];
    }

    public function close(): void {
        $this->redis->close();
    }

    public function reconnect(): void {
        $this->close();
        if ($this->isCluster) return;
        [[$host, $port, $database], $timeouts, $auth, $options] = $this->origin;
        $isReady = $this->redis->connect($host, $port, ...$timeouts)
            && ($auth === null || $this->redis->auth($auth))
            && ($database === 0 || $this->redis->select($database));
        if (!$isReady) throw new RedisException((string) $this->redis->getLastError());
        foreach ($options as $option => $value) $this->redis->setOption($option, $value);
    }

    public function evaluate(bool $isSha, string $script, int $numberOfKeys, array $words): array {
        $redis = $this->redis;
        if ($redis->getMode() !== Redis::ATOMIC) {
            throw new Misconfigured('MULTI', 'the connection is within a transaction or a pipeline');
        }
        // phpredis 5 otherwise connects anew within a reply, and waits there for the rest of it
        $retries = $redis->getOption(Redis::OPT_MAX_RETRIES);
        if ($retries !== 0) $redis->setOption(Redis::OPT_MAX_RETRIES, 0);
        $redis->clearLastError();
        try {
            $reply = $isSha ? $redis->evalSha($script, $words, $numberOfKeys)
                : $redis->eval($script, $words, $numberOfKeys);
            if (is_array($reply) && is_string($reply[0] ?? null)) return $reply;
            throw new RedisException($redis->getLastError() ?? 'half a reply');
        } catch (RedisException|RedisClusterException|ErrorException $error) {
            $message = $error->getMessage();
            $isDown = str_contains($message, 'CLUSTERDOWN');
            $refusal = $redis->getLastError() ?? ($isDown ? 'CLUSTERDOWN' : null);
            throw $refusal === null ? self::lost($message, $error) : self::refused($refusal, $error);
        } finally {
            if ($retries !== 0) $redis->setOption(Redis::OPT_MAX_RETRIES, $retries);
        }
    }
}
