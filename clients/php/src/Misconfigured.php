<?php declare(strict_types=1);

namespace Counterfoil;

/** The call counted nothing, and none will before an operator or a developer changes something. */
final class Misconfigured extends CounterfoilException {}
