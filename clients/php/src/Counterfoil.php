<?php declare(strict_types=1);

namespace Counterfoil;

use Closure, Redis, RedisCluster;
use Counterfoil\Internal\{Connector, Daemons, Family, Session, SummingFamily};
use Predis\ClientInterface;

/** The counters of one namespace. Make one for a request or a worker; it may be used by processes that are forked later. */
final class Counterfoil {
    private readonly Session $session;
    /** @var array<string, Family> */
    private array $families = [];

    /**
     * @param Redis|RedisCluster|ClientInterface|Closure $redis the application's connection, or a closure that returns a
     *     new one. It is called at the first use, after a loss of the connection, and in each forked process. With APCu requests
     *     share what they know of the server: closures are taken for the same server if they are written at the same place, and
     *     use the same plain values and the same namespace
     * @param float $retryFor within how many seconds a call ends, 30 at most; one that reads ends within half of them
     * @param string|list<string>|null $daemon the URL of the daemon, e.g. `http://127.0.0.1:9292`, or those of several: the
     *     next one is asked if one is unreachable or busy
     * @param ?string $token the daemon's token
     * @param ?Closure(string, string, int, CounterfoilException): void $onError receives family, id (name, page) and
     *     number of what `later` lost
     * @throws Misconfigured
     */
    public function __construct(
        Redis|RedisCluster|ClientInterface|Closure|Connector|Testing $redis,
        string $namespace,
        float $retryFor = 1.0,
        string|array|null $daemon = null,
        ?string $token = null,
        ?Closure $onError = null,
    ) {
        $values = $redis instanceof Testing ? $redis : new Daemons($daemon, $token);
        $this->session = new Session($redis, $namespace, $retryFor, $values, $onError);
    }

    /**
     * Makes a connection of its own: to a cluster with Predis if it is installed, otherwise with phpredis if it is.
     *
     * @param string|list<string> $url `redis://USER:PASSWORD@HOST:PORT/DATABASE`, `rediss://...` for TLS,
     *     `unix:///PATH?db=DATABASE`; a list for some nodes of a cluster
     * @param float $timeout for how many seconds an attempt waits for a connection, and for a reply
     * @param ?string $library `phpredis` or `predis`
     * @param ?string $tlsCa with `rediss://` the file of the authority that signed the server's certificate, in PEM
     * @param bool $tlsVerify false accepts any certificate
     * @param mixed ...$options those of the constructor, by name
     * @throws Misconfigured
     */
    public static function connect(
        string|array $url,
        string $namespace,
        float $timeout = 0.4,
        ?string $library = null,
        ?string $tlsCa = null,
        bool $tlsVerify = true,
        mixed ...$options,
    ): self {
        // a RedisCluster of phpredis can crash PHP when slots move
        $prefersPredis = is_array($url) && class_exists(\Predis\Client::class);
        $library ??= extension_loaded('redis') && !$prefersPredis ? 'phpredis' : 'predis';
        return new self(new Connector($url, $timeout, $library, $tlsCa, $tlsVerify), $namespace, ...$options);
    }

    /** Returns a family of counters. */
    public function buffered(string $family): Buffered {
        return $this->open(Buffered::class, $family);
    }

    /**
     * Returns a family of counters whose changes return the new value.
     *
     * @param ?Closure(string): ?int $readRow returns the value of an id's row on the primary, null if there is none. It is for
     *     an application that cannot reach a daemon. It must not read in an open transaction, whose snapshot may be old: the
     *     counter would forget hits
     */
    public function cached(string $family, ?Closure $readRow = null): Cached {
        $cached = $this->open(Cached::class, $family);
        $cached->readRow = $readRow ?? $cached->readRow;
        return $cached;
    }

    /** Returns a family of counters over time. */
    public function series(string $family): Series {
        return $this->open(Series::class, $family);
    }

    /** Returns a family of pages with their views and visitors of the last minutes. */
    public function activity(string $family): Activity {
        return $this->open(Activity::class, $family);
    }

    /** Returns a family that counts the visitors of each day. */
    public function visitors(string $family): Visitors {
        return $this->open(Visitors::class, $family);
    }

    /** Returns the object of a family. There is one, which has the sums of `later`. */
    private function open(string $kind, string $family): Family {
        return $this->families["$kind $family"] ??= new $kind($this->session, $family);
    }

    /**
     * Sends what `later` took in all families; see `flush` of a family.
     *
     * @throws CounterfoilException
     */
    public function flush(): void {
        $this->session->within(function (): void {
            foreach ($this->families as $family) {
                try {
                    if ($family instanceof SummingFamily) $family->flush();
                } catch (CounterfoilException $error) {
                    $first ??= $error;
                }
            }
            if (isset($first)) throw $first;
        });
    }
}
