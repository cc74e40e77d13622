<?php

// Only what differs from the package's configuration.
return [
    'namespace' => 'shop',
    'bots' => [App\Visitors::class, 'isCrawler'],  // or "composer require jaybizzle/crawler-detect"
    'visitor' => [App\Visitors::class, 'name'],
];
