<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title><?php bloginfo('name'); wp_title('-'); ?></title>
<link rel="stylesheet" href="<?php echo esc_url(get_stylesheet_uri()); ?>">
<?php wp_head(); ?>
</head>
<body>
<header><h1><a href="<?php echo esc_url(home_url('/products')); ?>">Shop</a></h1></header>
<main>
<?php
if (!is_singular()) {
    query_posts(['posts_per_page' => 20, 'orderby' => 'ID', 'order' => 'ASC']);
    $views = Counterfoil\WordPress\views(wp_list_pluck($GLOBALS['wp_query']->posts, 'ID'));
    echo '<ul>';
}
while (have_posts()) {
    the_post();
    if (is_singular()) {
        the_title('<h2>', '</h2>');
        the_content();
    } else {
        printf('<li><a href="%s">%s</a>: %d views</li>', esc_url(get_permalink()), esc_html(get_the_title()), $views[get_the_ID()]);
    }
}
if (!is_singular()) echo '</ul>';
?>
</main>
<aside><ul><?php dynamic_sidebar('side'); ?></ul><p><?php echo do_shortcode('[counterfoil_online]'); ?></p></aside>
<?php wp_footer(); ?>
</body>
</html>
