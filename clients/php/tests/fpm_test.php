<?php

// php-fpm: requests share epochs by APCu, workers restart, and connections are persistent.

declare(strict_types=1);

require_once __DIR__ . '/fpm.php';

if (fpmBinary() === null) {
    echo "the tests with php-fpm are skipped: it is not installed\n";
    return [];
}

const COUNTING_PAGE = '<?php
        require $_GET["installed"] . "/vendor/autoload.php";
        $redis = function () {
            $redis = new Redis();
            $_GET["persistent"] ? $redis->pconnect($_GET["socket"], 0, 2.0) : $redis->connect($_GET["socket"], 0, 2.0);
            $redis->setOption(Redis::OPT_READ_TIMEOUT, 0.3);
            return $redis;
        };
        $views = (new Counterfoil\Counterfoil($redis, $_GET["namespace"]))->buffered("views");
        if ($_GET["call"] === "later") {
            $views->later($_GET["id"], 2);
            $views->later($_GET["id"]);
            register_shutdown_function(fn() => print("end"));
        } else {
            try {
                echo getmypid(), " ", json_encode($views->add($_GET["id"]));
            } catch (Counterfoil\CounterfoilException $error) {
                echo $error->reason;
            }
        }';

/** Calls the function with one that counts an id in a request. */
function withCounting(callable $test): void
{
    withFpm(COUNTING_PAGE, function (callable $request) use ($test): void {
        $test(fn(string $id, string $call = 'add', string $socket = SOCKET, bool $isPersistent = false): string =>
            $request(['installed' => INSTALLED, 'socket' => $socket, 'namespace' => NS, 'id' => $id, 'call' => $call,
                'persistent' => $isPersistent ? 1 : 0]));
    }, maxRequests: 20);
}

return [
    'php-fpm' => fn() => withCounting(function (callable $request) {
        $id = id();
        $workers = [];
        for ($i = 1; $i <= 60; $i++) {
            [$worker, $pending] = explode(' ', $request($id, isPersistent: $i % 2 === 0));
            same((string) $i, $pending);
            $workers[$worker] = true;
        }
        same(true, count($workers) > 2, 'workers restarted');

        // sums are sent behind the response
        same('end', $request($id, 'later'));
        for ($i = 0; $i < 50 && redis()->hGet('cf1:{' . NS . '/views/' . crc32($id) % 4 . '}:buffer', $id) !== '63'; $i++) {
            usleep(20_000);
        }
        same('63', redis()->hGet('cf1:{' . NS . '/views/' . crc32($id) % 4 . '}:buffer', $id));

        // the epoch is the one in APCu until a call is refused
        forget('views');
        same('EXPIRED', preg_replace('/^\d+ /', '', $request($id)));
        same(['64', '65'], [explode(' ', $request($id))[1], explode(' ', $request($id))[1]]);
    }),
    'an outage that a closure met is known to all workers' => fn() => withCounting(function (callable $request) {
        $fail = fn() => same('UNREACHABLE', explode(' ', $request(id(), socket: '/tmp/counterfoil-no-such.sock'))[1]);
        $fail();
        $began = hrtime(true);
        for ($i = 0; $i < 10; $i++) $fail();
        same(true, hrtime(true) < $began + 0.5e9);
    }),
    'a late reply on a persistent connection' => fn() => withCounting(function (callable $request) {
        $socket = sys_get_temp_dir() . '/cf-late-' . bin2hex(random_bytes(6)) . '.sock';
        $listener = stream_socket_server("unix://$socket");
        $proxy = pcntl_fork();
        if ($proxy === 0) {
            set_error_handler(null);
            [$calls, $clients] = [0, []];
            while (true) {
                [$readable, $none] = [[$listener, ...array_column($clients, 0)], null];
                stream_select($readable, $none, $none, null);
                foreach ($readable as $stream) {
                    if ($stream === $listener) {
                        $client = stream_socket_accept($listener);
                        $clients[(int) $client] = [$client, stream_socket_client('unix://' . SOCKET)];
                        continue;
                    }
                    $request = fread($stream, 65536);
                    if ($request === '' || $request === false) {
                        unset($clients[(int) $stream]);
                        continue;
                    }
                    $server = $clients[(int) $stream][1];
                    fwrite($server, $request);
                    $reply = fread($server, 65536);
                    if (str_contains($request, ':buffer') && ++$calls % 3 === 0) {
                        usleep(400_000);
                    }
                    @fwrite($stream, $reply);
                }
            }
        }
        $id = id();
        try {
            for ($i = 1; $i <= 12; $i++) {
                $pending = explode(' ', $request($id, 'add', $socket, true))[1];
                same(true, $pending === (string) $i || $pending === 'null', "request $i: $pending");
            }
            same(13, (new Counterfoil\Counterfoil(redis(), NS))->buffered('views')->add($id));
        } finally {
            posix_kill($proxy, SIGKILL);
            pcntl_waitpid($proxy, $status);
            unlink($socket);
        }
    }),
    'sums in APCu are taken once' => fn() => withFpm('<?php
        require $_GET["installed"] . "/vendor/autoload.php";
        $parked = new Counterfoil\Internal\Parked($_GET["name"]);
        $sums = array_fill_keys(array_rand(range(0, 300), 5), 1);
        echo $_GET["puts"] ? 5 - array_sum($parked->put($sums)) : -array_sum($parked->take());', function (callable $request): void {
        $of = fn(bool $puts, string $name = 'a'): int => (int) $request(['installed' => INSTALLED, 'puts' => (int) $puts, 'name' => $name]);
        $clients = array_map(fn(): Closure => aside(function () use ($of): int {
            for ($sum = $round = 0; $round < 150; $round++) $sum += $of(random_int(0, 3) > 0);
            return $sum;
        }), range(1, 8));
        $waiting = $of(true);
        foreach ($clients as $client) $waiting += $client();
        $taken = 0;
        while (($some = $of(false)) !== 0) $taken -= $some;
        same($waiting, $taken);
        same([5, 0, -5, 0], [$of(true, 'b'), $of(false, 'c'), $of(false, 'b'), $of(false, 'b')]);
    }, workers: 8),
    'sums in APCu are bounded' => fn() => withFpm('<?php
        require $_GET["installed"] . "/vendor/autoload.php";
        $parked = new Counterfoil\Internal\Parked("bounded");
        $began = hrtime(true);
        $left = count($parked->put(array_fill_keys(range(1, 110_000), 1)));
        for ($taken = 0; $sums = $parked->take(); $taken += count($sums)) continue;
        echo json_encode([$left, $taken]);', function (callable $request): void {
        [$left, $taken] = json_decode($request(['installed' => INSTALLED]));
        same([110_000, true], [$left + $taken, $taken <= 100_000 && $taken > 90_000]);
    }),
];
