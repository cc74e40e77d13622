<?php declare(strict_types=1);

namespace Counterfoil;

/** The call counted nothing. */
final class NotCounted extends CounterfoilException {}
