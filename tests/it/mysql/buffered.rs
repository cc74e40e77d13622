//! MysqlStore against a real server: exactness, refused rows, refused tables and concurrency.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use counterfoil::admin::{Reject, Severity};
use counterfoil::store::{
    Applied, Batch, BatchId, Incarnation, LedgerRow, Mark, Nonce, Progress, ReadFrom, Registered,
};
use counterfoil::test_hooks::{Guard, take_out};
use counterfoil::{
    BufferedCounters, Durability, ErrorKind, Family, FamilyBuilder, KeyType, MysqlStore, Result,
    Store, Table,
};
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions, MySqlRow};
use sqlx::{AssertSqlSafe, MySqlPool, Row};
use testkit::MysqlServer;
use tokio::sync::OnceCell;

static SERVER: OnceCell<MysqlServer> = OnceCell::const_new();

pub const I1: Incarnation = Incarnation(u64::MAX);

/// A test's own database with counterfoil's tables.
pub struct Db {
    pub name: String,
    pub pool: MySqlPool,
    pub store: MysqlStore,
    pub mariadb: bool,
}

impl Db {
    pub async fn new() -> Self {
        let (name, pool) = SERVER
            .get_or_init(MysqlServer::start)
            .await
            .database("store")
            .await;
        let store = MysqlStore::new(pool.clone());
        store.create_tables().await.expect("created");
        let version: String = sqlx::query_scalar("SELECT VERSION()")
            .fetch_one(&pool)
            .await
            .expect("version");
        Db {
            name,
            pool,
            store,
            mariadb: version.contains("MariaDB"),
        }
    }

    pub async fn run(&self, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
            .execute(&self.pool)
            .await
            .unwrap_or_else(|e| panic!("{sql}: {e}"));
    }

    pub async fn number(&self, sql: &str) -> i64 {
        let sql = format!("SELECT CAST(({sql}) AS SIGNED)");
        let query = sqlx::query_scalar::<_, Option<i64>>(AssertSqlSafe(sql.clone()));
        query
            .fetch_one(&self.pool)
            .await
            .unwrap_or_else(|e| panic!("{sql}: {e}"))
            .unwrap_or_else(|| panic!("{sql}: none"))
    }

    /// Returns the collation that compares texts byte by byte.
    pub fn exact(&self) -> &'static str {
        if self.mariadb {
            "utf8mb4_nopad_bin"
        } else {
            "utf8mb4_0900_bin"
        }
    }

    pub async fn family(&self, builder: FamilyBuilder<BufferedCounters>) -> Arc<Registered> {
        let family = builder.build().expect("valid").clone();
        let number = self.store.register(&family).await.expect("registered");
        Arc::new(Registered { family, number })
    }

    pub async fn table(&self, name: &str, table: Table) -> Arc<Registered> {
        self.family(Family::buffered("shop", name).table(table))
            .await
    }

    pub async fn values(&self, family: &Registered, ids: &[&str]) -> Vec<Option<i64>> {
        self.store
            .read(family, ids, &[], ReadFrom::Primary)
            .await
            .expect("read")
            .values
    }

    pub async fn rejects(&self) -> Vec<Reject> {
        self.store.rejects(0, 100_000).await.expect("rejects")
    }

    pub async fn apply(&self, batches: &[Arc<Batch>]) -> Sums {
        complete(&self.store, batches, None).await.expect("applied")
    }

    pub async fn mismatch(&self, builder: FamilyBuilder<BufferedCounters>) -> String {
        let error = self
            .store
            .register(&builder.build().expect("valid"))
            .await
            .expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        format!("{error:#}")
    }
}

pub fn batch(
    family: &Arc<Registered>,
    partition: u32,
    seq: u64,
    deltas: &[(&str, i64)],
) -> Arc<Batch> {
    let id = BatchId {
        incarnation: I1,
        seq,
        nonce: Nonce(u64::MAX - seq),
    };
    let mut deltas: Vec<_> = deltas
        .iter()
        .map(|&(id, delta)| (id.as_bytes().to_vec(), delta))
        .collect();
    deltas.sort();
    Arc::new(Batch {
        family: family.clone(),
        partition,
        id,
        deltas,
    })
}

/// Returns the batch with another nonce, as cut by a Redis that was set back.
fn other_cut(batch: &Batch) -> Arc<Batch> {
    let id = BatchId {
        nonce: Nonce(0),
        ..batch.id
    };
    Arc::new(Batch {
        id,
        ..batch.clone()
    })
}

/// The outcomes of batches, and the number of changed rows.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Sums {
    complete: u64,
    pub repeated: u64,
    set_back: u64,
    rows: u64,
    pub rejected: u64,
}

pub fn applied(complete: u64, repeated: u64, rows: u64, rejected: u64) -> Sums {
    Sums {
        complete,
        repeated,
        set_back: 0,
        rows,
        rejected,
    }
}

/// Applies the batches part by part, as a worker does, until each of them has ended.
pub async fn complete(
    store: &impl Store,
    batches: &[Arc<Batch>],
    max_rows: Option<u64>,
) -> Result<Sums> {
    let (mut left, mut sums) = (batches.to_vec(), Sums::default());
    while !left.is_empty() {
        let Applied {
            progress,
            rows,
            rejected,
        } = store.apply(&left, max_rows).await?;
        (sums.rows, sums.rejected) = (sums.rows + rows, sums.rejected + rejected);
        let mut partial = Vec::new();
        for (batch, progress) in left.into_iter().zip(progress) {
            match progress {
                Progress::Complete => sums.complete += 1,
                Progress::Repeated => sums.repeated += 1,
                Progress::SetBack => sums.set_back += 1,
                Progress::Partial { .. } => partial.push(batch),
            }
        }
        left = partial;
    }
    Ok(sums)
}

fn views() -> FamilyBuilder<BufferedCounters> {
    Family::buffered("shop", "views")
}

// ----------------------------------------------------------------------------------------------------
// exactly once

#[tokio::test]
async fn a_batch_counts_once_however_often_it_comes() {
    let db = Db::new().await;
    let views = db.family(views()).await;
    let first = [
        batch(&views, 0, 1, &[("a", 5), ("b", -2)]),
        batch(&views, 1, 1, &[("c", 1)]),
    ];
    assert_eq!(db.apply(&first).await, applied(2, 0, 3, 0));
    assert_eq!(db.apply(&first).await, applied(0, 2, 0, 0));
    assert_eq!(
        db.apply(&[batch(&views, 0, 2, &[("a", 1)]), first[1].clone()])
            .await,
        applied(1, 1, 1, 0)
    );
    let twice = batch(&views, 0, 3, &[("a", 1)]);
    assert_eq!(
        db.apply(&[twice.clone(), twice.clone()]).await,
        applied(1, 1, 1, 0),
        "twice in one call"
    );
    for behind in [first[0].clone(), other_cut(&twice)] {
        assert_eq!(
            db.apply(&[behind]).await,
            Sums {
                set_back: 1,
                ..Sums::default()
            }
        );
    }
    assert_eq!(
        db.values(&views, &["a", "b", "c", "d"]).await,
        [Some(7), Some(-2), Some(1), None]
    );

    // a new incarnation starts at seq 1 again
    let again = batch(&views, 0, 1, &[("a", 100)]);
    let id = BatchId {
        incarnation: Incarnation(0),
        ..again.id
    };
    assert_eq!(
        db.apply(&[Arc::new(Batch {
            id,
            ..(*again).clone()
        })])
        .await,
        applied(1, 0, 1, 0)
    );
    assert_eq!(db.values(&views, &["a"]).await, [Some(107)]);
    assert_eq!(
        db.store.apply(&[], None).await.expect("nothing to do"),
        Applied::default()
    );
}

