<?php declare(strict_types=1);

namespace Counterfoil;

use Counterfoil\Internal\Family;

/** Who is on a page now, and how many pages they viewed. */
final class Activity extends Family {
    protected const KIND = 'activity';
    private const PAGE_BYTES = 200;
    private const PLACES = 100;  // of one call
    private const ATTEMPTS = 10;

    /**
     * Counts a view of the page by the visitor.
     *
     * @param string $visitor 1 to 255 bytes of any kind
     * @throws CounterfoilException
     */
    public function touch(string|int $page, string|int $visitor): void {
        [$page, $visitor] = [(string) $page, (string) $visitor];
        self::checkId($page, self::PAGE_BYTES);
        self::checkId($visitor, isText: false);
        $deadline = $this->session->deadline();
        ['settings' => $settings, 'partitions' => $partitions] = $this->ask(0, $deadline);
        $stripe = crc32($visitor) % $settings['stripes'];
        $partition = (crc32($page) + $stripe) % $partitions;
        $this->inLayer(function (int $nowMs) use ($settings, $stripe, $partition, $page, $visitor, $deadline): array {
            [$layerMs, $layer] = [$settings['layer'], intdiv($nowMs, $settings['layer'])];
            [$isHll, $keep] = [$settings['visitors'] === 'hyperloglog', (int) $settings['keep_minutes']];
            $names = ["views:$stripe:$page", $isHll ? "layer:$layer:$stripe:$page" : "visitors:$stripe:$page"];
            if ($isHll && $keep === 1) $names[] = 'minute:' . intdiv($layer * $layerMs, 60_000) * 60 . ":$stripe:$page";
            $args = [$layerMs, intdiv($settings['window'], $layerMs), $keep, ...($isHll ? [$layer] : []), 1, $page, 1, 1, $visitor];
            $keys = $this->keys($partition, 'open', 'schedule', ...$names);
            return $this->count($isHll ? 'activity_touch_hll' : 'activity_touch', $partition, $keys, $args, $deadline);
        });
    }

    /**
     * Returns the views and the distinct visitors of the page within the family's window.
     *
     * @return array{int, int}
     * @throws CounterfoilException
     */
    public function now(string|int $page): array {
        $page = (string) $page;
        self::checkId($page, self::PAGE_BYTES);
        $deadline = $this->session->deadline();
        ['settings' => $settings, 'partitions' => $partitions] = $this->ask(0, $deadline);
        $places = [];
        foreach (range(0, $settings['stripes'] - 1) as $stripe) $places[(crc32($page) + $stripe) % $partitions][] = $stripe;
        $sums = [0, 0];
        foreach ($places as $partition => $all) {
            foreach (array_chunk($all, self::PLACES) as $stripes) {
                $reply = $this->inLayer(fn(int $nowMs): array =>
                    $this->readPlaces($settings, $partition, $stripes, $page, $nowMs, $deadline));
                foreach (array_slice($reply, 1) as $i => $number) $sums[$i % 2] += $number;
            }
        }
        return $sums;
    }

    private function readPlaces(array $settings, int $partition, array $stripes, string $page, int $nowMs, int $deadline): array {
        [$layerMs, $layer] = [$settings['layer'], intdiv($nowMs, $settings['layer'])];
        $layers = intdiv($settings['window'], $layerMs);
        $isHll = $settings['visitors'] === 'hyperloglog';
        $names = [];
        foreach ($stripes as $stripe) {
            $logs = array_map(fn(int $layer): string => "layer:$layer:$stripe:$page", range($layer - $layers + 1, $layer));
            array_push($names, "views:$stripe:$page", ...($isHll ? $logs : ["visitors:$stripe:$page"]));
        }
        $args = ['', $layerMs, $layers, ...($isHll ? [$layer] : [])];
        return $this->read($isHll ? 'activity_now_hll' : 'activity_now', $this->keys($partition, ...$names), $args, $deadline);
    }

    /** Makes a call at this time, and anew at the server's if its layer is another one. */
    private function inLayer(callable $call): array {
        $nowMs = (int) (microtime(true) * 1000);
        for ($attempt = 0; $attempt < self::ATTEMPTS; $attempt++) {
            $reply = $call($nowMs);
            if ($reply[0] !== 'OUTSIDE') return $reply;
            $nowMs = (int) $reply[1];
        }
        throw new NotCounted('OUTSIDE', 'the clock of Redis changes too fast', isTemporary: true);
    }
}
