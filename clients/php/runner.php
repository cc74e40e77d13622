<?php

// Runs the scenarios of ../scenarios: reads calls from stdin, one JSON object a line, and writes their results. `dev runner` starts it.

declare(strict_types=1);

use Counterfoil\Counterfoil;
use Counterfoil\CounterfoilException;
use Counterfoil\Testing;

require $argv[1] . '/vendor/autoload.php';
set_error_handler(fn(int $level, string $text) => throw new ErrorException($text, 0, $level), E_ALL & ~E_USER_WARNING);

/** Returns a connection of the library, as an application makes it. */
function connection(array $open): object
{
    [$socket, $nodes, $timeout] = [$open['socket'] ?? null, $open['nodes'] ?? null, $open['timeout'] ?? 2.0];
    if ($open['library'] === 'predis') {
        $common = ['timeout' => $timeout, 'read_write_timeout' => $timeout];
        if ($nodes === null) {
            return new Predis\Client(['scheme' => 'unix', 'path' => $socket] + $common, $open['library_options'] ?? []);
        }
        $seeds = array_map(fn(string $node): string => "tcp://$node", $nodes);
        return new Predis\Client($seeds, ['cluster' => 'redis', 'parameters' => $common] + ($open['library_options'] ?? []));
    }
    if ($nodes !== null) {
        return new RedisCluster(null, $nodes, $timeout, $timeout);
    }
    $redis = new Redis();
    $redis->connect($socket, 0, $timeout, null, 0, $timeout);
    return $redis;
}

function open(array $open): Counterfoil
{
    if ($open['library'] === 'testing') {
        return Testing::counterfoil($open['namespace'], $open['families']);
    }
    $names = ['retry_for' => 'retryFor', 'daemon' => 'daemon', 'token' => 'token'];
    $options = [];
    foreach ($open['options'] ?? [] as $name => $value) {
        if (isset($names[$name])) {
            $options[$names[$name]] = $name === 'retry_for' ? (float) $value : $value;
        }
    }
    if ($open['own'] ?? false) {
        $url = $open['nodes'] ?? "unix://{$open['socket']}";
        $of = ['timeout' => (float) ($open['timeout'] ?? 2.0), 'library' => $open['library']];
        return Counterfoil::connect($url, $open['namespace'], ...$of, ...$options);
    }
    return new Counterfoil(connection($open), $open['namespace'], ...$options);
}

/** Returns an error as the tests expect it. */
function error(Throwable $error): array
{
    if (!$error instanceof CounterfoilException) {
        return ['error' => 'escaped', 'reason' => get_class($error) . ": {$error->getMessage()} at {$error->getFile()}:{$error->getLine()}"];
    }
    $name = strtolower(preg_replace('/(?<!^)[A-Z]/', '_$0', (new ReflectionClass($error))->getShortName()));
    return ['error' => $name, 'reason' => $error->reason] + ($error->value === null ? [] : ['value' => $error->value])
        + ['message' => $error->getMessage()];
}

function plain(mixed $result): mixed
{
    return match (true) {
        is_array($result) => array_map('plain', $result),
        $result instanceof CounterfoilException => error($result),
        default => $result,
    };
}

function call(Counterfoil $counterfoil, array $call): array
{
    $method = lcfirst(str_replace('_', '', ucwords($call['call'], '_')));
    $args = $call['args'] ?? [];
    $isNumber = ['add' => 1, 'later' => 1, 'incr' => 1, 'set' => 1, 'addOnce' => 2, 'incrOnce' => 2][$method] ?? null;
    if ($isNumber !== null && is_string($args[$isNumber] ?? null) && is_numeric($args[$isNumber])) {
        $args[$isNumber] += 0;
    }
    try {
        $family = $counterfoil->{$call['kind']}($call['family']);
        return ['returns' => plain($family->$method(...$args))];
    } catch (Throwable $error) {
        return error($error);
    }
}

/** Runs the call in a child, and returns what it replied. */
function forked(Counterfoil $counterfoil, array $call): array
{
    [$ours, $theirs] = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
    $child = pcntl_fork();
    if ($child === 0) {
        fwrite($theirs, json_encode(call($counterfoil, $call)));
        exit(0);
    }
    fclose($theirs);
    $reply = stream_get_contents($ours);
    pcntl_waitpid($child, $status);
    return json_decode($reply, true) ?? ['error' => 'escaped', 'reason' => "the child ended with $status: $reply"];
}

/** Starts a process that makes calls until its input ends. It stands for a thread, which PHP does not have. @return resource */
function worker(Counterfoil $counterfoil): mixed
{
    [$ours, $theirs] = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
    if (pcntl_fork() !== 0) {
        fclose($theirs);
        return $ours;
    }
    fclose($ours);
    while (($line = fgets($theirs)) !== false) {
        $call = json_decode($line, true);
        fwrite($theirs, json_encode(['id' => $call['id']] + call($counterfoil, $call)) . "\n");
    }
    exit(0);
}

function write(array $reply): void
{
    fwrite(STDOUT, json_encode($reply, JSON_UNESCAPED_SLASHES | JSON_INVALID_UTF8_SUBSTITUTE) . "\n");
}

try {
    $counterfoil = open(json_decode(fgets(STDIN), true)['open']);
    write(['ready' => true]);
} catch (Throwable $error) {
    write(error($error));
    exit(1);
}
$workers = [];
while (true) {
    [$readable, $none] = [[STDIN, ...array_values($workers)], null];
    stream_select($readable, $none, $none, null);
    foreach ($readable as $stream) {
        $line = fgets($stream);
        if ($line === false) {
            break 2;
        }
        $as = json_decode($line, true)['as'] ?? 'main';
        if ($stream !== STDIN) {
            fwrite(STDOUT, $line);
        } elseif ($as === 'main' || str_starts_with($as, 'fork')) {
            $call = json_decode($line, true);
            write(['id' => $call['id']] + ($as === 'main' ? call($counterfoil, $call) : forked($counterfoil, $call)));
        } else {
            fwrite($workers[$as] ??= worker($counterfoil), $line);
        }
    }
}
