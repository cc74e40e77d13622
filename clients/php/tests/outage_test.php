<?php

// Applications while Redis or the daemon is stopped (refused), suspended (silent), or behind a firewall that drops packets.

declare(strict_types=1);

require_once __DIR__ . '/fpm.php';

if (!getenv('COUNTERFOIL_LONG')) {
    echo "the tests of outages are skipped: they take long, and need a machine to themselves: set COUNTERFOIL_LONG\n";
    return [];
}

if (fpmBinary() === null) {
    echo "the tests of outages are skipped: php-fpm is not installed\n";
    return [];
}

const OUTAGE_PAGE = '<?php
    require $_GET["installed"] . "/vendor/autoload.php";
    $counterfoil = Counterfoil\Counterfoil::connect("redis://127.0.0.1:$_GET[redis]", $_GET["namespace"], library: $_GET["library"],
        daemon: "http://127.0.0.1:$_GET[daemon]");
    $calls = [
        "later" => [fn() => $counterfoil->buffered("views")->later($_GET["id"])],
        "three" => [
            fn() => $counterfoil->buffered("views")->add($_GET["id"]),
            fn() => $counterfoil->visitors("daily")->firstVisit("shop", "2014-09-20", $_GET["id"]),
            fn() => $counterfoil->activity("readers")->touch("front", $_GET["id"]),
        ],
        "values" => array_fill(0, 10, fn() => $counterfoil->buffered("views")->value($_GET["id"], 7)),
    ];
    foreach ($calls[$_GET["page"]] as $call) {
        try {
            $call();
        } catch (Counterfoil\CounterfoilException $error) {
        }
    }
    echo "page";';

/** A program that runs until a signal, with sums that it cannot send. Its second argument says whether it knows of the outage before. */
const WORKER = '<?php
    require $argv[1] . "/vendor/autoload.php";
    pcntl_async_signals(true);
    pcntl_signal(SIGTERM, fn() => exit(0));
    error_reporting(0);
    ini_set("error_log", "/dev/null");
    $views = Counterfoil\Counterfoil::connect("redis://127.0.0.1:$argv[2]", "own")->buffered("views");
    $views->later("a");
    try {
        if ($argv[3]) $views->flush();
    } catch (Counterfoil\CounterfoilException) {
        $views->later("b");
    }
    echo "ready\n";
    while (true) usleep(10_000);  // a signal just before a long sleep would not end it
    ';

/** Returns a port at which nothing listens. */
function freePort(): int
{
    $listener = stream_socket_server('tcp://127.0.0.1:0');
    return (int) substr(strrchr(stream_socket_get_name($listener, false), ':'), 1);
}

/** Returns a server whose kernel drops what arrives, since it accepts nothing and its queue is full. @return array{int, list<resource>} */
function dropping(): array
{
    $context = stream_context_create(['socket' => ['backlog' => 1]]);
    $streams = [$listener = stream_socket_server('tcp://127.0.0.1:0', context: $context)];
    $address = stream_socket_get_name($listener, false);
    for ($i = 0; $i < 4; $i++) {
        $streams[] = stream_socket_client("tcp://$address", flags: STREAM_CLIENT_ASYNC_CONNECT);
    }
    return [(int) substr(strrchr($address, ':'), 1), $streams];
}

/** Starts a Redis in which views can be counted. @return resource */
function startRedis(int $port): mixed
{
    $null = ['file', '/dev/null', 'w'];
    $process = proc_open(['redis-server', '--port', (string) $port, '--save', '', '--dir', sys_get_temp_dir()], [1 => $null, 2 => $null], $pipes);
    for ($i = 0; $i < 100; $i++) {
        try {
            configure('views', 4, redis: redisAt($port));
            return $process;
        } catch (RedisException) {
            usleep(20_000);
        }
    }
    throw new Exception('Redis does not start');
}

function redisAt(int $port): Redis
{
    $redis = new Redis();
    $redis->connect('127.0.0.1', $port, 1.0, null, 0, 1.0);
    return $redis;
}

/** Makes requests from some clients at a time, and prints a row of the table. @return list<float> their times in ms, the longest last */
function times(string $what, callable $request, int $clients, float $seconds): array
{
    $start = hrtime(true);
    $end = $start + $seconds * 1e9;
    $results = array_map(fn(): Closure => aside(function () use ($request, $end): array {
        do {
            $began = hrtime(true);
            same('page', $request());
            $times[] = (hrtime(true) - $began) / 1e6;
        } while (hrtime(true) < $end);
        return $times;
    }), range(1, $clients));
    $all = array_merge(...array_map(fn(Closure $result): array => $result(), $results));
    sort($all);
    $rate = count($all) / (hrtime(true) - $start) * 1e9;
    printf("  %-62s %7.1f /s  p50 %7.1f ms  worst %7.1f ms\n", "$clients workers: $what", $rate, $all[intdiv(count($all), 2)], end($all));
    return $all;
}

