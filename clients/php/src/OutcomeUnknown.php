<?php declare(strict_types=1);

namespace Counterfoil;

/** The call was counted once or not at all. Do not count it again. */
final class OutcomeUnknown extends CounterfoilException {}
