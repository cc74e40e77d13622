<?php

declare(strict_types=1);

namespace Counterfoil\Internal;

use Counterfoil\Misconfigured;
use Redis;
use RedisCluster;
use RuntimeException;
use Throwable;

/** A Redis or RedisCluster object of phpredis. */
final class PhpRedis implements Driver
{
    /** Options that change keys, arguments or replies. */
    private const FORBIDDEN = ['OPT_PREFIX', 'OPT_SERIALIZER', 'OPT_COMPRESSION'];
    /** Options that connect() forgets. */
    private const KEPT = ['OPT_READ_TIMEOUT', 'OPT_MAX_RETRIES', 'OPT_SCAN', 'OPT_TCP_KEEPALIVE', 'OPT_REPLY_LITERAL',
        'OPT_NULL_MULTIBULK_AS_NULL', 'OPT_BACKOFF_ALGORITHM', 'OPT_BACKOFF_BASE', 'OPT_BACKOFF_CAP'];

    /** @var ?array{connect: list<mixed>, options: array<int, mixed>, auth: mixed, database: int} how to connect anew */
    private ?array $address = null;

    public function __construct(private readonly Redis|RedisCluster $redis)
    {
    }

    public function isCluster(): bool
    {
        return $this->redis instanceof RedisCluster;
    }

    public function address(): string
    {
        if ($this->redis instanceof RedisCluster) {
            $nodes = array_map(fn(array $node): string => implode(':', $node), $this->redis->_masters());
            sort($nodes);
            return implode(',', $nodes);
        }
        $address = $this->remember($this->redis);
        return $address === null ? '' : "{$address['connect'][0]}:{$address['connect'][1]}/{$address['database']}";
    }

    public function evaluate(string $command, string $script, array $keys, array $args): array
    {
        $redis = $this->redis;
        $this->check();
        $retries = 0;
        if ($redis instanceof Redis) {
            $this->remember($redis);
            // otherwise phpredis 5 connects anew within a reply, and waits there for the rest of it
            $retries = (int) $redis->getOption(Redis::OPT_MAX_RETRIES);
            if ($retries !== 0) {
                $redis->setOption(Redis::OPT_MAX_RETRIES, 0);
            }
        }
        $reply = $thrown = null;
        try {
            $redis->clearLastError();
            $reply = $redis->$command($script, [...$keys, ...$args], count($keys));
        } catch (RuntimeException $thrown) {  // of phpredis
        } finally {
            if ($retries !== 0) {
                $redis->setOption(Redis::OPT_MAX_RETRIES, $retries);
            }
        }
        if (is_array($reply)) {
            return $reply;
        }
        $message = $thrown?->getMessage() ?? 'no reply';
        $error = $redis->getLastError() ?? (str_contains($message, 'CLUSTERDOWN') ? $message : null);
        throw $error === null ? Failure::lost($message, $thrown) : Failure::refused($error, $thrown);
    }

    public function close(): void
    {
        try {
            $this->redis->close();
        } catch (RuntimeException) {
        }
    }

    public function reconnect(): void
    {
        $redis = $this->redis;
        $this->close();
        if ($redis instanceof RedisCluster || $this->address === null) {
            return;
        }
        // a closed object forgets the database number when it connects by itself, and may never connect again
        $redis->connect(...$this->address['connect']);
        foreach ($this->address['options'] as $option => $value) {
            $redis->setOption($option, $value);
        }
        if ($this->address['auth'] !== null) {
            $redis->auth($this->address['auth']);
        }
        if ($this->address['database'] !== 0) {
            $redis->select($this->address['database']);
        }
    }

    /** Notes how to connect anew, since an object that failed does not know it any more. */
    private function remember(Redis $redis): ?array
    {
        if ($this->address !== null || !$redis->isConnected()) {
            return $this->address;
        }
        return $this->address = [
            'connect' => [$redis->getHost(), max(0, $redis->getPort()), (float) $redis->getTimeout(), null, 0,
                (float) $redis->getReadTimeout()],
            'options' => array_combine($this->options(self::KEPT), array_map($redis->getOption(...), $this->options(self::KEPT))),
            'auth' => $redis->getAuth(),
            'database' => (int) $redis->getDBNum(),
        ];
    }

    /** Refuses an object whose options change what is sent or received. */
    private function check(): void
    {
        foreach ($this->options(self::FORBIDDEN) as $name => $option) {
            if (!in_array($this->redis->getOption($option), [null, '', 0, false], true)) {
                throw new Misconfigured($name, 'give counterfoil a connection of its own, without this option');
            }
        }
        if ($this->redis->getMode() !== Redis::ATOMIC) {
            throw new Misconfigured('MULTI', 'the connection is within a transaction or pipeline');
        }
    }

    /** @return array<string, int> those that this version has */
    private function options(array $names): array
    {
        static $known = [];
        return $known[$names[0]] ??= array_filter(array_combine($names, array_map(
            fn(string $name): ?int => defined("Redis::$name") ? constant("Redis::$name") : null,
            $names,
        )), 'is_int');
    }
}
