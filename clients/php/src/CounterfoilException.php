<?php declare(strict_types=1);

namespace Counterfoil;

use RuntimeException, Throwable;

/** Everything that this package throws: NotCounted, OutcomeUnknown or Misconfigured. */
abstract class CounterfoilException extends RuntimeException {
    /**
     * @param string $reason a code of Redis or of the scripts, e.g. `FULL`, `RANGE`, `OOM`, or words like `no reply`
     * @param ?int $value the current value of a cached counter with the reason `RANGE`
     * @param bool $isTemporary if a later call may succeed without any change
     */
    final public function __construct(
        public readonly string $reason,
        string $message = '',
        public readonly ?int $value = null,
        public readonly bool $isTemporary = false,
        ?Throwable $previous = null,
    ) {
        // errors of Redis begin with their code
        if (!str_starts_with($message, $reason)) $message = $message === '' ? $reason : "$reason: $message";
        parent::__construct($message, 0, $previous);
    }
}
