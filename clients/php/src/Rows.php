<?php declare(strict_types=1);

namespace Counterfoil;

/** Counts rows of the application after their commit. */
final class Rows {
    /**
     * Counts a row that was committed. It throws nothing, because the row is there anyway: while Redis is unavailable the hit
     * waits as one of `later`, and any other failure is logged in one line. The family's recount corrects what is lost.
     *
     * @param string|int $id the counter of the row
     * @param int $delta 1 for a row that was added, -1 for one that was deleted
     */
    public static function count(Buffered $family, mixed $id, int $delta): void {
        try {
            try {
                $family->add($id, $delta);
            } catch (NotCounted $error) {
                if (!$error->isTemporary) throw $error;
                $family->later($id, $delta);
                return;
            }
        } catch (CounterfoilException $error) {
            error_log("counterfoil: {$family->name}, id $id, $delta: {$error->getMessage()}");
            return;
        }
        try {
            $family->flush();  // sends sums that earlier requests could not send
        } catch (CounterfoilException) {
        }
    }
}
