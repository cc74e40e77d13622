<?php declare(strict_types=1);

namespace Counterfoil\Internal;

use Counterfoil\{Misconfigured, NotCounted};

/** The HTTP API of the daemon. */
final class Daemon {
    private const TIMEOUT_S = 12;  // the daemon replies within 10 s

    public function __construct(private readonly ?string $url, private readonly ?string $token) {}

    /** Returns the exact value of an id. */
    public function value(string $family, string $id): int {
        if ($this->url === null) {
            throw new Misconfigured('daemon', 'give the URL of the daemon in the option `daemon`, or another way to read rows');
        }
        $header = $this->token === null ? [] : ["Authorization: Bearer {$this->token}"];
        $options = ['header' => $header, 'timeout' => self::TIMEOUT_S, 'ignore_errors' => true, 'follow_location' => 0];
        $query = http_build_query(['family' => $family, 'id' => $id], '', '&', PHP_QUERY_RFC3986);
        $url = rtrim($this->url, '/') . "/api/v1/values?$query";
        set_error_handler(fn(): bool => false);  // that of the application may throw
        $body = @file_get_contents($url, false, stream_context_create(['http' => $options]));
        restore_error_handler();
        $status = (int) (explode(' ', $http_response_header[0] ?? '')[1] ?? 0);
        $reply = json_decode((string) $body, true);
        $number = $reply['values'][0]['value'] ?? null;
        if ($status === 200 && is_int($number)) return $number;
        $message = $reply['error'] ?? ($body === false ? error_get_last()['message'] ?? '' : 'no valid reply');
        if ($status >= 400 && $status < 500 && $status !== 429) throw new Misconfigured("daemon $status", $message);
        throw new NotCounted($status === 0 ? 'no daemon' : "daemon $status", $message, isTemporary: true);
    }
}
