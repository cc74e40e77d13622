<?php declare(strict_types=1);

namespace Counterfoil;

use Counterfoil\Internal\{Call, SummingFamily};

/** The views and distinct visitors of pages within the last minutes. */
final class Activity extends SummingFamily {
    protected const KIND = 'activity';
    protected const PARTS = 2;  // page and visitor
    private const PAGE_BYTES = 200;

    /**
     * Counts a view of the page by the visitor.
     *
     * @param string|int $page
     * @param string|int $visitor 1 to 255 bytes of any kind
     * @throws CounterfoilException
     */
    public function touch(mixed $page, mixed $visitor): void {
        $this->countOne([...self::checkView($page, $visitor), 1]);
    }

    /**
     * Adds a view to the sums of this process; see Buffered::later. It counts at the time at which Redis receives it.
     *
     * @param string|int $page
     * @param string|int $visitor 1 to 255 bytes of any kind
     * @throws CounterfoilException
     */
    public function later(mixed $page, mixed $visitor): void {
        $this->addSum(1, ...self::checkView($page, $visitor));
    }

    /**
     * Returns the views and the distinct visitors of the page within the family's window.
     *
     * @param string|int $page
     * @return array{int, int}
     * @throws CounterfoilException
     */
    public function now(mixed $page): array {
        $page = self::checkId($page, self::PAGE_BYTES);
        return $this->session->within(function () use ($page): array {
            $this->checkRow($page);
            $stripes = $this->ask()['settings']['stripes'];
            [$views, $visitors] = [0, 0];
            for ($stripe = 0; $stripe < $stripes; $stripe++) {
                $partition = $this->partitionOf(crc32($page) + $stripe);
                $keys = $this->keys($partition, "views:$stripe:$page", "visitors:$stripe:$page");
                $reply = $this->readOfHome('activity_now', $partition, [], $keys, $stripes);
                [$views, $visitors] = [$views + $reply[1], $visitors + $reply[2]];
            }
            return [$views, $visitors];
        }, isRead: true);
    }

    protected function hashOf(string $id, array $item, array $settings): int {
        return crc32($id) + crc32($item[1]) % $settings['stripes'];
    }

    protected function callOf(array $some, array $known): Call {
        $stripes = $known['settings']['stripes'];
        $places = $items = [];
        foreach ($some as [$partition, $key, $page, $item]) {
            [, $visitor, $views] = $item;
            $place = crc32($visitor) % $stripes . ":$page";
            $places[$place] ??= [count($places) + 1, $page, 0, []];
            $places[$place][2] += $views;
            $places[$place][3][] = $visitor;
            $items[$key] = [...$item, $places[$place][0]];
        }
        [$names, $args] = [['buffer', 'meta'], [$stripes, count($places)]];
        foreach ($places as $place => [, $page, $views, $visitors]) {
            array_push($names, "views:$place", "visitors:$place");
            array_push($args, $page, $views, count($visitors), ...$visitors);
        }
        $keys = [...$this->fence($partition), ...$this->keys($partition, ...$names)];
        return new Call('activity_touch', $keys, $args, $partition, $known['partitions'], $items);
    }

    protected function resultOf(array $reply, array $item): ?int {
        return self::pendingOf($reply, $item[3]);
    }

    /** @return array{string, string} */
    private static function checkView(mixed $page, mixed $visitor): array {
        return [self::checkId($page, self::PAGE_BYTES), self::checkId($visitor, isText: false)];
    }
}
