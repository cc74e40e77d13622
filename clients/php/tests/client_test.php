<?php

// The client, and the traps of PHP and its libraries.

declare(strict_types=1);

use Counterfoil\{Counterfoil, Misconfigured, NotCounted, OutcomeUnknown, Rows, Series, Testing, Views};
use Counterfoil\Internal\{Connector, Driver};

$own = fn(string $library = 'phpredis', mixed ...$options): Counterfoil =>
    Counterfoil::connect('unix://' . SOCKET, NS, ...['library' => $library] + $options);

/** Starts a proxy that cuts the first reply to a script after so many bytes; what comes later passes. */
function cutting(int $bytes): array
{
    $socket = sys_get_temp_dir() . '/cf-php-' . bin2hex(random_bytes(6)) . '.sock';
    $listener = stream_socket_server("unix://$socket");
    $child = pcntl_fork();
    if ($child !== 0) {
        fclose($listener);
        return [$socket, $child];
    }
    set_error_handler(null);
    while ($client = @stream_socket_accept($listener, 10)) {
        $server = stream_socket_client('unix://' . SOCKET);
        while (($request = fread($client, 65536)) !== '' && $request !== false) {
            fwrite($server, $request);
            $reply = fread($server, 65536);
            $isCut = $bytes >= 0 && preg_match('/:buffer|:idle/', $request) === 1 && !str_starts_with($reply, '-');
            fwrite($client, $isCut ? substr($reply, 0, $bytes) : $reply);
            if ($isCut) {
                $bytes = -1;
                break;
            }
        }
        fclose($client);
        fclose($server);
    }
    posix_kill(getmypid(), SIGKILL);
}

/** Returns a client over a driver of a test. */
function over(Driver $driver, float $retryFor, Redis|Connector|null $redis = null): Counterfoil
{
    $counterfoil = new Counterfoil($redis ?? redis(), NS, retryFor: $retryFor);
    $session = (new ReflectionProperty($counterfoil, 'session'))->getValue($counterfoil);
    (new ReflectionProperty($session, 'driver'))->setValue($session, $driver);
    return $counterfoil;
}

/** Returns the parameter `retry` of Predis 3.4 and later. */
function retry(): ?Predis\Retry\Retry
{
    return class_exists(Predis\Retry\Retry::class) ? new Predis\Retry\Retry(new Predis\Retry\Strategy\NoBackoff(), 1) : null;
}

