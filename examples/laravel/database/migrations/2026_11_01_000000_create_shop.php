<?php

use Illuminate\Database\Migrations\Migration;
use Illuminate\Database\Schema\Blueprint;
use Illuminate\Support\Facades\{DB, Schema};

return new class extends Migration {
    public function up(): void {
        Schema::create('products', function (Blueprint $table): void {
            $table->unsignedBigInteger('id')->primary();
            $table->string('name');
            $table->bigInteger('views_count')->default(0);
            $table->bigInteger('saves_count')->default(0);
        });
        Schema::create('saves', function (Blueprint $table): void {
            $table->id();
            $table->unsignedBigInteger('product_id')->index();
            $table->unsignedBigInteger('user_id');
        });
        Schema::create('product_visitors', function (Blueprint $table): void {
            $table->unsignedBigInteger('product_id');
            $table->date('day');
            $table->bigInteger('count');
            $table->primary(['product_id', 'day']);
        });
        DB::table('products')->insert(array_map(fn(int $id): array => ['id' => $id, 'name' => "Product $id"], range(1, 20)));
    }
};
