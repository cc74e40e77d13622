<?php declare(strict_types=1);

namespace Counterfoil;

use Counterfoil\Internal\{Call, Family};

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
        $reply = $this->countAnew(function () use ($page, $visitor): Call {
            $stripes = $this->ask()['settings']['stripes'];
            $stripe = crc32($visitor) % $stripes;
            $names = ['buffer', 'meta', "views:$stripe:$page", "visitors:$stripe:$page"];
            return $this->call('activity_touch', crc32($page) + $stripe, $names, [$stripes, 1, $page, 1, 1, $visitor]);
        });
        self::pendingOf($reply);
    }

    /**
     * Returns the views and the distinct visitors of the page within the family's window.
     *
     * @return array{int, int}
     * @throws CounterfoilException
     */
    public function now(string|int $page): array {
        $page = $this->checkRow($page, self::PAGE_BYTES);
        $stripes = $this->ask()['settings']['stripes'];
        [$views, $visitors] = [0, 0];
        for ($stripe = 0; $stripe < $stripes; $stripe++) {
            $partition = $this->partitionOf(crc32($page) + $stripe);
            $keys = $this->keys($partition, "views:$stripe:$page", "visitors:$stripe:$page");
            $reply = $this->readOfHome('activity_now', $partition, [], $keys, $stripes);
            [$views, $visitors] = [$views + $reply[1], $visitors + $reply[2]];
        }
        return [$views, $visitors];
    }
}
