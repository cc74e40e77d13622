<?php declare(strict_types=1);

// Installs WordPress in an empty database, with the posts 1 to 20.

define('WP_INSTALLING', true);
$_SERVER += ['HTTP_HOST' => '127.0.0.1', 'REQUEST_URI' => '/', 'REQUEST_METHOD' => 'GET', 'SERVER_PROTOCOL' => 'HTTP/1.1'];
require $argv[1] . '/wp-load.php';
require_once ABSPATH . 'wp-admin/includes/upgrade.php';
require_once ABSPATH . 'wp-admin/includes/plugin.php';

add_filter('pre_wp_mail', '__return_true');
wp_install('Shop', 'admin', 'admin@example.com', false, '', 'admin');
wp_set_current_user(1);
foreach (get_posts(['post_type' => 'any', 'post_status' => 'any', 'numberposts' => -1]) as $post) wp_delete_post($post->ID, true);
for ($id = 1; $id <= 20; $id++) {
    $made = wp_insert_post(['import_id' => $id, 'post_title' => "Product $id", 'post_status' => 'publish', 'post_author' => 1,
        'post_content' => "<p>This is product $id.</p>[counterfoil_like]"]);
    if ($made !== $id) exit("post $id is $made\n");
}
$GLOBALS['wp_rewrite']->set_permalink_structure('/products/%post_id%');
flush_rewrite_rules();
switch_theme('shop');
$error = activate_plugin('counterfoil/counterfoil.php');
if ($error !== null) exit($error->get_error_message() . "\n");
foreach (['today' => 'Today', 'week' => 'This week', 'all' => 'Of all time'] as $period => $title) {
    $blocks[] = "<!-- wp:heading --><h2>$title</h2><!-- /wp:heading -->"
        . "<!-- wp:counterfoil/most-viewed {\"period\":\"$period\"} /-->";
}
update_option('widget_block', [2 => ['content' => implode($blocks)], '_multiwidget' => 1]);
wp_set_sidebars_widgets(['side' => ['block-2']]);

// the names of the test
global $wpdb;
$wpdb->query("CREATE VIEW products AS SELECT p.ID AS id,
    COALESCE((SELECT SUM(count) FROM wp_counterfoil_views WHERE post_id = p.ID), 0) AS views_count,
    COALESCE((SELECT likes FROM wp_counterfoil_like_counts WHERE post_id = p.ID), 0) AS saves_count
    FROM wp_posts p WHERE p.post_type = 'post' AND p.post_status = 'publish'");
$wpdb->query('CREATE VIEW product_visitors AS SELECT post_id AS product_id, day, count FROM wp_counterfoil_visitors');
$wpdb->query('CREATE VIEW saves AS SELECT id, post_id AS product_id, visitor FROM wp_counterfoil_likes');
if ($wpdb->last_error !== '') exit("$wpdb->last_error\n");
