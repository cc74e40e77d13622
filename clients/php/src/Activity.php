<?php declare(strict_types=1);

namespace Counterfoil;

use Counterfoil\Internal\Family;

/** Who is on a page now, and how many pages they viewed. */
final class Activity extends Family {
    protected const KIND = 'activity';
    private const PAGE_BYTES = 200;

    /**
     * Counts a view of the page by the visitor.
     *
     * @param string|int $visitor 1 to 255 bytes of any kind
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
        [$isHll, $layerMs, $keep] = [$settings['visitors'] === 'hyperloglog', $settings['layer'], (int) $settings['keep_minutes']];
        $this->atTime(function (int $nowMs) use ($settings, $stripe, $partition, $isHll, $layerMs, $keep, $page, $visitor, $deadline) {
            $layer = intdiv($nowMs, $layerMs);
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
        self::checkId($page = (string) $page, self::PAGE_BYTES);
        $deadline = $this->session->deadline();
        ['settings' => $settings, 'partitions' => $partitions] = $this->ask(0, $deadline);
        [$isHll, $layerMs] = [$settings['visitors'] === 'hyperloglog', $settings['layer']];
        $layers = intdiv($settings['window'], $layerMs);
        [$views, $visitors] = [0, 0];
        for ($stripe = 0; $stripe < $settings['stripes']; $stripe++) {
            $partition = (crc32($page) + $stripe) % $partitions;
            [, $seen, $distinct] = $this->atTime(function (int $nowMs) use ($stripe, $partition, $isHll, $layerMs, $layers, $page, $deadline) {
                $layer = intdiv($nowMs, $layerMs);
                $log = fn(int $layer): string => "layer:$layer:$stripe:$page";
                $logs = $isHll ? array_map($log, range($layer - $layers + 1, $layer)) : ["visitors:$stripe:$page"];
                $args = ['', $layerMs, $layers, ...($isHll ? [$layer] : [])];
                $keys = $this->keys($partition, "views:$stripe:$page", ...$logs);
                return $this->read($isHll ? 'activity_now_hll' : 'activity_now', $keys, $args, $deadline);
            });
            [$views, $visitors] = [$views + $seen, $visitors + $distinct];
        }
        return [$views, $visitors];
    }
}
