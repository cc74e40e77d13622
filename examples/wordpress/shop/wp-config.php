<?php

// The configuration of the sample's WordPress.

define('DB_HOST', getenv('MYSQL_HOST') . ':' . getenv('MYSQL_PORT'));
define('DB_NAME', getenv('MYSQL_DATABASE'));
define('DB_USER', getenv('MYSQL_USER'));
define('DB_PASSWORD', (string) getenv('MYSQL_PASSWORD'));
define('DB_CHARSET', 'utf8mb4');
$table_prefix = 'wp_';

foreach (['AUTH', 'SECURE_AUTH', 'LOGGED_IN', 'NONCE'] as $key) {
    define("{$key}_KEY", "the sample's $key key");
    define("{$key}_SALT", "the sample's $key salt");
}
define('WP_HOME', 'http://127.0.0.1:' . getenv('PORT'));
define('WP_SITEURL', WP_HOME);
define('WP_DEFAULT_THEME', 'shop');
define('DISABLE_WP_CRON', true);
define('WP_HTTP_BLOCK_EXTERNAL', true);
define('AUTOMATIC_UPDATER_DISABLED', true);

define('COUNTERFOIL_REDIS', getenv('COUNTERFOIL_REDIS'));
define('COUNTERFOIL_DAEMON', getenv('COUNTERFOIL_DAEMON'));
define('COUNTERFOIL_NAMESPACE', 'shop');
// true, or false with "composer require jaybizzle/crawler-detect" in the plugin's folder, or a function's name
define('COUNTERFOIL_BOTS', 'shop_is_crawler');

function shop_is_crawler(string $userAgent): bool {
    return preg_match('/bot|crawl|spider|slurp|preview/i', $userAgent) === 1;
}

if (!defined('ABSPATH')) define('ABSPATH', __DIR__ . '/');
require_once ABSPATH . 'wp-settings.php';
