<?php

return [
    'redis' => env('COUNTERFOIL_REDIS', 'redis://localhost'),
    'daemon' => env('COUNTERFOIL_DAEMON', 'http://127.0.0.1:9292'),
    'token' => env('COUNTERFOIL_TOKEN'),
    'namespace' => env('COUNTERFOIL_NAMESPACE', 'laravel'),

    // Whether crawlers count. They are detected by jaybizzle/crawler-detect, or by [SomeClass::class, 'method'], which gets the
    // User-Agent and returns if it is a crawler's.
    'bots' => false,

    // Whether staff count: users whom the ability "staff" of the Gate allows.
    'staff' => false,

    // [SomeClass::class, 'method'], which gets the request and returns the name of its visitor. By default a keyed hash of the
    // address and the User-Agent; no cookie is set.
    'visitor' => null,
];
