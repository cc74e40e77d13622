//! Clients in other languages, as lua/README.md shows them, with their libraries' own retries. They
//! count exactly behind a proxy that loses requests and replies and delivers some late. Also the
//! statement and the comparison for exact values.
//!
//! `COUNTERFOIL_PYTHON` names a Python with redis-py, `COUNTERFOIL_NODE_MODULES` a folder that
//! contains ioredis; php needs phpredis. Tests of missing clients are skipped with a message.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use counterfoil::store::{Batch, BatchId, Incarnation, Nonce, Progress, Registered};
use counterfoil::{Family, MysqlStore, Store};
use redis::{Connection, FromRedisValue};
use sqlx::{AssertSqlSafe, MySqlPool, Row};
use testkit::{MysqlServer, RedisOptions, RedisServer};

use crate::vectors::{client, lua, python, run};

/// Runs a client, prints its figures, and expects that it passed.
fn expect_passed(command: &mut Command) {
    let printed = run(command);
    println!("{printed}");
    assert_eq!(printed.lines().last(), Some("passed"), "{printed}");
}

#[tokio::test]
async fn python_of_the_documentation_counts_exactly() {
    let server = RedisServer::start(RedisOptions::volatile()).await;
    if let Some(mut python) = python() {
        expect_passed(
            python
                .arg(client("readme.py"))
                .arg(server.socket())
                .arg(env!("CARGO_MANIFEST_DIR")),
        );
    }
}

#[tokio::test]
async fn ioredis_counts_exactly() {
    let server = RedisServer::start(RedisOptions::volatile()).await;
    let Some(modules) =
        std::env::var_os("COUNTERFOIL_NODE_MODULES").filter(|path| Path::new(path).exists())
    else {
        return eprintln!("COUNTERFOIL_NODE_MODULES is not set: the test in Node is skipped");
    };
    if let Some(mut python) = python() {
        let lossy = python
            .arg(client("lossy.py"))
            .arg(server.socket())
            .arg(lua())
            .arg("node")
            .arg(client("lossy.mjs"));
        expect_passed(lossy.env("NODE_PATH", modules));
    }
}

#[tokio::test]
async fn php_of_the_documentation_counts_exactly() {
    let server = RedisServer::start(RedisOptions::volatile()).await;
    let modules = Command::new("php").arg("-m").output();
    if !modules.is_ok_and(|modules| {
        modules
            .stdout
            .split(|byte| *byte == b'\n')
            .any(|name| name == b"redis")
    }) {
        return eprintln!("there is no php with phpredis: its test is skipped");
    }
    if let Some(mut python) = python() {
        let lossy = python
            .arg(client("lossy.py"))
            .arg(server.socket())
            .arg(lua());
        expect_passed(
            lossy
                .args(["php", "-d", "apc.enable_cli=1"])
                .arg(client("readme.php")),
        );
    }
}

const IDS: [&str; 3] = ["a", "b", "c"];

/// The reply of `buffered_read`, with the batch that it names.
struct Pending {
    id: [String; 3],
    in_flight: bool,
    /// The deltas of batch and buffer for each id.
    deltas: Vec<(i64, i64)>,
}

/// A client of one partition, with its scripts and the statement of lua/README.md.
struct Reader {
    redis: Connection,
    pool: MySqlPool,
    statement: String,
}

impl Reader {
    fn send<T: FromRedisValue>(&mut self, script: &str, names: &[&str], args: &[&str]) -> T {
        let source = fs::read_to_string(lua().join(format!("v1/{script}.lua"))).unwrap();
        let mut call = redis::cmd("EVAL");
        let keys: Vec<_> = names
            .iter()
            .map(|name| format!("cf1:{{shop/views/0}}:{name}"))
            .collect();
        call.arg(source).arg(keys.len()).arg(keys).arg(args);
        call.query(&mut self.redis).unwrap()
    }

    fn add(&mut self, delta: i64) {
        let (delta, keys) = (
            delta.to_string(),
            ["calls", "calls_before", "buffer", "meta"],
        );
        let pairs = IDS.map(|id| [id, &delta]).concat();
        let _: Vec<redis::Value> = self.send(
            "buffered_add",
            &keys,
            &[&["", "", "", "", "3", "3"], &pairs[..]].concat(),
        );
    }

    fn pending(&mut self) -> Pending {
        let words: Vec<String> = self.send("buffered_read", &["buffer", "batch", "meta"], &IDS);
        let deltas = words[5..]
            .chunks(2)
            .map(|pair| (pair[0].parse().unwrap(), pair[1].parse().unwrap()));
        Pending {
            id: [1, 2, 3].map(|i| words[i].clone()),
            in_flight: words[4] == "1",
            deltas: deltas.collect(),
        }
    }

