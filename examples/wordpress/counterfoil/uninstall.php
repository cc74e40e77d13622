<?php declare(strict_types=1);

// Removes what the plugin has made in MySQL. First remove its families from counterfoil.toml.

use function Counterfoil\WordPress\table;
use const Counterfoil\WordPress\TABLES;

defined('WP_UNINSTALL_PLUGIN') || exit;

require_once __DIR__ . '/counterfoil.php';

global $wpdb;
foreach (TABLES as $name => $_) $wpdb->query('DROP TABLE IF EXISTS ' . table($name));
$wpdb->query("DELETE FROM $wpdb->options WHERE option_name REGEXP '^_transient_(timeout_)?counterfoil_'");
