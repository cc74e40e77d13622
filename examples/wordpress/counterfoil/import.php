<?php declare(strict_types=1);

// Takes over the numbers of another counter plugin: a link in the list of plugins, or `wp counterfoil import`.

namespace Counterfoil\WordPress;

/**
 * Takes over the views of Post Views Counter's table, and of post meta, as a row of each post on the day IMPORTED. The larger
 * number counts if a post has several. A post is taken over once: running it again adds nothing.
 *
 * @return int the posts that were taken over
 */
function import(): int {
    global $wpdb;
    $keys = (array) apply_filters('counterfoil_import_meta_keys', ['views', 'post_views_count', '_post_views_count']);
    $sources = $wpdb->prepare("SELECT post_id, CAST(meta_value AS UNSIGNED) AS n FROM $wpdb->postmeta
        WHERE meta_key IN (" . implode(',', array_fill(0, count($keys), '%s')) . ") AND meta_value REGEXP '^[0-9]{1,15}$'", $keys);
    $other = "{$wpdb->prefix}post_views";
    if ($wpdb->get_var($wpdb->prepare('SHOW TABLES LIKE %s', $wpdb->esc_like($other))) === $other) {
        $sources .= " UNION ALL SELECT id, count FROM $other WHERE type = 4 AND period = 'total'";
    }
    return (int) $wpdb->query('INSERT IGNORE INTO ' . shown() . " (post_id, day, count)
        SELECT s.post_id, '" . IMPORTED . "', MAX(s.n) FROM ($sources) s JOIN $wpdb->posts p ON p.ID = s.post_id
        WHERE p.post_type <> 'revision' GROUP BY s.post_id HAVING MAX(s.n) > 0");
}

if (defined('WP_CLI')) \WP_CLI::add_command('counterfoil import', fn() => \WP_CLI::success(import() . ' posts.'));

add_filter('plugin_action_links_counterfoil/counterfoil.php', function (array $links): array {
    $url = wp_nonce_url(admin_url('admin-post.php?action=counterfoil_import'), 'counterfoil_import');
    return current_user_can('manage_options') ? [...$links, sprintf('<a href="%s">Import views</a>', esc_url($url))] : $links;
});

add_action('admin_post_counterfoil_import', function (): void {
    check_admin_referer('counterfoil_import');
    if (!current_user_can('manage_options')) wp_die('You may not do this.', 403);
    wp_die(sprintf('The views of %d posts were imported.', import()), 'Import', ['response' => 200, 'back_link' => true]);
});