    /// Returns the exact values by the table of lua/README.md, or the reason why there are none.
    async fn values(&self, pending: &Pending) -> Result<Vec<i128>, &'static str> {
        let number = |hex: &str| u64::from_str_radix(hex, 16).unwrap_or(0);
        let ([incarnation, seq, nonce], mut values) = (&pending.id, Vec::new());
        let seq: i64 = seq.parse().unwrap();
        for (id, &(batch_delta, buffer_delta)) in IDS.iter().zip(&pending.deltas) {
            let row = sqlx::query(AssertSqlSafe(self.statement.clone()))
                .bind(*id)
                .bind(0)
                .bind(number(incarnation))
                .bind("shop")
                .bind("views")
                .fetch_one(&self.pool)
                .await
                .unwrap();
            let (value, a): (i64, i64) = (row.get("value"), row.get("a"));
            let (of_ledger, position): (Option<u64>, Option<Vec<u8>>) =
                (row.get("nonce"), row.get("position"));
            let (value, batch, buffer) = (
                i128::from(value),
                i128::from(batch_delta),
                i128::from(buffer_delta),
            );
            values.push(match position {
                _ if a > seq => return Err("again"),
                _ if a == seq && a != 0 && of_ledger != Some(number(nonce)) => {
                    return Err("set back");
                }
                None if a == seq => value + buffer,
                Some(position)
                    if a == seq && pending.in_flight && id.as_bytes() <= &position[..] =>
                {
                    value + buffer
                }
                Some(_) if a == seq && pending.in_flight => value + batch + buffer,
                None if a == seq - 1 && pending.in_flight => value + batch + buffer,
                _ => return Err("behind"),
            });
        }
        Ok(values)
    }

    async fn expect(&mut self, sum: i128) -> Pending {
        let pending = self.pending();
        assert_eq!(
            self.values(&pending).await,
            Ok(vec![sum; IDS.len()]),
            "{:?}",
            pending.id
        );
        pending
    }

    fn cut(&mut self, family: &Arc<Registered>, delta: i64) -> Arc<Batch> {
        let keys = ["buffer", "batch", "meta"];
        let words: Vec<String> = self.send(
            "buffered_rotate",
            &keys,
            &[&delta.to_string(), "", "0", "0", "0", ""],
        );
        assert_eq!(words[0], "OK");
        let hex = |word: &str| u64::from_str_radix(word, 16).unwrap();
        let (incarnation, nonce) = (Incarnation(hex(&words[1])), Nonce(hex(&words[3])));
        let id = BatchId {
            incarnation,
            seq: words[2].parse().unwrap(),
            nonce,
        };
        let deltas = IDS.map(|id| (id.into(), delta)).into();
        Arc::new(Batch {
            family: family.clone(),
            partition: 0,
            id,
            deltas,
        })
    }
}

#[tokio::test]
async fn the_documented_statement_reads_the_exact_value_at_every_moment() {
    let (server, mysql) = (
        RedisServer::start(RedisOptions::volatile()).await,
        MysqlServer::start().await,
    );
    let (_, pool) = mysql.database("clients").await;
    let store = MysqlStore::new(pool.clone());
    store.create_tables().await.unwrap();
    let family = Family::buffered("shop", "views")
        .partitions(1)
        .build()
        .unwrap()
        .clone();
    let family = Arc::new(Registered {
        number: store.register(&family).await.unwrap(),
        family,
    });

    let readme = fs::read_to_string(lua().join("README.md")).unwrap();
    let mut statement = readme
        .split("```sql\n")
        .nth(1)
        .unwrap()
        .split("```")
        .next()
        .unwrap()
        .to_owned();
    for name in [":id", ":partition", ":incarnation", ":namespace", ":name"] {
        statement = statement.replacen(name, "?", 1);
    }
    let statement = format!(
        "SELECT value, CAST(a AS SIGNED) AS a, nonce, position FROM ({statement}) AS readme"
    );
    let mut reader = Reader {
        redis: server.client().get_connection().unwrap(),
        pool,
        statement,
    };
    let settings = family.family.settings();
    let _: Vec<String> = reader.send(
        "family_configure",
        &["calls", "meta"],
        &["salt", "", "buffered", "1", "1000", &settings],
    );

    reader.expect(0).await;
    reader.add(5);
    let before = reader.expect(5).await;
    let batch = reader.cut(&family, 5);
    reader.add(2);
    let cut = reader.expect(7).await;
    for left in [2, 1] {
        let applied = store
            .apply(std::slice::from_ref(&batch), Some(1))
            .await
            .unwrap();
        assert_eq!(applied.progress, [Progress::Partial { left }]);
        reader.expect(7).await;
    }
    assert_eq!(
        store.apply(&[batch], Some(1)).await.unwrap().progress,
        [Progress::Complete]
    );
    reader.expect(7).await;
    let id = cut.id.each_ref().map(String::as_str);
    let _: Vec<String> = reader.send("buffered_release", &["batch", "meta"], &id);
    reader.expect(7).await;

    let batch = reader.cut(&family, 2);
    let newer = reader.expect(7).await;
    store.apply(&[batch], None).await.unwrap();
    reader.expect(7).await;
    for stale in [&before, &cut] {
        assert_eq!(reader.values(stale).await, Err("again"));
    }
    // sets Redis back to before the second cut, and cuts again
    let _: Vec<String> = reader.send(
        "buffered_release",
        &["batch", "meta"],
        &newer.id.each_ref().map(String::as_str),
    );
    let [_, _, first_nonce] = id;
    redis::cmd("HSET")
        .arg("cf1:{shop/views/0}:meta")
        .arg(&["seq", "1", "nonce", first_nonce])
        .exec(&mut reader.redis)
        .unwrap();
    let reverted = reader.pending();
    assert_eq!(reader.values(&reverted).await, Err("again"));
    reader.add(1);
    reader.cut(&family, 1);
    let reverted = reader.pending();
    assert_eq!(reader.values(&reverted).await, Err("set back"));
    // a copy of the database from before the second batch
    let behind = Pending {
        id: [newer.id[0].clone(), "4".to_owned(), String::new()],
        ..newer
    };
    assert_eq!(reader.values(&behind).await, Err("behind"));
}
