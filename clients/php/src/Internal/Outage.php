<?php declare(strict_types=1);

namespace Counterfoil\Internal;

use Closure;
use Counterfoil\{CounterfoilException, NotCounted};

/** While a server does not reply, calls fail at once. One call in a second probes it. */
final class Outage {
    private const PROBE_NS = 1_000_000_000;

    /**
     * @param string $server how messages call it
     * @param string $key tells it from others
     */
    public function __construct(private readonly string $server, private readonly string $key) {}

    /** Begins with the error of a call whose limit has passed. */
    public function begin(CounterfoilException $error): void {
        $now = hrtime(true);
        $reason = $error->reason === 'no reply' ? 'UNREACHABLE' : $error->reason;
        $cause = preg_replace('/^(UNREACHABLE|no reply): /', '', $error->getMessage());
        Shared::store("probe $this->key", $now + self::PROBE_NS);
        Shared::add("outage $this->key", [$now, $reason, $cause]);
    }

    public function isKnown(): bool {
        return Shared::fetch("outage $this->key") !== null;
    }

    public function end(): void {
        Shared::delete("outage $this->key");
    }

    /**
     * Returns why a call fails at once, or null if it may be made.
     *
     * @param Closure(): bool $probe returns if the server replies
     */
    public function refusal(Closure $probe): ?NotCounted {
        $known = Shared::fetch("outage $this->key");
        if ($known === null) return null;
        if ($this->claimProbe() && $probe()) {
            $this->end();
            return null;
        }
        [$since, $reason, $cause] = $known;
        $seconds = intdiv(hrtime(true) - $since, 1_000_000_000);
        return new NotCounted($reason, "$this->server has been unreachable for $seconds s: $cause", isTemporary: true);
    }

    /** Returns if this call is the first one since a second has passed. */
    private function claimProbe(): bool {
        $now = hrtime(true);
        $at = Shared::fetch("probe $this->key");
        if ($at === null) return Shared::add("probe $this->key", $now + self::PROBE_NS);
        return $now >= $at && Shared::replace("probe $this->key", $at, $now + self::PROBE_NS);
    }
}
