<?php declare(strict_types=1);

// What the tests of both PHP samples share.

function same(mixed $expected, mixed $got): void {
    if ($expected !== $got) throw new Exception('expected ' . var_export($expected, true) . ', got ' . var_export($got, true));
}

/**
 * Runs tests, and returns the exit status.
 *
 * @param array<string, callable> $tests by name
 */
function run_tests(array $tests): int {
    $status = 0;
    foreach ($tests as $name => $test) {
        try {
            $test();
            echo "ok $name\n";
        } catch (Throwable $error) {
            $status = 1;
            $caller = $error->getTrace()[0] ?? [];
            echo "FAILED $name: {$error->getMessage()}, line {$error->getLine()}, called in line ", $caller['line'] ?? '?', "\n";
        }
    }
    return $status;
}
