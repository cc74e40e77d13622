<?php declare(strict_types=1);

// Views are counted by a script of the page, so that a cached page counts as well.

namespace Counterfoil\WordPress;

use Closure, WP_Error, WP_REST_Request, WP_REST_Response;
use Counterfoil\{CounterfoilException, NotCounted, OutcomeUnknown};

/**
 * Counts a view of a post, and returns false if it is left out: of a crawler, of staff, or a repeat.
 *
 * @param ?bool $repeats whether each view of a visitor counts, or one on each day (UTC); defaults to COUNTERFOIL_REPEATS
 * @throws CounterfoilException
 */
function count_view(int $post, ?bool $repeats = null): bool {
    $user = wp_validate_auth_cookie('', 'logged_in');  // a request without a nonce has no current user
    if (!setting('STAFF', false) && $user && user_can($user, 'edit_posts')) return false;
    if (rules()->leavesOut($_SERVER)) return false;
    $today = gmdate('Y-m-d');
    client()->activity('online')->later('site', visitor());
    client()->visitors('site_visitors')->later('site', $today, visitor());
    return $repeats ?? setting('REPEATS', true)
        ? rules()->count('post_views', "$post/$today", $_SERVER)
        : rules()->count('post_visitors', $post, $_SERVER, repeats: false, visitor: visitor());
}

/** Returns the name of the visitor: a keyed hash of the address and the browser, unless a filter returns another one. */
function visitor(): string {
    return (string) (apply_filters('counterfoil_visitor', null) ?? rules()->visitor($_SERVER));
}

/** Makes a route of a post's id. Pages of other sites may not call it; there is no nonce, because a cached one expires. */
function route(string $name, string $method, Closure $reply): void {
    register_rest_route('counterfoil/v1', "/$name/(?P<id>\d+)", [
        'methods' => $method,
        'permission_callback' => function (): bool {
            $origin = get_http_origin();
            return !$origin || wp_parse_url($origin, PHP_URL_HOST) === wp_parse_url(home_url(), PHP_URL_HOST);
        },
        'callback' => function (WP_REST_Request $request) use ($reply): WP_REST_Response|WP_Error {
            $post = (int) $request['id'];
            if (!is_post_publicly_viewable($post)) return new WP_Error('rest_post_invalid_id', 'No such post.', ['status' => 404]);
            return response(fn(): array => $reply($post, $request));
        },
    ]);
}

/** Replies with what a function returns, or with its error. */
function response(Closure $reply): WP_REST_Response {
    try {
        return new WP_REST_Response($reply(), 200, ['Cache-Control' => 'no-store']);
    } catch (CounterfoilException $error) {
        error_log("counterfoil: {$error->getMessage()}");
        $words = [NotCounted::class => 'not_counted', OutcomeUnknown::class => 'outcome_unknown'];
        $status = $error instanceof NotCounted ? 503 : 500;
        return new WP_REST_Response(['error' => $words[$error::class] ?? 'misconfigured'], $status);
    }
}

add_action('rest_api_init', fn() => route('views', 'POST', fn(int $post): array => ['counted' => count_view($post)]));

add_action('wp_enqueue_scripts', function (): void {
    if (!is_singular() || !is_post_publicly_viewable()) return;
    [$base, $post] = [rest_url('counterfoil/v1'), get_queried_object_id()];
    // only the likes of users who are logged in need a nonce, and their pages are not cached
    $settings = ['views' => "$base/views/$post", 'likes' => "$base/likes/$post"]
        + (is_user_logged_in() ? ['nonce' => wp_create_nonce('wp_rest')] : []);
    wp_enqueue_script('counterfoil', plugins_url('beacon.js', __FILE__), [], '0.1.0', true);
    wp_add_inline_script('counterfoil', 'const counterfoil = ' . wp_json_encode($settings), 'before');
});