return [
    'ids and deltas of PHP' => function () use ($own) {
        $isConnected = false;
        $views = (new Counterfoil(function () use (&$isConnected) {
            $isConnected = true;
            return redis();
        }, NS, 10.0, env('DAEMON')))->buffered('views');
        fails(NotCounted::class, 'BADARG', fn() => $views->add(id(), 1.5));
        fails(NotCounted::class, 'BADARG', fn() => $views->add(id(), PHP_INT_MAX + 1));
        fails(NotCounted::class, 'BADID', fn() => $views->add(''));
        fails(NotCounted::class, 'BADID', fn() => $views->add("\xff"));
        fails(NotCounted::class, 'BADID', fn() => $views->later(str_repeat('x', 256)));
        fails(NotCounted::class, 'BADID', fn() => $views->addOnce('', id()));
        same(false, $isConnected, 'sent');
        $number = random_int(1, PHP_INT_MAX);
        same([$number => 2, 'x' . $number => 3], $views->addMany([$number => 2, 'x' . $number => 3]));
        same(3, $views->add((string) $number));
        same(PHP_INT_MAX, $views->add($big = id(), PHP_INT_MAX));
        same(PHP_INT_MAX, $views->value($big));
        fails(NotCounted::class, 'RANGE', fn() => $views->add($big));
        $sum = (new ReflectionMethod(Series::class, 'sum'))->getClosure();
        same([PHP_INT_MAX, PHP_INT_MIN], [$sum((string) PHP_INT_MAX, '1', '-1'), $sum('-5', (string) PHP_INT_MIN, '2', '3')]);
        fails(NotCounted::class, 'RANGE', fn() => $sum('-1', (string) PHP_INT_MAX, '2'));
        fails(Misconfigured::class, 'BADKEY', fn() => $own()->buffered('Views'));
        fails(Misconfigured::class, 'retryFor', fn() => $own(retryFor: 31.0));
    },
    'options of a given phpredis object' => function () {
        $options = ['prefix' => [Redis::OPT_PREFIX, 'app:'], 'serializer' => [Redis::OPT_SERIALIZER, Redis::SERIALIZER_PHP],
            'compression' => [Redis::OPT_COMPRESSION, Redis::COMPRESSION_LZF]];
        foreach ($options as $name => [$option, $value]) {
            $redis = redis();
            $connection = $redis->rawCommand('CLIENT', 'ID');
            $redis->setOption($option, $value);
            $views = (new Counterfoil($redis, NS))->buffered('views');
            fails(Misconfigured::class, $name, fn() => $views->add(id()));
            fails(Misconfigured::class, $name, fn() => $views->add(id()));
            $other = redis()->rawCommand('CLIENT', 'LIST', 'ID', (string) $connection);
            same(1, preg_match('/ cmd=client\|id /', $other), "sent: $other");
        }
        $redis = redis();
        $redis->multi();
        fails(Misconfigured::class, 'MULTI', fn() => (new Counterfoil($redis, NS))->buffered('views')->add(id()));
        $redis = redis();
        $redis->setOption(Redis::OPT_REPLY_LITERAL, true);
        same(2, (new Counterfoil($redis, NS))->buffered('views')->add(id(), 2));
    },
    'options of a given client of Predis' => function () {
        $at = ['scheme' => 'unix', 'path' => SOCKET];
        $prefixed = new Counterfoil(new Predis\Client($at, ['prefix' => 'app:']), NS);
        fails(Misconfigured::class, 'prefix', fn() => $prefixed->buffered('views')->add(id()));
        $silent = new Counterfoil(new Predis\Client($at, ['exceptions' => false]), NS);
        same(2, $silent->buffered('views')->add(id(), 2));
        redis()->script('flush');
        same(2, $silent->buffered('views')->add(id(), 2));
    },
    'a given object is connected anew with its database and options' => function () {
        $redis = redis();
        $redis->select(3);
        $redis->setOption(Redis::OPT_MAX_RETRIES, 2);
        $redis->setOption(Redis::OPT_SCAN, Redis::SCAN_RETRY);
        $redis->flushDB();
        $keys = ['cf1:{' . NS . '/views/0}:calls', ...array_map(fn($p) => 'cf1:{' . NS . "/views/$p}:meta", range(0, 3))];
        $configure = file_get_contents(INSTALLED . '/vendor/counterfoil/counterfoil/lua/family_configure.lua');
        $description = json_encode(['wide' => false, 'separator' => '/', 'ids' => '[\s\S]{1,255}', 'ids_in_words' => 'text']);
        $redis->eval($configure, [...$keys, 'salt', '', 'buffered', 4, '', $description, 'max_pending', 1000000], count($keys));
        $views = (new Counterfoil($redis, NS))->buffered('views');
        $id = id();
        same(1, $views->add($id));
        redis()->rawCommand('CLIENT', 'KILL', 'ID', $redis->rawCommand('CLIENT', 'ID'));
        same(2, $views->add($id));
        same([2, Redis::SCAN_RETRY, 3], [$redis->getOption(Redis::OPT_MAX_RETRIES), $redis->getOption(Redis::OPT_SCAN), $redis->getDBNum()]);
        same('2', $redis->hGet('cf1:{' . NS . '/views/' . crc32($id) % 4 . '}:buffer', $id));
        $redis->flushDB();
    },
    'a given object without a read timeout waits for replies after it was connected anew' => function () {
        $redis = new Redis();
        $redis->connect(SOCKET);
        $views = (new Counterfoil($redis, NS))->buffered('views');
        $views->add($id = id());
        redis()->rawCommand('CLIENT', 'KILL', 'ID', $redis->rawCommand('CLIENT', 'ID'));
        same(2, $views->add($id) ?? 2);
        redis()->rawCommand('CLIENT', 'PAUSE', 100);
        same('PONG', $redis->echo('PONG'));
    },
    'a given object that is not connected yet' => function () {
        $redis = redis();
        $redis->close();
        $views = (new Counterfoil($redis, NS))->buffered('views');
        same([1, 2], [$views->add($id = id()), $views->add($id)]);
    },
    'a closure connects again after a loss and in a child' => function () {
        $connected = 0;
        $views = (new Counterfoil(function () use (&$connected) {
            $connected++;
            return redis();
        }, NS))->buffered('views');
        $id = id();
        same([1, 1], [$views->add($id), $connected]);
        redis()->rawCommand('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
        same([2, 2], [$views->add($id), $connected]);
        forked(fn() => same(3, $views->add($id)));
        same(4, $views->add($id));
    },
    'forks before and after the first call' => function () use ($own) {
        $predis = new Predis\Client(['scheme' => 'unix', 'path' => SOCKET]);
        foreach ([new Counterfoil(redis(), NS), new Counterfoil($predis, NS), $own(), $own('predis')] as $counterfoil) {
            $views = $counterfoil->buffered('views');
            $id = id();
            forked(fn() => same([1, 2], [$views->add($id), $views->add($id)]));
            same(3, $views->add($id));
            forked(fn() => same([4, 5], [$views->add($id), $views->add($id)]));
            same(6, $views->add($id));
        }
    },
    'a reply that is cut at any byte' => function () {
        foreach (['phpredis', 'predis'] as $library) {
            for ($bytes = 0; $bytes < 40; $bytes++) {
                [$socket, $proxy] = cutting($bytes);
                $redis = $library === 'predis' ? new Predis\Client(['scheme' => 'unix', 'path' => $socket]) : redis($socket);
                $views = (new Counterfoil($redis, NS, retryFor: 3.0))->buffered('views');
                $id = id();
                try {
                    $result = $views->add($id, 123);
                    same(true, $result === null || $result === 123, "$library $bytes: " . var_export($result, true));
                    same(246, $views->add($id, 123), "$library $bytes");
                } finally {
                    posix_kill($proxy, SIGKILL);
                    pcntl_waitpid($proxy, $status);
                    unlink($socket);
                }
            }
        }
    },
    'a reply without a number is that of a call that counted' => function () use ($own) {
        $own()->series('hits')->add(id());  // loads the script, which is longer than the proxy reads at once
        foreach (['phpredis', 'predis'] as $library) {
            for ($bytes = 0; $bytes < 30; $bytes++) {
                [$socket, $proxy] = cutting($bytes);
                $redis = $library === 'predis' ? new Predis\Client(['scheme' => 'unix', 'path' => $socket]) : redis($socket);
                $counterfoil = new Counterfoil($redis, NS, retryFor: 3.0);
                $id = id();
                try {
                    if ($bytes % 2 === 0) {
                        $counterfoil->buffered('views')->addOnce('cut', $id, -123);
                        same(-123, $counterfoil->buffered('views')->add($id, 0), "$library $bytes");
                    }
                    $counterfoil->series('hits')->add($id, 5);
                    same(5, array_sum(array_column($counterfoil->series('hits')->get($id, '60s'), 1)), "$library $bytes");
                } finally {
                    posix_kill($proxy, SIGKILL);
                    pcntl_waitpid($proxy, $status);
                    unlink($socket);
                }
            }
        }
    },
    'EXPIRED on the first send is repeated on an own connection only' => function () use ($own) {
        foreach (['phpredis', 'predis'] as $library) {
            $views = $own($library)->buffered('views');
            same(1, $views->add($id = id()));
            forget('views');
            same(2, $views->add($id));
        }
        $given = (new Counterfoil(redis(), NS))->buffered('views');
        $given->add($id);
        forget('views');
        fails(OutcomeUnknown::class, 'EXPIRED', fn() => $given->add($id));
        same(4, $given->add($id));
    },
    'a request outlives its epoch, and not its generation' => function () {
        $views = (new Counterfoil(redis(), NS))->buffered('views');
        $views->add($id = id());
        $epoch = $views->requestEpoch('stored', $id);
        forget('views');
        same([true, false], [$views->addOnce('fresh', $id), $views->addOnce('fresh', $id, 1, $epoch)]);
        redis()->hDel('cf1:{' . NS . '/views/0}:requests', '=now', '=before', '=began_at');  // as a reset leaves it
        fails(OutcomeUnknown::class, 'EXPIRED', fn() => $views->addOnce('stored', $id, 1, $epoch));
        same([true, false], [$views->addOnce('stored', $id), $views->addOnce('stored', $id)]);
        same(4, $views->add($id));
    },
    'requests of a cached counter' => function () {
        $votes = (new Counterfoil(redis(), NS))->cached('votes', readRow: fn(string $id): int => 5);
        $epoch = $votes->requestEpoch('order', $id = id());
        same([7, 8, 7], [$votes->incrOnce('order', $id, 2, $epoch), $votes->incr($id), $votes->incrOnce('order', $id, 2)]);
    },
    'calls leave one name of a caller' => function () use ($own) {
        $views = $own()->buffered('views');
        $views->add(id());
        $names = fn(): int => redis()->hLen('cf1:{' . NS . '/views/0}:calls');
        $before = $names();
        for ($i = 0; $i < 50; $i++) {
            $views->add(id());
        }
        same($before, $names());
    },
    'a caller with the largest number makes no other call' => function () use ($own) {
        $views = $own()->buffered('views');
        $callers = new ReflectionProperty($views, 'callers');
        $callers->setValue($views, [['0123456789abcdef', 2 ** 53 - 1]]);
        same([1, 2], [$views->add($id = id()), $views->add($id)]);
    },
    'a call within a call has a caller of its own' => function () use ($own) {
        $counterfoil = $own();
        $id = id();
        $votes = $counterfoil->cached('votes', function (string $id) use ($counterfoil): int {
            $counterfoil->buffered('views')->add("seeds/$id");
            return 40;
        });
        same([42, 41, 41], [$votes->incr($id, 2), $votes->incr($id, -1), $votes->get($id)]);
        $error = fails(NotCounted::class, 'RANGE', fn() => $votes->incr($id, 1000));
        same([41, 'RANGE: the value stays 41'], [$error->value, $error->getMessage()]);
    },
    'what is no string and no integer is no id, whatever the types of the caller are' => function () use ($own) {
        $counterfoil = $own();
        [$views, $votes, $hits] = [$counterfoil->buffered('views'), $counterfoil->cached('votes'), $counterfoil->series('hits')];
        [$readers, $daily, $day] = [$counterfoil->activity('readers'), $counterfoil->visitors('daily'), '2014-09-20'];
        // code without strict types, as most applications have it
        $weak = eval('return fn(object $family, string $call, mixed ...$args) => $family->$call(...$args);');
        foreach ([false, true, null, 1.5, [], new ArrayObject()] as $id) {
            $calls = [[$views, 'add', $id], [$views, 'later', $id], [$views, 'addOnce', 'r', $id], [$views, 'addOnce', $id, 'a'],
                [$views, 'requestEpoch', 'r', $id], [$views, 'requestEpoch', $id, 'a'], [$views, 'value', $id], [$views, 'values', [$id]],
                [$votes, 'incr', $id], [$votes, 'set', $id, 1], [$votes, 'get', $id], [$votes, 'incrOnce', $id, 'a'],
                [$hits, 'add', $id], [$hits, 'later', $id], [$hits, 'get', $id, '60s'], [$readers, 'touch', $id, 'v'],
                [$readers, 'touch', 'p', $id], [$readers, 'later', 'p', $id], [$readers, 'now', $id], [$daily, 'firstVisit', $id, $day, 'v'],
                [$daily, 'firstVisit', 's', $day, $id], [$daily, 'later', 's', $id, 'v'], [$daily, 'value', $id, $day]];
            foreach ($calls as $number => $call) fails(NotCounted::class, 'BADID', fn() => $weak(...$call));
        }
        foreach ([false, null, '5', 1.0] as $delta) fails(NotCounted::class, 'BADARG', fn() => $weak($views, 'add', 'a', $delta));
        same(1, $weak($views, 'add', random_int(1, PHP_INT_MAX)));
    },
    'later of series, activity and visitors' => function () use ($own) {
        $lost = [];
        $counterfoil = $own(onError: function (string $family, string $id, int $n, $error) use (&$lost) {
            $lost[] = [$family, $id, $n, $error->reason];
        }, daemon: env('DAEMON'), retryFor: 10.0);
        [$hits, $readers, $daily] = [$counterfoil->series('hits'), $counterfoil->activity('readers'), $counterfoil->visitors('daily')];
        [$id, $now] = [id(), time()];
        for ($i = 0; $i < 3; $i++) {
            for ($j = 0; $j < 250; $j++) $hits->later("$id/$j", 2);
            $hits->later("$id/0", 5, $now - 3600);
            for ($j = 0; $j < 1500; $j++) {
                $readers->later($id, "\xff$j");
                $daily->later($id, '2014-09-20', "\xff$j");
            }
            $daily->later($id, '2014-09-21', $i);
        }
        $hits->later("$id/0", 7, 1);
        fails(NotCounted::class, 'BADID', fn() => $readers->later('', 'v'));
        fails(NotCounted::class, 'BADARG', fn() => $hits->later('a', 0));
        fails(NotCounted::class, 'BADTIME', fn() => $counterfoil->flush());
        same([['hits', "$id/0", 7, 'BADTIME']], $lost);
        $counterfoil->flush();
        same([21, 6], array_map(fn(int $i): int => array_sum(array_column($hits->get("$id/$i", '60s'), 1)), [0, 249]));
        same([4500, 1500], $readers->now($id));
        same([1500, 3], $daily->values([[$id, '2014-09-20'], [$id, '2014-09-21']]));
        same(false, $daily->firstVisit($id, '2014-09-20', "\xff7"));
    },
    'sums of a family whose settings change are sent with the new ones' => function () {
        $redis = new class extends Redis {
            public bool $isOther = false;
            public function evalSha($sha, $args = [], $keys = 0): mixed {
                $isOther = $this->isOther && $keys >= 6;
                if ($isOther) $this->isOther = false;
                return $isOther ? ['MISMATCH'] : parent::evalSha($sha, $args, $keys);
            }
        };
        $redis->connect(SOCKET);
        $readers = (new Counterfoil($redis, NS))->activity('readers');
        $readers->touch($id = id(), 'a');
        $readers->later($id, 'b');
        $redis->isOther = true;
        $readers->flush();
        same([2, 2], $readers->now($id));
    },
    'a family that the daemon refuses' => function () {
        $redis = new class extends Redis {
            public bool $isRefused = true;
            public function evalSha($sha, $args = [], $keys = 0): mixed {
                return $this->isRefused ? ['UNCONFIGURED', 'table t: column n is latin1'] : parent::evalSha($sha, $args, $keys);
            }
        };
        $redis->connect(SOCKET);
        [$id, $views] = [id(), (new Counterfoil($redis, NS, retryFor: 5.0))->buffered('views')];
        $began = hrtime(true);
        $error = fails(Misconfigured::class, 'UNCONFIGURED', fn() => $views->add($id));
        same('UNCONFIGURED: the daemon refuses ' . NS . '/views: table t: column n is latin1', $error->getMessage());
        $views->later($id, 5);
        fails(Misconfigured::class, 'UNCONFIGURED', fn() => $views->flush());
        same(true, hrtime(true) < $began + 1e9, 'it is not awaited');
        $redis->isRefused = false;
        $views->flush();
        same(6, $views->add($id));
    },
    'a family that is not configured is awaited once' => function () {
        $redis = new class extends Redis {
            public int $asked = 0;
            public function evalSha($sha, $args = [], $keys = 0): mixed {
                $this->asked += str_ends_with($args[2] ?? '', ':requests') ? 1 : 0;
                return parent::evalSha($sha, $args, $keys);
            }
        };
        $redis->connect(SOCKET);
        $name = 'late-' . bin2hex(random_bytes(4));
        [$views, $id] = [(new Counterfoil($redis, NS))->buffered($name), id()];
        same(true, fails(NotCounted::class, 'UNCONFIGURED', fn() => $views->add($id))->isTemporary);
        same(true, $redis->asked <= 6, "it asked $redis->asked times in a second");
        [$asked, $began] = [$redis->asked, hrtime(true)];
        for ($i = 0; $i < 50; $i++) $error = fails(NotCounted::class, 'UNCONFIGURED', fn() => $views->add($id));
        same('UNCONFIGURED: no daemon has configured ' . NS . "/$name: declare it in counterfoil.toml, and run the daemon", $error->getMessage());
        $views->later($id, 5);
        fails(NotCounted::class, 'UNCONFIGURED', fn() => $views->flush());
        $seconds = intdiv(hrtime(true) - $began + 50_000_000, 1_000_000_000);
        same(true, $redis->asked - $asked <= 6 * $seconds, 'one call in a second asks');
        $asked = $redis->asked;
        configure($name, 4);
        usleep(1_000_000);
        $views->flush();
        same([6, $asked + 1], [$views->add($id), $redis->asked]);
    },
    'values of a family that is not configured' => function () use ($own) {
        $views = $own(daemon: env('DAEMON'), retryFor: 10.0)->buffered('nobody');
        $seen = null;
        $default = function (NotCounted $error) use (&$seen): int {
            $seen = $error->getMessage();
            return 7;
        };
        same([7, [7, 7]], [$views->value('a', $default), $views->values(['a', 'b'], 7)]);
        same(true, str_starts_with($seen, 'UNCONFIGURED: no daemon has configured ' . NS . '/nobody: declare it'), $seen);
        same(true, fails(NotCounted::class, 'UNCONFIGURED', fn() => $views->value('a'))->isTemporary);
    },
    'an outage' => function () {
        [$isAway, $calls] = [false, 0];
        $views = (new Counterfoil(function () use (&$isAway, &$calls) {
            $calls++;
            return $isAway ? throw new RedisException('Connection refused') : redis();
        }, NS, retryFor: 0.3))->buffered('views');
        $views->add($id = id());
        $isAway = true;
        redis()->rawCommand('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
        same(false, fails(OutcomeUnknown::class, 'no reply', fn() => $views->add($id))->isTemporary);
        $before = [hrtime(true), $calls];
        for ($i = 0; $i < 100; $i++) {
            $error = fails(NotCounted::class, 'UNREACHABLE', fn() => $views->add($id));
        }
        same(1, preg_match('/^UNREACHABLE: Redis (is unreachable|has been unreachable for [1-9]\d* s): Connection refused$/', $error->getMessage()));
        same([true, true], [$error->isTemporary, hrtime(true) - $before[0] < 100 * 10e6]);
        same($before[1], $calls, 'nothing is sent');
        usleep(1_000_000);
        fails(NotCounted::class, 'UNREACHABLE', fn() => $views->add($id));
        fails(NotCounted::class, 'UNREACHABLE', fn() => $views->add($id));
        same($before[1] + 1, $calls, 'one probe in a second');
        $isAway = false;
        usleep(1_000_000);
        same(true, in_array($views->add($id), [2, 3], true));
    },
    'an outage of a partition of a cluster is its own' => function () {
        $driver = new class extends Driver {
            public string $down = '';
            public function __construct() { parent::__construct(true, bin2hex(random_bytes(4))); }
            public function evaluate(bool $isSha, string $script, int $numberOfKeys, array $words, float $limit): array {
                if ($this->down !== '' && str_contains($words[0], $this->down)) throw self::lost('timed out');
                $settings = ['ids' => '[a-z]+', 'ids_in_words' => 'letters', 'wide' => false];
                $isEpoch = str_ends_with($words[3], ':requests_before');
                return $isEpoch ? ['OK', 'e', 'g', 'buffered', '4', json_encode($settings)] : ['OK', 1, 7, 7];
            }
            public function close(): void {}
            public function reconnect(float $limit): void {}
        };
        $counterfoil = over($driver, 0.3);
        $views = $counterfoil->buffered('views');
        $of = fn(int $partition): string => current(array_filter(range('a', 'z'), fn(string $id): bool => crc32($id) % 4 === $partition));
        same([7, 7], [$views->add($of(1)), $views->add($of(2))]);
        $driver->down = '/views/1}';
        fails(OutcomeUnknown::class, 'no reply', fn() => $views->add($of(1)));
        $began = hrtime(true);
        fails(NotCounted::class, 'UNREACHABLE', fn() => $views->add($of(1)));
        $views->later($of(1), 5);
        $views->later($of(2), 6);
        fails(NotCounted::class, 'UNREACHABLE', fn() => $views->flush());
        same([7, true], [$views->add($of(2)), hrtime(true) < $began + 50e6]);
        usleep(1_000_000);
        $driver->down = '';
        $views->flush();
        same(7, $views->add($of(1)));
        $driver->down = '/views/3}';
        same(true, fails(NotCounted::class, 'no reply', fn() => $views->requestEpoch('r', $of(3)))->isTemporary);
    },
    'errors of one call begin no outage' => function () {
        $driver = new class extends Driver {
            public string $refusal = '';
            public function __construct() { parent::__construct(false, bin2hex(random_bytes(4))); }
            public function evaluate(bool $isSha, string $script, int $numberOfKeys, array $words, float $limit): array {
                return $this->refusal === '' ? redis()->evalSha($script, $words, $numberOfKeys) : throw self::refused($this->refusal);
            }
            public function close(): void {}
            public function reconnect(float $limit): void {}
        };
        $counterfoil = over($driver, 0.0);
        $views = $counterfoil->buffered('views');
        $views->add(id());
        foreach (['READONLY', 'NOREPLICAS', 'TRYAGAIN', 'OOM', 'MISCONF', 'LOADING', 'BUSY', 'CLUSTERDOWN', 'MASTERDOWN'] as $number => $reason) {
            $driver->refusal = "$reason of a test";
            fails(NotCounted::class, $reason, fn() => $views->add(id()));
            $driver->refusal = '';
            if ($number < 5) $views->add(id());
            else fails(NotCounted::class, $reason, fn() => $views->add(id()));
            recover();
        }
    },
    'defaults of values' => function () use ($own) {
        $away = $own(daemon: 'http://127.0.0.1:1');
        [$views, $daily] = [$away->buffered('views'), $away->visitors('daily')];
        $seen = null;
        $default = function (NotCounted $error) use (&$seen): int {
            $seen = $error->reason;
            return 9;
        };
        $began = hrtime(true);
        same([7, 8, 9, 5], [$views->value('a', 7), $views->value('a', '8'), $views->value('a', $default), $daily->value('s', '2014-09-20', 5)]);
        same(['UNREACHABLE', true], [$seen, hrtime(true) < $began + 1e9]);
        same([[3, 3], [1, 2], [9, 9]], [$views->values(['a', 'b'], 3), $views->values(['a', 'b'], [1, 2]), $views->values(['a', 'b'], $default)]);
        same([4], $daily->values([['s', '2014-09-20']], 4));
        fails(NotCounted::class, 'BADARG', fn() => $views->values(['a', 'b'], [1]));
        fails(NotCounted::class, 'BADID', fn() => $views->value('', 7));
        fails(NotCounted::class, 'UNREACHABLE', fn() => $views->value('a'));
        fails(Misconfigured::class, 'daemon', fn() => $own()->buffered('views')->value('a', 7));
    },
    'a job counts once under the schedule of a queue' => function () {
        // a job loses replies, or its worker is killed before or after Redis executes the call
        $redis = fn(string $fate): Redis => new class($fate) extends Redis {
            public function __construct(private string $fate) {
                parent::__construct();
                $this->connect(SOCKET);
            }
            public function evalSha($sha, $args = [], $keys = 0): mixed {
                if ($keys < 6 || $this->fate === '') return parent::evalSha($sha, $args, $keys);
                if (!str_contains($this->fate, 'before')) parent::evalSha($sha, $args, $keys);
                if (str_contains($this->fate, 'killed')) posix_kill(getmypid(), SIGKILL);
                throw new RedisException('read error on connection');
            }
        };
        $run = function (array $job, string $fate) use ($redis): bool {
            if (($child = pcntl_fork()) === 0) {
                set_error_handler(null);
                try {
                    (new Counterfoil($redis($fate), NS, retryFor: 0.1))->buffered('views')->addOnce($job[0], $job[1], epoch: $job[2]);
                    posix_kill(getmypid(), SIGTERM);  // done
                } catch (OutcomeUnknown) {  // the queue runs it again
                }
                posix_kill(getmypid(), SIGKILL);
            }
            pcntl_waitpid($child, $status);
            return pcntl_wtermsig($status) === SIGTERM;
        };
        $views = (new Counterfoil(redis(), NS))->buffered('views');
        $fates = ['lost', 'killed', 'lost before', 'killed before', ''];
        for ($number = 0; $number < 20; $number++) {
            $request = "job-$number-" . id();
            $job = [$request, $jobs ??= id(), $views->requestEpoch($request, $jobs)];
            for ($attempt = 0; !$run($job, $attempt < 4 ? $fates[random_int(0, 4)] : ''); $attempt++) continue;
        }
        same(20, $views->add($jobs, 0));
    },
    'counters in memory, for tests of applications' => function () {
        $counterfoil = Testing::counterfoil('shop', ['votes' => ['min' => 0, 'max' => 10], 'products' => ['ids' => '[1-9][0-9]*'],
            'hits' => ['windows' => ['60s', 'month']], 'visits' => ['separator' => '|']]);
        [$views, $votes, $hits] = [$counterfoil->buffered('products'), $counterfoil->cached('votes'), $counterfoil->series('hits')];
        same([1, 4], [$views->add(7), $views->add('7', 3)]);
        fails(NotCounted::class, 'BADID', fn() => $views->add('07'));
        fails(NotCounted::class, 'BADID', fn() => $views->add(false));
        same([true, false, 6], [$views->addOnce('r', 7, 2), $views->addOnce('r', 7, 2, $views->requestEpoch('r', 7)), $views->value(7)]);
        $views->later(8, 5);
        $counterfoil->flush();
        same([6, 5, 0], $views->values([7, 8, 9]));
        same([9 => 1, 'x' => 'BADID'], array_map(fn($one) => is_int($one) ? $one : $one->reason, $views->addMany([9 => 1, 'x' => 1])));
        $views->add(9, PHP_INT_MAX - 1);
        fails(NotCounted::class, 'RANGE', fn() => $views->add(9));
        same([3, 10, 10, 4, 3], [$votes->incr('a', 3), $votes->set('b', 10), $votes->get('b'), $votes->incrOnce('r', 'a'), $votes->incr('a', -1)]);
        same(4, $votes->incrOnce('r', 'a'));
        same(10, fails(NotCounted::class, 'RANGE', fn() => $votes->incr('b'))->value);
        fails(Misconfigured::class, 'MISMATCH', fn() => $counterfoil->buffered('votes')->add('a'));
        $hits->add('site', 2);
        $hits->later('site', 1, time() - 90);
        $hits->flush();
        same([3, 3], [array_sum(array_column($hits->get('site', '60s'), 1)), array_sum(array_column($hits->get('site', 'month'), 1))]);
        fails(NotCounted::class, 'BADARG', fn() => $hits->get('site', 'day'));
        fails(NotCounted::class, 'BADTIME', fn() => $hits->add('site', 1, time() + 120));
        [$readers, $visits] = [$counterfoil->activity('readers'), $counterfoil->visitors('visits')];
        foreach (['a', 'b', 'a'] as $visitor) $readers->touch('front', $visitor);
        $readers->later('front', 'c');
        $readers->flush();
        same([[4, 3], [0, 0]], [$readers->now('front'), $readers->now('back')]);
        same([true, false], [$visits->firstVisit('s', '2014-09-20', 'a'), $visits->firstVisit('s', '2014-09-20', 'a')]);
        $visits->later('s', '2014-09-20', 'b');
        $visits->flush();
        same([2, 0], $visits->values([['s', '2014-09-20'], ['s', '2014-09-21']]));
    },
    'the code of the README can be parsed' => function () {
        preg_match_all('/^```php\n(.*?)^```$/ms', file_get_contents(INSTALLED . '/vendor/counterfoil/counterfoil/README.md'), $blocks);
        foreach ($blocks[1] as $code) token_get_all(str_starts_with($code, '<?php') ? $code : "<?php\n$code", TOKEN_PARSE);
        same(true, count($blocks[1]) > 3);
    },
    'addMany of many pairs' => function () use ($own) {
        $prefix = id();
        $pairs = array_map(fn(int $i): array => ["$prefix/$i", $i], range(1, 2500));
        $views = $own()->buffered('views');
        $views->add(id());
        $before = calls();
        same(range(1, 2500), $views->addMany($pairs));
        same(true, calls() - $before <= 3, 'few calls');
    },
    'addMany of an iterable' => function () use ($own) {
        [$id, $views] = [id(), $own()->buffered('views')];
        $pairs = function () use ($id): Generator {
            yield from [[$id, 1]];
            yield from [[$id, 2]];
            yield $id => 4;
            yield $id => 8;
        };
        same([0 => 1, 1 => 3, $id => 7, 2 => 15], $views->addMany($pairs()));
        $reasons = ['BADARG', 'BADARG', 'BADARG', 'BADARG', 'BADID', 'BADID'];
        $results = $views->addMany([[$id, '5'], [$id, true], [$id, 1.0], [$id], [null, 1], [[], 1]]);
        same($reasons, array_column($results, 'reason'));
        same(15, $views->add($id, 0));
    },
    'another number of partitions' => function () use ($own) {
        for ($i = 0; $i < 10; $i++) {
            $isWide = $i > 1;  // a hit of a wide family may go to any partition, also to one that is gone
            configure('moved', 8, $isWide);
            $views = ($i % 2 === 0 ? $own() : new Counterfoil(redis(), NS))->buffered('moved');
            $views->add(id(), 0);
            redis()->unlink(...redis()->keys('cf1:{' . NS . '/moved/*:buffer'));
            configure('moved', 4, $isWide);
            $results = $views->addMany(array_fill_keys(array_map(fn(int $i): string => "moved/$i", range(1, 3500)), 1));
            $counted = $views->add(id());
            $lost = array_map(fn(int $i): int => redis()->hLen('cf1:{' . NS . "/moved/$i}:buffer"), range(4, 7));
            redis()->unlink(...redis()->keys('cf1:{' . NS . '/moved/*'));
            same([0, 0, 0, 0], $lost);
            same([[], 'MISMATCH', 1], [array_filter($results, is_int(...)), end($results)->reason, $counted]);
        }
    },
    'a refusal over a Predis client that repeats calls tells nothing about the first send' => function () {
        $parameters = new class(['scheme' => 'unix', 'path' => SOCKET, 'retry' => retry()]) extends Predis\Connection\Parameters {
            public function isDisabledRetry(): bool { return false; }
        };
        $client = new class($parameters) extends Predis\Client {
            public ?string $refusal = null;

            // the reply is lost, and then the same call is refused over another connection
            public function executeCommand(Predis\Command\CommandInterface $command)
            {
                $reply = parent::executeCommand($command);
                if ($this->refusal === null) return $reply;
                return parent::executeCommand($this->createCommand('EVAL', ["return redis.error_reply('$this->refusal')", 0]));
            }
        };
        $views = (new Counterfoil($client, NS, retryFor: 0.0))->buffered('views');
        $views->add(id());
        foreach (['LOADING the dataset', 'ERR max number of clients reached', 'OOM command not allowed', 'NOREPLICAS Not enough'] as $client->refusal) {
            $id = id();
            fails(OutcomeUnknown::class, 'no reply', fn() => $views->add($id));
            recover();
            $views->later($id);
            fails(OutcomeUnknown::class, 'no reply', fn() => $views->flush());
            $client->refusal = null;
            recover();
            $views->flush();
            same(3, $views->add($id));
        }
    },
    'a call that may arrive late is not made anew for other settings' => function () {
        $redis = new class extends Redis {
            public int $calls = 0;

            // the windows have changed, so the call may be executed when it arrives at last
            public function evalSha($sha, $args = [], $keys = 0): mixed
            {
                if ($keys < 5) return parent::evalSha($sha, $args, $keys);
                return ++$this->calls === 1 ? throw new RedisException('read error') : ['MISMATCH'];
            }
        };
        $redis->connect(SOCKET, 0, 2.0, null, 0, 1.0);
        $hits = (new Counterfoil($redis, NS))->series('hits');
        fails(OutcomeUnknown::class, 'MISMATCH', fn() => $hits->add(id()));
        same(2, $redis->calls);
    },
    'later sums, stays while Redis is away, and reports what it drops' => function () {
        $isAway = true;
        $lost = [];
        $connect = function () use (&$isAway) {
            return $isAway ? throw new RedisException('Connection refused') : redis();
        };
        $onError = function (string $family, string $id, int $delta, $error) use (&$lost) {
            $lost[] = [$family, $id, $delta, $error->reason];
        };
        $counterfoil = new Counterfoil($connect, NS, onError: $onError);
        $views = $counterfoil->buffered('views');
        $id = id();
        $views->later($id, 2);
        $views->later($id);
        ini_set('error_log', $log = tempnam(sys_get_temp_dir(), 'cf'));
        fails(NotCounted::class, 'UNREACHABLE', fn() => $views->flush());
        fails(NotCounted::class, 'UNREACHABLE', fn() => $views->flush());
        same(1, preg_match('#^.*sums of ' . NS . '/views wait: UNREACHABLE: Connection refused\n\z#', file_get_contents($log)), 'logged once');
        ini_set('error_log', '/dev/null');
        unlink($log);
        $isAway = false;
        recover();
        forked(fn() => [$views->flush(), $views->later($id, 10), $views->flush()]);
        $counterfoil->flush();
        $counterfoil->buffered('votes')->later('7', 5);
        fails(Misconfigured::class, 'MISMATCH', fn() => $counterfoil->flush());
        same([['votes', '7', 5, 'MISMATCH']], $lost);
        $counterfoil->flush();
        same(14, $views->add($id));
        for ($i = 0; $i < 100_000; $i++) {
            $views->later("later/$i");
        }
        fails(NotCounted::class, 'BUSY', fn() => $views->later('one more'));
        $before = calls();
        $views->flush();
        same(true, calls() - $before <= 101, 'few calls');
    },
    'an onError that throws or counts costs no sum that waits' => function () {
        $redis = new class extends Redis {
            public int $left = PHP_INT_MAX;

            // after this number of calls Redis replies LOADING
            public function evalSha($sha, $args = [], $keys = 0): mixed
            {
                if ($keys > 2 && --$this->left < 0) return parent::eval("return redis.error_reply('LOADING the dataset')");
                return parent::evalSha($sha, $args, $keys);
            }
        };
        $redis->connect(SOCKET, 0, 2.0, null, 0, 1.0);
        [$id, $views] = [id(), null];
        $onError = function () use (&$views, $id) {
            $views->later("$id/999", 5);
            throw new DomainException('of the application');
        };
        $views = (new Counterfoil($redis, NS, retryFor: 0.1, onError: $onError))->buffered('views');
        $views->add("$id/full", PHP_INT_MAX);
        foreach (['full', ...range(1, 1000)] as $name) {
            $views->later("$id/$name");
        }
        $redis->left = 1;
        try {
            $views->flush();
        } catch (DomainException) {
            $redis->left = PHP_INT_MAX;
        }
        recover();
        $views->flush();
        same([1, 6, 1], array_map(fn(string $name): int => $views->add("$id/$name", 0), ['998', '999', '1000']));
    },
    'a flushed client leaves no connection in a process that runs on' => function () use ($own) {
        $connections = fn(): int => count(redis()->client('LIST'));
        $before = $connections();
        for ($i = 0; $i < 20; $i++) {
            $counterfoil = $own();
            $counterfoil->buffered('views')->later(id());
            $counterfoil->flush();
        }
        for ($i = 0; $i < 50 && $connections() > $before + 1; $i++) {
            usleep(20_000);
        }
        same(true, $connections() <= $before + 1, 'connections');
    },
    'fibers that end in another order leave no deadline' => function () {
        $isAway = false;
        $counterfoil = new Counterfoil(function () use (&$isAway) {
            if (Fiber::getCurrent() !== null) Fiber::suspend();
            return $isAway ? throw new RedisException('Connection refused') : redis();
        }, NS, retryFor: 0.1);
        $views = $counterfoil->buffered('views');
        $fibers = array_map(fn() => new Fiber(fn() => $views->addMany([id() => 1])), range(1, 2));
        foreach ($fibers as $fiber) {
            $fiber->start();
        }
        foreach ($fibers as $fiber) {
            while (!$fiber->isTerminated()) {
                $fiber->resume();
            }
        }
        $isAway = true;
        redis()->rawCommand('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes');
        fails(OutcomeUnknown::class, 'no reply', fn() => $views->add(id()));
        $isAway = false;
        recover();
        same(1, $views->add(id()));
    },
    'a program that ends sends its sums' => function () {
        $ends = [
            'exit(0);' => 3,
            'register_shutdown_function(fn() => exit(0));' => 3,
            // hits in a destructor, and after the sums were sent
            '$atEnd = new class($later) {
                public function __construct(private Closure $later) {}
                public function __destruct() { ($this->later)(); }
            };' => 6,
            'register_shutdown_function(fn() => register_shutdown_function(fn() => register_shutdown_function($later)));' => 6,
        ];
        foreach ($ends as $end => $counted) {
            $id = id();
            program('$views = Counterfoil\\Counterfoil::connect("unix://$argv[2]", $argv[3])->buffered("views");
                $later = fn() => $views->later($argv[4], 2);
                $later(); $views->later($argv[4]); ' . str_replace('($later)', '(fn() => $views->later($argv[4], 3))', $end), $id);
            same($counted + 1, (new Counterfoil(redis(), NS))->buffered('views')->add($id), $end);
        }
    },
    'a program that ends in an outage tries again' => function () {
        $id = id();
        program('$attempts = 0;
            $connect = function () use (&$attempts, $argv) {
                if (++$attempts < 4) throw new RedisException("Connection refused");
                $redis = new Redis();
                $redis->connect($argv[2]);
                return $redis;
            };
            $views = (new Counterfoil\\Counterfoil($connect, $argv[3], retryFor: 0.0))->buffered("views");
            $views->later($argv[4], 5);
            try {
                $views->flush();
            } catch (Counterfoil\\NotCounted) {  // the outage is known
            }', $id);
        same(6, (new Counterfoil(redis(), NS))->buffered('views')->add($id));
    },
    'a program that ends reports sums that it cannot send' => function () {
        $id = id();
        program('
            class Silent extends Redis {
                public function evalSha($sha, $args = [], $keys = 0): mixed {
                    $isCall = str_ends_with($args[2], ":buffer");
                    return $isCall ? throw new RedisException("read error") : parent::evalSha($sha, $args, $keys);
                }
            }
            [$redis, $silent] = [new Redis(), new Silent()];
            foreach ([$redis, $silent] as $one) $one->connect($argv[2]);
            set_error_handler(fn(int $level, string $text) => $redis->set("$argv[4]/warning", $text), E_USER_WARNING);
            $report = fn(string $family, string $id, int $delta, $error) => $redis->set($id, "$family $delta $error->reason");
            $away = Counterfoil\\Counterfoil::connect("unix:///tmp/counterfoil-no-such.sock", $argv[3], onError: $report);
            foreach ([1, 2] as $i) $away->buffered("views")->later("$argv[4]/$i", 5);
            (new Counterfoil\\Counterfoil($silent, $argv[3]))->buffered("wide")->later($argv[4]);', $id);
        same(['views 5 UNREACHABLE', 'views 5 UNREACHABLE'], [redis()->get("$id/1"), redis()->get("$id/2")]);
        $warning = 'counterfoil: views: 2 sums are dropped, not counted: UNREACHABLE: No such file or directory; '
            . 'counterfoil: wide: 1 sums are dropped, outcome unknown: no reply: read error';
        same($warning, redis()->get("$id/warning"));
    },
    'without a library' => function () {
        // without Composer's autoloader, too
        $process = proc_open([PHP_BINARY, '-n', '--', INSTALLED], [['pipe', 'r']], $pipes);
        fwrite($pipes[0], '<?php
            spl_autoload_register(function (string $class) use ($argv): void {
                $file = "$argv[1]/vendor/counterfoil/counterfoil/src" . strtr(strstr($class, chr(92)), chr(92), "/") . ".php";
                if (is_file($file)) require $file;
            });
            try {
                Counterfoil\\Counterfoil::connect("redis://localhost", "shop");
            } catch (Counterfoil\\Misconfigured $error) {
                exit(preg_match("/phpredis.*predis/", $error->getMessage()) === 1 ? 3 : 4);
            }');
        fclose($pipes[0]);
        same(3, proc_close($process));
    },
    'an error at the end of a program costs no other sum' => function () {
        // a warning, an onError and a signal handler throw
        foreach (['', 'fn() => throw new DomainException', 'fn() => posix_kill(getmypid(), SIGALRM)'] as $onError) {
            $id = id();
            program('set_error_handler(fn(int $level, string $text) => throw new ErrorException($text));
                ini_set("display_errors", "0");
                ini_set("log_errors", "0");
                pcntl_async_signals(true);
                pcntl_signal(SIGALRM, fn() => throw new DomainException);
                $counterfoil = Counterfoil\\Counterfoil::connect("unix://$argv[2]", $argv[3], onError: ' . ($onError ?: 'null') . ');
                foreach (["votes", "views"] as $family) {
                    foreach ([1, 2] as $i) $counterfoil->buffered($family)->later("$argv[4]/$i");
                }', $id, 255);
            $views = (new Counterfoil(redis(), NS))->buffered('views');
            same([1, 1], [$views->add("$id/1", 0), $views->add("$id/2", 0)], $onError);
        }
    },
    'a function that cannot connect ends with the program' => function () {
        program('ini_set("display_errors", "0");
            ini_set("log_errors", "0");
            $counterfoil = new Counterfoil\\Counterfoil(fn() => throw new DomainException, $argv[3]);
            $counterfoil->buffered("views")->later($argv[4]);', id(), 255);
    },
    'a signal within flush loses and doubles no sum' => function () {
        foreach (['exit(0)', 'throw new DomainException', '[]'] as $signal) {
            // the signal arrives while Redis is away, or after a call that was executed and whose reply is lost
            foreach (['$isAway' => 'parent::evalSha("")', 'false' => 'parent::evalSha($sha, $args, $keys)'] as $isAway => $call) {
                $id = id();
                program('class Signalled extends Redis {
                        public function evalSha($sha, $args = [], $keys = 0): mixed {
                            global $isAway;
                            if (!$isAway || $keys < 3) return parent::evalSha($sha, $args, $keys);
                            $reply = ' . $call . ';
                            posix_kill(getmypid(), SIGALRM);
                            return usleep(1000) ?? false;
                        }
                    }
                    $redis = new Signalled();
                    $redis->connect($argv[2]);
                    [$isAway, $views] = [true, (new Counterfoil\\Counterfoil($redis, $argv[3]))->buffered("views")];
                    pcntl_async_signals(true);
                    pcntl_signal(SIGALRM, function () use (&$isAway, $views, $argv) {
                        $isAway = false;
                        $views->later($argv[4], 10);
                        $views->flush();
                        ' . $signal . ';
                    });
                    $views->later($argv[4], 5);
                    try { $views->flush(); } catch (DomainException) { $views->later($argv[4], 100); }', $id);
                $expected = str_contains($signal, 'throw') ? 116 : 16;
                same($expected, (new Counterfoil(redis(), NS))->buffered('views')->add($id), "$signal $isAway");
            }
        }
    },
    'a signal within a call passes' => function () {
        foreach (['phpredis', 'predis'] as $library) {
            [$id, $views] = [id(), Counterfoil::connect('unix://' . SOCKET, NS, 20.0, $library, retryFor: 20.0)->buffered('views')];
            $views->add($id);
            redis()->rawCommand('CLIENT', 'PAUSE', 60_000, 'WRITE');
            pcntl_async_signals(true);
            pcntl_signal(SIGALRM, fn() => throw new DomainException('of the application'));
            $called = getmypid();
            $end = aside(function () use ($called): void {
                usleep(100_000);
                posix_kill($called, SIGALRM);
                redis()->rawCommand('CLIENT', 'UNPAUSE');
            });
            try {
                $views->add($id);
                same(true, false, 'it passes');
            } catch (DomainException) {
            }
            $end();
            same(true, in_array($views->add($id), [2, 3]), $library);
        }
    },
    'a flush has one deadline' => fn() => forked(function () use ($own) {
        $refused = 0;
        $away = new Counterfoil(function () use (&$refused) {
            $refused++;
            throw new RedisException('Connection refused');
        }, NS, retryFor: 0.4);
        $silent = $own(timeout: 0.2, retryFor: 0.4);
        $silent->buffered('views')->add(id());
        $redis = redis();
        $attempts = fn(): int => $refused + $redis->info('stats')['total_connections_received'];
        $redis->rawCommand('CLIENT', 'PAUSE', 60_000, 'WRITE');
        try {
            foreach ([$away, $silent] as $counterfoil) {
                foreach (['views', 'wide', 'small'] as $family) {
                    for ($i = 0; $i < 3000; $i++) {
                        $counterfoil->buffered($family)->later(id());
                    }
                }
                $before = $attempts();
                fails($counterfoil === $away ? NotCounted::class : OutcomeUnknown::class,
                    $counterfoil === $away ? 'UNREACHABLE' : 'no reply', fn() => $counterfoil->flush());
                same(true, $attempts() - $before < 10, 'one in 50 ms');
            }
        } finally {
            $redis->rawCommand('CLIENT', 'UNPAUSE');
        }
    }),
    'a family that a failed flush does not reach keeps its call' => function () {
        $redis = new class extends Redis {
            public string $fate = '';
            public function evalSha($sha, $args = [], $keys = 0): mixed {
                if ($this->fate === 'away') throw new RedisException('read error on connection');
                $reply = parent::evalSha($sha, $args, $keys);
                return $this->fate === 'interrupted' ? throw new DomainException('of a signal handler') : $reply;
            }
        };
        $redis->connect(SOCKET);
        $counterfoil = new Counterfoil($redis, NS, retryFor: 0.0);
        [$wide, $views, $id] = [$counterfoil->buffered('wide'), $counterfoil->buffered('views'), id()];
        foreach ([$wide, $views] as $family) $family->add($id);
        $views->later($id, 10);
        $redis->fate = 'interrupted';
        try {
            $views->flush();
        } catch (DomainException) {
        }
        $redis->fate = 'away';
        $wide->later($id);
        fails(OutcomeUnknown::class, 'no reply', fn() => $counterfoil->flush());
        $redis->fate = '';
        recover();
        $counterfoil->flush();
        same(12, $views->add($id));
    },
    'a library may have sent before what is refused now' => function () {
        $driver = new class extends Driver {
            public string $refusal = '';
            public function __construct() { parent::__construct(true, '', true); }
            public function evaluate(bool $isSha, string $script, int $numberOfKeys, array $words, float $limit): array {
                $reply = redis()->evalSha($script, $words, $numberOfKeys);
                $isEpoch = str_ends_with($words[2], ':requests');
                return $isEpoch ? $reply : throw self::refused($this->refusal);
            }
            public function close(): void {}
            public function reconnect(float $limit): void {}
        };
        $own = new Connector('unix://' . SOCKET, 1.0, 'phpredis');
        foreach ([['LOADING', redis()], ['OOM', redis()], ['MISCONF', redis()], ['LOADING', $own], ['OOM', $own]] as [$driver->refusal, $redis]) {
            [$class, $reason] = $redis === $own ? [NotCounted::class, $driver->refusal] : [OutcomeUnknown::class, 'no reply'];
            $counterfoil = over($driver, 0.0, $redis);
            fails($class, $reason, fn() => $counterfoil->buffered('small')->add(id()));
            recover();
        }
    },
    'series: hits of another time' => function () {
        [$hits, $name, $now] = [(new Counterfoil(redis(), NS))->series('hits'), id(), time()];
        $hits->add($name);
        $hits->add($name, 2, $now - 3600);
        $hits->add($name, 4, new DateTimeImmutable('-90 minutes'));
        $counts = array_column($hits->get($name, '60s'), 1);
        same([6, 7], [array_sum(array_slice($counts, 0, 60)), array_sum($counts)]);
        foreach ([$now + 120, 1, -1] as $at) fails(NotCounted::class, 'BADTIME', fn() => $hits->add($name, 1, $at));
    },
    'another kind is refused, also with what another request noted in APCu' => function () {
        $code = '<?php require $argv[1] . "/vendor/autoload.php";
            $counterfoil = Counterfoil\\Counterfoil::connect("unix://$argv[2]", $argv[3]);
            $counterfoil->buffered("views")->requestEpoch("r", "a");
            try {
                $counterfoil->cached("views", fn() => 1)->get("a");
            } catch (Counterfoil\\Misconfigured $error) {
                exit($error->reason === "MISMATCH" ? 3 : 4);
            }';
        $process = proc_open([PHP_BINARY, '-d', 'apc.enable_cli=1', '--', INSTALLED, SOCKET, NS], [['pipe', 'r']], $pipes);
        fwrite($pipes[0], $code);
        fclose($pipes[0]);
        same(3, proc_close($process));
    },
    'exact values, with what waits in Redis' => function () use ($own) {
        foreach (['phpredis', 'predis'] as $library) {
            $counterfoil = $own($library, daemon: ['http://127.0.0.1:1', env('DAEMON') . '/'], retryFor: 10);
            [$views, $wide, $daily] = [$counterfoil->buffered('views'), $counterfoil->buffered('wide'), $counterfoil->visitors('daily')];
            $id = id();
            $views->add($id, 2 ** 62);
            $wide->add($id, 2);
            $daily->firstVisit($id, '2014-09-20', 'v');
            same([2 ** 62, 2, 1], [$views->value($id), $wide->value($id), $daily->value($id, '2014-09-20')]);
            same([0, 2 ** 62], $views->values([id(), $id]));
            same([], $views->values([]));
            same([0, 1], $daily->values([[$id, '2014-09-21'], [$id, '2014-09-20']]));
            $ids = array_map(fn(int $i): string => "$id/é $i", range(0, 2099));
            $views->addMany(array_map(null, $ids, range(0, 2099)));
            same(range(2099, 0), $views->values(new ArrayIterator(array_reverse($ids))));
        }
        // a later call without the options leaves them as they are
        $counterfoil->cached('votes');
        same(7, $counterfoil->cached('votes', fn() => 7)->get($id));
        fails(Misconfigured::class, 'daemon', fn() => $own()->buffered('views')->value($id));
        fails(Misconfigured::class, 'daemon', fn() => $own('phpredis', daemon: 'localhost:9292'));
        $gone = $own('phpredis', daemon: 'http://127.0.0.1:1', retryFor: 0.1)->buffered('views');
        fails(NotCounted::class, 'UNREACHABLE', fn() => $gone->value($id));
    },
    'connections to a daemon are kept, and not shared with a child' => function () use ($own) {
        // a daemon that replies with the number of the connection and of the request on it
        $listener = stream_socket_server('tcp://127.0.0.1:0');
        if (($daemon = pcntl_fork()) === 0) {
            for ($connections = 1; ; $connections++) {
                $client = stream_socket_accept($listener, 60);
                if (pcntl_fork() !== 0) continue;
                for ($requests = 1; ; $requests++) {
                    $request = fread($client, 65536);
                    if ($request === '' || $request === false) posix_kill(getmypid(), SIGKILL);
                    same(1, preg_match('#^POST /path/api/v1/values HTTP/1.1.*Bearer secret\r\n.*{"family":"[^"]*/views","ids":\["ü/"\]}$#s', $request));
                    $body = '{"values":[' . (100 * $connections + $requests) . ']}';
                    $isChunked = $requests % 2 === 0;  // as a proxy may send it
                    fwrite($client, "HTTP/1.1 200 OK\r\n" . ($isChunked ? "Transfer-Encoding: chunked\r\n\r\n" : 'Content-Length: ' . strlen($body) . "\r\n\r\n"));
                    if ($isChunked) $body = "4\r\n" . substr($body, 0, 4) . "\r\n" . dechex(strlen($body) - 4) . "\r\n" . substr($body, 4) . "\r\n0\r\n\r\n";
                    fwrite($client, $body);
                }
            }
        }
        try {
            $url = 'http://' . stream_socket_get_name($listener, false) . '/path/';
            $views = $own('phpredis', daemon: $url, token: 'secret')->buffered('views');
            for ($i = 1; $i <= 20; $i++) same(100 + $i, $views->value('ü/'));
            forked(fn() => same(201, $views->value('ü/')));
            same(121, $views->value('ü/'));
        } finally {
            posix_kill($daemon, SIGKILL);
            pcntl_waitpid($daemon, $status);
        }
    },
    'daemons that are busy, silent, or reply something else' => function () use ($own) {
        $serve = function (array $replies): array {
            $listener = stream_socket_server('tcp://127.0.0.1:0');
            if (($child = pcntl_fork()) === 0) {
                foreach ($replies as $reply) {
                    $client = stream_socket_accept($listener, 60);
                    fread($client, 65536);
                    fwrite($client, "$reply\r\n\r\n");
                    fclose($client);
                }
                posix_kill(getmypid(), SIGKILL);
            }
            return ['http://' . stream_socket_get_name($listener, false), $child, $listener];
        };
        $value = "HTTP/1.1 200 OK\r\n\r\n" . '{"values":[7]}';
        $busy = "HTTP/1.1 503 Busy\r\nRetry-After: 1";
        // a kept connection that is closed costs no attempt
        $kept = fn(int $value) => "HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n" . '{"values":[' . $value . ']}';
        $error = fn(string $status, string $text) => "HTTP/1.1 $status\r\n\r\n" . json_encode(['error' => $text], JSON_UNESCAPED_SLASHES);
        [$absent, $elsewhere] = [$error('404 Not Found', 'no family "' . NS . '/views"'), $error('404 Not Found', 'nothing at this path')];
        [$daemon, $child] = $serve(['HTTP/1.1 429 Too Many Requests', 'HTTP/1.1 503 Busy', "HTTP/1.1 200 OK\r\n\r\n{}", 'hello', $value,
            $kept(8), $kept(9), 'hello', "HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n" . '{"values":[7', "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/", $absent, $elsewhere]);
        $views = $own('phpredis', daemon: $daemon)->buffered('views');
        same([7, 8, 9], [$views->value('a'), $views->value('a'), $views->value('a')]);
        $once = $own('phpredis', daemon: $daemon, retryFor: 0.0)->buffered('views');
        for ($i = 0; $i < 2; $i++) {
            same(true, fails(NotCounted::class, 'UNREACHABLE', fn() => $once->value('a'))->isTemporary);
            recover();
        }
        fails(Misconfigured::class, 'daemon 302', fn() => $views->value('a'));
        fails(NotCounted::class, 'UNCONFIGURED', fn() => $views->value('a'));
        fails(Misconfigured::class, 'daemon 404', fn() => $views->value('a', 7));
        pcntl_waitpid($child, $status);
        // the next daemon is asked
        $silent = stream_socket_server('tcp://127.0.0.1:0');
        [$first, $one] = $serve([$busy]);
        [$second, $two] = $serve([$value, $value]);
        $views = $own('phpredis', retryFor: 3.0, daemon: [$first, 'http://' . stream_socket_get_name($silent, false), $second])->buffered('views');
        $began = hrtime(true);
        same([7, 7], [$views->value('a'), $views->value('a')]);
        same(true, hrtime(true) < $began + 2e9);
        [$first, $three] = $serve([$busy, $busy, $value]);
        $began = hrtime(true);
        same(7, $own('phpredis', daemon: $first, retryFor: 10.0)->buffered('views')->value('a'));
        same(true, hrtime(true) > $began + 1e9, 'it is left alone for as long as it asks');
        foreach ([$one, $two, $three] as $child) pcntl_waitpid($child, $status);
    },
    'errors of Redis' => function () use ($own) {
        $refused = fn(string $error): string => \Counterfoil\Internal\Driver::refused($error)->reason;
        $in62 = 'ERR Error running script (call to f_0123): @user_script:61: @user_script: 61: ';
        same(['UNREACHABLE', 'OOM', 'WRONGTYPE', 'ERR'], array_map($refused, ['ERR max number of clients reached',
            "$in62-OOM command not allowed when used memory > 'maxmemory'.",
            "{$in62}WRONGTYPE Operation against a key holding the wrong kind of value", "{$in62}Script attempted to access nonexistent"]));
        redis()->rawCommand('ACL', 'SETUSER', 'php', 'reset', 'on', '>right', '~*', '+ping');
        $views = Counterfoil::connect('unix://' . SOCKET . '?user=php&password=right', NS)->buffered('views');
        fails(Misconfigured::class, 'NOPERM', fn() => $views->add(id()));
        redis()->rawCommand('ACL', 'DELUSER', 'php');
        redis()->rawCommand('CONFIG', 'SET', 'maxmemory', '1');
        try {
            $began = hrtime(true);
            $error = fails(NotCounted::class, 'OOM', fn() => $own()->buffered('small')->add(id()));
            same(true, hrtime(true) < $began + 5e9, 'it is not repeated');
        } finally {
            redis()->rawCommand('CONFIG', 'SET', 'maxmemory', '0');
        }
        same(['OOM command', true], [substr($error->getMessage(), 0, 11), $error->isTemporary]);
        redis()->set('cf1:{' . NS . '/small/0}:buffer', 'foreign');
        same(false, fails(NotCounted::class, 'WRONGTYPE', fn() => $own()->buffered('small')->add(id()))->isTemporary);
        redis()->del('cf1:{' . NS . '/small/0}:buffer');
    },
    'a tracer that formats commands changes no outcome' => function () {
        $phpRedis = new class extends Redis {
            public function evalSha($sha, $args = [], $keys = 0): mixed {
                return implode(' ', $args) . $sha === '' ? false : parent::evalSha($sha, $args, $keys);
            }
        };
        $phpRedis->connect(SOCKET);
        $predis = new class(['scheme' => 'unix', 'path' => SOCKET]) extends Predis\Client {
            public function executeCommand(Predis\Command\CommandInterface $command) {
                return implode(' ', $command->getArguments()) === '' ? null : parent::executeCommand($command);
            }
        };
        foreach ([$phpRedis, $predis] as $client) {
            $views = (new Counterfoil($client, NS))->buffered('views');
            $id = id();
            $views->add($id);
            redis()->rawCommand('CONFIG', 'SET', 'maxmemory', '1');
            try {
                for ($i = 0; $i < 7; $i++) $views->later("$id/$i");
                same(true, fails(NotCounted::class, 'OOM', fn() => $views->flush())->isTemporary);
            } finally {
                redis()->rawCommand('CONFIG', 'SET', 'maxmemory', '0');
            }
            $views->flush();
            for ($i = 0; $i < 7; $i++) same(2, $views->add("$id/$i"));
        }
    },
    'a server with a certificate of its own' => function () use ($own) {
        [$address, $authority] = [getenv('COUNTERFOIL_TEST_TLS'), getenv('COUNTERFOIL_TEST_CA')];
        if (!$address) return;
        foreach (['phpredis', 'predis'] as $library) {
            $add = fn(array $options) => fn() => Counterfoil::connect($address, NS, ...$options
                + ['library' => $library, 'retryFor' => 0.3])->buffered('views')->add(id());
            $error = fails(NotCounted::class, 'UNREACHABLE', $add([]));
            same(true, str_contains($error->getMessage(), 'tlsCa'), $error->getMessage());
            fails(NotCounted::class, 'UNCONFIGURED', $add(['tlsCa' => $authority]));
            fails(NotCounted::class, 'UNCONFIGURED', $add(['tlsVerify' => false]));
        }
        fails(Misconfigured::class, 'tlsCa', fn() => Counterfoil::connect('redis://localhost', NS, tlsCa: $authority));
    },
    'wrong passwords and addresses' => function () {
        fails(Misconfigured::class, 'url', fn() => Counterfoil::connect('http://localhost', NS));
        $away = Counterfoil::connect('unix:///tmp/counterfoil-no-such.sock', NS, retryFor: 0.1);
        $error = fails(NotCounted::class, 'UNREACHABLE', fn() => $away->buffered('views')->add(id()));
        same(RedisException::class, $error->getPrevious()::class);
        foreach (['127.0.0.1' => 'predis', '[::1]' => 'phpredis'] as $host => $library) {
            $away = Counterfoil::connect("redis://$host:1", NS, library: $library, retryFor: 0.1);
            $error = fails(NotCounted::class, 'UNREACHABLE', fn() => $away->buffered('views')->add(id()));
            same(1, preg_match('/refused|assign/', $error->getMessage()), $error->getMessage());
        }
        $single = Counterfoil::connect(['unix://' . SOCKET], NS, library: 'predis', retryFor: 0.1);  // is no cluster
        fails(NotCounted::class, 'UNREACHABLE', fn() => $single->buffered('views')->add(id()));
        redis()->rawCommand('ACL', 'SETUSER', 'php', 'on', '>right', '~*', '+@all');
        foreach (['phpredis', 'predis'] as $library) {
            $of = fn(string $password) => Counterfoil::connect("redis+unix://" . SOCKET . "?user=php&password=$password", NS, library: $library);
            // Predis 3 follows a failed HELLO with an AUTH without the user name
            $isNew = $library === 'predis' && version_compare(Predis\Client::VERSION, '3', '>=');
            fails(Misconfigured::class, $isNew ? 'AUTH' : 'WRONGPASS', fn() => $of('wrong')->buffered('views')->add(id()));
            same(1, $of('right')->buffered('views')->add(id()));
        }
        // Predis connects without SELECT 0
        redis()->rawCommand('ACL', 'SETUSER', 'php', '-select');
        foreach (['phpredis', 'predis'] as $library) {
            same(1, Counterfoil::connect('unix://' . SOCKET . '?user=php&password=right', NS, library: $library)->buffered('views')->add(id()));
        }
        redis()->rawCommand('ACL', 'DELUSER', 'php');
    },
    'a server without a connection to spare' => function () {
        $redis = redis();
        $redis->rawCommand('CONFIG', 'SET', 'maxclients', count($redis->client('LIST')));
        try {
            foreach (['phpredis', 'predis'] as $library) {
                $views = Counterfoil::connect('unix://' . SOCKET, NS, library: $library, retryFor: 0.2)->buffered('views');
                $error = null;
                try {
                    $views->add(id());
                } catch (NotCounted $error) {
                }
                same(true, $error?->isTemporary);
            }
        } finally {
            $redis->rawCommand('CONFIG', 'SET', 'maxclients', 10_000);
        }
    },
    'views without those of crawlers, prefetches and repeats' => function () {
        $counterfoil = Testing::counterfoil('shop');
        if (!class_exists(Jaybizzle\CrawlerDetect\CrawlerDetect::class)) {
            fails(Misconfigured::class, 'BOTS', fn() => new Views($counterfoil, 'secret'));
        }
        $views = new Views($counterfoil, 'secret', bots: fn(string $userAgent): bool => str_contains($userAgent, 'bot'));
        $browser = ['REMOTE_ADDR' => '203.0.113.7', 'HTTP_USER_AGENT' => 'Firefox'];
        $counted = fn(array $server, bool $repeats = true, ?string $visitor = null): bool =>
            $views->count($repeats ? 'views' : 'visitors', 7, $server + $browser, $repeats, $visitor);
        same([true, true], [$counted([]), $counted([])]);
        same([false, false], [$counted(['HTTP_USER_AGENT' => 'a bot']), $counted(['HTTP_USER_AGENT' => ''])]);
        same([false, false], [$counted(['HTTP_SEC_PURPOSE' => 'prefetch;prerender']), $counted(['HTTP_PURPOSE' => 'prefetch'])]);
        same(false, $counted(['REQUEST_METHOD' => 'HEAD']));
        same(2, $counterfoil->buffered('views')->value(7));
        same([true, false], [$counted([], repeats: false), $counted([], repeats: false)]);
        same(true, $counted(['REMOTE_ADDR' => '203.0.113.8'], repeats: false));
        same([true, false], [$counted([], repeats: false, visitor: 'user-1'), $counted([], repeats: false, visitor: 'user-1')]);
        same(3, $counterfoil->visitors('visitors')->value(7, gmdate('Y-m-d')));
        same(64, strlen($views->visitor($browser)));
        same(true, (new Views($counterfoil, 'secret', bots: true))->count('views', 7, []));
    },
    'a row that is committed while Redis is down counts when it is back' => function () {
        $isDown = true;
        $id = id();
        $views = (new Counterfoil(function () use (&$isDown): Redis {
            if ($isDown) throw new RedisException('Connection refused');
            return redis();
        }, NS, retryFor: 0.2))->buffered('views');
        Rows::count($views, $id, 1);
        Rows::count($views, false, 1);  // no id
        $isDown = false;
        recover();
        Rows::count($views, $id, 1);
        same('2', redis()->hGet('cf1:{' . NS . '/views/' . crc32($id) % 4 . '}:buffer', $id));
    },
];
