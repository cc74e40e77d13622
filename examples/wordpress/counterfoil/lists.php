<?php declare(strict_types=1);

// The most viewed posts as a block and a shortcode, the visitors online, and a column in the list of posts.

namespace Counterfoil\WordPress;

use Counterfoil\CounterfoilException;
use WP_Query;

/** How many days the periods have. */
const PERIODS = ['today' => 1, 'week' => 7, 'all' => 36_500];

/** Returns the name of the table that lists show. */
function shown(): string {
    return table(setting('REPEATS', true) ? 'views' : 'visitors');
}

/** @return array<int, object> the rows of some posts, by post */
function by_post(string $select, array $posts, string $rest = ''): array {
    $ids = implode(',', array_map(intval(...), $posts)) ?: '0';
    return $GLOBALS['wpdb']->get_results("$select WHERE post_id IN ($ids) $rest", OBJECT_K);
}

/**
 * Returns the views of posts: those of today and yesterday are exact, unless the daemon does not reply. Earlier days are read
 * from MySQL, because nothing counts in them.
 *
 * @param list<int> $posts
 * @return array<int, int> by post
 */
function views(array $posts): array {
    [$yesterday, $today] = [gmdate('Y-m-d', time() - DAY_IN_SECONDS), gmdate('Y-m-d')];
    $columns = "SUM(IF(day < '$yesterday', count, 0)) AS earlier, SUM(IF(day >= '$yesterday', count, 0)) AS recent";
    $rows = by_post("SELECT post_id, $columns FROM " . shown(), $posts, 'GROUP BY post_id');
    $ids = $stored = [];
    foreach ($posts as $post) {
        array_push($ids, [$post, $yesterday], [$post, $today]);
        array_push($stored, 0, (int) ($rows[$post]->recent ?? 0));  // both days
    }
    $recent = setting('REPEATS', true)
        ? client()->buffered('post_views')->values(array_map(fn(array $id): string => implode('/', $id), $ids), $stored)
        : client()->visitors('post_visitors')->values($ids, $stored);
    foreach ($posts as $i => $post) {
        $views[$post] = (int) ($rows[$post]->earlier ?? 0) + $recent[2 * $i] + $recent[2 * $i + 1];
    }
    return $views ?? [];
}

/**
 * Returns the most viewed posts, as MySQL had them a minute ago at most.
 *
 * @param string $period one of PERIODS
 * @return list<object{post_id: int, views: int}>
 */
function most_viewed(string $period, int $number): array {
    global $wpdb;
    [$days, $number] = [PERIODS[$period] ?? PERIODS['week'], max(1, min(50, $number))];
    $cached = get_transient($key = "counterfoil_{$days}_$number");
    if ($cached !== false) return $cached;
    $sql = 'SELECT v.post_id, SUM(v.count) AS views FROM ' . shown() . " v JOIN $wpdb->posts p ON p.ID = v.post_id
        WHERE v.day >= %s AND p.post_status = 'publish' AND p.post_type = 'post' AND p.post_password = ''
        GROUP BY v.post_id ORDER BY views DESC, v.post_id LIMIT %d";
    $posts = $wpdb->get_results($wpdb->prepare($sql, gmdate('Y-m-d', time() - ($days - 1) * DAY_IN_SECONDS), $number));
    set_transient($key, $posts, MINUTE_IN_SECONDS);
    return $posts;
}

/** Returns the list as HTML. */
function most_viewed_list(string $period, int $number): string {
    $items = array_map(fn(object $row): string => sprintf('<li><a href="%s">%s</a> <span class="counterfoil-views">%s</span></li>',
        esc_url(get_permalink((int) $row->post_id)), esc_html(get_the_title((int) $row->post_id)),
        esc_html(number_format_i18n((int) $row->views))), most_viewed($period, $number));
    return '<ol class="counterfoil-most-viewed">' . implode($items) . '</ol>';
}

add_action('init', function (): void {
    $needs = ['wp-blocks', 'wp-block-editor', 'wp-components', 'wp-element', 'wp-server-side-render'];
    wp_register_script('counterfoil-block', plugins_url('block.js', __FILE__), $needs, '0.1.0', true);
    $attributes = ['period' => ['type' => 'string', 'default' => 'week'], 'number' => ['type' => 'integer', 'default' => 5]];
    register_block_type('counterfoil/most-viewed', [
        'attributes' => $attributes, 'editor_script' => 'counterfoil-block',
        'render_callback' => fn(array $given): string => most_viewed_list($given['period'], $given['number']),
    ]);
});
add_shortcode('counterfoil_most_viewed', fn(array|string $given): string =>
    most_viewed_list($given['period'] ?? 'week', (int) ($given['number'] ?? 5)));
add_shortcode('counterfoil_views', fn(): string => ($post = get_the_ID()) ? number_format_i18n(views([$post])[$post]) : '');
add_shortcode('counterfoil_online', function (): string {
    try {
        [, $online] = client()->activity('online')->now('site');
        $today = client()->visitors('site_visitors')->value('site', gmdate('Y-m-d'));
        return sprintf('%s online, %s today', number_format_i18n($online), number_format_i18n($today));
    } catch (CounterfoilException) {
        return '';
    }
});

add_filter('manage_post_posts_columns', fn(array $columns): array => $columns + ['counterfoil_views' => 'Views']);
add_filter('manage_edit-post_sortable_columns', fn(array $columns): array =>
    $columns + ['counterfoil_views' => ['counterfoil_views', true]]);
add_action('manage_post_posts_custom_column', function (string $column, int $post): void {
    static $views = null;
    if ($column !== 'counterfoil_views') return;
    $views ??= views(wp_list_pluck($GLOBALS['wp_query']->posts, 'ID'));  // of the whole page in one call
    echo esc_html(number_format_i18n($views[$post] ?? views([$post])[$post]));
}, 10, 2);
add_filter('posts_clauses', function (array $clauses, WP_Query $query): array {
    if (!is_admin() || !$query->is_main_query() || $query->get('orderby') !== 'counterfoil_views') return $clauses;
    global $wpdb;
    $clauses['join'] .= ' LEFT JOIN (SELECT post_id, SUM(count) AS views FROM ' . shown()
        . " GROUP BY post_id) AS counterfoil ON counterfoil.post_id = $wpdb->posts.ID";
    $order = strtoupper((string) $query->get('order')) === 'ASC' ? 'ASC' : 'DESC';
    $clauses['orderby'] = "COALESCE(counterfoil.views, 0) $order, $wpdb->posts.ID $order";
    return $clauses;
}, 10, 2);
