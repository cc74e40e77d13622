<?php declare(strict_types=1);

namespace Counterfoil\Internal;

use Closure;
use Counterfoil\{CounterfoilException, NotCounted};

/** While a server does not reply, or a family is not configured, calls fail at once. One call in a second probes it. */
final class Outage {
    private const PROBE_NS = 1_000_000_000;

    /**
     * @param string $key a name that differs for each outage
     * @param string $server the server's name in messages, '' for the outage of a family
     */
    public function __construct(private readonly string $key, private readonly string $server = '') {}

    /** Begins the outage, with the error of a call whose limit has passed. */
    public function begin(CounterfoilException $error): void {
        $now = hrtime(true);
        $reason = $error->reason === 'no reply' ? 'UNREACHABLE' : $error->reason;
        $cause = preg_replace("/^$error->reason: /", '', $error->getMessage());
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
     * @param Closure(): bool $probe returns if the outage is over
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
        $state = $seconds === 0 ? 'is unreachable' : "has been unreachable for $seconds s";
        return new NotCounted($reason, $this->server === '' ? $cause : "$this->server $state: $cause", isTemporary: true);
    }

    /** Returns true for one call each second: that call is the probe. */
    private function claimProbe(): bool {
        $now = hrtime(true);
        $at = Shared::fetch("probe $this->key");
        if ($at === null) return Shared::add("probe $this->key", $now + self::PROBE_NS);
        return $now >= $at && Shared::replace("probe $this->key", $at, $now + self::PROBE_NS);
    }
}
