<?php

namespace App\Models;

use Illuminate\Database\Eloquent\Model;

final class Product extends Model {
    public $timestamps = false;
}
