<?php declare(strict_types=1);

namespace Counterfoil\Internal;

use Counterfoil\CounterfoilException;

/** A call of a script, with what a repeat of it needs. */
final class Call {
    /** @var list<string|int> what makes repeats of a counting call known: caller, number, epoch, and '' */
    public array $fence = [];
    /** @var list<string|int> those behind the arguments: the pair, the name and the generation of a request */
    public array $tail = [];
    /** If it may have been executed. */
    public bool $isUnsure = false;

    /**
     * @param list<string> $keys
     * @param list<string|int> $args those behind the fence
     * @param int $partition whose home remembers the call
     * @param int $of how many partitions the family had when this one was chosen
     * @param array<array{string, int, int, int}> $items what a call of `buffered_add` counts: see Buffered
     * @param ?CounterfoilException $error why it cannot be made
     * @param ?array{string, ?string} $request of its first pair: the name, and the generation that is stored with it
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
