<?php declare(strict_types=1);

namespace Counterfoil\Internal;

use Counterfoil\CounterfoilException;

/** A call of a script, with the arguments by which Redis recognizes its repeats. */
final class Call {
    /** @var list<string|int> the arguments by which repeats of a counting call are recognized: caller, number, epoch, and '' */
    public array $fence = [];
    /** @var list<string|int> the last arguments: the number of the pair, the name and the generation of a request */
    public array $tail = [];
    /** True if it may have been executed. */
    public bool $isUnsure = false;

    /**
     * @param list<string> $keys
     * @param list<string|int> $args the arguments behind the fence
     * @param int $partition a partition whose home remembers the call
     * @param int $of how many partitions the family had when this one was chosen
     * @param array<array> $items the items that it counts, each with its place in the reply, see `callOf` of the families
     * @param ?CounterfoilException $error why it cannot be made
     * @param ?array{string, ?string} $request the request of its first pair: the name, and the generation that a job has stored
     */
    public function __construct(
        public readonly string $script,
        public readonly array $keys = [],
        public readonly array $args = [],
        public readonly int $partition = 0,
        public readonly int $of = 0,
        public array $items = [],
        public readonly ?CounterfoilException $error = null,
        public readonly ?array $request = null,
    ) {}
}
