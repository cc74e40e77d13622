<?php

return [
    'defaults' => ['guard' => 'api'],
    'guards' => ['api' => ['driver' => 'token', 'provider' => 'users', 'hash' => false]],
    'providers' => ['users' => ['driver' => 'database', 'table' => 'users']],
];
