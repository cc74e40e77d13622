<?php

namespace App\Models;

use Counterfoil\Laravel\{Count, CountsRows};
use Illuminate\Database\Eloquent\Model;

final class Save extends Model {
    use CountsRows;

    public $timestamps = false;
    protected $guarded = [];

    public static function counts(): array {
        return [new Count('product_saves', by: 'product_id', in: 'products.saves_count')];
    }
}
