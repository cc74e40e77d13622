<?php declare(strict_types=1);

// The paths of the sample as a must-use plugin; a site needs none of this.

use function Counterfoil\WordPress\{client, count_view, likes, response, set_like, views};
use Counterfoil\CounterfoilException;

/** Replies as a route of the plugin does. */
function shop_reply(mixed $body, int $status = 200): never {
    status_header($status);
    header('Content-Type: application/json');
    header('Cache-Control: no-store');
    if ($status !== 204) echo wp_json_encode($body);
    exit;
}

/** Replies as the plugin does. */
function shop_response(WP_REST_Response $response): never {
    shop_reply($response->get_data(), $response->get_status());
}

add_action('parse_request', function (): void {
    global $wpdb;
    $path = $_SERVER['REQUEST_METHOD'] . ' ' . parse_url($_SERVER['REQUEST_URI'], PHP_URL_PATH);
    $body = json_decode(file_get_contents('php://input') ?: '{}', true);
    if ($path === 'GET /products' && !str_contains($_SERVER['HTTP_ACCEPT'] ?? '', 'text/html')) {
        $posts = range(1, 20);
        try {
            client()->buffered('post_likes')->value(1);
            [$views, $likes] = [views($posts), likes($posts)];
        } catch (CounterfoilException) {  // the test does not want numbers that are not exact
            $views = $likes = array_fill_keys($posts, null);
        }
        shop_reply(array_map(fn(int $id): array => ['id' => $id, 'views' => $views[$id], 'saves' => $likes[$id]], $posts));
    }
    if (preg_match('#^POST /products/(\d+)/views$#D', $path, $found)) {
        shop_response(rest_do_request(new WP_REST_Request('POST', "/counterfoil/v1/views/$found[1]")));
    }
    if (preg_match('#^POST /products/(\d+)/visits$#D', $path, $found)) {
        // each visitor counts once a day; the test names them
        add_filter('counterfoil_visitor', fn(): string => $_SERVER['HTTP_X_VISITOR'] ?? '');
        shop_response(response(fn(): array => ['counted' => count_view((int) $found[1], repeats: false)]));
    }
    if (preg_match('#^POST /products/(\d+)/saves$#D', $path, $found)) {
        set_like((int) $found[1], $visitor = "user-$body[user_id]", true);
        $sql = 'SELECT id FROM wp_counterfoil_likes WHERE post_id = %d AND visitor = %s';
        shop_reply(['id' => (int) $wpdb->get_var($wpdb->prepare($sql, $found[1], $visitor))], 201);
    }
    if (preg_match('#^DELETE /saves/(\d+)$#D', $path, $found)) {
        $row = $wpdb->get_row($wpdb->prepare('SELECT post_id, visitor FROM wp_counterfoil_likes WHERE id = %d', $found[1]));
        if ($row !== null) set_like((int) $row->post_id, $row->visitor, false);
        shop_reply(null, 204);
    }
});
