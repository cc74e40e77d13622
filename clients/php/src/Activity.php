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
        $this->atTime(function (int $nowMs) use ($page, $visitor): array {
            $settings = $this->ask()['settings'];
            [$isHll, $layerMs, $layers, $layer] = self::layers($settings, $nowMs);
            $stripe = crc32($visitor) % $settings['stripes'];
            [$place, $keep] = ["$stripe:$page", (int) $settings['keep_minutes']];
            $names = ['open', 'schedule', "views:$place", $isHll ? "layer:$layer:$place" : "visitors:$place"];
            if ($isHll && $keep === 1) $names[] = 'minute:' . intdiv($layer * $layerMs, 60_000) * 60 . ":$place";
            $args = [$layerMs, $layers, $keep, ...($isHll ? [$layer] : []), 1, $page, 1, 1, $visitor];
            $script = $isHll ? 'activity_touch_hll' : 'activity_touch';
            return $this->count($this->call($script, crc32($page) + $stripe, $names, $args));
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
                [$isHll, $layerMs, $layers, $layer] = self::layers($settings, $nowMs);
                $logs = array_map(fn(int $i): string => "layer:$i:$stripe:$page", range($layer - $layers + 1, $layer));
                $names = ["views:$stripe:$page", ...($isHll ? $logs : ["visitors:$stripe:$page"])];
                $keys = $this->keys($this->partitionOf(crc32($page) + $stripe), ...$names);
                $args = ['', $layerMs, $layers, ...($isHll ? [$layer] : [])];
                return $this->read($isHll ? 'activity_now_hll' : 'activity_now', $keys, $args);
            });
            [$views, $visitors] = [$views + $reply[1], $visitors + $reply[2]];
        }
        return [$views, $visitors];
    }

    /** @return array{bool, int, int, int} if there are HyperLogLogs, ms of a layer, layers of a window, and the current one */
    private static function layers(array $settings, int $nowMs): array {
        ['window' => $window, 'layer' => $layerMs, 'visitors' => $visitors] = $settings;
        return [$visitors === 'hyperloglog', $layerMs, intdiv($window, $layerMs), intdiv($nowMs, $layerMs)];
    }
}
