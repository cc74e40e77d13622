<?php

// Measures the package beside plain HINCRBY: bench.php INSTALLED_DIR SOCKET NAMESPACE. `dev bench` starts it.

declare(strict_types=1);

use Counterfoil\Counterfoil;

[, $installed, $socket, $namespace] = $argv;
require "$installed/vendor/autoload.php";

const ROUNDS = 5;
const ROUND_NS = 300_000_000;
const IDS = 100;
const LATER = 1000;  // hits that one request counts by `later`

$redis = new Redis();
$redis->connect($socket, 0, 2.0, null, 0, 2.0);
$views = (new Counterfoil($redis, $namespace))->buffered('views');
$source = file_get_contents("$installed/vendor/counterfoil/counterfoil/lua/buffered_add.lua");
$sha1 = $redis->script('load', $source);
$fence = ["cf1:{{$namespace}/views/0}:calls", "cf1:{{$namespace}/views/0}:calls_before"];
$views->add('bench');
$epoch = $redis->hGet($fence[0], '=now');
$i = 0;

$measured = [
    'hincrby' => function () use ($redis, &$i): int {
        $redis->hIncrBy('counterfoil-bench', 'bench/' . ++$i % IDS, 1);
        return 1;
    },
    'evalsha' => function () use ($redis, $sha1, $fence, $namespace, $epoch, &$i): int {
        $id = 'bench/' . ++$i % IDS;
        $tag = "cf1:{{$namespace}/views/" . crc32($id) % 4 . '}:';
        $redis->evalSha($sha1, [...$fence, "{$tag}buffer", "{$tag}meta", '', 0, $epoch, '', 0, 1, 1, $id, 1], 4);
        return 1;
    },
    'add' => function () use ($views, &$i): int {
        $views->add('bench/' . ++$i % IDS);
        return 1;
    },
    'later' => function () use ($views, &$i): int {
        for ($hit = 0; $hit < LATER; $hit++) {
            $views->later('bench/' . ++$i % IDS);
        }
        $views->flush();
        return LATER;
    },
];

/** Returns the CPU time of Redis in microseconds. */
function cpu(Redis $redis): float
{
    $info = $redis->info('cpu');
    return 1e6 * ((float) $info['used_cpu_user'] + (float) $info['used_cpu_sys']);
}

$times = $hits = $spent = $cpu = array_fill_keys(array_keys($measured), 0);
$latencies = array_fill_keys(array_keys($measured), []);
for ($round = 0; $round < ROUNDS; $round++) {
    foreach ($measured as $name => $call) {
        $before = cpu($redis);
        for ($end = hrtime(true) + ROUND_NS; ($start = hrtime(true)) < $end;) {
            $hits[$name] += $call();
            $latencies[$name][] = $took = hrtime(true) - $start;
            $times[$name] += $took;
        }
        $cpu[$name] += cpu($redis) - $before;
    }
}

$p50 = function (string $name) use ($latencies): float {
    sort($latencies[$name]);
    return round($latencies[$name][intdiv(count($latencies[$name]), 2)] / 1000, 1);
};
$rate = fn(string $name): int => (int) round($hits[$name] / $times[$name] * 1e9);
$perHit = fn(string $name): float => round($cpu[$name] / $hits[$name], 2);
$redis->del('counterfoil-bench');
echo json_encode([
    'hincrby_p50_us' => $p50('hincrby'),
    'evalsha_p50_us' => $p50('evalsha'),
    'add_p50_us' => $p50('add'),
    'hincrby_per_s' => $rate('hincrby'),
    'later_per_s' => $rate('later'),
    'cpu_us_per_hit' => ['hincrby' => $perHit('hincrby'), 'add' => $perHit('add'), 'later' => $perHit('later')],
]), "\n";
