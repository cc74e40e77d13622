<?php

declare(strict_types=1);

namespace Counterfoil\Internal;

/** The scripts that run in Redis, as build.php copies them. */
final class Scripts
{
    public const FOLDER = __DIR__ . '/../../lua';

    public static function sha1(string $name): string
    {
        static $hashes = null;
        $hashes ??= require self::FOLDER . '/sha1.php';
        return $hashes[$name];
    }

    public static function source(string $name): string
    {
        return file_get_contents(self::FOLDER . "/$name.lua");
    }
}
