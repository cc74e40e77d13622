<?php

// Copies the scripts into the folder of the package, beside their SHA-1: build.php PACKAGE_DIR LUA_DIR

declare(strict_types=1);

[, $package, $lua] = $argv;
@mkdir("$package/lua");
$hashes = [];
foreach (glob("$lua/*.lua") as $file) {
    copy($file, "$package/lua/" . basename($file));
    $hashes[basename($file, '.lua')] = sha1_file($file);
}
file_put_contents("$package/lua/sha1.php", "<?php\n\nreturn " . var_export($hashes, true) . ";\n");
