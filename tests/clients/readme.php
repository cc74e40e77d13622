#!/usr/bin/env php
<?php
// Counts hits with the PHP of lua/README.md and the retries that phpredis has by default, as a client of lossy.py; see there.
//
//     readme.php SOCKET LUA_DIR HITS

[, , $lua, $hits] = $argv;
chdir(dirname($lua));

// where APCu is missing each request asks for its epoch
if (!function_exists('apcu_fetch')) {
    function apcu_fetch(string $key): mixed { return false; }
    function apcu_store(string $key, mixed $value, int $ttl): bool { return false; }
    function apcu_delete(string $key): bool { return false; }
}

function expect(string $what, mixed $got, mixed $expected): void
{
    if ($got === $expected) return;
    fprintf(STDERR, "%s: expected %s, got %s\n", $what, json_encode($expected), json_encode($got));
    exit(1);
}

/** The class of what was thrown, if anything was. */
function thrown(Closure $what): ?string
{
    try { $what(); } catch (Exception $e) { return $e::class; }
    return null;
}

expect('snippets in PHP', preg_match_all('/^```php\n(.*?)^```$/ms', file_get_contents('lua/README.md'), $snippets), 1);
ob_start();
eval($snippets[1][0]);
expect('what the snippet prints', ob_get_clean(), "counted\n");

$at_once = function () use ($connect) {
    $redis = $connect();
    $redis->setOption(Redis::OPT_READ_TIMEOUT, 0.3);  // phpredis waits so long after each cut
    return $redis;
};
$told = ['counted' => 0, 'unknown' => 0];
for ($i = 0; $i < $hits; $i++) {
    if ($i % 7 === 0) $counter = new Counter($at_once, 'lua/v1', 'shop/hits');  // as if a request began
    try {
        $counter->hit(['a', 'b', 'c', 'é'][$i % 4]);
        $told['counted']++;
    } catch (OutcomeUnknown $e) {
        fprintf(STDERR, "%s\n", $e);
        $told['unknown']++;
    }
}

$other = new Counter($at_once, 'lua/v1', 'shop/other');
$to_the_top = fn() => $other->hit('max', PHP_INT_MAX);
thrown($to_the_top);
expect('a sum beyond i64', thrown($to_the_top), 'NotCounted');
$typo = new Counter($at_once, 'lua/v1', 'shop/htis');
expect('a family that was never configured', thrown(fn() => $typo->hit('a')), 'NotCounted');
echo json_encode($told), "\n";
