<?php declare(strict_types=1);

namespace Counterfoil\Internal;

/** Values that all requests of a machine share by APCu. Without APCu, the calls of a process share them. */
final class Shared {
    /** @var array<string, mixed> */
    private static array $own = [];

    public static function isEnabled(): bool {
        return function_exists('apcu_enabled') && apcu_enabled();
    }

    public static function fetch(string $key): mixed {
        return self::isEnabled() ? (apcu_fetch("counterfoil $key") ?: null) : self::$own[$key] ?? null;
    }

    public static function store(string $key, mixed $value, int $seconds = 0): void {
        if (self::isEnabled()) apcu_store("counterfoil $key", $value, $seconds);
        else self::$own[$key] = $value;
    }

    /** Stores a value if the key has none, and returns if it did. */
    public static function add(string $key, mixed $value): bool {
        if (self::isEnabled()) return apcu_add("counterfoil $key", $value);
        $isNew = !isset(self::$own[$key]);
        self::$own[$key] ??= $value;
        return $isNew;
    }

    /** Replaces a number if no other request has replaced it, and returns if it did. */
    public static function replace(string $key, int $old, int $new): bool {
        if (self::isEnabled()) return apcu_cas("counterfoil $key", $old, $new);
        self::$own[$key] = $new;
        return true;
    }

    public static function delete(string $key): void {
        if (self::isEnabled()) apcu_delete("counterfoil $key");
        else unset(self::$own[$key]);
    }
}
