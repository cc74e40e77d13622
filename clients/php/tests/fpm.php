<?php

// A pool of php-fpm on a socket of its own, and a client of FastCGI.

declare(strict_types=1);

function fpmBinary(): ?string
{
    return [...glob('/usr/sbin/php-fpm*'), ...glob('/usr/local/sbin/php-fpm*'), ...glob('/opt/*/sbin/php-fpm*')][0] ?? null;
}

/** Calls the function with one that makes a request of a page: it returns the body of its response. */
function withFpm(string $page, callable $test, int $workers = 2, int $maxRequests = 0, bool $hasApcu = true): void
{
    $folder = sys_get_temp_dir() . '/cf-fpm-' . bin2hex(random_bytes(6));
    mkdir($folder);
    file_put_contents("$folder/page.php", $page);
    file_put_contents("$folder/fpm.conf", "[global]\nerror_log = $folder/log\ndaemonize = no\n[test]\nlisten = $folder/fpm.sock\n"
        . "user = root\npm = static\npm.max_children = $workers\npm.max_requests = $maxRequests\nlisten.backlog = 64\n"
        . "php_admin_value[error_log] = $folder/errors\nphp_admin_flag[log_errors] = on\n");
    $null = ['file', '/dev/null', 'w'];
    $apcu = 'apc.enabled=' . ($hasApcu ? 1 : 0);
    $fpm = proc_open([fpmBinary(), '-R', '-F', '-y', "$folder/fpm.conf", '-d', $apcu], [1 => $null, 2 => $null], $pipes);
    $owner = getmypid();
    try {
        for ($i = 0; $i < 100 && !file_exists("$folder/fpm.sock"); $i++) {
            usleep(50_000);
        }
        $test(fn(array $query): string => fastCgi("$folder/fpm.sock", "$folder/page.php", $query), "$folder/errors");
    } finally {
        if (getmypid() === $owner) {
            proc_terminate($fpm);
            proc_close($fpm);
            array_map('unlink', glob("$folder/*"));
            rmdir($folder);
        }
    }
}

/** Makes a request, and returns the body of its response. */
function fastCgi(string $socket, string $page, array $query): string
{
    $record = fn(int $type, string $content): string => pack('CCnnCC', 1, $type, 1, strlen($content), 0, 0) . $content;
    $params = '';
    $given = ['SCRIPT_FILENAME' => $page, 'REQUEST_METHOD' => 'GET', 'QUERY_STRING' => http_build_query($query)];
    foreach ($given as $name => $value) {
        $params .= pack('CN', strlen($name), strlen($value) | 1 << 31) . $name . $value;
    }
    $stream = stream_socket_client("unix://$socket");
    fwrite($stream, $record(1, pack('nCx5', 1, 0)) . $record(4, $params) . $record(4, '') . $record(5, ''));
    $response = '';
    while (strlen($head = (string) stream_get_contents($stream, 8)) === 8) {
        ['type' => $type, 'length' => $length, 'padding' => $padding] = unpack('Cversion/Ctype/nid/nlength/Cpadding', $head);
        $content = $length + $padding > 0 ? stream_get_contents($stream, $length + $padding) : '';
        if ($type === 6) $response .= substr($content, 0, $length);
    }
    return trim(explode("\r\n\r\n", $response, 2)[1] ?? '');
}