/// Checks the contract of a store: parts, marks and set-backs.
pub async fn keeps_the_contract(store: &impl Store, family: &Arc<Registered>) {
    let mut one = batch(family, 0, 1, &[("1", 1), ("2", 2), ("3", 3)]);
    // a client in another language can count such an id
    Arc::make_mut(&mut one).deltas.push((b"\xff".to_vec(), 9));
    let two = batch(family, 1, 1, &[("1", 10), ("4", 40)]);
    let both = [two.clone(), one.clone()];
    let apply = async |batches: &[Arc<Batch>], max_rows| {
        store.apply(batches, max_rows).await.expect("applied")
    };
    let mark = |partition, seq, position: Option<&[u8]>| LedgerRow {
        family: family.number,
        partition,
        incarnation: I1,
        mark: Mark {
            seq,
            nonce: Nonce(u64::MAX - seq),
            position: position.map(<[u8]>::to_vec),
        },
    };
    let marks = async || {
        let mut rows = store
            .ledger(&[family.number, family.number, u64::from(u32::MAX)])
            .await
            .expect("the ledger");
        rows.sort_by_key(|row| row.partition);
        rows
    };

    // parts follow the order of the ledger, not the order of the arguments
    let progress = vec![Progress::Partial { left: 2 }, Progress::Partial { left: 1 }];
    assert_eq!(
        apply(&both, Some(3)).await,
        Applied {
            progress,
            rows: 3,
            rejected: 0
        }
    );
    assert_eq!(marks().await, [mark(0, 1, Some(b"3"))]);
    let ledger = [(1, I1), (0, I1), (0, Incarnation(1))];
    for ids in [&["2"][..], &["2", "4"]] {
        let read = store
            .read(family, ids, &ledger, ReadFrom::Primary)
            .await
            .expect("read");
        assert_eq!(read.values, [Some(2), None][..ids.len()]);
        assert_eq!(
            read.ledger,
            [
                Mark::default(),
                mark(0, 1, Some(b"3")).mark,
                Mark::default()
            ]
        );
    }
    let progress = vec![Progress::Complete; 2];
    assert_eq!(
        apply(&both, None).await,
        Applied {
            progress,
            rows: 2,
            rejected: 1
        },
        "only the rest"
    );
    let progress = vec![Progress::Repeated; 2];
    assert_eq!(
        apply(&both, None).await,
        Applied {
            progress,
            rows: 0,
            rejected: 0
        }
    );
    assert_eq!(marks().await, [mark(0, 1, None), mark(1, 1, None)]);
    assert_eq!(
        store.rows(family, &["4", "9", "1"]).await.expect("rows"),
        [Some(40), None, Some(11)]
    );

    // a batch that proves a set-back changes nothing and does not hold up the other batches
    let next = batch(family, 0, 2, &[("1", -1), ("2", -1)]);
    let progress = vec![Progress::SetBack, Progress::Partial { left: 1 }];
    assert_eq!(
        apply(&[other_cut(&two), next.clone()], Some(1)).await,
        Applied {
            progress,
            rows: 1,
            rejected: 0
        }
    );
    for behind in [other_cut(&next), one, batch(family, 0, 3, &[("1", 1)])] {
        let progress = vec![Progress::SetBack];
        assert_eq!(
            apply(&[behind], None).await,
            Applied {
                progress,
                rows: 0,
                rejected: 0
            },
            "while a batch is partial"
        );
    }
    assert_eq!(marks().await, [mark(0, 2, Some(b"1")), mark(1, 1, None)]);
    assert_eq!(apply(&[next], None).await.progress, [Progress::Complete]);
    assert_eq!(
        store.rows(family, &["1", "2"]).await.expect("rows"),
        [Some(10), Some(1)]
    );

    for (seq, guard) in [
        (10, Guard::Ledger),
        (20, Guard::Position),
        (30, Guard::Nonce),
    ] {
        let cut = batch(family, 9, seq, &[("5", 1), ("6", 1)]);
        assert_eq!(
            apply(std::slice::from_ref(&cut), Some(1)).await.progress,
            [Progress::Partial { left: 1 }]
        );
        let again = if guard == Guard::Nonce {
            other_cut(&cut)
        } else {
            cut
        };
        let before = store.rows(family, &["5", "6"]).await.expect("rows");
        take_out(Some(guard));
        let progress = apply(&[again], None).await.progress;
        take_out(None);
        let after = store.rows(family, &["5", "6"]).await.expect("rows");
        let added = |at: usize| after[at].unwrap_or(0) - before[at].unwrap_or(0);
        let is_doubled = guard != Guard::Nonce;
        assert_eq!(
            (progress, added(0), added(1)),
            (vec![Progress::Complete], i64::from(is_doubled), 1),
            "{guard:?}"
        );
    }
}

#[tokio::test]
async fn the_contract_of_a_store_is_kept() {
    let db = Db::new().await;
    keeps_the_contract(&db.store, &db.family(views()).await).await;
    db.run("CREATE TABLE t (id BIGINT UNSIGNED PRIMARY KEY, n INT NOT NULL)")
        .await;
    let table = Table::upsert("t").key("id", KeyType::Unsigned).value("n");
    keeps_the_contract(&db.store, &db.table("t", table).await).await;
    let rejects = db.rejects().await;
    assert!(
        rejects.len() == 2
            && rejects
                .iter()
                .all(|reject| reject.delta == 9 && reject.seq == 1),
        "{rejects:?}"
    );
}

