<?php

// WordPress shows this page if it cannot connect to MySQL: nothing was counted.

http_response_code(503);
header('Content-Type: application/json');
header('Retry-After: 1');
echo '{"error":"not_counted"}';
