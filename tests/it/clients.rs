//! Clients in other languages, as lua/README.md shows them, with the retries that their libraries make by themselves,
//! behind a proxy that loses requests and replies and delivers some late: they count exactly.
//!
//! `COUNTERFOIL_PYTHON` names a Python that has redis-py, `COUNTERFOIL_NODE_MODULES` a folder that holds ioredis; php has
//! phpredis or is left out. What is missing is skipped, and says so.

use std::path::Path;
use std::process::Command;

use crate::vectors::{client, lua, python, run};
use testkit::{RedisOptions, RedisServer};

/// Figures, and at the end whether they are right.
fn expect_passed(command: &mut Command) {
    let printed = run(command);
    println!("{printed}");
    assert_eq!(printed.lines().last(), Some("passed"), "{printed}");
}

#[tokio::test]
async fn python_of_the_documentation_counts_exactly() {
    let server = RedisServer::start(RedisOptions::volatile()).await;
    if let Some(mut python) = python() {
        expect_passed(python.arg(client("readme.py")).arg(server.socket()).arg(env!("CARGO_MANIFEST_DIR")));
    }
}

#[tokio::test]
async fn ioredis_counts_exactly() {
    let server = RedisServer::start(RedisOptions::volatile()).await;
    let Some(modules) = std::env::var_os("COUNTERFOIL_NODE_MODULES").filter(|path| Path::new(path).exists()) else {
        return eprintln!("COUNTERFOIL_NODE_MODULES is not set: the test in Node is skipped");
    };
    if let Some(mut python) = python() {
        let lossy = python.arg(client("lossy.py")).arg(server.socket()).arg(lua()).arg("node").arg(client("lossy.mjs"));
        expect_passed(lossy.env("NODE_PATH", modules));
    }
}

#[tokio::test]
async fn php_of_the_documentation_counts_exactly() {
    let server = RedisServer::start(RedisOptions::volatile()).await;
    let modules = Command::new("php").arg("-m").output();
    if !modules.is_ok_and(|modules| modules.stdout.split(|byte| *byte == b'\n').any(|name| name == b"redis")) {
        return eprintln!("there is no php with phpredis: its test is skipped");
    }
    if let Some(mut python) = python() {
        let lossy = python.arg(client("lossy.py")).arg(server.socket()).arg(lua());
        expect_passed(lossy.args(["php", "-d", "apc.enable_cli=1"]).arg(client("readme.php")));
    }
}
