<?php declare(strict_types=1);

namespace Counterfoil\Laravel;

use Illuminate\Console\Command;

/** Prints the families of a model for `counterfoil.toml`. */
final class FamiliesCommand extends Command {
    protected $signature = 'counterfoil:families {model* : classes with CountsRows}';
    protected $description = 'Prints families that count rows, with their recounts, for counterfoil.toml';

    public function handle(): int {
        foreach ($this->argument('model') as $model) {
            foreach ($model::counts() as $count) {
                $this->line($count->toml(config('counterfoil.namespace'), new $model()));
            }
        }
        return self::SUCCESS;
    }
}
