<?php declare(strict_types=1);

namespace Counterfoil\Laravel;

use Closure;
use Counterfoil\{Counterfoil, CounterfoilException, Views};
use Illuminate\Contracts\Container\Container;
use Illuminate\Queue\Events\{JobFailed, JobProcessed};
use Illuminate\Support\ServiceProvider;

/** Makes the counters of `config/counterfoil.php`; Laravel finds it by itself. */
final class CounterfoilServiceProvider extends ServiceProvider {
    private const CONFIG = __DIR__ . '/counterfoil.php';

    public function register(): void {
        $this->mergeConfigFrom(self::CONFIG, 'counterfoil');
        $this->app->singleton(Counterfoil::class, function (Container $app): Counterfoil {
            $config = $app['config']['counterfoil'];
            return Counterfoil::connect($config['redis'], $config['namespace'], daemon: $config['daemon'], token: $config['token']);
        });
        $this->app->singleton(PageViews::class, function (Container $app): PageViews {
            $config = $app['config']['counterfoil'];
            $bots = is_bool($config['bots']) ? $config['bots'] : Closure::fromCallable($config['bots']);
            $visitor = $config['visitor'] === null ? null : Closure::fromCallable($config['visitor']);
            $views = new Views($app[Counterfoil::class], $app['config']['app.key'], $bots);
            return new PageViews($views, $config['staff'], $visitor);
        });
    }

    public function boot(): void {
        // a worker lives longer than a job or a request, so the hits of `later` are sent after each
        $ends = [JobProcessed::class, JobFailed::class, 'Laravel\Octane\Events\RequestTerminated'];
        $this->app['events']->listen($ends, function (): void {
            try {
                if ($this->app->resolved(Counterfoil::class)) $this->app[Counterfoil::class]->flush();
            } catch (CounterfoilException $error) {
                $this->app['log']->error("counterfoil: {$error->getMessage()}");
            }
        });
        if (!$this->app->runningInConsole()) return;
        $this->publishes([self::CONFIG => $this->app->configPath('counterfoil.php')], 'counterfoil');
        $this->commands([FamiliesCommand::class]);
    }
}
