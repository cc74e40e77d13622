<?php declare(strict_types=1);

// Tests of the package's integration with Laravel, in the prepared database, without Redis: tests.php APP_DIR

use App\Models\Save;
use Counterfoil\{Counterfoil, Testing};
use Counterfoil\Laravel\{Count, CountsRows, CountViews, PageViews};
use Counterfoil\Laravel\Facades\Counterfoil as Counters;
use Illuminate\Contracts\Console\Kernel as ConsoleKernel;
use Illuminate\Contracts\Http\Kernel as HttpKernel;
use Illuminate\Database\Eloquent\{Model, SoftDeletes};
use Illuminate\Database\Schema\Blueprint;
use Illuminate\Http\Request;
use Illuminate\Queue\Events\JobProcessed;
use Illuminate\Queue\Jobs\SyncJob;
use Illuminate\Support\Facades\{DB, Event, Gate, Route, Schema};

require __DIR__ . '/../wordpress/testing.php';
require $argv[1] . '/vendor/autoload.php';
$app = require $argv[1] . '/bootstrap/app.php';
$app->make(ConsoleKernel::class)->bootstrap();

const USERS = 900_000_000;

final class Rating extends Model {
    use CountsRows, SoftDeletes;

    public $timestamps = false;
    protected $guarded = [];

    public static function counts(): array {
        return [
            new Count('ratings', by: 'product_id', in: 'products.ratings_count', where: ['is_public' => true, 'spam' => null]),
            new Count('points', by: 'product_id', in: 'products.points', sum: 'points'),
        ];
    }
}

/** Returns the saves of products 1 and 2. */
$saves = fn(): array => Counters::buffered('product_saves')->values([1, 2]);
/** Returns the number and the points of ratings of products 1 and 2. */
$ratings = fn(): array => [Counters::buffered('ratings')->values([1, 2]), Counters::buffered('points')->values([1, 2])];
$request = function (string $path, array $server = []) use ($app): int {
    $request = Request::create($path, 'GET', server: $server + ['HTTP_USER_AGENT' => 'Firefox']);
    $response = ($kernel = $app->make(HttpKernel::class))->handle($request);
    $kernel->terminate($request, $response);
    return $response->getStatusCode();
};
$views = fn(): int => Counters::buffered('product_views')->value(1);

