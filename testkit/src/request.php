<?php
// One request of php-fpm: makes the call that it is sent, with the PHP package.
require getenv('INSTALLED') . '/vendor/autoload.php';

$call = json_decode($_SERVER['HTTP_CALL'], true);
$connect = function () {
    $redis = new Redis();
    $redis->pconnect(getenv('REDIS'));
    $redis->setOption(Redis::OPT_READ_TIMEOUT, 1);
    $redis->setOption(Redis::OPT_MAX_RETRIES, 0);
    return $redis;
};
header('Content-Type: application/json');
try {
    $daemon = getenv('DAEMON') ?: null;
    $family = (new Counterfoil\Counterfoil($connect, getenv('NAMESPACE'), daemon: $daemon))->{$call['kind']}($call['family']);
    $method = lcfirst(str_replace('_', '', ucwords($call['call'], '_')));
    echo json_encode(['returns' => $family->$method(...$call['args'])]);
} catch (Counterfoil\CounterfoilException $e) {
    $name = strtolower(preg_replace('/(?<!^)[A-Z]/', '_$0', (new ReflectionClass($e))->getShortName()));
    echo json_encode(['error' => $name, 'reason' => $e->reason]);
} catch (Throwable $e) {
    echo json_encode(['error' => 'escaped', 'reason' => $e::class . ': ' . $e->getMessage()]);
}