/// By default a transaction writes 500 rows of an application's table, or 10,000 rows of
/// counterfoil's own.
#[tokio::test]
async fn a_part_is_short() {
    let db = Db::new().await;
    db.run("CREATE TABLE t (id INT PRIMARY KEY, n INT NOT NULL)")
        .await;
    let table = db
        .table(
            "t",
            Table::upsert("t").key("id", KeyType::Signed).value("n"),
        )
        .await;
    let own = db.family(views()).await;
    let ids: Vec<_> = (0..10_100).map(|id| id.to_string()).collect();
    let deltas: Vec<_> = ids.iter().map(|id| (id.as_str(), 1)).collect();
    for (family, rows) in [(&table, 500), (&own, 10_000)] {
        let applied = db
            .store
            .apply(&[batch(family, 0, 1, &deltas)], None)
            .await
            .expect("applied");
        let left = deltas.len() as u64 - rows;
        assert_eq!(
            applied,
            Applied {
                progress: vec![Progress::Partial { left }],
                rows,
                rejected: 0
            }
        );
    }
    let few = [
        batch(&own, 1, 1, &deltas[..300]),
        batch(&table, 1, 1, &deltas[..300]),
    ];
    let progress = vec![Progress::Partial { left: 100 }, Progress::Complete];
    let shared = db.store.apply(&few, None).await.expect("applied");
    assert_eq!(
        shared,
        Applied {
            progress,
            rows: 500,
            rejected: 0
        },
        "small batches share a transaction"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_batches_from_many_hands_count_once() {
    let db = Db::new().await;
    let own = db.family(views()).await;
    db.run("CREATE TABLE t (id BIGINT UNSIGNED PRIMARY KEY, n BIGINT NOT NULL)")
        .await;
    let other = db
        .table(
            "t",
            Table::upsert("t").key("id", KeyType::Unsigned).value("n"),
        )
        .await;
    let ids: Vec<_> = (0..200).map(|id| id.to_string()).collect();
    let deltas: Vec<_> = ids.iter().map(|id| (id.as_str(), 1)).collect();
    for seq in 1..=5 {
        let batches: Vec<_> = (0..8)
            .flat_map(|partition| {
                [&own, &other].map(|family| batch(family, partition, seq, &deltas))
            })
            .collect();
        let hands = (0..8).map(|hand| {
            let (store, mut batches) = (db.store.clone(), batches.clone());
            if hand % 2 == 1 {
                batches.reverse();
            }
            // in parts, so that the tasks alternate on each batch
            tokio::spawn(async move { complete(&store, &batches, Some(700)).await })
        });
        let mut rows = 0;
        for hand in hands.collect::<Vec<_>>() {
            let sums = hand.await.expect("no panic").expect("applied");
            assert_eq!((sums.complete + sums.repeated, sums.set_back), (16, 0));
            rows += sums.rows;
        }
        assert_eq!(rows, 16 * 200);
    }
    assert_eq!(
        db.number("SELECT SUM(value = 40) FROM counterfoil_values")
            .await,
        200
    );
    assert_eq!(db.number("SELECT SUM(n = 40) FROM t").await, 200);
}

/// Two transactions lock two rows in opposite orders. The server aborts one of them, and its retry
/// succeeds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadlock_is_tried_again() {
    let db = Db::new().await;
    let views = db.family(views()).await;
    let ids: Vec<_> = (0..500).map(|id| format!("other-{id}")).collect();
    let deltas: Vec<_> = ids.iter().map(|id| (id.as_str(), 0)).collect();
    let others = db.family(Family::buffered("shop", "others")).await;
    db.apply(&[
        batch(&views, 0, 1, &[("a", 0), ("b", 0)]),
        batch(&others, 0, 1, &deltas),
    ])
    .await;
    for round in 0..3 {
        // READ COMMITTED keeps locks only on changed rows, even when it scans the whole table
        let begin = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION";
        let mut other = db.pool.begin_with(begin).await.expect("begun");
        let touch = |id| {
            let text =
                "UPDATE counterfoil_values SET value = value + 1 WHERE family = ? AND id = ?";
            sqlx::query(text).bind(views.number).bind(id)
        };
        // the server aborts the transaction that has changed fewer rows
        let heavy = sqlx::query("UPDATE counterfoil_values SET value = value + 1 WHERE family = ?");
        heavy
            .bind(others.number)
            .execute(&mut *other)
            .await
            .expect("heavy");
        touch("b").execute(&mut *other).await.expect("locked");
        let before = db.store.statements();
        let batches = [batch(&views, 0, 2 + round, &[("a", 1), ("b", 1)])];
        let store = db.store.clone();
        let apply = tokio::spawn(async move { complete(&store, &batches, None).await });
        tokio::time::sleep(Duration::from_millis(200)).await;
        // the store has locked "a" and waits for "b"
        touch("a")
            .execute(&mut *other)
            .await
            .expect("not the one given up");
        other.rollback().await.expect("rolled back");
        assert_eq!(
            apply.await.expect("no panic").expect("applied"),
            applied(1, 0, 2, 0)
        );
        assert!(
            db.store.statements() - before > 8,
            "it went through at once"
        );
    }
    assert_eq!(db.values(&views, &["a", "b"]).await, [Some(3), Some(3)]);
}

#[tokio::test]
async fn a_lock_that_is_not_released_is_a_retryable_error() {
    let db = Db::new().await;
    let options: MySqlConnectOptions = (*db.pool.connect_options()).clone();
    let pool = MySqlPoolOptions::new()
        .max_connections(1)
        .after_connect(|connection, _| {
            Box::pin(async move {
                sqlx::raw_sql("SET SESSION innodb_lock_wait_timeout = 1")
                    .execute(connection)
                    .await
                    .map(drop)
            })
        })
        .connect_with(options)
        .await
        .expect("connected");
    let views = db.family(views()).await;
    let store = MysqlStore::new(pool);
    let mut other = db.pool.begin().await.expect("begun");
    sqlx::query("INSERT INTO counterfoil_values VALUES (?, 'a', 1)")
        .bind(views.number)
        .execute(&mut *other)
        .await
        .expect("inserted");
    let batches = [batch(&views, 0, 1, &[("a", 1)])];
    let error = store.apply(&batches, None).await.expect_err("locked");
    assert!(
        error.kind() == ErrorKind::Store && error.is_retryable(),
        "{error}"
    );
    assert!(std::error::Error::source(&error).is_some());
    other.commit().await.expect("committed");
    assert_eq!(
        complete(&store, &batches, None).await.expect("applied"),
        applied(1, 0, 1, 0),
        "nothing was kept of the first attempt"
    );
    assert_eq!(db.values(&views, &["a"]).await, [Some(2)]);
}

#[tokio::test]
async fn a_connection_cut_keeps_nothing() {
    let db = Db::new().await;
    let views = db.family(views()).await;
    let mut other = db.pool.begin().await.expect("begun");
    let insert = "INSERT INTO counterfoil_values VALUES (?, 'a', 1)";
    sqlx::query(insert)
        .bind(views.number)
        .execute(&mut *other)
        .await
        .expect("inserted");
    let batches = [batch(&views, 0, 1, &[("a", 1)])];
    let apply = tokio::spawn({
        let (store, batches) = (db.store.clone(), batches.clone());
        async move { store.apply(&batches, None).await }
    });
    let waiting = loop {
        let rows = sqlx::query("SHOW FULL PROCESSLIST")
            .fetch_all(&db.pool)
            .await
            .expect("processes");
        let ours = |row: &&MySqlRow| {
            let text = |index: usize| row.get::<Option<String>, _>(index).unwrap_or_default();
            text(3) == db.name && text(7).starts_with("INSERT INTO `counterfoil_values`")
        };
        if let Some(row) = rows.iter().find(ours) {
            break row.try_get_unchecked::<u64, _>(0).expect("an id");
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    db.run(&format!("KILL {waiting}")).await;
    let error = apply.await.expect("no panic").expect_err("cut");
    assert!(
        error.kind() == ErrorKind::Store && error.is_retryable(),
        "{error}"
    );
    other.commit().await.expect("committed");
    assert_eq!(db.apply(&batches).await, applied(1, 0, 1, 0));
    assert_eq!(db.values(&views, &["a"]).await, [Some(2)]);
}

#[tokio::test]
async fn a_dropped_future_does_not_stop_its_transaction() {
    let db = Db::new().await;
    let views = db.family(views()).await;
    let mut expected = 0;
    for seq in 1..=40 {
        let batches = [batch(&views, 0, seq, &[("a", 1)])];
        let cut = tokio::time::timeout(
            Duration::from_micros(50 * seq),
            db.store.apply(&batches, None),
        )
        .await;
        drop(cut);
        let (ids, ledger) = (["a"], [(0, I1)]);
        let read = db.store.read(&views, &ids, &ledger, ReadFrom::Primary);
        drop(tokio::time::timeout(Duration::from_micros(20 * seq), read).await);
        // as the reconciler does: repeats the same batch until there is a reply
        db.apply(&batches).await;
        expected += 1;
    }
    assert_eq!(db.values(&views, &["a"]).await, [Some(expected)]);
}

#[tokio::test]
async fn a_transaction_takes_few_statements() {
    let db = Db::new().await;
    let views = db.family(views()).await;
    let ids: Vec<_> = (0..1000).map(|id| format!("product-{id}")).collect();
    let deltas: Vec<_> = ids.iter().map(|id| (id.as_str(), 1)).collect();
    let before = db.store.statements();
    db.apply(
        &(0..8)
            .map(|partition| batch(&views, partition, 1, &deltas))
            .collect::<Vec<_>>(),
    )
    .await;
    // three to begin, two for the ledger, one for the values, two to commit; five round trips
    assert_eq!(db.store.statements() - before, 8);
}

// ------------------------------------------------------------------------------------------------------
// odd values

const ODD: [&str; 14] = [
    "a",
    "A",
    "a ",
    " a",
    "ä",
    "a\u{308}",
    "a\0",
    "\0",
    "'",
    "\"",
    "\\",
    "😀",
    "\u{10ffff}",
    "%_`; -- \n",
];

#[tokio::test]
async fn every_id_arrives_byte_by_byte() {
    let db = Db::new().await;
    db.run(&format!(
        "CREATE TABLE bytes (k VARBINARY(255) PRIMARY KEY, n BIGINT NOT NULL);
         CREATE TABLE chars (k VARCHAR(255) CHARACTER SET utf8mb4 COLLATE {} PRIMARY KEY, n BIGINT NOT NULL);
         CREATE TABLE two (a VARBINARY(255), b VARBINARY(255), n BIGINT NOT NULL, PRIMARY KEY (a, b))",
        db.exact()
    ))
    .await;
    let text = |name: &str| Table::upsert(name).key("k", KeyType::Text).value("n");
    let two = Table::upsert("two")
        .key("a", KeyType::Text)
        .key("b", KeyType::Text)
        .value("n")
        .separator('é');
    let families = [
        db.family(views()).await,
        db.table("bytes", text("bytes")).await,
        db.table("chars", text("chars")).await,
        db.table(
            "bytes_update",
            Table::update("bytes").key("k", KeyType::Text).value("n"),
        )
        .await,
        db.table(
            "chars_update",
            Table::update("chars").key("k", KeyType::Text).value("n"),
        )
        .await,
        db.table("two", two).await,
    ];
    let long = "é".repeat(127);
    for (index, family) in families.iter().enumerate() {
        let pair = |id: &str| {
            if index == 5 {
                format!("{id}é{id}é")
            } else {
                id.to_owned()
            }
        };
        let ids: Vec<_> = ODD
            .iter()
            .copied()
            .chain((index != 5).then_some(long.as_str()))
            .map(pair)
            .collect();
        let ids: Vec<_> = ids.iter().map(String::as_str).collect();
        let deltas: Vec<_> = ids
            .iter()
            .zip(1..)
            .map(|(&id, delta)| (id, delta))
            .collect();
        assert_eq!(
            db.apply(&[batch(family, 0, 1, &deltas)]).await,
            applied(1, 0, ids.len() as u64, 0),
            "{index}"
        );
        let expected: Vec<_> = (1..=ids.len() as i64)
            .map(|value| {
                Some(if (3..5).contains(&index) {
                    2 * value
                } else {
                    value
                })
            })
            .collect();
        assert_eq!(db.values(family, &ids).await, expected, "{index}");
        let mut sorted: Vec<_> = ids.iter().map(|id| id.to_string()).collect();
        sorted.sort();
        let listed = db.store.list(family, "", None, 100).await.expect("listed");
        assert_eq!(
            listed.into_iter().map(|(id, _)| id).collect::<Vec<_>>(),
            sorted,
            "{index}"
        );
    }
    assert_eq!(db.rejects().await, []);
}

#[tokio::test]
async fn both_ends_of_the_range_are_exact() {
    let db = Db::new().await;
    let views = db.family(views().wide(true)).await;
    db.apply(&[batch(
        &views,
        0,
        1,
        &[
            ("max", i64::MAX),
            ("min", i64::MIN),
            ("big", (1 << 53) + 1),
            ("zero", 0),
        ],
    )])
    .await;
    db.apply(&[batch(
        &views,
        1,
        1,
        &[("max", i64::MIN), ("min", i64::MAX), ("big", 2)],
    )])
    .await;
    assert_eq!(
        db.values(&views, &["max", "min", "big", "zero"]).await,
        [Some(-1), Some(-1), Some((1 << 53) + 3), Some(0)]
    );
    assert_eq!(db.rejects().await, []);
}

#[tokio::test]
async fn keys_of_every_type_find_their_row() {
    let db = Db::new().await;
    db.run(
        "CREATE TABLE visitors (store_id BIGINT UNSIGNED, delta_col INT, day DATE, count INT NOT NULL DEFAULT 0, \
         PRIMARY KEY (day, store_id, delta_col))",
    )
    .await;
    let table = |table: Table| {
        table
            .key("store_id", KeyType::Unsigned)
            .key("delta_col", KeyType::Signed)
            .key("day", KeyType::Date)
            .value("count")
    };
    let ids = [
        "0/-1/2014-09-20",
        "18446744073709551615/2147483647/9999-12-31",
        "7/-2147483648/1000-01-01",
    ];
    let deltas: Vec<_> = ids
        .iter()
        .zip(1..)
        .map(|(&id, delta)| (id, delta))
        .collect();
    for (name, verb) in [
        ("upsert", Table::upsert("visitors")),
        ("update", Table::update(format!("{}.visitors", db.name))),
    ] {
        let family = db.table(name, table(verb)).await;
        assert_eq!(
            db.apply(&[batch(&family, 0, 1, &deltas)]).await,
            applied(1, 0, 3, 0)
        );
        let values = db
            .values(
                &family,
                &[ids[2], "07/1/2014-09-20", ids[0], ids[1], ids[0], "no", ""],
            )
            .await;
        let times = if name == "update" { 2 } else { 1 };
        assert_eq!(
            values,
            [
                Some(3 * times),
                None,
                Some(times),
                Some(2 * times),
                Some(times),
                None,
                None
            ]
        );
    }
}

#[tokio::test]
async fn a_session_of_any_mode_counts_the_same_and_is_left_alone() {
    let db = Db::new().await;
    db.run("CREATE TABLE small (id INT AUTO_INCREMENT PRIMARY KEY, n TINYINT NOT NULL)")
        .await;
    let options: MySqlConnectOptions = (*db.pool.connect_options()).clone();
    let pool = MySqlPoolOptions::new()
        .max_connections(1)
        .after_connect(|connection, _| {
            Box::pin(async move {
                let odd = "SET SESSION sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PAD_CHAR_TO_FULL_LENGTH,IGNORE_SPACE', \
                           SESSION sql_safe_updates = 1; SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE; \
                           SET NAMES latin1";
                sqlx::raw_sql(odd).execute(connection).await.map(drop)
            })
        })
        .connect_with(options)
        .await
        .expect("connected");
    let modes = "SELECT CONCAT(@@sql_mode, @@sql_safe_updates)";
    let before: String = sqlx::query_scalar(modes)
        .fetch_one(&pool)
        .await
        .expect("modes");
    let odd = Db {
        pool: pool.clone(),
        store: MysqlStore::new(pool.clone()),
        name: db.name.clone(),
        mariadb: db.mariadb,
    };

    let family = odd
        .table(
            "small",
            Table::upsert("small")
                .key("id", KeyType::Unsigned)
                .value("n"),
        )
        .await;
    assert_eq!(
        odd.apply(&[batch(&family, 0, 1, &[("0", 1), ("1", 200), ("2", 127)])])
            .await,
        applied(1, 0, 2, 1)
    );
    assert_eq!(
        odd.values(&family, &["0", "1", "2"]).await,
        [Some(1), None, Some(127)],
        "0 is 0, 200 is not clipped"
    );
    let update = odd
        .table(
            "update",
            Table::update("small")
                .key("id", KeyType::Unsigned)
                .value("n"),
        )
        .await;
    assert_eq!(
        odd.apply(&[batch(&update, 0, 1, &[("0", 1), ("1", 1), ("2", 1)])])
            .await,
        applied(1, 0, 1, 2)
    );
    assert_eq!(
        odd.values(&update, &["0", "1", "2"]).await,
        [Some(2), None, Some(127)]
    );
    let views = odd.family(views()).await;
    odd.apply(&[batch(&views, 0, 1, &[("😀'\"\\", 1)])]).await;
    assert_eq!(odd.values(&views, &["😀'\"\\"]).await, [Some(1)]);
    assert_eq!(
        odd.store.list(&views, "😀", None, 9).await.expect("listed"),
        [("😀'\"\\".to_owned(), 1)]
    );

    assert_eq!(
        sqlx::query_scalar::<_, String>(modes)
            .fetch_one(&pool)
            .await
            .expect("modes"),
        before
    );
    assert_eq!(
        db.values(&views, &["😀'\"\\"]).await,
        [Some(1)],
        "the same bytes for a connection in utf8mb4"
    );
}

// ----------------------------------------------------------------------------------------------------
// refused rows

fn reasons(rejects: &[Reject]) -> Vec<(&str, i64, &str)> {
    rejects
        .iter()
        .map(|reject| (reject.id.as_str(), reject.delta, reject.reason.as_str()))
        .collect()
}

#[tokio::test]
async fn a_row_out_of_range_does_not_hold_back_the_others() {
    let db = Db::new().await;
    let views = db.family(views()).await;
    let ids: Vec<_> = (0..500).map(|id| format!("{id:03}")).collect();
    let deltas: Vec<_> = ids.iter().map(|id| (id.as_str(), i64::MAX)).collect();
    db.apply(&[
        batch(&views, 3, 1, &deltas[7..8]),
        batch(&views, 4, 1, &deltas[400..401]),
    ])
    .await;
    assert_eq!(
        db.apply(&[batch(&views, 5, 9, &deltas)]).await,
        applied(1, 0, 498, 2)
    );
    assert_eq!(
        db.number("SELECT COUNT(*) FROM counterfoil_values WHERE value = 9223372036854775807")
            .await,
        500
    );

    let rejects = db.rejects().await;
    let [one, two] = &rejects[..] else {
        panic!("{rejects:?}")
    };
    assert_eq!((one.id.as_str(), two.id.as_str()), ("007", "400"));
    assert!(one.reason.contains("out of range"), "{}", one.reason);
    assert_eq!(
        (one.namespace.as_str(), one.family.as_str(), one.delta),
        ("shop", "views", i64::MAX)
    );
    assert_eq!((one.partition, one.incarnation, one.seq), (5, I1, 9));
    assert!(
        one.at.elapsed().unwrap_or_default() < Duration::from_secs(60),
        "{:?} at {:?}",
        one.at,
        SystemTime::now()
    );
    assert_eq!(
        db.store.rejects(one.number, 10).await.expect("rejects"),
        rejects[1..]
    );
    assert_eq!(db.store.rejects(0, 1).await.expect("rejects"), rejects[..1]);

    assert_eq!(
        db.apply(&[batch(&views, 5, 9, &deltas)]).await,
        applied(0, 1, 0, 0)
    );
    assert_eq!(db.rejects().await.len(), 2, "not again");
}

#[tokio::test]
async fn every_row_refused_is_still_a_batch_applied() {
    let db = Db::new().await;
    db.run("CREATE TABLE t (id INT PRIMARY KEY, n TINYINT NOT NULL)")
        .await;
    let family = db
        .table(
            "t",
            Table::upsert("t").key("id", KeyType::Signed).value("n"),
        )
        .await;
    let ids: Vec<_> = (0..100).map(|id| id.to_string()).collect();
    let deltas: Vec<_> = ids.iter().map(|id| (id.as_str(), 1000)).collect();
    assert_eq!(
        db.apply(&[batch(&family, 0, 1, &deltas)]).await,
        applied(1, 0, 0, 100)
    );
    assert_eq!(db.rejects().await.len(), 100);
}

#[tokio::test]
async fn what_the_schema_refuses_is_rejected_with_its_reason() {
    let db = Db::new().await;
    db.run(
        "CREATE TABLE parent (id INT PRIMARY KEY);
         INSERT INTO parent VALUES (1), (2);
         CREATE TABLE child (id INT PRIMARY KEY, n INT NOT NULL, FOREIGN KEY (id) REFERENCES parent (id));
         CREATE TABLE checked (id INT PRIMARY KEY, n INT NOT NULL, CONSTRAINT few CHECK (n <= 10));
         CREATE TABLE watched (id INT PRIMARY KEY, n INT NOT NULL);
         CREATE TRIGGER watch BEFORE INSERT ON watched FOR EACH ROW
             BEGIN IF NEW.id = 3 THEN SIGNAL SQLSTATE 'HY000' SET MESSAGE_TEXT = 'not the third'; END IF; END;
         CREATE TABLE parts (id INT PRIMARY KEY, n INT NOT NULL) PARTITION BY RANGE (id)
             (PARTITION few VALUES LESS THAN (3));
         CREATE TABLE short (id VARBINARY(2) PRIMARY KEY, n INT NOT NULL)",
    )
    .await;
    let number = |name: &str| Table::upsert(name).key("id", KeyType::Signed).value("n");
    let cases = [
        ("child", number("child"), ["1", "2", "3"], 1, "foreign key"),
        ("checked", number("checked"), ["1", "2", "3"], 11, "few"),
        (
            "watched",
            number("watched"),
            ["1", "2", "3"],
            1,
            "not the third",
        ),
        ("parts", number("parts"), ["1", "2", "3"], 1, "partition"),
        (
            "short",
            Table::upsert("short").key("id", KeyType::Text).value("n"),
            ["1", "2", "333"],
            1,
            "too long",
        ),
    ];
    let mut seen = 0;
    for (name, table, [one, two, bad], delta, reason) in cases {
        let family = db.table(name, table).await;
        assert_eq!(
            db.apply(&[batch(&family, 0, 1, &[(bad, delta), (one, 1), (two, 1)])])
                .await,
            applied(1, 0, 2, 1),
            "{name}"
        );
        assert_eq!(
            db.values(&family, &[one, two, bad]).await,
            [Some(1), Some(1), None],
            "{name}"
        );
        let rejects = db.store.rejects(seen, 10).await.expect("rejects");
        let [reject] = &rejects[..] else {
            panic!("{name}: {rejects:?}")
        };
        assert!(
            reject.reason.to_lowercase().contains(reason) && reject.id == bad,
            "{name}: {reject:?}"
        );
        seen = reject.number;
    }
}

#[tokio::test]
async fn an_id_that_is_no_row_is_rejected_in_words() {
    let db = Db::new().await;
    db.run("CREATE TABLE t (id INT PRIMARY KEY, n INT NOT NULL)")
        .await;
    let family = db
        .table(
            "t",
            Table::upsert("t").key("id", KeyType::Signed).value("n"),
        )
        .await;
    let views = db.family(views()).await;
    let long = "é".repeat(200);
    let batches = [
        batch(&family, 0, 1, &[("07", 7), ("7", 1)]),
        batch(&views, 0, 1, &[("", 1), (&long, 2), ("ok", 3)]),
    ];
    assert_eq!(db.apply(&batches).await, applied(2, 0, 2, 3));
    let rejects = db.rejects().await;
    let reasons = reasons(&rejects);
    assert!(
        reasons[0].0 == "07" && reasons[0].2.contains("leading zeros"),
        "{reasons:?}"
    );
    assert!(
        reasons[1].0.is_empty() && reasons[1].2.contains("0 bytes"),
        "{reasons:?}"
    );
    assert!(
        reasons[2].0 == "é".repeat(127) && reasons[2].2.contains("400 bytes"),
        "{reasons:?}"
    );
}

#[tokio::test]
async fn an_update_rejects_rows_that_are_not_there() {
    let db = Db::new().await;
    db.run("CREATE TABLE items (id INT PRIMARY KEY, slug VARCHAR(9) NOT NULL, votes INT NULL)")
        .await;
    db.run("INSERT INTO items VALUES (1, 'a', 10), (2, 'b', NULL), (4, 'd', 2147483647)")
        .await;
    let votes = db
        .table(
            "votes",
            Table::update("items")
                .key("id", KeyType::Unsigned)
                .value("votes"),
        )
        .await;
    let deltas = [
        ("1", -3),
        ("2", 5),
        ("3", 1),
        ("4", 1),
        ("18446744073709551615", 1),
    ];
    assert_eq!(
        db.apply(&[batch(&votes, 0, 1, &deltas)]).await,
        applied(1, 0, 2, 3)
    );
    assert_eq!(
        db.values(&votes, &["1", "2", "3", "4"]).await,
        [Some(7), Some(5), None, Some(i64::from(i32::MAX))]
    );
    let rejects = db.rejects().await;
    let reasons = reasons(&rejects);
    assert_eq!(reasons[0], ("18446744073709551615", 1, "no such row"));
    assert_eq!(reasons[1], ("3", 1, "no such row"));
    assert!(
        reasons[2].0 == "4" && reasons[2].2.contains("range"),
        "{reasons:?}"
    );
}

#[tokio::test]
async fn an_unsigned_column_goes_down_but_not_below_zero() {
    let db = Db::new().await;
    db.run("CREATE TABLE stock (id INT PRIMARY KEY, n INT UNSIGNED NOT NULL DEFAULT 0, big BIGINT UNSIGNED NOT NULL DEFAULT 0)").await;
    db.run("INSERT INTO stock VALUES (1, 5, 18446744073709551615), (2, 5, 0), (3, 5, 0)")
        .await;
    let stock = db
        .table(
            "stock",
            Table::upsert("stock").key("id", KeyType::Signed).value("n"),
        )
        .await;
    let deltas = [("1", -5), ("2", -6), ("3", 2), ("4", -1), ("5", 4)];
    assert_eq!(
        db.apply(&[batch(&stock, 0, 1, &deltas)]).await,
        applied(1, 0, 3, 2)
    );
    assert_eq!(
        db.values(&stock, &["1", "2", "3", "4", "5"]).await,
        [Some(0), Some(5), Some(7), None, Some(4)]
    );
    let rejects = db.rejects().await;
    let reasons = reasons(&rejects);
    assert!(
        reasons[1].0 == "4"
            && reasons[1]
                .2
                .contains("no such row, and n takes no negative number"),
        "{reasons:?}"
    );
    assert!(
        reasons[0].0 == "2" && reasons[0].2.contains("out of range"),
        "{reasons:?}"
    );

    let big = db
        .table(
            "big",
            Table::upsert("stock")
                .key("id", KeyType::Signed)
                .value("big"),
        )
        .await;
    let error = db
        .store
        .read(&big, &["2", "1"], &[], ReadFrom::Primary)
        .await
        .expect_err("too big");
    assert!(
        error.kind() == ErrorKind::Range && format!("{error:#}").contains("\"1\""),
        "{error}"
    );
    assert_eq!(
        db.store
            .list(&big, "", None, 9)
            .await
            .expect_err("too big")
            .kind(),
        ErrorKind::Range
    );
    assert_eq!(db.values(&big, &["2"]).await, [Some(0)]);
}

#[tokio::test]
async fn one_counter_in_many_batches_is_one_row() {
    let db = Db::new().await;
    db.run("CREATE TABLE t (id INT PRIMARY KEY, n INT UNSIGNED NOT NULL)")
        .await;
    let table = |verb: fn(&'static str) -> Table| verb("t").key("id", KeyType::Signed).value("n");
    let one = db
        .family(
            Family::buffered("one", "t")
                .wide(true)
                .table(table(Table::upsert)),
        )
        .await;
    let two = db
        .family(Family::buffered("two", "t").table(table(Table::upsert)))
        .await;
    let update = db
        .family(
            Family::buffered("two", "u")
                .wide(true)
                .table(table(Table::update)),
        )
        .await;
    let batches: Vec<_> = (0..8)
        .flat_map(|partition| {
            [&one, &two, &update].map(|family| batch(family, partition, 1, &[("1", 1), ("2", 2)]))
        })
        .collect();
    assert_eq!(
        db.apply(&batches).await,
        applied(24, 0, 48 - 16, 16),
        "updates go before upserts, and find no row"
    );
    assert_eq!(db.values(&one, &["1", "2"]).await, [Some(16), Some(32)]);
    let batches: Vec<_> = (0..8)
        .map(|partition| batch(&update, partition, 2, &[("1", 1), ("2", -1)]))
        .collect();
    assert_eq!(db.apply(&batches).await, applied(8, 0, 16, 0));
    assert_eq!(
        db.values(&one, &["1", "2"]).await,
        [Some(24), Some(24)],
        "each delta of a joined row"
    );

    // the sum is below zero without a row: the positive deltas create it
    let batches = [
        batch(&one, 0, 3, &[("9", -7)]),
        batch(&one, 1, 3, &[("9", 3)]),
        batch(&one, 2, 3, &[("9", 2)]),
    ];
    let rejected = db.rejects().await.len();
    assert_eq!(db.apply(&batches).await, applied(3, 0, 2, 1));
    assert_eq!(db.values(&one, &["9"]).await, [Some(5)]);
    let rejects = db.rejects().await;
    assert_eq!(
        (rejects[rejected].delta, rejects[rejected].partition),
        (-7, 0)
    );
}

#[tokio::test]
async fn a_sum_that_leaves_the_range_goes_one_by_one() {
    let db = Db::new().await;
    let wide = db.family(views().wide(true)).await;
    let batches: Vec<_> = (0..3)
        .map(|partition| batch(&wide, partition, 1, &[("a", i64::MAX - 1), ("b", 1)]))
        .collect();
    assert_eq!(db.apply(&batches).await, applied(3, 0, 4, 2));
    assert_eq!(
        db.values(&wide, &["a", "b"]).await,
        [Some(i64::MAX - 1), Some(3)]
    );
    let rejects = db.rejects().await;
    assert_eq!(
        rejects
            .iter()
            .map(|reject| reject.delta)
            .collect::<Vec<_>>(),
        [i64::MAX - 1; 2]
    );
    assert_ne!(rejects[0].partition, rejects[1].partition);
}

#[tokio::test]
async fn more_rows_than_a_statement_takes() {
    let db = Db::new().await;
    let views = db.family(views().partitions(16)).await;
    let ids: Vec<_> = (0..25_000).map(|id| format!("id-{id}")).collect();
    let deltas: Vec<_> = ids.iter().map(|id| (id.as_str(), 3)).collect();
    assert_eq!(
        db.apply(&[batch(&views, 0, 1, &deltas)]).await,
        applied(1, 0, 25_000, 0)
    );
    assert_eq!(
        db.number("SELECT SUM(value) FROM counterfoil_values").await,
        75_000
    );
    let ids: Vec<_> = ids.iter().map(String::as_str).collect();
    assert_eq!(db.values(&views, &ids).await, vec![Some(3); 25_000]);
}

/// Bulk inserts with parameters write most rows, and a statement with JSON writes the rest.
#[tokio::test]
async fn many_rows_of_any_bytes_of_which_one_is_out_of_range() {
    let db = Db::new().await;
    let views = db.family(views()).await;
    let long = "é".repeat(127);
    let plain: Vec<_> = (0..6_000).map(|id| format!("id-{id}")).collect();
    let ids: Vec<_> = ODD
        .into_iter()
        .chain([long.as_str()])
        .chain(plain.iter().map(String::as_str))
        .collect();
    let batch_of = |seq, delta: i64, odd: i64| {
        let deltas = ids
            .iter()
            .map(|&id| (id, if id == "id-77" { odd } else { delta }));
        batch(&views, 0, seq, &deltas.collect::<Vec<_>>())
    };
    let all = ids.len() as u64;
    let of = |value: i64| {
        ids.iter()
            .map(|&id| Some(if id == "id-77" { i64::MAX } else { value }))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        db.apply(&[batch_of(1, 3, i64::MAX)]).await,
        applied(1, 0, all, 0)
    );
    assert_eq!(db.values(&views, &ids).await, of(3));
    assert_eq!(
        db.apply(&[batch_of(2, i64::MIN, 1)]).await,
        applied(1, 0, all - 1, 1)
    );
    assert_eq!(db.values(&views, &ids).await, of(i64::MIN + 3));
    assert_eq!(
        db.rejects()
            .await
            .iter()
            .map(|reject| reject.id.as_str())
            .collect::<Vec<_>>(),
        ["id-77"]
    );
}

#[tokio::test]
async fn a_fault_of_the_table_keeps_nothing() {
    let db = Db::new().await;
    db.run("CREATE TABLE t (id INT PRIMARY KEY, n INT NOT NULL)")
        .await;
    let family = db
        .table(
            "t",
            Table::upsert("t").key("id", KeyType::Signed).value("n"),
        )
        .await;
    let views = db.family(views()).await;
    let batches = [
        batch(&views, 0, 1, &[("a", 1)]),
        batch(&family, 0, 1, &[("1", 1)]),
    ];
    for (fault, mend) in [
        (
            "ALTER TABLE t RENAME TO gone",
            "ALTER TABLE gone RENAME TO t",
        ),
        ("ALTER TABLE t ADD c INT NOT NULL", "ALTER TABLE t DROP c"),
    ] {
        db.run(fault).await;
        let error = db.store.apply(&batches, None).await.expect_err(fault);
        // not retryable: the reconciler continues with the other families
        assert!(
            error.kind() == ErrorKind::Mismatch && !error.is_retryable(),
            "{error}"
        );
        assert_eq!(
            db.number("SELECT COUNT(*) FROM counterfoil_values").await,
            0,
            "{fault}"
        );
        assert_eq!(
            db.number("SELECT COUNT(*) FROM counterfoil_ledger").await,
            0,
            "{fault}"
        );
        assert_eq!(db.rejects().await, [], "{fault}");
        db.run(mend).await;
    }
    assert_eq!(db.apply(&batches).await, applied(2, 0, 2, 0));
}

// ------------------------------------------------------------------------------------------------------
// registering

#[tokio::test]
async fn a_family_has_one_number_and_one_identity() {
    let db = Db::new().await;
    db.run("CREATE TABLE t (id INT PRIMARY KEY, n INT NOT NULL)")
        .await;
    db.store.create_tables().await.expect("created before");
    let registered = db.family(views()).await;
    let hands = (0..8).map(|_| {
        let store = db.store.clone();
        tokio::spawn(async move {
            store
                .register(&Family::buffered("new", "new").build().expect("valid"))
                .await
        })
    });
    let mut numbers = Vec::new();
    for hand in hands.collect::<Vec<_>>() {
        numbers.push(hand.await.expect("no panic").expect("registered"));
    }
    assert_eq!(numbers, vec![numbers[0]; 8]);
    assert_ne!(numbers[0], registered.number);
    let again = db
        .family(
            views()
                .sync_hits(1)
                .sync_time(Duration::from_secs(1))
                .max_pending(7),
        )
        .await;
    assert_eq!(again.number, registered.number, "when to sync may change");
    assert_ne!(
        db.family(Family::buffered("shop2", "views")).await.number,
        registered.number
    );

    let table = Table::upsert("t").key("id", KeyType::Signed).value("n");
    for (setting, known, builder) in [
        ("partitions", "\"4\"", views().partitions(8)),
        ("wide", "\"false\"", views().wide(true)),
        (
            "durability",
            "\"settle 2500 ms\"",
            views().durability(Durability::Immediate),
        ),
        ("table", "\"own\"", views().table(table)),
    ] {
        let message = db.mismatch(builder).await;
        assert!(
            message.contains("shop/views") && message.contains(setting) && message.contains(known),
            "{message}"
        );
    }
}

#[tokio::test]
async fn a_database_without_tables_is_refused_with_what_to_do() {
    let (_, pool) = SERVER
        .get_or_init(MysqlServer::start)
        .await
        .database("empty")
        .await;
    let store = MysqlStore::new(pool);
    let error = store
        .register(&views().build().expect("valid"))
        .await
        .expect_err("no tables");
    assert_eq!(error.kind(), ErrorKind::Mismatch);
    for word in [
        "counterfoil_families",
        "counterfoil_ledger",
        "create_tables(true)",
        "MysqlStore::schema()",
    ] {
        assert!(format!("{error:#}").contains(word), "{error}");
    }
    store.create_tables().await.expect("created");
    store
        .register(&views().build().expect("valid"))
        .await
        .expect("registered");
}

#[tokio::test]
async fn tables_that_are_there_need_no_privilege_to_create() {
    let db = Db::new().await;
    let (name, user) = (&db.name, format!("u{}", db.name));
    db.run(&format!(
        "CREATE USER '{user}'@'localhost'; GRANT SELECT, INSERT, UPDATE ON {name}.* TO '{user}'@'localhost'"
    ))
    .await;
    let pool = MySqlPool::connect_with((*db.pool.connect_options()).clone().username(&user))
        .await
        .expect("connected");
    let store = MysqlStore::new(pool);
    store.create_tables().await.expect("all are there");
    db.run("DROP TABLE counterfoil_rejects").await;
    let error = store.create_tables().await.expect_err("may not create");
    assert_eq!(error.kind(), ErrorKind::Mismatch);
    assert!(
        format!("{error:#}").contains("counterfoil_rejects")
            && format!("{error:#}").contains("CREATE"),
        "{error}"
    );
}

#[tokio::test]
async fn a_missing_table_is_refused_with_the_sql_that_creates_it() {
    let db = Db::new().await;
    let table = Table::upsert(format!("{}.order", db.name))
        .key("id", KeyType::Unsigned)
        .key("way", KeyType::Signed)
        .key("day", KeyType::Date)
        .key("name", KeyType::Text)
        .value("n");
    let message = db
        .mismatch(Family::buffered("shop", "orders").table(table.clone()))
        .await;
    let (_, sql) = message.split_once(": CREATE").expect(&message);
    db.run(&format!("CREATE{sql}")).await;
    let orders = db.table("orders", table).await;
    assert_eq!(
        db.apply(&[batch(&orders, 0, 1, &[("7/-1/2014-09-20/a/b", 5)])])
            .await,
        applied(1, 0, 1, 0)
    );
    assert_eq!(
        db.values(&orders, &["7/-1/2014-09-20/a/b"]).await,
        [Some(5)]
    );
}

#[tokio::test]
async fn a_table_that_could_lose_counts_is_refused_by_name() {
    let db = Db::new().await;
    let exact = db.exact();
    let (folding, padding) = if db.mariadb {
        ("utf8mb4_general_nopad_ci", "utf8mb4_bin")
    } else {
        ("utf8mb4_0900_as_cs", "utf8mb4_bin")
    };
    let number = |name: &str| Table::upsert(name).key("id", KeyType::Signed).value("n");
    let text = |name: &str| Table::upsert(name).key("id", KeyType::Text).value("n");
    let day = |name: &str| {
        Table::upsert(name)
            .key("id", KeyType::Signed)
            .key("day", KeyType::Date)
            .value("n")
    };
    let unsigned = |name: &str| Table::upsert(name).key("id", KeyType::Unsigned).value("n");
    let cases: Vec<(String, Table, Vec<&str>)> = vec![
        (String::new(), number("missing"), vec!["missing", "does not exist"]),
        ("CREATE TABLE c1 (id INT PRIMARY KEY, n INT) ENGINE=MyISAM".into(), number("c1"), vec!["c1", "MyISAM", "InnoDB"]),
        ("CREATE VIEW c2 AS SELECT 1 AS id, 1 AS n".into(), number("c2"), vec!["c2", "VIEW"]),
        ("CREATE TABLE c3 (other INT PRIMARY KEY, n INT)".into(), number("c3"), vec!["c3", "no column id"]),
        ("CREATE TABLE c4 (id INT PRIMARY KEY, m INT)".into(), number("c4"), vec!["c4", "no column n"]),
        ("CREATE TABLE c5 (id INT UNSIGNED PRIMARY KEY, n INT)".into(), number("c5"), vec!["c5", "id", "signed integer"]),
        ("CREATE TABLE c6 (id DOUBLE PRIMARY KEY, n INT)".into(), unsigned("c6"), vec!["c6", "id", "double", "integer"]),
        (
            "CREATE TABLE c7 (id INT, day DATETIME, n INT, PRIMARY KEY (id, day))".into(),
            day("c7"),
            vec!["c7", "day", "datetime", "DATE"],
        ),
        ("CREATE TABLE c8 (id INT PRIMARY KEY, n DOUBLE)".into(), number("c8"), vec!["c8", "n", "double", "integer"]),
        ("CREATE TABLE c9 (id INT, n INT, KEY (id))".into(), number("c9"), vec!["c9", "unique", "(id)"]),
        (
            "CREATE TABLE c10 (id INT, day DATE, n INT, PRIMARY KEY (id, day))".into(),
            number("c10"),
            vec!["c10", "unique", "(id)"],
        ),
        (
            "CREATE TABLE c11 (id INT PRIMARY KEY, day DATE NULL, n INT)".into(),
            day("c11"),
            vec!["c11", "unique", "(id, day)"],
        ),
        (
            "CREATE TABLE c12 (id VARBINARY(99) NOT NULL, n INT, UNIQUE (id(10)))".into(),
            text("c12"),
            vec!["c12", "unique", "in full"],
        ),
        (
            format!("CREATE TABLE c13 (id VARCHAR(99) CHARACTER SET utf8mb4 COLLATE {folding} PRIMARY KEY, n INT)"),
            text("c13"),
            vec!["c13", "id", folding, "VARBINARY"],
        ),
        (
            format!("CREATE TABLE c14 (id VARCHAR(99) CHARACTER SET utf8mb4 COLLATE {padding} PRIMARY KEY, n INT)"),
            text("c14"),
            vec!["c14", "id", padding],
        ),
        (
            format!("CREATE TABLE c15 (id CHAR(99) CHARACTER SET utf8mb4 COLLATE {exact} PRIMARY KEY, n INT)"),
            text("c15"),
            vec!["c15", "id", "char", "VARCHAR"],
        ),
        ("CREATE TABLE c16 (id BINARY(9) PRIMARY KEY, n INT)".into(), text("c16"), vec!["c16", "id", "binary"]),
        (
            "CREATE TABLE c17 (id INT PRIMARY KEY, n INT, title VARCHAR(9) NOT NULL)".into(),
            number("c17"),
            vec!["c17", "title", "default"],
        ),
        (
            "CREATE TABLE c18 (id INT PRIMARY KEY, n INT, slug VARCHAR(9) NOT NULL DEFAULT '', UNIQUE KEY by_slug (slug))".into(),
            number("c18"),
            vec!["c18", "by_slug"],
        ),
        (
            "CREATE TABLE c19 (id INT PRIMARY KEY, n INT, UNIQUE KEY by_n (n))".into(),
            number("c19"),
            vec!["c19", "by_n"],
        ),
        (
            "CREATE TABLE c20 (id INT PRIMARY KEY, m INT, n INT AS (m + 1) STORED)".into(),
            number("c20"),
            vec!["c20", "n", "generated"],
        ),
    ];
    for (create, table, words) in cases {
        if !create.is_empty() {
            db.run(&create).await;
        }
        let message = db
            .mismatch(Family::buffered("shop", "bad").table(table))
            .await;
        for word in words {
            assert!(message.contains(word), "{message} should name {word}");
        }
    }
    assert_eq!(
        db.number("SELECT COUNT(*) FROM counterfoil_families").await,
        0
    );
}

#[tokio::test]
async fn tables_that_are_safe_are_taken() {
    let db = Db::new().await;
    db.run(
        "CREATE TABLE t1 (pk INT AUTO_INCREMENT PRIMARY KEY, Day DATE, id INT, n INT, title VARCHAR(9), \
             made TIMESTAMP DEFAULT CURRENT_TIMESTAMP, twice INT AS (n * 2), slug VARCHAR(9) NULL, \
             UNIQUE (id, Day), UNIQUE (Day, id, title), UNIQUE (slug));
         CREATE TABLE t2 (id INT PRIMARY KEY, n INT, title VARCHAR(9) NOT NULL, slug INT NOT NULL, UNIQUE (slug))",
    )
    .await;
    let t1 = Table::upsert("t1")
        .key("day", KeyType::Date)
        .key("ID", KeyType::Signed)
        .value("n");
    let t1 = db.table("t1", t1).await;
    db.apply(&[batch(
        &t1,
        0,
        1,
        &[("2014-09-20/1", 1), ("2014-09-21/1", 2)],
    )])
    .await;
    db.apply(&[batch(
        &t1,
        0,
        2,
        &[("2014-09-20/1", 1), ("2014-09-22/1", 2)],
    )])
    .await;
    assert_eq!(
        db.values(&t1, &["2014-09-20/1", "2014-09-21/1", "2014-09-22/1"])
            .await,
        [Some(2), Some(2), Some(2)]
    );
    db.table(
        "t2",
        Table::update("t2").key("id", KeyType::Signed).value("n"),
    )
    .await;
    // the store caches a table's columns: another namespace with the same table does not read them
    // again
    let before = db.store.statements();
    let table = Table::update("t2").key("id", KeyType::Signed).value("n");
    db.family(Family::buffered("other", "t2").table(table))
        .await;
    assert_eq!(db.store.statements() - before, 3);
}

// ----------------------------------------------------------------------------------------------------------
// reading

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_is_never_torn() {
    let db = Db::new().await;
    db.run("CREATE TABLE t (id INT PRIMARY KEY, n BIGINT NOT NULL)")
        .await;
    let own = db.family(views()).await;
    let other = db
        .table(
            "t",
            Table::upsert("t").key("id", KeyType::Signed).value("n"),
        )
        .await;
    for family in [own, other] {
        let writer = tokio::spawn({
            let (store, family) = (db.store.clone(), family.clone());
            async move {
                for seq in 1..=200 {
                    let deltas = [("1", 1), ("2", 1), ("3", 1)];
                    store
                        .apply(&[batch(&family, 2, seq, &deltas)], None)
                        .await
                        .expect("applied");
                }
            }
        });
        let mut last = 0;
        while last < 200 {
            let ledger = [(2, I1), (3, I1)];
            let snapshot = db
                .store
                .read(&family, &["3", "1", "2"], &ledger, ReadFrom::Nearest)
                .await
                .expect("read");
            let seq = snapshot.ledger[0].seq;
            let value = (seq > 0).then_some(seq as i64);
            assert_eq!(
                (snapshot.values, &snapshot.ledger[1]),
                (vec![value; 3], &Mark::default())
            );
            assert!(seq >= last);
            last = seq;
        }
        writer.await.expect("no panic");
    }
}

#[tokio::test]
async fn reads_go_where_they_are_sent() {
    let (primary, replica) = (Db::new().await, Db::new().await);
    let (here, there) = (primary.family(views()).await, replica.family(views()).await);
    primary.apply(&[batch(&here, 0, 1, &[("a", 2)])]).await;
    replica.apply(&[batch(&there, 0, 1, &[("a", 1)])]).await;
    let store = MysqlStore::new(primary.pool.clone()).with_replica(replica.pool.clone());
    for (from, value) in [(ReadFrom::Nearest, 1), (ReadFrom::Primary, 2)] {
        let snapshot = store.read(&here, &["a"], &[], from).await.expect("read");
        assert_eq!(snapshot.values, [Some(value)]);
    }
}

/// The ledger is small, so a server would rather scan it, and wait for the locks of other flushes.
#[tokio::test]
async fn partitions_do_not_wait_for_each_other() {
    let db = Db::new().await;
    let views = db.family(views()).await;
    let batches: Vec<_> = (0..4)
        .map(|partition| batch(&views, partition, 1, &[("a", 1)]))
        .collect();
    db.apply(&batches).await;
    let mut other = db.pool.begin().await.expect("begun");
    let lock = "SELECT seq FROM counterfoil_ledger WHERE family = ? AND partition_no = ? AND incarnation = ? FOR UPDATE";
    for partition in [0, 3] {
        let lock = sqlx::query(lock)
            .bind(views.number)
            .bind(partition)
            .bind(I1.0);
        lock.fetch_one(&mut *other).await.expect("locked");
    }
    for partition in [1, 2] {
        let next = [batch(&views, partition, 2, &[("b", 1)])];
        let apply =
            tokio::time::timeout(Duration::from_secs(20), complete(&db.store, &next, None)).await;
        assert_eq!(
            apply.expect("did not wait").expect("applied"),
            applied(1, 0, 1, 0)
        );
    }
    other.rollback().await.expect("rolled back");
}

/// The server would rather scan a small table, and wait for the locks of the application's own
/// transactions.
#[tokio::test]
async fn rows_of_a_small_table_do_not_wait_for_each_other() {
    let db = Db::new().await;
    db.run("CREATE TABLE few (pk INT PRIMARY KEY, id INT NOT NULL, n INT NOT NULL, UNIQUE KEY by_id (id))")
        .await;
    db.run("INSERT INTO few VALUES (11, 1, 0), (12, 2, 0), (13, 3, 0), (14, 4, 0)")
        .await;
    db.run("ANALYZE TABLE few").await;
    let few = Table::update("few").key("id", KeyType::Signed).value("n");
    let few = db.table("few", few).await;
    let mut other = db.pool.begin().await.expect("begun");
    for id in [1, 4] {
        let lock = sqlx::query("SELECT n FROM few WHERE pk = ? FOR UPDATE").bind(10 + id);
        lock.fetch_one(&mut *other).await.expect("locked");
    }
    let deltas = [batch(&few, 0, 1, &[("2", 5), ("3", 7)])];
    let apply =
        tokio::time::timeout(Duration::from_secs(20), complete(&db.store, &deltas, None)).await;
    assert_eq!(
        apply.expect("did not wait").expect("applied"),
        applied(1, 0, 2, 0)
    );
    other.rollback().await.expect("rolled back");
}

#[tokio::test]
async fn rows_are_looked_up_and_not_scanned() {
    let db = Db::new().await;
    let views = db.family(views()).await;
    let ids: Vec<_> = (0..5_000).map(|id| format!("id-{id:05}")).collect();
    let deltas: Vec<_> = ids.iter().map(|id| (id.as_str(), 1)).collect();
    db.apply(&[batch(&views, 0, 1, &deltas)]).await;
    db.run("CREATE TABLE t (pk INT AUTO_INCREMENT PRIMARY KEY, id VARBINARY(99) NOT NULL UNIQUE, n INT NOT NULL)")
        .await;
    db.run("INSERT INTO t (id, n) SELECT id, 0 FROM counterfoil_values")
        .await;
    db.run("ANALYZE TABLE t; ANALYZE TABLE counterfoil_values")
        .await;
    let update = db
        .table("t", Table::update("t").key("id", KeyType::Text).value("n"))
        .await;
    let some: Vec<_> = ids[..1000].iter().map(String::as_str).collect();

    // another transaction has locked a row that is not requested: a scan would wait for it
    let mut other = db.pool.begin().await.expect("begun");
    sqlx::query("UPDATE t SET n = 7 WHERE id = 'id-04999'")
        .execute(&mut *other)
        .await
        .expect("locked");
    sqlx::query("UPDATE counterfoil_values SET value = 7 WHERE id = 'id-04999' AND family = 1")
        .execute(&mut *other)
        .await
        .expect("locked");
    let deltas: Vec<_> = some.iter().map(|&id| (id, 1)).collect();
    let batches = [batch(&update, 0, 1, &deltas), batch(&views, 0, 2, &deltas)];
    let apply =
        tokio::time::timeout(Duration::from_secs(20), complete(&db.store, &batches, None)).await;
    assert_eq!(
        apply.expect("did not wait").expect("applied"),
        applied(2, 0, 2000, 0)
    );
    other.rollback().await.expect("rolled back");

    let options: MySqlConnectOptions = (*db.pool.connect_options()).clone();
    let pool = MySqlPoolOptions::new()
        .max_connections(1)
        .connect_with(options)
        .await
        .expect("connected");
    let store = MysqlStore::new(pool.clone());
    for (family, ids) in [(&views, 1), (&views, 100), (&update, 1), (&update, 100)] {
        // 17 ledger rows, of which one exists
        let ledger: Vec<_> = (0..17).map(|partition| (partition, I1)).collect();
        let before = rows_read(&pool).await;
        store
            .read(family, &some[..ids], &ledger, ReadFrom::Primary)
            .await
            .expect("read");
        let read = rows_read(&pool).await - before;
        assert!(read < 4 * ids + 200, "{read} rows read for {ids} ids");
    }
}

/// Returns the number of rows that this connection has read, including those of JSON_TABLE and of
/// this query.
pub async fn rows_read(pool: &MySqlPool) -> usize {
    let rows = sqlx::query("SHOW SESSION STATUS LIKE 'Handler_read%'")
        .fetch_all(pool)
        .await
        .expect("status");
    rows.iter()
        .map(|row| row.get::<String, _>(1).parse::<usize>().expect("a number"))
        .sum()
}

// ----------------------------------------------------------------------------------------------------------
// listing

pub async fn pages(db: &Db, family: &Registered, prefix: &str, limit: usize) -> Vec<String> {
    let (mut all, mut after) = (Vec::<String>::new(), None);
    loop {
        let page = db
            .store
            .list(family, prefix, after.as_deref(), limit)
            .await
            .expect("listed");
        all.extend(page.iter().map(|(id, _)| id.clone()));
        after = all.last().cloned();
        if page.len() < limit {
            return all;
        }
    }
}

#[tokio::test]
async fn counters_are_listed_page_by_page() {
    let db = Db::new().await;
    let (views, other) = (
        db.family(views()).await,
        db.family(Family::buffered("shop", "other")).await,
    );
    let mut ids = vec![
        "a",
        "a/",
        "a/1",
        "a/10",
        "a/2",
        "a\0",
        "b",
        "é",
        "éa",
        "\u{10ffff}",
        "\u{10ffff}\u{10ffff}",
    ];
    let deltas: Vec<_> = ids
        .iter()
        .zip(1..)
        .map(|(&id, delta)| (id, delta))
        .collect();
    db.apply(&[
        batch(&views, 0, 1, &deltas),
        batch(&other, 0, 1, &[("a/3", 1)]),
    ])
    .await;
    assert_eq!(
        db.store
            .list(&views, "a/", Some("a/1"), 10)
            .await
            .expect("listed"),
        [("a/10".to_owned(), 4), ("a/2".to_owned(), 5)]
    );
    assert_eq!(
        db.store.list(&views, "", None, 0).await.expect("listed"),
        []
    );
    assert_eq!(
        db.store
            .list(&views, "a", Some("b"), 9)
            .await
            .expect("listed"),
        []
    );
    assert_eq!(
        db.store
            .list(&views, "b", Some("a"), 9)
            .await
            .expect("listed"),
        [("b".to_owned(), 7)]
    );
    ids.sort();
    for prefix in ["", "a", "a/", "a/1", "é", "\u{10ffff}", "x"] {
        let expected: Vec<_> = ids
            .iter()
            .filter(|id| id.starts_with(prefix))
            .copied()
            .collect();
        for limit in [1, 2, 3, 100] {
            assert_eq!(
                pages(&db, &views, prefix, limit).await,
                expected,
                "{prefix:?} by {limit}"
            );
        }
    }
}

#[tokio::test]
async fn rows_of_the_applications_are_listed_as_ids() {
    let db = Db::new().await;
    db.run(&format!(
        "CREATE TABLE days (store INT(9) UNSIGNED ZEROFILL, day DATE, n INT, PRIMARY KEY (store, day));
         CREATE TABLE tags (store INT, tag VARBINARY(99), n INT NOT NULL DEFAULT 0, PRIMARY KEY (store, tag));
         CREATE TABLE texts (tag VARCHAR(99) CHARACTER SET utf8mb4 COLLATE {} PRIMARY KEY, n INT)",
        db.exact()
    ))
    .await;
    let days = Table::upsert("days")
        .key("store", KeyType::Unsigned)
        .key("day", KeyType::Date)
        .value("n");
    let tags = Table::upsert("tags")
        .key("store", KeyType::Signed)
        .key("tag", KeyType::Text)
        .value("n");
    let texts = Table::upsert("texts").key("tag", KeyType::Text).value("n");
    let mut days_ids = vec![
        "7/2014-09-20",
        "7/2014-09-21",
        "7/2014-10-01",
        "70/2014-09-20",
        "8/2014-09-20",
        "12/2014-09-20",
    ];
    let mut tags_ids = vec!["1/a", "1/a/b", "1/é", "1/", "-1/a", "10/a", "2/a"];
    let mut texts_ids = vec!["a", "A", "é", "/", "a/b", "%"];
    let days_prefixes = [
        "",
        "7",
        "7/",
        "7/2014-09",
        "7/2014-09-20",
        "7/x",
        "07/",
        "x/",
        "1",
    ];
    let tags_prefixes = ["", "1", "1/", "1/a", "1/a/", "-", "-1/", "+1/", "3/"];
    let cases = [
        (
            db.table("days", days).await,
            &mut days_ids,
            &days_prefixes[..],
        ),
        (
            db.table("tags", tags).await,
            &mut tags_ids,
            &tags_prefixes[..],
        ),
        (
            db.table("texts", texts).await,
            &mut texts_ids,
            &["", "a", "a/", "é"][..],
        ),
    ];
    for (family, ids, prefixes) in cases {
        let deltas: Vec<_> = ids.iter().map(|&id| (id, 1)).collect();
        assert_eq!(db.apply(&[batch(&family, 0, 1, &deltas)]).await.rejected, 0);
        ids.sort();
        for prefix in prefixes {
            let expected: Vec<_> = ids
                .iter()
                .filter(|id| id.starts_with(prefix))
                .copied()
                .collect();
            for limit in [1, 2, 100] {
                assert_eq!(
                    pages(&db, &family, prefix, limit).await,
                    expected,
                    "{prefix:?} by {limit}"
                );
            }
        }
    }
    // the list skips rows that match no id, and a NULL counts as 0
    db.run("SET SESSION sql_mode = ''; INSERT INTO days VALUES (7, '0000-00-00', 1), (7, '2014-09-01', NULL)").await;
    let days = Table::upsert("days")
        .key("store", KeyType::Unsigned)
        .key("day", KeyType::Date)
        .value("n");
    let days = db.table("days", days).await;
    let listed = db.store.list(&days, "7/", None, 2).await.expect("listed");
    assert_eq!(
        listed,
        [
            ("7/2014-09-01".to_owned(), 0),
            ("7/2014-09-20".to_owned(), 1)
        ]
    );
}

// ---------------------------------------------------------------------------------------------------------
// checking

async fn findings(store: &MysqlStore, families: &[Family]) -> Vec<(Severity, String)> {
    let findings = store.check(families).await;
    findings
        .into_iter()
        .map(|finding| {
            (
                finding.severity,
                format!("{}: {}", finding.subject, finding.message),
            )
        })
        .collect()
}

#[track_caller]
fn assert_found(findings: &[(Severity, String)], severity: Severity, words: &[&str]) {
    let found = findings
        .iter()
        .any(|(known, text)| *known == severity && words.iter().all(|word| text.contains(word)));
    assert!(found, "{severity:?} {words:?} in {findings:#?}");
}

#[tokio::test]
async fn what_is_wrong_with_the_database_is_found() {
    let db = Db::new().await;
    db.run(
        "CREATE TABLE votes (id INT PRIMARY KEY, n INT NOT NULL); CREATE TABLE days (id INT PRIMARY KEY, n INT NOT NULL);
         CREATE TABLE bad (id DOUBLE PRIMARY KEY, n INT NOT NULL)",
    )
    .await;
    let table = |table: Table| table.key("id", KeyType::Signed).value("n");
    let families = [
        Table::update("votes"),
        Table::upsert("days"),
        Table::update("bad"),
    ]
    .map(|made| {
        Family::buffered("shop", "family")
            .table(table(made))
            .build()
            .expect("valid")
            .clone()
    });
    let good = findings(&db.store, &families[..2]).await;
    // a setting of testkit
    let (flush, rest): (Vec<_>, Vec<_>) = good
        .into_iter()
        .partition(|(_, text)| text.contains("flush_log"));
    assert!(
        flush
            .iter()
            .all(|(severity, _)| *severity == Severity::Warning)
            && flush.len() == 1,
        "{flush:?}"
    );
    assert!(
        rest.iter()
            .all(|(severity, text)| *severity == Severity::Info
                && text.contains("recount of shop/family"))
    );
    assert_eq!(rest.len(), 2, "{rest:?}");
    assert_found(
        &findings(&db.store, &families).await,
        Severity::Error,
        &["table bad", "id", "double"],
    );
    let replica = db.store.clone().with_replica(db.pool.clone());
    assert_found(&findings(&replica, &[]).await, Severity::Info, &["replica"]);

    // a user without some privileges
    let (name, user) = (&db.name, format!("u{}", db.name));
    db.run(&format!(
        "CREATE USER '{user}'@'localhost'; GRANT SELECT ON {name}.* TO '{user}'@'localhost'"
    ))
    .await;
    for grant in [
        "INSERT ON {name}.counterfoil_families",
        "UPDATE ON {name}.votes",
        "INSERT, UPDATE ON {name}.counterfoil_values",
    ] {
        db.run(&format!(
            "GRANT {} TO '{user}'@'localhost'",
            grant.replace("{name}", name)
        ))
        .await;
    }
    let options = (*db.pool.connect_options()).clone().username(&user);
    let pool = MySqlPoolOptions::new()
        .max_connections(1)
        .after_connect(|connection, _| {
            Box::pin(async move {
                let odd = "SET SESSION autocommit = 0; SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED";
                sqlx::raw_sql(odd).execute(connection).await.map(drop)
            })
        })
        .connect_with(options)
        .await
        .expect("connected");
    let found = findings(&MysqlStore::new(pool), &families[..2]).await;
    assert_found(&found, Severity::Warning, &["pool", "single"]);
    assert_found(&found, Severity::Error, &["autocommit"]);
    assert_found(&found, Severity::Error, &["isolation"]);
    let denied = |table: &str, privilege: &str| {
        let words = [
            format!("table {table}"),
            format!("no {privilege} privilege"),
        ];
        found.iter().any(|(severity, text)| {
            *severity == Severity::Error && words.iter().all(|word| text.contains(word))
        })
    };
    for (table, privilege, missing) in [
        ("counterfoil_families", "SELECT", false),
        ("counterfoil_families", "INSERT", false),
        ("counterfoil_families", "UPDATE", true),
        ("counterfoil_ledger", "INSERT", true),
        ("counterfoil_ledger", "UPDATE", true),
        ("counterfoil_rejects", "INSERT", true),
        ("votes", "UPDATE", false),
        ("votes", "INSERT", false),
        ("days", "INSERT", true),
        ("days", "UPDATE", true),
    ] {
        assert_eq!(
            denied(table, privilege),
            missing,
            "{privilege} on {table}: {found:#?}"
        );
    }

    db.run("DROP TABLE counterfoil_ledger").await;
    assert_found(
        &findings(&db.store, &[]).await,
        Severity::Error,
        &["missing", "counterfoil_ledger"],
    );
    // root can still write, so the other tests are not affected
    db.run("SET GLOBAL read_only = 1").await;
    let found = findings(&db.store, &[]).await;
    db.run("SET GLOBAL read_only = 0").await;
    assert_found(&found, Severity::Error, &["read_only", "no writes"]);
}

#[tokio::test]
async fn an_unreachable_database_is_a_finding_and_an_error() {
    let options = MySqlConnectOptions::new().socket("/nowhere/mysql.sock");
    let pool = MySqlPoolOptions::new()
        .acquire_timeout(Duration::from_millis(200))
        .connect_lazy_with(options);
    let store = MysqlStore::new(pool);
    assert!(
        matches!(&findings(&store, &[]).await[..], [(Severity::Error, text)] if text.starts_with("mysql: "))
    );
    let family = views().build().expect("valid").clone();
    let error = store.register(&family).await.expect_err("unreachable");
    assert!(
        error.kind() == ErrorKind::Store && error.is_retryable(),
        "{error}"
    );
    let family = Arc::new(Registered { family, number: 1 });
    let error = store
        .apply(&[batch(&family, 0, 1, &[("a", 1)])], None)
        .await
        .expect_err("unreachable");
    assert!(
        error.kind() == ErrorKind::Store && error.is_retryable(),
        "{error}"
    );
}
