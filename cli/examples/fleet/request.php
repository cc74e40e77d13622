<?php
// One request of the fleet: makes the call that it is sent, with the PHP package.
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
    $views = (new Counterfoil\Counterfoil($connect, 'shop-1'))->buffered($call['family']);
    $returns = $call['call'] === 'request_epoch' ? $views->requestEpoch(...$call['args']) : $views->addOnce(...$call['args']);
    echo json_encode(['returns' => $returns]);
} catch (Counterfoil\NotCounted $e) {
    echo json_encode(['error' => 'not_counted', 'reason' => $e->getMessage()]);
} catch (Counterfoil\OutcomeUnknown $e) {
    echo json_encode(['error' => 'outcome_unknown', 'reason' => $e->getMessage()]);
} catch (Throwable $e) {
    echo json_encode(['error' => 'escaped', 'reason' => $e::class . ': ' . $e->getMessage()]);
}
