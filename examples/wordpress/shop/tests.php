<?php declare(strict_types=1);

// Tests of the plugin in the prepared WordPress, with its servers: tests.php WORDPRESS_DIR

use Counterfoil\WordPress as plugin;

const BROWSER = 'Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0';
$_SERVER = ['REMOTE_ADDR' => '203.0.113.' . random_int(1, 250), 'HTTP_USER_AGENT' => BROWSER . ' ' . bin2hex(random_bytes(4)),
    'HTTP_HOST' => '127.0.0.1', 'REQUEST_URI' => '/', 'REQUEST_METHOD' => 'GET', 'SERVER_PROTOCOL' => 'HTTP/1.1'] + $_SERVER;
require __DIR__ . '/../testing.php';
require $argv[1] . '/wp-load.php';
require_once ABSPATH . 'wp-admin/includes/plugin.php';

/** Makes a request of a route with other headers, and returns its status and data. */
function request(string $method, string $path, array $params = [], array $server = []): array {
    $_SERVER = $server + ($before = $_SERVER);
    $request = new WP_REST_Request($method, "/counterfoil/v1/$path");
    foreach ($params as $name => $value) $request->set_param($name, $value);
    $response = rest_do_request($request);
    $_SERVER = $before;
    return [$response->get_status(), $response->get_data()];
}

/** Calls the function until it returns the value, since rows follow within a second. */
function soon(mixed $expected, callable $get): void {
    for ($i = 0; $i < 60 && $get() !== $expected; $i++) usleep(100_000);
    same($expected, $get());
}

/** Makes a post, calls the function with its id, and deletes it. */
function with_post(callable $test): void {
    $post = wp_insert_post(['post_title' => 'A <b>post</b>', 'post_status' => 'publish', 'post_content' => 'text'], true);
    try {
        $test($post);
    } finally {
        wp_delete_post($post, true);
    }
}

function rows(string $sql): array {
    return $GLOBALS['wpdb']->get_results($sql, ARRAY_N);
}

const COUNTED = [200, ['counted' => true]];
const LEFT_OUT = [200, ['counted' => false]];

