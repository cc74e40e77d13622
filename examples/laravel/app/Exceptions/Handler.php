<?php

namespace App\Exceptions;

use Counterfoil\{CounterfoilException, NotCounted, OutcomeUnknown};
use Illuminate\Foundation\Exceptions\Handler as FrameworkHandler;

final class Handler extends FrameworkHandler {
    public function register(): void {
        $this->renderable(fn(CounterfoilException $error) => match (true) {
            $error instanceof NotCounted => response()->json(['error' => 'not_counted'], 503),
            $error instanceof OutcomeUnknown => response()->json(['error' => 'outcome_unknown'], 500),
            default => null,
        });
    }
}
