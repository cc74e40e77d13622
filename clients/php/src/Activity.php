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
        $page = $this->checkRow($page, self::PAGE_BYTES);
        $visitor = self::checkId($visitor, isText: false);
        $settings = $this->ask()['settings'];
        $stripe = crc32($visitor) % $settings['stripes'];
        $names = ['open', 'schedule', "views:$stripe:$page", "visitors:$stripe:$page"];
        $args = [...self::window($settings), (int) $settings['keep_minutes'], 1, $page, 1, 1, $visitor];
        $this->count($this->call('activity_touch', crc32($page) + $stripe, $names, $args));
    }

    /**
     * Returns the views and the distinct visitors of the page within the family's window.
     *
     * @return array{int, int}
     * @throws CounterfoilException
     */
    public function now(string|int $page): array {
        $page = $this->checkRow($page, self::PAGE_BYTES);
        $settings = $this->ask()['settings'];
        [$views, $visitors] = [0, 0];
        for ($stripe = 0; $stripe < $settings['stripes']; $stripe++) {
            $partition = $this->partitionOf(crc32($page) + $stripe);
            $keys = $this->keys($partition, "views:$stripe:$page", "visitors:$stripe:$page");
            $reply = $this->read('activity_now', $keys, ['', ...self::window($settings)]);
            [$views, $visitors] = [$views + $reply[1], $visitors + $reply[2]];
        }
        return [$views, $visitors];
    }

    /** @return array{int, int} ms of a layer, and layers of a window */
    private static function window(array $settings): array {
        return [$settings['layer'], intdiv($settings['window'], $settings['layer'])];
    }
}