$tests = [
    'Laravel discovers the package' => function () use ($app) {
        same('shop', config('counterfoil.namespace'));
        same(true, $app->getProvider(\Counterfoil\Laravel\CounterfoilServiceProvider::class) !== null);
        same(true, class_exists('Counterfoil') && is_a('Counterfoil', Counters::class, true));
    },
    'a row counts when it is committed' => function () use ($saves) {
        DB::transaction(function () use ($saves) {
            Save::create(['product_id' => 1, 'user_id' => USERS + 1]);
            same([0, 0], $saves());
        });
        same([1, 0], $saves());
        Save::create(['product_id' => 1, 'user_id' => USERS + 2]);
        same([2, 0], $saves());
        try {
            DB::transaction(function () {
                Save::create(['product_id' => 1, 'user_id' => USERS + 3]);
                throw new DomainException();
            });
        } catch (DomainException) {
        }
        same([2, 0], $saves());
    },
    'a row moves, and is deleted' => function () use ($saves) {
        Save::where('user_id', USERS + 2)->first()->update(['product_id' => 2]);
        same([1, 1], $saves());
        Save::where('user_id', USERS + 2)->first()->update(['user_id' => USERS + 4]);
        same([1, 1], $saves());
        Save::where('user_id', '>', USERS)->get()->each->delete();
        same([0, 0], $saves());
    },
    'conditions, sums, and the trash' => function () use ($ratings) {
        $rating = Rating::create(['product_id' => 1, 'is_public' => true, 'points' => 5]);
        same([[1, 0], [5, 0]], $ratings());
        $rating->update(['is_public' => false]);
        same([[0, 0], [5, 0]], $ratings());
        $rating->update(['is_public' => true, 'points' => 3, 'product_id' => 2]);
        same([[0, 1], [0, 3]], $ratings());
        $rating->update(['spam' => 'link']);
        same([[0, 0], [0, 3]], $ratings());
        $rating->update(['spam' => null]);
        $rating->points = 100;  // not saved
        $rating->delete();
        same([[0, 0], [0, 0]], $ratings());
        $rating->delete();
        same([[0, 0], [0, 0]], $ratings());
        $rating = Rating::withTrashed()->find($rating->id);
        $rating->restore();
        same([[0, 1], [0, 3]], $ratings());
        $rating->delete();
        $rating->forceDelete();
        same([[0, 0], [0, 0]], $ratings());
        $rating = Rating::create(['product_id' => 1, 'is_public' => true, 'points' => 5]);
        Rating::find($rating->id)->forceDelete();
        same([[0, 0], [0, 0]], $ratings());
    },
    'a view counts if the page succeeds' => function () use ($request, $views) {
        same([200, 1], [$request('/products/1'), $views()]);
        same([404, 1], [$request('/products/99'), $views()]);
        same(0, Counters::buffered('product_views')->value(99));
        same([200, 1], [$request('/products/1', ['HTTP_USER_AGENT' => 'Googlebot']), $views()]);
        same([200, 1], [$request('/products/1', ['HTTP_SEC_PURPOSE' => 'prefetch']), $views()]);
        Gate::define('staff', fn(object $user): bool => true);
        $staff = Request::create('/', server: ['HTTP_USER_AGENT' => 'Firefox']);
        $staff->setUserResolver(fn(): object => new Illuminate\Foundation\Auth\User());
        same(false, app(PageViews::class)->count($staff, 'product_views', 1));
    },
    'an error is logged, and the page is there' => function () use ($request) {
        $wrong = CountViews::of('product_saves', 'product', repeats: false);  // no family of visitors
        Route::get('/wrong/{product}', fn(): string => 'page')->middleware($wrong);
        Event::listen(Illuminate\Log\Events\MessageLogged::class, function ($message) use (&$logged) {
            $logged[] = strtok($message->message, ':');
        });
        same(200, $request('/wrong/1'));
        same(['counterfoil'], $logged);
    },
    'hits of a job are sent behind it' => function () use ($app) {
        Counters::buffered('product_views')->later(2);
        same(0, Counters::buffered('product_views')->value(2));
        event(new JobProcessed('sync', new SyncJob($app, '{}', 'sync', 'default')));
        same(1, Counters::buffered('product_views')->value(2));
    },
    'the families of a model' => function () use ($app, $argv) {
        $console = $app->make(ConsoleKernel::class);
        same(0, $console->call('counterfoil:families', ['model' => [Save::class]]));
        $toml = preg_replace('/^(sync_time|#) .*\n/m', '', file_get_contents("$argv[1]/counterfoil.toml"));
        same(true, str_contains($toml, trim($console->output())));
        same(0, $console->call('counterfoil:families', ['model' => [Rating::class]]));
        [$number, $points] = explode("\n\n", $console->output());
        same(true, str_contains($number, 'filter = "is_public = 1 AND spam IS NULL AND deleted_at IS NULL"'));
        same(true, str_contains($points, 'filter = "deleted_at IS NULL"') && str_contains($points, 'sum = "points"'));
    },
];

Save::where('user_id', '>', USERS)->delete();
Schema::dropIfExists('ratings');
Schema::create('ratings', function (Blueprint $table): void {
    $table->id();
    $table->unsignedBigInteger('product_id');
    $table->boolean('is_public');
    $table->string('spam')->nullable();
    $table->integer('points');
    $table->softDeletes();
});
$app->instance(Counterfoil::class, Testing::counterfoil('shop'));
$status = run_tests($tests);
Schema::drop('ratings');
exit($status);
