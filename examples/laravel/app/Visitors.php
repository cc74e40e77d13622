<?php

namespace App;

use Illuminate\Http\Request;

final class Visitors {
    public static function isCrawler(string $userAgent): bool {
        return preg_match('/bot|crawl|spider|slurp|preview/i', $userAgent) === 1;
    }

    /** The test names the visitors. */
    public static function name(Request $request): string {
        return (string) $request->header('X-Visitor');
    }
}
