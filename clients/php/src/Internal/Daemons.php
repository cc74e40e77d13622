<?php declare(strict_types=1);

namespace Counterfoil\Internal;

use Counterfoil\{CounterfoilException, Misconfigured, NotCounted};

/** Asks daemons for exact values (docs/http-api.md), over connections that the process keeps. */
final class Daemons implements Values {
    private const IDS = 1000;  // the most in a request
    private const PAUSE_US = 50_000;
    /** @var list<string> */
    private readonly array $urls;
    private readonly string $token;
    private readonly Outage $outage;
    /** The number of the daemon that replied last. */
    private int $first = 0;
    /** @var array<string, resource> the connections that no call is using, by URL */
    private array $idle = [];
    private int $process;

    /** @param string|list<string>|null $urls */
    public function __construct(string|array|null $urls, ?string $token) {
        $this->urls = array_map(fn(string $url): string => rtrim($url, '/'), array_values((array) $urls));
        $this->token = $token === null ? '' : "Authorization: Bearer $token\r\n";
        $this->outage = new Outage(implode(' ', $this->urls), 'The daemon');
        $this->process = getmypid();
        foreach ($this->urls as $url) {
            if (preg_match('#^https?://[^/\s]+#', $url) !== 1 || parse_url($url) === false) {
                throw new Misconfigured('daemon', "expected http://HOST:PORT, not $url");
            }
            if (str_starts_with($url, 'https') && !in_array('tls', stream_get_transports(), true)) {
                throw new Misconfigured('daemon', "$url needs the extension openssl");
            }
        }
    }

    public function values(Session $session, string $family, array $ids): array {
        $this->urls ?: throw new Misconfigured('daemon', 'expected the option `daemon`');
        $values = [];
        foreach (array_chunk($ids, self::IDS) as $some) {
            $body = json_encode(['family' => $family, 'ids' => $some], JSON_UNESCAPED_SLASHES | JSON_UNESCAPED_UNICODE);
            array_push($values, ...$this->ask($session, $family, $body, count($some)));
        }
        return $values;
    }

    /** Asks one daemon after the other, and begins again while none of them is available. */
    private function ask(Session $session, string $family, string $body, int $count): array {
        $refusal = $this->outage->refusal($this->findLive(...));
        if ($refusal !== null) throw $refusal;
        [$deadline, $wasAnswered] = [$session->deadline(), false];
        $request = "Content-Type: application/json\r\nContent-Length: " . strlen($body) . "\r\n\r\n$body";
        do {
            $pause = self::PAUSE_US;
            foreach ($this->inTurn() as $i => $url) {
                // a silent one leaves time for the others
                $limit = Session::secondsTo($deadline) / (count($this->urls) - $i);
                [$status, $text, $retryAfter] = $this->request($url, 'POST /api/v1/values', $request, $limit);
                $wasAnswered = $wasAnswered || $status !== 0;
                $reply = json_decode($text, true);
                $values = is_array($reply) ? $reply['values'] ?? [] : [];
                $isValue = fn(mixed $value): bool => $value === null || is_int($value);
                if ($status === 200 && count(array_filter($values, $isValue)) === $count) {
                    $this->first = array_search($url, $this->urls, true);
                    return $values;
                }
                $problem = "$url: " . (is_array($reply) && is_string($reply['error'] ?? null) ? $reply['error'] : $text);
                if ($status >= 300 && $status < 500 && $status !== 429) throw self::refused($family, $status, $problem);
                // a random pause: clients that were refused together would be refused together again
                $pause = max($pause, random_int(500_000, 1_000_000) * $retryAfter);
            }
        } while ($session->pause($deadline, $pause));
        $error = new NotCounted($status === 0 ? 'UNREACHABLE' : "daemon $status", $problem, isTemporary: true);
        if (!$wasAnswered) $this->outage->begin($error);
        throw $error;
    }

    /**
     * Returns the error of a reply that any daemon would repeat. A 404 that does not name the family is not about it: a proxy or
     * another server may have sent it.
     */
    private static function refused(string $family, int $status, string $problem): CounterfoilException {
        $isUnconfigured = $status === 404 && str_contains($problem, $family);
        return $isUnconfigured ? Family::unconfigured($family, "; $problem") : new Misconfigured("daemon $status", $problem);
    }

    /** Returns if a daemon replies. That one is asked first from then on. */
    private function findLive(): bool {
        foreach ($this->inTurn() as $url) {
            if ($this->request($url, 'GET /healthz', "\r\n", Session::PROBE_S)[0] === 0) continue;
            $this->first = array_search($url, $this->urls, true);
            return true;
        }
        return false;
    }

    /** @return list<string> */
    private function inTurn(): array {
        return [...array_slice($this->urls, $this->first), ...array_slice($this->urls, 0, $this->first)];
    }

    /** @return array{int, string, int} the status, 0 if there is no reply, the body or the problem, and Retry-After */
    private function request(string $url, string $what, string $rest, float $limit): array {
        ['scheme' => $scheme, 'host' => $host] = $parts = parse_url($url) + ['path' => ''];
        $port = $parts['port'] ?? ($scheme === 'https' ? 443 : 80);
        $what = str_replace(' ', " $parts[path]", $what);
        $request = "$what HTTP/1.1\r\nHost: $host:$port\r\n$this->token$rest";
        [$problem, $end] = ['no reply in time, or it broke off', hrtime(true) + (int) ($limit * 1e9)];
        // the application's error handler could throw
        set_error_handler(function (int $level, string $text) use (&$problem): bool {
            $problem = preg_replace('/^stream_socket_client\(\): /', '', $text);
            return true;
        });
        try {
            $kept = $this->kept($url);
            // null if the daemon has closed it meanwhile: then a new connection is made
            $reply = $kept === null ? null : $this->exchange($kept, $url, $request, $limit);
            $left = ($end - hrtime(true)) / 1e9;
            if ($reply !== null || $left < 0) return $reply ?? [0, $problem, 0];
            $stream = stream_socket_client(($scheme === 'https' ? 'tls' : 'tcp') . "://$host:$port", $code, $message, $left);
            return ($stream === false ? null : $this->exchange($stream, $url, $request, $left)) ?? [0, $problem, 0];
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
    private function exchange(mixed $stream, string $url, string $request, float $limit): ?array {
        stream_set_timeout($stream, (int) $limit, (int) (fmod($limit, 1) * 1e6));
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
