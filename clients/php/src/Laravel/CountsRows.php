<?php declare(strict_types=1);

namespace Counterfoil\Laravel;

use Counterfoil\{Counterfoil, Rows};

/**
 * Counts the rows of an Eloquent model when they are committed: created, deleted, moved to another parent, or changed so that
 * they cease to count.
 *
 *     final class Save extends Model {
 *         use CountsRows;
 *
 *         public static function counts(): array {
 *             return [new Count('product_saves', by: 'product_id', in: 'products.saves_count')];
 *         }
 *     }
 *
 * The column follows within the family's `sync_time`; `Counterfoil::buffered('product_saves')->value($id)` is exact at once. A
 * crash between commit and count, and statements that fire no events of the model (`Save::where(..)->delete()`, `insert`), are
 * corrected by the family's recount: `php artisan counterfoil:families 'App\Models\Save' >>counterfoil.toml` writes it. Columns
 * of `where` that the database fills belong into `$attributes`, too.
 */
trait CountsRows {
    /** The columns of the row before it was deleted. */
    private array $countedRow = [];

    /** @return list<Count> */
    abstract public static function counts(): array;

    public static function bootCountsRows(): void {
        static::created(fn(self $model) => $model->countChange([], $model->getAttributes()));
        static::updated(fn(self $model) => $model->countChange($model->getRawOriginal(), $model->getAttributes()));
        static::deleting(function (self $model): void {
            $model->countedRow = $model->getRawOriginal();
        });
        static::deleted(fn(self $model) => $model->countChange($model->countedRow, []));
    }

    private function countChange(array $before, array $after): void {
        foreach (static::counts() as $count) {
            $changes = $count->of($this->withoutTrashed($after));
            foreach ($count->of($this->withoutTrashed($before)) as $id => $n) $changes[$id] = ($changes[$id] ?? 0) - $n;
            foreach (array_filter($changes) as $id => $n) {
                $family = $count->family;
                $this->getConnection()->afterCommit(fn() => Rows::count(app(Counterfoil::class)->buffered($family), $id, $n));
            }
        }
    }

    /** A row with SoftDeletes that is in the trash does not count. */
    private function withoutTrashed(array $row): array {
        return method_exists($this, 'getDeletedAtColumn') && isset($row[$this->getDeletedAtColumn()]) ? [] : $row;
    }
}
