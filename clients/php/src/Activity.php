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
        $page = self::checkId($page, self::PAGE_BYTES);
        $visitor = self::checkId($visitor, isText: false);
        $settings = $this->ask()['settings'];
        $stripe = crc32($visitor) % $settings['stripes'];
        $this->atTime(function (int $nowMs) use ($settings, $stripe, $page, $visitor): array {
            [$isHll, $layers, $layer] = self::layers($settings, $nowMs);
            [$layerMs, $keep] = [$settings['layer'], (int) $settings['keep_minutes']];
            $minute = intdiv($layer * $layerMs, 60_000) * 60;
            $names = ["views:$stripe:$page", $isHll ? "layer:$layer:$stripe:$page" : "visitors:$stripe:$page"];
            if ($isHll && $keep === 1) $names[] = "minute:$minute:$stripe:$page";
            $of = $this->ask()['partitions'];
            $partition = (crc32($page) + $stripe) % $of;
            $keys = $this->fenced($partition, 'open', 'schedule', ...$names);
            $args = [$layerMs, $layers, $keep, ...($isHll ? [$layer] : []), 1, $page, 1, 1, $visitor];
            return $this->count($isHll ? 'activity_touch_hll' : 'activity_touch', $partition, $of, $keys, $args);
        });
    }

    /**
     * Returns the views and the distinct visitors of the page within the family's window.
     *
     * @return array{int, int}
     * @throws CounterfoilException
     */
    public function now(string|int $page): array {
        $page = self::checkId($page, self::PAGE_BYTES);
        $settings = $this->ask()['settings'];
        [$views, $visitors] = [0, 0];
        for ($stripe = 0; $stripe < $settings['stripes']; $stripe++) {
            $reply = $this->atTime(function (int $nowMs) use ($settings, $stripe, $page): array {
                [$isHll, $layers, $layer] = self::layers($settings, $nowMs);
                $log = fn(int $layer): string => "layer:$layer:$stripe:$page";
                $window = range($layer - $layers + 1, $layer);
                $logs = $isHll ? array_map($log, $window) : ["visitors:$stripe:$page"];
                $partition = (crc32($page) + $stripe) % $this->ask()['partitions'];
                $keys = $this->keys($partition, "views:$stripe:$page", ...$logs);
                $args = ['', $settings['layer'], $layers, ...($isHll ? [$layer] : [])];
                return $this->read($isHll ? 'activity_now_hll' : 'activity_now', $keys, $args);
            });
            [$views, $visitors] = [$views + $reply[1], $visitors + $reply[2]];
        }
        return [$views, $visitors];
    }

    /** @return array{bool, int, int} if visitors are in HyperLogLogs, the layers of a window, and the current one */
    private static function layers(array $settings, int $nowMs): array {
        $layers = intdiv($settings['window'], $settings['layer']);
        return [$settings['visitors'] === 'hyperloglog', $layers, intdiv($nowMs, $settings['layer'])];
    }
}
