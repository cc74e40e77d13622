<?php
/**
 * Plugin Name: counterfoil
 * Description: Counts views, likes and visitors in Redis; the daemon of counterfoil writes them to MySQL, exactly.
 * Version: 0.1.0
 * Requires at least: 6.0
 * Requires PHP: 8.1
 * License: MIT OR Apache-2.0
 */

declare(strict_types=1);

namespace Counterfoil\WordPress;

use Closure;
use Counterfoil\{Counterfoil, Misconfigured, Views};

defined('ABSPATH') || exit;

if (is_readable(__DIR__ . '/vendor/autoload.php')) require_once __DIR__ . '/vendor/autoload.php';
foreach (['views', 'likes', 'lists', 'import'] as $part) require_once __DIR__ . "/$part.php";

/** The day of numbers that were taken over from another plugin. */
const IMPORTED = '1970-01-01';

/** The tables: a row has the views, or visitors, of a post on a day. */
const TABLES = [
    'views' => '(post_id BIGINT UNSIGNED, day DATE, count BIGINT NOT NULL, PRIMARY KEY (post_id, day), KEY top (day, count))',
    'visitors' => '(post_id BIGINT UNSIGNED, day DATE, count BIGINT NOT NULL, PRIMARY KEY (post_id, day), KEY top (day, count))',
    'likes' => '(id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, post_id BIGINT UNSIGNED NOT NULL, visitor VARBINARY(64) NOT NULL,
        UNIQUE KEY post (post_id, visitor))',
    'like_counts' => '(post_id BIGINT UNSIGNED PRIMARY KEY, likes BIGINT NOT NULL)',
];

/** Returns the constant COUNTERFOIL_... of wp-config.php. */
function setting(string $name, mixed $default): mixed {
    return defined("COUNTERFOIL_$name") ? constant("COUNTERFOIL_$name") : $default;
}

/** Returns the counters of this request. */
function client(): Counterfoil {
    static $client = null;
    return $client ??= Counterfoil::connect(setting('REDIS', 'redis://localhost'), setting('NAMESPACE', 'wordpress'),
        daemon: setting('DAEMON', 'http://127.0.0.1:9292'));
}

/** Returns the rules by which views count. */
function rules(): Views {
    static $rules = null;
    $bots = setting('BOTS', false);  // or the name of a function
    return $rules ??= new Views(client(), wp_salt('counterfoil'), is_bool($bots) ? $bots : Closure::fromCallable($bots));
}

/** Returns the name of one of TABLES. */
function table(string $name): string {
    return "{$GLOBALS['wpdb']->prefix}counterfoil_$name";
}

register_activation_hook(__FILE__, function (): void {
    if (!class_exists(Counterfoil::class)) wp_die('Run "composer install" in the folder of the plugin.');
    try {
        rules();
    } catch (Misconfigured $error) {
        wp_die(esc_html($error->getMessage()));
    }
    foreach (TABLES as $name => $columns) {
        $GLOBALS['wpdb']->query('CREATE TABLE IF NOT EXISTS ' . table($name) . " $columns ENGINE=InnoDB");
    }
});

add_action('deleted_post', function (int $post): void {
    foreach (TABLES as $name => $_) $GLOBALS['wpdb']->delete(table($name), ['post_id' => $post], '%d');
});
