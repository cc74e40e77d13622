<?php declare(strict_types=1);

namespace Counterfoil\Internal;

use Counterfoil\{Misconfigured, NotCounted};

/** Asks daemons for exact values (docs/http-api.md), over connections that the process keeps. */
final class Daemons {
    private const IDS = 1000;  // of a request
    private const CONNECT_S = 1;
    private const REPLY_S = 12;  // a daemon replies within 10 s
    private const PAUSE_US = 50_000;
    /** @var list<string> */
    private readonly array $urls;
    private readonly string $token;
    /** For how many seconds a reply is waited for: a silent daemon leaves time for the others. */
    private readonly float $timeout;
    /** The number of the one that replied last. */
    private int $first = 0;
    /** @var array<string, resource> by URL, those that no call is using */
    private array $idle = [];
    private int $process;

    /** @param string|list<string>|null $urls */
    public function __construct(string|array|null $urls, ?string $token, float $retryFor) {
        $this->urls = array_map(fn(string $url): string => rtrim($url, '/'), array_values((array) $urls));
        $this->token = $token === null ? '' : "Authorization: Bearer $token\r\n";
        $this->timeout = min(self::REPLY_S, max($retryFor / max(count($this->urls), 1), self::CONNECT_S));
        $this->process = getmypid();
        foreach ($this->urls as $url) {
            if (preg_match('#^https?://[^/\s]+#', $url) === 1 && parse_url($url) !== false) continue;
            throw new Misconfigured('daemon', "expected http://HOST:PORT, not $url");
        }
    }

    /**
     * @param list<string> $ids
     * @return list<int> the exact values, in their order
     */
    public function values(Session $session, string $family, array $ids): array {
        $this->urls ?: throw new Misconfigured('daemon', 'expected the option `daemon`');
        [$values, $deadline] = [[], $session->deadline()];
        foreach (array_chunk($ids, self::IDS) as $some) {
            $body = json_encode(['family' => $family, 'ids' => $some], JSON_UNESCAPED_SLASHES | JSON_UNESCAPED_UNICODE);
            array_push($values, ...$this->ask($body, count($some), $deadline));
        }
        return $values;
    }

    /** Asks one daemon after the other, and begins again while none of them is available. */
    private function ask(string $body, int $count, int $deadline): array {
        while (true) {
            $pause = self::PAUSE_US;
            foreach ([...array_slice($this->urls, $this->first), ...array_slice($this->urls, 0, $this->first)] as $url) {
                [$status, $text, $retryAfter] = $this->post($url, $body);
                $reply = json_decode($text, true);
                $values = is_array($reply) ? $reply['values'] ?? [] : [];
                if ($status === 200 && count(array_filter($values, fn(mixed $value): bool => $value === null || is_int($value))) === $count) {
                    $this->first = array_search($url, $this->urls, true);
                    return $values;
                }
                $problem = "$url: " . (is_array($reply) && is_string($reply['error'] ?? null) ? $reply['error'] : $text);
                if ($status >= 300 && $status < 500 && $status !== 429) throw new Misconfigured("daemon $status", $problem);
                // all that were refused together would be refused again
                $pause = max($pause, random_int(500_000, 1_000_000) * $retryAfter);
            }
            if (hrtime(true) + $pause * 1000 > $deadline) {
                throw new NotCounted($status === 0 ? 'no daemon' : "daemon $status", $problem, isTemporary: true);
            }
            usleep($pause);
        }
    }

    /** @return array{int, string, int} the status, 0 if there is no reply, the body or the problem, and Retry-After */
    private function post(string $url, string $body): array {
        ['scheme' => $scheme, 'host' => $host] = $parts = parse_url($url) + ['path' => ''];
        $port = $parts['port'] ?? ($scheme === 'https' ? 443 : 80);
        $request = "POST $parts[path]/api/v1/values HTTP/1.1\r\nHost: $host:$port\r\n{$this->token}"
            . "Content-Type: application/json\r\nContent-Length: " . strlen($body) . "\r\n\r\n$body";
        $problem = 'the reply broke off';
        // the handler of the application may throw
        set_error_handler(function (int $level, string $text) use (&$problem): bool {
            $problem = $text;
            return true;
        });
        try {
            $kept = $this->kept($url);
            // the daemon may have closed it
            $reply = $kept === null ? null : $this->exchange($kept, $url, $request);
            if ($reply !== null) return $reply;
            $target = ($scheme === 'https' ? 'tls' : 'tcp') . "://$host:$port";
            $stream = stream_socket_client($target, $code, $message, min(self::CONNECT_S, $this->timeout));
            return ($stream === false ? null : $this->exchange($stream, $url, $request)) ?? [0, $problem, 0];
        } finally {
            restore_error_handler();
        }
    }

    /** Takes the kept connection, unless the daemon has closed it or it belongs to the parent process. */
    private function kept(string $url): mixed {
        if ($this->process !== getmypid()) [$this->idle, $this->process] = [[], getmypid()];
        $stream = $this->idle[$url] ?? null;
        unset($this->idle[$url]);
        [$read, $none] = [[$stream], null];
        return $stream === null || stream_select($read, $none, $none, 0) !== 0 ? null : $stream;
    }

    /**
     * @param resource $stream
     * @return ?array{int, string, int} null if there is no whole reply
     */
    private function exchange(mixed $stream, string $url, string $request): ?array {
        stream_set_timeout($stream, (int) $this->timeout, (int) (fmod($this->timeout, 1) * 1e6));
        for (; $request !== ''; $request = substr($request, $written)) {
            $written = fwrite($stream, $request);
            if (!$written) return null;
        }
        $status = (int) substr(strstr((string) fgets($stream), ' ') ?: '', 1);
        if ($status === 0) return null;
        for ($headers = []; ($line = rtrim((string) fgets($stream))) !== '';) {
            [$name, $value] = explode(':', $line, 2) + [1 => ''];
            $headers[strtolower($name)] = strtolower(trim($value));
        }
        $length = $headers['content-length'] ?? null;
        $body = match (true) {
            ($headers['transfer-encoding'] ?? '') === 'chunked' => self::chunks($stream),
            default => (string) stream_get_contents($stream, $length === null ? null : (int) $length),
        };
        if ($body === null || $length !== null && strlen($body) !== (int) $length) return null;
        $isWhole = $length !== null || isset($headers['transfer-encoding']);
        if ($isWhole && ($headers['connection'] ?? '') !== 'close') $this->idle[$url] = $stream;
        return [$status, $body, (int) ($headers['retry-after'] ?? 0)];
    }

    /** Returns a body that a proxy sends in chunks, or null if it breaks off. */
    private static function chunks(mixed $stream): ?string {
        for ($body = ''; ; $body .= $chunk) {
            $digits = (string) strtok((string) fgets($stream), ";\r\n");
            if (!ctype_xdigit($digits)) return null;
            $size = (int) hexdec($digits);
            $chunk = $size > 0 ? (string) stream_get_contents($stream, $size) : '';
            if (strlen($chunk) !== $size || rtrim((string) fgets($stream)) !== '') return null;
            if ($size === 0) return $body;
        }
    }
}