/** Starts workers, and sends each SIGTERM once it is ready. @return array<string, float> the seconds until they ended */
function terminated(array $ports): array
{
    $file = tempnam(sys_get_temp_dir(), 'cf');
    file_put_contents($file, WORKER);
    $workers = $seconds = [];
    foreach ($ports as $name => $port) {
        foreach (['' => '0', ', known before' => '1'] as $known => $flag) {
            $command = [PHP_BINARY, $file, INSTALLED, (string) $port, $flag];
            $workers["$name$known"] = [proc_open($command, [1 => ['pipe', 'w']], $pipes), $pipes[1]];
        }
    }
    foreach ($workers as [$process, $output]) fgets($output);
    $began = hrtime(true);
    foreach ($workers as [$process]) proc_terminate($process);
    while ($workers !== []) {
        foreach ($workers as $name => [$process]) {
            if (proc_get_status($process)['running']) continue;
            $seconds[$name] = (hrtime(true) - $began) / 1e9;
            unset($workers[$name]);
        }
        usleep(10_000);
    }
    unlink($file);
    return $seconds;
}

return [
    'outages' => function () {
        [$refused, $dropped] = [freePort(), dropping()];
        $silent = stream_socket_server('tcp://127.0.0.1:0');
        $ports = ['refused' => $refused, 'dropped' => $dropped[0],
            'silent' => (int) substr(strrchr(stream_socket_get_name($silent, false), ':'), 1)];
        $query = ['installed' => INSTALLED, 'namespace' => NS, 'redis' => $refused, 'daemon' => $refused, 'library' => 'phpredis'];
        $terminated = aside(fn(): array => terminated(['refused' => freePort()] + $ports));
        echo "outages:\n";

        // a page that calls `later` only, and what arrives of it
        withFpm(OUTAGE_PAGE, function (callable $request) use ($ports, $query): void {
            $later = fn(array $of): Closure => fn(): string => $request($of + ['page' => 'later', 'id' => 'page/' . random_int(1, 50)] + $query);
            $times = times('later, Redis refused', $later(['redis' => $ports['refused']]), 8, 1.5);
            $made = count($times);
            $worst = [end($times)];
            $redis = startRedis($ports['refused']);
            try {
                $counted = fn(): int => array_sum(array_merge(...array_map(fn(int $i): array =>
                    array_values(redisAt($ports['refused'])->hGetAll('cf1:{' . NS . "/views/$i}:buffer")), range(0, 3))));
                usleep(1_000_000);
                for ($i = 0; $i < 30 && $counted() < $made; $i++) {
                    $request(['page' => 'later', 'id' => 'page/1'] + $query);
                    $made++;
                    usleep(50_000);
                }
                same($made, $counted(), 'what waited in APCu was counted once');
                $times = times('later, Redis replies', $later([]), 8, 1.5);
                $made += count($times);
                $rate = count($times);
                usleep(300_000);
                same($made, $counted(), 'counted');
                posix_kill(proc_get_status($redis)['pid'], SIGSTOP);
                foreach (['silent' => [], 'dropped' => ['redis' => $ports['dropped']]] as $name => $of) {
                    $times = times("later, Redis $name", $later($of), 8, 1.5);
                    same(true, count($times) > $rate / 4, "later while Redis is $name: " . count($times) . " requests instead of $rate");
                    $worst[] = end($times);
                }
            } finally {
                posix_kill(proc_get_status($redis)['pid'], SIGKILL);
                proc_close($redis);
            }
            same(true, max($worst) < 1500, 'later costs its request nothing: ' . max($worst) . ' ms');
        }, workers: 8);

        withFpm(OUTAGE_PAGE, function (callable $request) use ($query): void {
            $times = times('later, Redis refused, without APCu', fn(): string => $request(['page' => 'later', 'id' => 'a'] + $query), 8, 0.5);
            same(true, end($times) < 1500, 'one attempt');
        }, workers: 8, hasApcu: false);

        foreach ([['three', 'phpredis'], ['three', 'predis'], ['values', 'phpredis']] as [$page, $library]) {
            $what = $page === 'values' ? 'ten value calls, daemon' : "add, firstVisit, touch, Redis by $library";
            withFpm(OUTAGE_PAGE, function (callable $request) use ($ports, $query, $page, $library, $what): void {
                foreach ($ports as $name => $port) {
                    $own = ['redis' => $port, 'daemon' => $port, 'library' => $library, 'page' => $page, 'id' => 'a'];
                    $times = times("$what $name", fn(): string => $request($own + $query), 3, 1.0);
                    same(true, end($times) < 1400, "$what $name: " . end($times) . ' ms');
                    same(true, $times[intdiv(count($times), 2)] < 50, "$what $name");
                }
            }, workers: 3);
        }

        foreach ($terminated() as $name => $seconds) {
            printf("  %-62s %7.1f s\n", "from SIGTERM to the end with sums, Redis $name", $seconds);
            same(true, $seconds < 6.5, "the end while Redis is $name");
        }
    },
];
