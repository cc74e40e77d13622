<?php declare(strict_types=1);

namespace Counterfoil\Laravel;

use Illuminate\Database\Eloquent\Model;

/** A family in which rows of a model count. */
final class Count {
    /**
     * @param string $by the column with the id under which a row counts, a foreign key
     * @param string $in the column that has the number, such as `products.saves_count`
     * @param ?string $sum an integer column whose sum counts instead of the number of rows
     * @param array<string, mixed> $where values of columns that a row must have to count; null is NULL
     */
    public function __construct(
        public readonly string $family,
        public readonly string $by,
        public readonly string $in,
        public readonly ?string $sum = null,
        public readonly array $where = [],
    ) {}

    /**
     * Returns what a row counts.
     *
     * @param array<string, mixed> $row its columns as the database has them; none if there is no row
     * @return array<int> by id
     */
    public function of(array $row): array {
        if (!isset($row[$this->by])) return [];
        foreach ($this->where as $column => $value) {
            $has = $row[$column] ?? null;
            if (($has === null) !== ($value === null) || (string) self::plain($has) !== (string) self::plain($value)) return [];
        }
        return [$row[$this->by] => $this->sum === null ? 1 : (int) ($row[$this->sum] ?? 0)];
    }

    /** Returns the family for `counterfoil.toml`, with its recount. */
    public function toml(string $namespace, Model $model): string {
        [$table, $column] = explode('.', $this->in);
        $where = $this->where + (method_exists($model, 'getDeletedAtColumn') ? [$model->getDeletedAtColumn() => null] : []);
        foreach ($where as $name => $value) {
            $value = is_string($value) ? $model->getConnection()->getPdo()->quote($value) : self::plain($value);
            $conditions[] = $value === null ? "$name IS NULL" : "$name = $value";
        }
        $text = fn(string $text): string => json_encode($text, JSON_UNESCAPED_SLASHES | JSON_UNESCAPED_UNICODE);
        $lines = [
            '[[family]]', "name = {$text("$namespace/$this->family")}", 'kind = "buffered"',
            "table = { name = {$text($table)}, write = \"update-or-drop\", keys = [[\"id\", \"unsigned\"]], value = {$text($column)} }",
            '[family.recount]', "table = {$text($model->getTable())}", "keys = [{$text($this->by)}]",
            'rows = "added_and_deleted"', 'within = "30s"', 'every = "6h"', 'ids = "both"',
            ...isset($conditions) ? ['filter = ' . $text(implode(' AND ', $conditions))] : [],
            ...$this->sum === null ? [] : ["sum = {$text($this->sum)}"],
        ];
        return implode("\n", $lines) . "\n";
    }

    private static function plain(mixed $value): mixed {
        return is_bool($value) ? (int) $value : $value;
    }
}
