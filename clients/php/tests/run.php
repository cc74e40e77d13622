<?php

// Runs the tests of the installed package: run.php INSTALLED_DIR. The servers are named by COUNTERFOIL_TEST_*.

declare(strict_types=1);

require $argv[1] . '/vendor/autoload.php';
define('INSTALLED', $argv[1]);
ini_set('error_log', '/dev/null');
set_error_handler(fn(int $level, string $text) => throw new ErrorException($text, 0, $level));

function env(string $name): string
{
    return getenv("COUNTERFOIL_TEST_$name") ?: exit("COUNTERFOIL_TEST_$name is not set\n");
}

define('NS', env('NAMESPACE'));
define('SOCKET', env('SOCKET'));

/** A connection for looking at Redis. */
function redis(string $socket = SOCKET): Redis
{
    $redis = new Redis();
    $redis->connect($socket, 0, 2.0, null, 0, 1.0);
    return $redis;
}

/** An id that no other test uses. */
function id(): string
{
    return 'id-' . bin2hex(random_bytes(6));
}

function same(mixed $expected, mixed $got, string $what = ''): void
{
    if ($expected !== $got) {
        throw new Exception("$what: expected " . var_export($expected, true) . ', got ' . var_export($got, true));
    }
}

/** Returns the error that the call throws, and checks its class and reason. */
function fails(string $class, string $reason, callable $call): Throwable
{
    try {
        $got = $call();
    } catch (Throwable $error) {
        same([$class, $reason], [$error::class, $error->reason ?? $error->getMessage()], $error->getMessage());
        return $error;
    }
    throw new Exception("expected $class $reason, got " . var_export($got, true));
}

/** Returns how many calls were made in `views`, at least: the numbers of a caller's calls grow by at most 2^20. */
function calls(): float
{
    $numbers = redis()->hGetAll('cf1:{' . NS . '/views/0}:calls');
    $numbers = array_filter($numbers, fn($name) => !str_starts_with((string) $name, '='), ARRAY_FILTER_USE_KEY);
    return array_sum(array_map('intval', $numbers)) / 2 ** 20;
}

/** Forgets all outages, as if their servers had been probed. */
function recover(): void
{
    (new ReflectionProperty(Counterfoil\Internal\Shared::class, 'own'))->setValue(null, []);
}

/** Runs the function in a forked process, and waits for its end. */
function forked(callable $call): void
{
    $child = pcntl_fork();
    if ($child === 0) {
        try {
            $call();
            posix_kill(getmypid(), SIGKILL);
        } catch (Throwable $error) {
            fwrite(STDERR, "in the child: $error\n");
        }
        exit(1);
    }
    pcntl_waitpid($child, $status);
    same(true, pcntl_wifsignaled($status), 'the child ended');
}

/** Runs the function in a forked process beside this one. @return Closure(): mixed that waits for its result */
function aside(callable $call): Closure
{
    [$ours, $theirs] = stream_socket_pair(STREAM_PF_UNIX, STREAM_SOCK_STREAM, 0);
    if (($child = pcntl_fork()) === 0) {
        try {
            fwrite($theirs, json_encode($call()));
        } catch (Throwable $error) {
            fwrite(STDERR, "aside: $error\n");
        }
        posix_kill(getmypid(), SIGKILL);
    }
    fclose($theirs);
    return function () use ($ours, $child): mixed {
        $result = json_decode(stream_get_contents($ours), true);
        pcntl_waitpid($child, $status);
        return $result;
    };
}

/** Runs a program that counts an id, `$argv[4]`, and ends as it ends. */
function program(string $code, string $id, int $status = 0): void
{
    $process = proc_open([PHP_BINARY, '--', INSTALLED, SOCKET, NS, $id], [['pipe', 'r']], $pipes);
    fwrite($pipes[0], '<?php require $argv[1] . "/vendor/autoload.php"; ' . $code);
    fclose($pipes[0]);
    same($status, proc_close($process));
}

/** Forgets the epochs of a family twice, as if two minutes had passed. */
function forget(string $family): void
{
    $redis = redis();
    $names = ['calls', 'calls_before', 'requests', 'requests_before'];
    $keys = array_map(fn(string $name): string => 'cf1:{' . NS . "/$family/0}:$name", $names);
    foreach ([1, 2] as $_) {
        $redis->hSet($keys[0], '=began_at', '0');
        $redis->eval(file_get_contents(INSTALLED . '/vendor/counterfoil/counterfoil/lua/family_epoch.lua'), [...$keys, '', '', '', ''], 4);
    }
}

/** Configures a family without the daemon. */
function configure(string $family, int $partitions, bool $isWide = false, ?Redis $redis = null): void
{
    $of = fn(string $end): string => 'cf1:{' . NS . "/$family/$end";
    $keys = [$of('0}:calls'), ...array_map(fn(int $i): string => $of("$i}:meta"), range(0, $partitions - 1))];
    $ids = ['separator' => '/', 'ids' => '[\s\S]{1,255}', 'ids_in_words' => '1 to 255 bytes of UTF-8'];
    $args = ['salt', '', 'buffered', $partitions, '', json_encode(['wide' => $isWide] + $ids), 'max_pending', 1_000_000];
    $script = file_get_contents(INSTALLED . '/vendor/counterfoil/counterfoil/lua/family_configure.lua');
    ($redis ?? redis())->eval($script, [...$keys, ...$args], count($keys));
}

$tests = [];
foreach (glob(__DIR__ . '/*_test.php') as $file) {
    $tests += require $file;
}
[$passed, $failed] = [0, 0];
foreach ($tests as $name => $test) {
    if (!str_contains($name, getenv('COUNTERFOIL_TEST') ?: '')) continue;
    recover();
    try {
        $test();
        $passed++;
    } catch (Throwable $error) {
        $failed++;
        echo "$name: $error\n";
    }
}
echo "$passed passed, $failed failed\n";
exit($failed === 0 ? 0 : 1);
