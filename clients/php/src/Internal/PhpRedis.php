<?php declare(strict_types=1);

namespace Counterfoil\Internal;

use Exception, Redis, RedisCluster, RedisException, ReflectionClass;
use Counterfoil\Misconfigured;

/** A Redis or RedisCluster object of phpredis. */
final class PhpRedis implements Driver {
    private bool $isClosed = false;
    /** How to connect anew: the arguments of connect, options, credentials and database number. */
    private ?array $origin = null;

    public function __construct(private readonly Redis|RedisCluster $redis) {}

    public function isCluster(): bool {
        return $this->redis instanceof RedisCluster;
    }

    public function address(): string {
        if (!$this->redis instanceof Redis) return json_encode($this->redis->_masters());
        [[$host, $port], , , $database] = $this->origin();
        return "$host:$port/$database";
    }

    public function evaluate(string $command, string $script, array $keys, array $args): array {
        $redis = $this->redis;
        $retries = 0;
        if ($redis instanceof Redis) {
            $this->isClosed ? $this->reconnect() : $this->origin ?? $this->origin();
            // otherwise phpredis 5 connects anew within a reply, and waits there for the rest of it
            $retries = (int) $redis->getOption(Redis::OPT_MAX_RETRIES);
            if ($retries !== 0) $redis->setOption(Redis::OPT_MAX_RETRIES, 0);
        }
        if ($redis->getMode() !== Redis::ATOMIC) {
            throw new Misconfigured('MULTI', 'the connection is within a transaction or a pipeline');
        }
        $reply = $thrown = null;
        try {
            $redis->clearLastError();
            $reply = $redis->$command($script, [...$keys, ...$args], count($keys));
        } catch (Exception $thrown) {
            // below
        } finally {
            if ($retries !== 0) $redis->setOption(Redis::OPT_MAX_RETRIES, $retries);
        }
        if (is_array($reply) && is_string($reply[0] ?? null)) return $reply;
        $message = $thrown?->getMessage() ?? 'no reply';
        $error = $redis->getLastError() ?? (str_contains($message, 'CLUSTERDOWN') ? 'CLUSTERDOWN' : null);
        throw $error === null ? Failure::lost($message, $thrown) : Failure::refused($error, $thrown);
    }

    public function close(): void {
        if ($this->redis instanceof Redis) $this->origin();
        try {
            $this->redis->close();
        } catch (Exception) {
            // it was closed
        }
        $this->isClosed = $this->origin !== null;
    }

    /** Connects anew: a closed object forgets the database number, and one that failed does not connect by itself. */
    private function reconnect(): void {
        [$address, $options, $auth, $database] = $this->origin;
        try {
            $this->redis->connect(...$address);
            foreach ($options as $option => $value) $this->redis->setOption($option, $value);
            $isReady = ($auth === null || $this->redis->auth($auth)) && ($database === 0 || $this->redis->select($database));
            if (!$isReady) throw new RedisException((string) $this->redis->getLastError());
        } catch (Exception $error) {
            throw Failure::unsent($error);
        }
        $this->isClosed = false;
    }

    /** Notes how to connect anew, which an object that failed has forgotten. */
    private function origin(): array {
        if ($this->origin !== null) return $this->origin;
        $redis = $this->redis;
        if (!$redis->isConnected()) return [['', 0], [], null, 0];
        $timeouts = [(float) $redis->getTimeout(), null, 0, (float) $redis->getReadTimeout()];
        foreach ((new ReflectionClass($redis))->getConstants() as $name => $option) {
            $value = str_starts_with($name, 'OPT_') ? $redis->getOption($option) : null;
            if ($value !== null) $options[$option] = $value;
        }
        return $this->origin = [[$redis->getHost(), max(0, $redis->getPort()), ...$timeouts], $options, $redis->getAuth(), $redis->getDBNum()];
    }

    public function check(): void {
        $changing = ['prefix' => Redis::OPT_PREFIX, 'serializer' => Redis::OPT_SERIALIZER, 'compression' => Redis::OPT_COMPRESSION];
        foreach ($changing as $name => $option) {
            if (!$this->redis->getOption($option)) continue;
            throw new Misconfigured($name, 'this option of phpredis changes keys or values: give counterfoil a connection without it');
        }
    }
}
