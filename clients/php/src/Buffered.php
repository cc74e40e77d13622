<?php declare(strict_types=1);

namespace Counterfoil;

use Counterfoil\Internal\{Call, SummingFamily, ValuesById};

/** Counters whose hits are summed in Redis until the daemon saves them. */
final class Buffered extends SummingFamily {
    use ValuesById;

    protected const KIND = 'buffered';
    protected const SPANS_PARTITIONS = true;

    /** In a wide family the hash that chooses the partition of all hits of this object. */
    private ?int $wideHash = null;

    /**
     * Counts, and returns what the id then has pending in Redis: null if it was counted but that reply was lost.
     *
     * @param string|int $id
     * @param int $delta
     * @throws CounterfoilException
     */
    public function add(mixed $id, mixed $delta = 1): ?int {
        [$id, $delta] = [self::checkId($id), self::checkDelta($delta)];
        return $this->session->within(function () use ($id, $delta): ?int {
            $this->checkRow($id);
            // no request, one hit, two pairs: the second one counts nothing, see Family::count
            $args = [0, 1, 2, $id, $delta, $id, 0];
            $hash = $this->hashOf($id, [], $this->ask()['settings']);
            return self::pendingOf($this->count($this->call('buffered_add', $hash, ['buffer', 'meta'], $args)));
        });
    }

    /**
     * Counts many pairs with few calls. Pairs fail one by one.
     *
     * @param iterable<array{string|int, int}|int> $pairs pairs of id and delta, or deltas by id
     * @return array<int|null|CounterfoilException> the result of each pair, as `add` returns or throws it, under its key. If
     *     an earlier pair has the same key, it is under the next free number
     */
    public function addMany(iterable $pairs): array {
        $results = $items = [];
        foreach ($pairs as $key => $pair) {
            [$id, $delta] = is_array($pair) ? $pair + [null, null] : [$key, $pair];
            if (array_key_exists($key, $results)) $results[] = null;
            else $results[$key] = null;
            $key = array_key_last($results);
            try {
                $items[$key] = [self::checkId($id), self::checkDelta($delta)];
            } catch (CounterfoilException $error) {
                $results[$key] = $error;
            }
        }
        $this->session->within(function () use ($items, &$results): void {
            foreach ($this->callsOf($items) as $call) {
                foreach ($this->outcomesOf($call) as $key => $result) $results[$key] = $result;
            }
        });
        return $results;
    }

    /**
     * Counts once for a request, however often and in whichever process it is made. Redis remembers a request for an hour, or
     * as long as the family's `remember_requests`.
     *
     * @param string|int $request names the request: 1 to 64 bytes
     * @param string|int $id
     * @param int $delta
     * @param ?string $epoch what `requestEpoch` returned, stored with the job before the first send: then it never counts
     *     twice. By default the current one
     * @return bool false if it was counted before
     * @throws CounterfoilException
     */
    public function addOnce(mixed $request, mixed $id, mixed $delta = 1, ?string $epoch = null): bool {
        [$request, $id, $delta] = [self::checkRequest($request), self::checkId($id), self::checkDelta($delta)];
        return $this->session->within(function () use ($request, $id, $delta, $epoch): bool {
            $hash = $this->hashOfRequest($request, $this->checkRow($id));
            // one request, one hit, two pairs: the second one counts nothing, see Family::count
            $args = [1, 1, 2, $id, $delta, $id, 0];
            $call = $this->call('buffered_add', $hash, ['buffer', 'meta'], $args, [$request, $epoch]);
            $reply = $this->count($call);
            $isDup = $reply[0] === 'DUP';
            if ($isDup) preg_match('/(?:^| )1:(\S+)/', $reply[1], $word);
            $word = $this->known($isDup ? $word[1] ?? null : $reply[2], $call->partition);
            $isBefore = is_string($word) && str_starts_with($word, 'BEFORE:');
            if ($word !== null) self::number($isBefore ? substr($word, 7) : $word);
            return !$isBefore;
        });
    }

    /**
     * Returns the epoch to be stored with a job before `addOnce` is called for the first time.
     *
     * @param string|int $request
     * @param string|int $id
     * @throws CounterfoilException
     */
    public function requestEpoch(mixed $request, mixed $id): string {
        [$request, $id] = [self::checkRequest($request), self::checkId($id)];
        return $this->session->within(function () use ($request, $id): string {
            $partition = $this->partitionOf($this->hashOfRequest($request, $this->checkRow($id)));
            return $this->ask($partition, isFresh: true)['generation'];
        });
    }

    /**
     * Adds to the sums of this process. They are sent after the response of the request, or by `flush`. Once they were sent
     * after the response, `later` sends at once. Sums that cannot be sent then wait in APCu for the next request.
     *
     * @param string|int $id
     * @param int $delta
     * @throws CounterfoilException NotCounted with the reason BUSY if the sums have 100,000 other ids
     */
    public function later(mixed $id, mixed $delta = 1): void {
        $this->addSum(self::checkDelta($delta), self::checkId($id));
    }

    protected function hashOf(string $id, array $item, array $settings): int {
        return $settings['wide'] ? $this->wideHash ??= random_int(0, 0xffffffff) : crc32($id);
    }

    protected function callOf(array $some, array $known): Call {
        $items = $hits = $pairs = [];
        foreach ($some as $i => [$partition, $key, $id, [, $delta]]) {
            // a sum stands for several hits. Redis uses their number only to decide when a sync is due
            $hits[$partition] = min(1000, ($hits[$partition] ?? 0) + max(1, abs($delta)));
            $pairs[$partition][] = $id;
            $pairs[$partition][] = $delta;
            $items[$key] = [$id, $delta, $i + 1, count($pairs)];
        }
        array_push($pairs[$partition], $id, 0);  // a pair that counts nothing, see Family::count
        [$keys, $args] = [$this->fence($partition), [0]];
        foreach ($pairs as $partition => $words) {
            array_push($keys, ...$this->keys($partition, 'buffer', 'meta'));
            array_push($args, $hits[$partition], count($words) / 2, ...$words);
        }
        return new Call('buffered_add', $keys, $args, $partition, $known['partitions'], $items);
    }

    protected function resultOf(array $reply, array $item): ?int {
        return self::pendingOf($reply, $item[2], $item[3]);
    }

    private function hashOfRequest(string $request, string $id): int {
        return crc32($this->ask()['settings']['wide'] ? $request : $id);
    }
}
