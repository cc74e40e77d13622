<?php declare(strict_types=1);

namespace Counterfoil\Internal;

/**
 * Sums of a family that requests could not send. They wait in APCu until a request that reaches Redis takes them. A bucket is an
 * array under a random number, and a pointer that has this number. The request that sets the pointer back to 0 owns the array, so
 * no two requests send the same sums. A request that is killed before it has sent them, or put them back, loses them.
 */
final class Parked {
    /** SAPIs whose APCu outlives a request, and is shared by all processes. */
    private const LASTING = ['fpm-fcgi', 'apache2handler', 'litespeed', 'frankenphp', 'cli-server'];
    private const BUCKETS = 100;
    private const IDS = 1000;  // the most in a bucket
    private const FREE_SHARE = 0.1;
    private const ROUNDS = 10;

    private readonly string $key;

    /** @param string $family a name that differs for each family of the machine */
    public function __construct(string $family) {
        $this->key = "counterfoil sums $family";
    }

    public static function isAvailable(): bool {
        return Shared::isEnabled() && in_array(PHP_SAPI, self::LASTING, true);
    }

    /**
     * @param array<int> $sums
     * @return array<int> the sums for which there is no room
     */
    public function put(array $sums): array {
        $memory = apcu_sma_info(true);
        // APCu forgets everything when it is full
        if ($memory['avail_mem'] < $memory['seg_size'] * $memory['num_seg'] * self::FREE_SHARE) return $sums;
        $buckets = $left = [];
        foreach ($sums as $key => $n) $buckets[crc32((string) $key) % self::BUCKETS][$key] = $n;
        foreach ($buckets as $bucket => $some) $left += $this->putInto("$this->key $bucket", $some);
        apcu_inc("$this->key puts");
        return $left;
    }

    /** Takes the sums of some buckets: several requests share the work. @return array<int> */
    public function take(): array {
        $puts = apcu_fetch("$this->key puts");
        if (!$puts) return [];
        $pointers = apcu_fetch(array_map(fn(int $bucket): string => "$this->key $bucket", range(0, self::BUCKETS - 1)));
        $sums = [];
        foreach (array_filter($pointers) as $pointer => $_) {
            $sums += $this->takeFrom($pointer);
            if (count($sums) >= self::IDS) return $sums;
        }
        // fails if another request has put sums meanwhile, which raises the number
        if ($sums === []) apcu_cas("$this->key puts", $puts, 0);
        return $sums;
    }

    private function putInto(string $pointer, array $sums): array {
        $left = [];
        for ($round = 0; $round < self::ROUNDS; $round++) {
            $all = $this->takeFrom($pointer);
            foreach ($sums as $key => $n) {
                $sum = $n + ($all[$key] ?? 0);
                $isFull = !isset($all[$key]) && count($all) >= self::IDS;
                if ($isFull || !is_int($sum)) $left[$key] = $n;
                else $all[$key] = $sum;
            }
            $number = random_int(1, PHP_INT_MAX);
            apcu_add($pointer, 0);
            if (!apcu_store("$pointer $number", $all)) return $left + $all;
            if (apcu_cas($pointer, 0, $number)) return $left;
            // another request has put sums into the bucket meanwhile: try again
            apcu_delete("$pointer $number");
            $sums = $all;
        }
        return $left + $sums;
    }

    private function takeFrom(string $pointer): array {
        $number = apcu_fetch($pointer);
        if (!$number || !apcu_cas($pointer, $number, 0)) return [];
        $sums = apcu_fetch("$pointer $number") ?: [];
        apcu_delete("$pointer $number");
        return $sums;
    }
}