$tests = [
    'each view counts, without those of crawlers, prefetches and staff' => fn() => with_post(function (int $post) {
        same(COUNTED, request('POST', "views/$post"));
        same(COUNTED, request('POST', "views/$post"));
        same(LEFT_OUT, request('POST', "views/$post", server: ['HTTP_USER_AGENT' => 'Mozilla/5.0 (compatible; Googlebot/2.1)']));
        same(LEFT_OUT, request('POST', "views/$post", server: ['HTTP_USER_AGENT' => '']));
        same(LEFT_OUT, request('POST', "views/$post", server: ['HTTP_SEC_PURPOSE' => 'prefetch;prerender']));
        $_COOKIE[LOGGED_IN_COOKIE] = wp_generate_auth_cookie(1, time() + 60, 'logged_in');
        same(LEFT_OUT, request('POST', "views/$post"));
        unset($_COOKIE[LOGGED_IN_COOKIE]);
        same([$post => 2], plugin\views([$post]));
        soon([['2']], fn() => rows("SELECT count FROM wp_counterfoil_views WHERE post_id = $post AND day = UTC_DATE()"));
    }),
    'without repeats a visitor counts once a day' => fn() => with_post(function (int $post) {
        same([true, false], [plugin\count_view($post, repeats: false), plugin\count_view($post, repeats: false)]);
        $_SERVER['HTTP_USER_AGENT'] .= ' another';
        same(true, plugin\count_view($post, repeats: false));
        soon([['2']], fn() => rows("SELECT count FROM wp_counterfoil_visitors WHERE post_id = $post AND day = UTC_DATE()"));
    }),
    'only pages of this site count, and only posts that everyone can read' => fn() => with_post(function (int $post) {
        same(401, request('POST', "views/$post", server: ['HTTP_ORIGIN' => 'https://example.com'])[0]);
        same(401, request('POST', "views/$post", server: ['HTTP_ORIGIN' => 'null'])[0]);
        same(COUNTED, request('POST', "views/$post", server: ['HTTP_ORIGIN' => home_url()]));
        same(404, request('POST', 'views/999999')[0]);
        wp_update_post(['ID' => $post, 'post_status' => 'draft']);
        same(404, request('POST', "views/$post")[0]);
    }),
    'a visitor likes a post once, and may take that back' => fn() => with_post(function (int $post) {
        $like = fn(bool $liked): array => request('POST', "likes/$post", ['liked' => $liked])[1];
        same(['likes' => 0, 'liked' => false], request('GET', "likes/$post")[1]);
        same(['likes' => 1, 'liked' => true], $like(true));
        same(['likes' => 1, 'liked' => true], $like(true));
        wp_set_current_user(1);
        same(['likes' => 2, 'liked' => true], $like(true));
        wp_set_current_user(0);
        same(['likes' => 1, 'liked' => false], $like(false));
        same(['likes' => 1, 'liked' => false], $like(false));
        same([$post => 1], plugin\likes([$post]));  // the row may wait for a recount
    }),
    'the most viewed posts of a period' => fn() => with_post(function (int $post) {
        $days = ['UTC_DATE()' => 100_000, 'UTC_DATE() - INTERVAL 6 DAY' => 20_000, 'UTC_DATE() - INTERVAL 7 DAY' => 3_000];
        foreach ($days as $day => $n) $GLOBALS['wpdb']->query("INSERT INTO wp_counterfoil_views VALUES ($post, $day, $n)");
        foreach (['today' => '100,000', 'week' => '120,000', 'all' => '123,000'] as $period => $views) {
            $GLOBALS['wpdb']->query("DELETE FROM wp_options WHERE option_name LIKE '%transient%counterfoil%'");
            wp_cache_flush();
            $html = do_shortcode("[counterfoil_most_viewed period=$period number=1]");
                same(true, str_contains($html, '>A &lt;b&gt;post&lt;/b&gt;</a>'));
            same(true, str_contains($html, ">$views</span>"));
        }
        same([$post => 123_000], plugin\views([$post]));
    }),
    'the numbers of another plugin are taken over once' => fn() => with_post(function (int $post) {
        $GLOBALS['wpdb']->query('CREATE TABLE IF NOT EXISTS wp_post_views (id BIGINT UNSIGNED, type TINYINT UNSIGNED,
            period VARCHAR(8), count BIGINT UNSIGNED, PRIMARY KEY (type, period, id))');
        $GLOBALS['wpdb']->query("REPLACE INTO wp_post_views VALUES ($post, 4, 'total', 500), ($post, 0, '20261101', 7)");
        add_post_meta($post, 'views', '400');
        add_post_meta($post, 'post_views_count', 'many');
        same(COUNTED, request('POST', "views/$post"));
        try {
            same(true, plugin\import() >= 1);
            same(0, plugin\import());
        } finally {
            $GLOBALS['wpdb']->query('DROP TABLE wp_post_views');
        }
        same([$post => 501], plugin\views([$post]));
    }),
    'a deleted post leaves no rows' => function () {
        with_post(function (int $post) use (&$deleted) {
            foreach (['views', 'visitors'] as $name) {
                $GLOBALS['wpdb']->query("INSERT INTO wp_counterfoil_$name VALUES ($post, UTC_DATE(), 1)");
            }
            $GLOBALS['wpdb']->query("INSERT INTO wp_counterfoil_likes (post_id, visitor) VALUES ($post, 'a')");
            $GLOBALS['wpdb']->query("INSERT INTO wp_counterfoil_like_counts VALUES ($post, 1)");
            $deleted = $post;
        });
        foreach (plugin\TABLES as $name => $_) same([], rows("SELECT * FROM wp_counterfoil_$name WHERE post_id = $deleted"));
    },
];

$status = run_tests($tests);
exit($status);
