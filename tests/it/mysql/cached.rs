//! MysqlStore's rows and saves of cached counters against a real server: seeds, compare-and-set, refused rows, races.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use counterfoil::test_hooks::{Guard, take_out};
use counterfoil::{
    BufferedFamilyBuilder, ErrorKind, Family, KeyType, MysqlStore, Registered, Reject, Row as Seed, Save, Saved, Store,
    Table, Version,
};
use rand::seq::SliceRandom;
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use sqlx::{AssertSqlSafe, MySqlPool, Row};
use testkit::{MysqlServer, Proxy};
use tokio::sync::OnceCell;

static SERVER: OnceCell<MysqlServer> = OnceCell::const_new();

/// A database of its own, with counterfoil's tables.
struct Db {
    pool: MySqlPool,
    store: MysqlStore,
}

impl Db {
    async fn new() -> Self {
        let server = SERVER.get_or_init(MysqlServer::start).await;
        Db::on(server).await
    }

    async fn on(server: &MysqlServer) -> Self {
        let (_, pool) = server.database("cached").await;
        let store = MysqlStore::new(pool.clone());
        store.create_tables().await.expect("created");
        Db { pool, store }
    }

    async fn run(&self, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&self.pool).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
    }

    async fn number(&self, sql: &str) -> i64 {
        let sql = format!("SELECT CAST(({sql}) AS SIGNED)");
        sqlx::query_scalar(AssertSqlSafe(sql.clone()))
            .fetch_one(&self.pool)
            .await
            .unwrap_or_else(|e| panic!("{sql}: {e}"))
    }

    async fn family(&self, builder: BufferedFamilyBuilder) -> Arc<Registered> {
        let family = builder.build().expect("valid").family().clone();
        let number = self.store.register(&family).await.expect("registered");
        Arc::new(Registered { family, number })
    }

    async fn own(&self) -> Arc<Registered> {
        self.family(Family::buffered("shop", "stock")).await
    }

    /// Over a table of numbers with a value column `n` of the type given: one whose rows are inserted, or the
    /// application's to make.
    async fn table(&self, name: &str, column: &str, table: impl Fn(&'static str) -> Table) -> Arc<Registered> {
        let name: &'static str = name.to_owned().leak();
        self.run(&format!("CREATE TABLE {name} (id BIGINT UNSIGNED PRIMARY KEY, n {column})")).await;
        let table = table(name).key("id", KeyType::Unsigned).value("n");
        self.family(Family::buffered("shop", name).table(table)).await
    }

    async fn rows(&self, family: &Registered, ids: &[&str]) -> Vec<Seed> {
        self.store.rows(family, ids).await.expect("rows")
    }

    async fn save(&self, family: &Registered, saves: &[Save]) -> Vec<Saved> {
        self.store.save(family, saves).await.expect("saved")
    }

    async fn rejects(&self) -> Vec<(String, i64, String)> {
        let rejects = self.store.rejects(0, 100_000).await.expect("rejects");
        rejects.into_iter().map(|Reject { id, delta, reason, .. }| (id, delta, reason)).collect()
    }
}

fn version(lineage: u64, n: u64) -> Version {
    Version { lineage, n }
}

fn row(value: impl Into<Option<i64>>, version: impl Into<Option<Version>>) -> Seed {
    Seed { value: value.into(), version: version.into() }
}

fn save(id: impl ToString, known: Seed, value: i64, version: Version) -> Save {
    Save { id: id.to_string().into_bytes(), partition: 3, known, value, version }
}

fn name(save: &Save) -> &str {
    std::str::from_utf8(&save.id).expect("UTF-8")
}

const NOTHING: Seed = Seed { value: None, version: None };
const V1: Version = Version { lineage: u64::MAX, n: 1 };
const V2: Version = Version { lineage: u64::MAX, n: 2 };
const OTHER: Version = Version { lineage: 1, n: 1 };

// ------------------------------------------------------------------------------------------------------------ reading

#[tokio::test]
async fn a_row_is_read_with_its_version() {
    let db = Db::new().await;
    let own = db.own().await;
    let votes = db.table("votes", "INT NULL", Table::update).await;
    db.run("INSERT INTO votes VALUES (1, 5), (2, NULL), (3, -1)").await;
    assert_eq!(db.rows(&own, &[]).await, []);
    assert_eq!(db.rows(&own, &["a"]).await, [NOTHING]);
    assert_eq!(db.rows(&own, &["a", "b"]).await, [NOTHING; 2]);
    let saves = [save("a", NOTHING, i64::MIN, V1), save("A", NOTHING, i64::MAX, V2), save("é/ ", NOTHING, 7, V1)];
    assert_eq!(db.save(&own, &saves).await, [Saved::Done, Saved::Done, Saved::Done]);
    let expected = [row(i64::MIN, V1), row(i64::MAX, V2), row(7, V1), NOTHING];
    assert_eq!(db.rows(&own, &["a", "A", "é/ ", "b"]).await, expected);
    for (id, expected) in ["a", "A", "é/ ", "b"].iter().zip(expected) {
        assert_eq!(db.rows(&own, &[id]).await, [expected]);
    }

    // a row without a version, one that is NULL, none, and an id that is no row's
    let expected = [row(5, None), row(0, None), NOTHING, NOTHING, row(-1, None)];
    assert_eq!(db.rows(&votes, &["1", "2", "4", "x", "3"]).await, expected);
    for (id, expected) in ["1", "2", "4", "x", "3"].iter().zip(expected) {
        assert_eq!(db.rows(&votes, &[id]).await, [expected]);
    }
    assert_eq!(db.save(&votes, &[save(2, row(0, None), 4, V1)]).await, [Saved::Done], "NULL is 0");
    assert_eq!(db.rows(&votes, &["2"]).await, [row(4, V1)]);
}

#[tokio::test]
async fn a_value_beyond_i64_is_out_of_range() {
    let db = Db::new().await;
    let big = db.table("big", "BIGINT UNSIGNED NOT NULL", Table::upsert).await;
    db.run("INSERT INTO big VALUES (1, 9223372036854775808), (2, 9223372036854775807)").await;
    for ids in [&["1"][..], &["1", "2"]] {
        let error = db.store.rows(&big, ids).await.expect_err("refused");
        assert!(error.kind() == ErrorKind::Range && error.to_string().contains("9223372036854775808"), "{error}");
    }
    assert_eq!(db.rows(&big, &["2"]).await, [row(i64::MAX, None)]);
    let saves = [save(1, row(3, None), 5, V1), save(2, row(i64::MAX, None), 0, V1)];
    for _ in 0..2 {
        assert_eq!(db.save(&big, &saves).await, [Saved::Refused, Saved::Done]);
        let reason = "5 (9223372036854775808 in the row): it is no signed 64-bit number";
        assert_eq!(db.rejects().await, [("1".into(), 2, reason.into())]);
    }
    assert_eq!(db.number("SELECT COUNT(*) FROM counterfoil_versions").await, 1);
}

#[tokio::test]
async fn a_database_that_takes_no_writes_seeds_nothing() {
    let server = MysqlServer::start().await;
    let db = Db::on(&server).await;
    let own = db.own().await;
    db.run("SET GLOBAL read_only = 1").await;
    for ids in [&["a"][..], &["a", "b"]] {
        let error = db.store.rows(&own, ids).await.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Unsafe);
        assert!(error.to_string().contains("takes no writes"), "{error}");
    }
    db.run("SET GLOBAL read_only = 0").await;
    assert_eq!(db.rows(&own, &["a"]).await, [NOTHING]);
}

#[tokio::test]
async fn a_table_of_versions_that_is_missing_is_found() {
    let db = Db::new().await;
    let own = db.own().await;
    db.run("DROP TABLE counterfoil_versions").await;
    let findings = db.store.check(&[]).await;
    assert!(findings.iter().any(|finding| finding.message.contains("counterfoil_versions")), "{findings:?}");
    let error = db.store.rows(&own, &["a"]).await.expect_err("no table");
    assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
    let error = db.store.save(&own, &[save("a", NOTHING, 1, V1)]).await.expect_err("no table");
    assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
    db.store.create_tables().await.expect("created");
    assert_eq!(db.rows(&own, &["a"]).await, [NOTHING], "nothing of the save was kept");
}

// ----------------------------------------------------------------------------------------------------- compare-and-set

#[tokio::test]
async fn a_save_is_kept_once_however_often_it_comes() {
    let db = Db::new().await;
    let tables = [
        db.own().await,
        db.table("days", "BIGINT NOT NULL", Table::upsert).await,
        db.table("votes", "BIGINT NOT NULL DEFAULT 7", Table::update).await,
    ];
    db.run("INSERT INTO votes VALUES (1, 0), (2, 0)").await;
    for (at, family) in tables.iter().enumerate() {
        let seed = if at == 2 { row(0, None) } else { NOTHING };
        let first = [save(2, seed, 5, V1), save(1, seed, -5, V1)];
        let second = [save(1, row(-5, V1), i64::MIN, V2), save(2, row(5, V1), i64::MAX, V2)];
        for _ in 0..3 {
            assert_eq!(db.save(family, &first).await, [Saved::Done, Saved::Done], "{at}");
            assert_eq!(db.rows(family, &["1", "2"]).await, [row(-5, V1), row(5, V1)], "{at}");
        }
        for _ in 0..3 {
            assert_eq!(db.save(family, &second).await, [Saved::Done, Saved::Done], "{at}");
            assert_eq!(db.rows(family, &["1", "2"]).await, [row(i64::MIN, V2), row(i64::MAX, V2)], "{at}");
        }
        // one that was on its way all the time
        let late = [Saved::Conflict(row(i64::MAX, V2)), Saved::Conflict(row(i64::MIN, V2))];
        assert_eq!(db.save(family, &first).await, late, "{at}");
        assert_eq!(db.rows(family, &["1", "2"]).await, [row(i64::MIN, V2), row(i64::MAX, V2)], "{at}");
    }
    assert_eq!(db.save(&tables[0], &[]).await, []);
    assert_eq!(db.rejects().await, []);
}

#[tokio::test]
async fn what_somebody_else_wrote_is_a_conflict() {
    let db = Db::new().await;
    let own = db.own().await;
    let votes = db.table("votes", "INT NULL", Table::update).await;
    db.run("INSERT INTO votes VALUES (1, 5), (2, 5), (3, 5), (4, NULL)").await;
    let saves: Vec<_> = (1..=3).map(|id| save(id, row(5, None), 6, V1)).collect();
    assert_eq!(db.save(&votes, &saves).await, [Saved::Done, Saved::Done, Saved::Done]);
    // by hand: another value, and a value that is the same again
    db.run("UPDATE votes SET n = 100 WHERE id = 1; UPDATE votes SET n = NULL WHERE id = 3").await;
    let saves: Vec<_> = (1..=3).map(|id| save(id, row(6, V1), 7, V2)).collect();
    let expected = [Saved::Conflict(row(100, V1)), Saved::Done, Saved::Conflict(row(0, V1))];
    assert_eq!(db.save(&votes, &saves).await, expected);
    assert_eq!(db.rows(&votes, &["1", "2", "3"]).await, [row(100, V1), row(7, V2), row(0, V1)]);
    // by another lineage, which came to the same value
    assert_eq!(db.save(&votes, &[save(4, row(0, None), 1, OTHER)]).await, [Saved::Done]);
    assert_eq!(db.save(&votes, &[save(4, row(1, V1), 2, V2)]).await, [Saved::Conflict(row(1, OTHER))]);
    assert_eq!(db.save(&votes, &[save(4, row(1, None), 2, V2)]).await, [Saved::Conflict(row(1, OTHER))]);
    // a row where none was known
    assert_eq!(db.save(&own, &[save("a", NOTHING, 1, OTHER)]).await, [Saved::Done]);
    assert_eq!(db.save(&own, &[save("a", NOTHING, 2, V1)]).await, [Saved::Conflict(row(1, OTHER))]);
    assert_eq!(db.rejects().await, []);
}

#[tokio::test]
async fn a_row_that_is_gone() {
    let db = Db::new().await;
    let days = db.table("days", "INT NOT NULL", Table::upsert).await;
    let votes = db.table("votes", "INT NOT NULL", Table::update).await;
    db.run("INSERT INTO votes VALUES (1, 5)").await;
    db.save(&days, &[save(1, NOTHING, 5, V1)]).await;
    db.save(&votes, &[save(1, row(5, None), 8, V1)]).await;
    db.run("DELETE FROM days; DELETE FROM votes").await;

    // ours to make: known anew, and made from there
    assert_eq!(db.rows(&days, &["1"]).await, [row(None, V1)]);
    assert_eq!(db.save(&days, &[save(1, row(5, V1), 6, V2)]).await, [Saved::Conflict(row(None, V1))]);
    assert_eq!(db.save(&days, &[save(1, row(None, V1), 1, V2)]).await, [Saved::Done]);
    assert_eq!(db.rows(&days, &["1"]).await, [row(1, V2)]);
    assert_eq!(db.rejects().await, []);

    // the application's to make: what would have been added is rejected once, and counts as saved
    let saves = [save(2, NOTHING, -3, V1), save(1, row(8, V1), 6, V2)];
    assert_eq!(db.save(&votes, &saves).await, [Saved::NoRow, Saved::NoRow]);
    let rejected = db.store.rejects(0, 10).await.expect("rejects");
    let origin = |reject: &Reject| (reject.partition, reject.incarnation.0, reject.seq, reject.delta);
    // in the order of the rows
    assert_eq!(rejected.iter().map(origin).collect::<Vec<_>>(), [(3, V2.lineage, 2, -2), (3, V1.lineage, 1, -3)]);
    assert!(rejected.iter().all(|reject| reject.reason == "no such row" && reject.family == "votes"), "{rejected:?}");
    assert_eq!(db.save(&votes, &saves).await, [Saved::Done, Saved::Done]);
    assert_eq!(db.rejects().await.len(), 2);
    assert_eq!(db.rows(&votes, &["1", "2"]).await, [row(None, V2), row(None, V1)]);
    // a row turns up
    db.run("INSERT INTO votes VALUES (2, 100)").await;
    assert_eq!(db.save(&votes, &[save(2, row(-3, V1), -2, V2)]).await, [Saved::Conflict(row(100, V1))]);
}

#[tokio::test]
async fn without_the_version_an_old_save_overwrites_a_new_one() {
    let db = Db::new().await;
    let own = db.own().await;
    db.save(&own, &[save("a", NOTHING, 1, V1)]).await;
    db.save(&own, &[save("a", row(1, V1), 2, V2)]).await;
    take_out(Some(Guard::Version));
    let late = db.store.save(&own, &[save("a", NOTHING, 1, V1), save("b", row(1, V1), 3, V1)]).await;
    take_out(None);
    assert_eq!(late.expect("saved"), [Saved::Done, Saved::Done]);
    assert_eq!(db.rows(&own, &["a", "b"]).await, [row(1, V1), row(3, V1)]);
}

// -------------------------------------------------------------------------------------------------------- refused rows

#[tokio::test]
async fn what_the_schema_refuses_holds_nothing_back() {
    let db = Db::new().await;
    db.run(
        "CREATE TABLE small (id INT PRIMARY KEY, n TINYINT NOT NULL);
         CREATE TABLE positive (id INT PRIMARY KEY, n INT UNSIGNED NOT NULL);
         CREATE TABLE checked (id INT PRIMARY KEY, n INT NOT NULL CHECK (n < 128));
         CREATE TABLE hooked (id INT PRIMARY KEY, n INT NOT NULL);
         CREATE TABLE noted (id INT PRIMARY KEY, n INT NOT NULL);
         CREATE TABLE notes (n INT PRIMARY KEY);
         INSERT INTO notes VALUES (-200), (200)",
    )
    .await;
    for event in ["INSERT", "UPDATE"] {
        db.run(&format!(
            "CREATE TRIGGER hooked_{event} BEFORE {event} ON hooked FOR EACH ROW \
             BEGIN IF NEW.n > 127 THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'too many'; END IF; END"
        ))
        .await;
        // a duplicate key that is no other transaction's
        db.run(&format!(
            "CREATE TRIGGER noted_{event} BEFORE {event} ON noted FOR EACH ROW \
             BEGIN IF ABS(NEW.n) > 127 THEN INSERT INTO notes VALUES (NEW.n); END IF; END"
        ))
        .await;
    }
    let cases = [
        ("small", 200, "out of range"),
        ("positive", -200, "out of range"),
        ("checked", 200, "check"),
        ("hooked", 200, "too many"),
        ("noted", 200, "duplicate"),
    ];
    for (name, bad, words) in cases {
        let table = Table::upsert(name).key("id", KeyType::Signed).value("n");
        let family = db.family(Family::buffered("shop", name).table(table)).await;
        let seen = db.rejects().await.len();
        let value = |id: i64| if id == 777 { bad } else { id % 100 };
        let new: Vec<_> = (0..1001).map(|id| save(id, NOTHING, value(id), V1)).collect();
        for _ in 0..2 {
            let saved = db.save(&family, &new).await;
            let refused: Vec<_> = (0..1001).filter(|&at| saved[at] != Saved::Done).collect();
            assert_eq!((refused, &saved[777]), (vec![777], &Saved::Refused), "{name}");
            let rejects = db.rejects().await;
            let [(id, delta, reason)] = &rejects[seen..] else { panic!("{name}: {rejects:?}") };
            assert_eq!((id.as_str(), *delta), ("777", bad), "{name}");
            assert!(reason.starts_with(&format!("{bad} (nothing in the row): ")), "{name}: {reason}");
            assert!(reason.to_lowercase().contains(words), "{name}: {reason}");
        }
        assert_eq!(db.rows(&family, &["777"]).await, [NOTHING], "{name}");

        // the same to rows that are there
        db.save(&family, &[save(777, NOTHING, 5, V1)]).await;
        let known = |id: i64| row(if id == 777 { 5 } else { id % 100 }, V1);
        let again: Vec<_> = (0..1001).map(|id| save(id, known(id), value(id), V2)).collect();
        for _ in 0..2 {
            let saved = db.save(&family, &again).await;
            assert_eq!(saved.iter().filter(|saved| **saved == Saved::Done).count(), 1000, "{name}");
            assert_eq!(saved[777], Saved::Refused, "{name}");
            let rejects = db.rejects().await;
            let [(_, delta, reason)] = &rejects[seen + 1..] else { panic!("{name}: {rejects:?}") };
            assert_eq!(*delta, bad - 5, "{name}");
            assert!(reason.starts_with(&format!("{bad} (5 in the row): ")), "{name}: {reason}");
        }
        assert_eq!(db.rows(&family, &["777", "778"]).await, [row(5, V1), row(78, V2)], "{name}");
    }
}

#[tokio::test]
async fn an_id_that_is_no_row_is_refused_in_words() {
    let db = Db::new().await;
    let votes = db.table("votes", "INT NOT NULL", Table::upsert).await;
    let saves = [save("x", NOTHING, i64::MIN, V1), save(1, NOTHING, 1, V1), save("01", row(1, V1), i64::MIN, V2)];
    assert_eq!(db.save(&votes, &saves).await, [Saved::Refused, Saved::Done, Saved::Refused]);
    let rejects = db.rejects().await;
    assert!(
        rejects.iter().all(|(_, delta, reason)| *delta == i64::MIN && reason.contains("leading zeros")),
        "{rejects:?}"
    );
}

#[tokio::test]
async fn a_counter_twice_in_a_call_is_an_error() {
    let db = Db::new().await;
    let own = db.own().await;
    let error =
        db.store.save(&own, &[save("a", NOTHING, 1, V1), save("a", NOTHING, 1, V1)]).await.expect_err("refused");
    assert!(error.to_string().contains("twice"), "{error}");
    assert_eq!(db.rows(&own, &["a"]).await, [NOTHING]);
}

// --------------------------------------------------------------------------------------------------------------- races

/// Shuffled, so that locks would be taken in any order if they were not sorted.
fn shuffled(saves: impl Iterator<Item = Save>) -> Vec<Save> {
    let mut saves: Vec<_> = saves.collect();
    saves.shuffle(&mut rand::rng());
    saves
}

/// Six hands save at the same time: the same lineage twice each, three lineages. For every id exactly one lineage wins,
/// and the others are told what it wrote.
async fn race(db: &Db, family: &Registered, ids: u64, known: impl Fn(u64) -> Seed) -> HashSet<u64> {
    let hands = (0..6_u64).map(|hand| {
        let lineage = 10 + hand % 3;
        let known = &known;
        let saves = shuffled((0..ids).map(|id| save(id, known(id), lineage as i64, version(lineage, 1))));
        let (store, family) = (db.store.clone(), family.clone());
        tokio::spawn(async move {
            let saved = store.save(&family, &saves).await.expect("saved");
            (lineage, saves.into_iter().zip(saved).collect::<Vec<_>>())
        })
    });
    let mut winners = vec![None; ids as usize];
    let mut conflicts = Vec::new();
    for hand in hands.collect::<Vec<_>>() {
        let (lineage, saved) = hand.await.expect("no panic");
        for (save, saved) in saved {
            let id: usize = name(&save).parse().expect("a number");
            match saved {
                Saved::Done => assert_eq!(*winners[id].get_or_insert(lineage), lineage, "two winners"),
                Saved::Conflict(found) => conflicts.push((id, found)),
                other => panic!("{other:?}"),
            }
        }
    }
    let names: Vec<_> = (0..ids).map(|id| id.to_string()).collect();
    let rows = db.rows(family, &names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    for (id, winner) in winners.iter().enumerate() {
        let winner = winner.expect("a winner");
        assert_eq!(rows[id], row(winner as i64, version(winner, 1)));
    }
    assert_eq!(conflicts.len() as u64, 4 * ids);
    for (id, found) in conflicts {
        assert_eq!(found, rows[id], "told something else than what is there");
    }
    winners.into_iter().flatten().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_lineages_wins() {
    let db = Db::new().await;
    for round in 0..5 {
        let own = db.family(Family::buffered("shop", format!("own{round}"))).await;
        race(&db, &own, 300, |_| NOTHING).await;
        let days = db.table(&format!("days{round}"), "INT NOT NULL", Table::upsert).await;
        race(&db, &days, 300, |_| NOTHING).await;
        let votes = db.table(&format!("votes{round}"), "INT NULL", Table::update).await;
        for id in 0..300 {
            db.run(&format!("INSERT INTO votes{round} VALUES ({id}, NULLIF({}, 0))", id % 3)).await;
        }
        race(&db, &votes, 300, |id| row(id as i64 % 3, None)).await;
    }
    // all there and as known
    let swapped = db.family(Family::buffered("shop", "swapped")).await;
    db.save(&swapped, &(0..300).map(|id| save(id, NOTHING, 5, V1)).collect::<Vec<_>>()).await;
    race(&db, &swapped, 300, |_| row(5, V1)).await;
    // rows and versions in every state: both, one of them, none
    let mixed = db.family(Family::buffered("shop", "mixed")).await;
    let own = format!("WHERE family = {} AND", mixed.number);
    db.save(&mixed, &(0..300).map(|id| save(id, NOTHING, 5, V1)).collect::<Vec<_>>()).await;
    db.run(&format!(
        "DELETE FROM counterfoil_values {own} id % 4 IN (1, 3); DELETE FROM counterfoil_versions {own} id % 4 IN (2, 3)"
    ))
    .await;
    race(&db, &mixed, 300, |id| row((id % 2 == 0).then_some(5), (id % 4 < 2).then_some(V1))).await;
    assert_eq!(db.rejects().await, []);
}

/// Two lineages save a row that the application has not made: both are rejected, or the second one is a conflict.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lineages_without_a_row_reject_once_each_at_most() {
    let db = Db::new().await;
    let votes = db.table("votes", "INT NULL", Table::update).await;
    let hands = (0..6_u64).map(|hand| {
        let lineage = 10 + hand % 3;
        let saves = shuffled((0..200).map(|id| save(id, NOTHING, lineage as i64, version(lineage, 1))));
        let (store, family) = (db.store.clone(), votes.clone());
        tokio::spawn(async move { store.save(&family, &saves).await.expect("saved") })
    });
    let mut no_row = 0;
    for hand in hands.collect::<Vec<_>>() {
        no_row += hand.await.expect("no panic").iter().filter(|saved| **saved == Saved::NoRow).count();
    }
    let rejects = db.rejects().await;
    assert_eq!((no_row, rejects.len()), (200, 200), "the second one found the version");
    assert_eq!(db.number("SELECT COUNT(*) FROM counterfoil_versions").await, 200);
}

/// The application inserts the row between the look at it and the insert.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_that_turns_up_meanwhile_is_a_conflict() {
    let db = Db::new().await;
    let days = db.table("days", "INT NOT NULL", Table::upsert).await;
    let mut other = db.pool.begin().await.expect("begun");
    sqlx::raw_sql("INSERT INTO days VALUES (5, 100)").execute(&mut *other).await.expect("inserted");
    let save = tokio::spawn({
        let (store, days) = (db.store.clone(), days.clone());
        let saves: Vec<_> = (0..10).map(|id| save(id, NOTHING, 1, V1)).collect();
        async move { store.save(&days, &saves).await }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    other.commit().await.expect("committed");
    let saved = save.await.expect("no panic").expect("saved");
    assert_eq!(saved[5], Saved::Conflict(row(100, None)));
    assert_eq!(saved.iter().filter(|saved| **saved == Saved::Done).count(), 9);
}

// -------------------------------------------------------------------------------------------------------- faults, size

/// The connection is cut at many points of a save: all of it was kept or nothing, and the same save is done in the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_cut_anywhere_keeps_all_or_nothing() {
    let db = Db::new().await;
    let votes = db.table("votes", "TINYINT NOT NULL", Table::update).await;
    let proxy = Proxy::to_unix(SERVER.get().expect("started").socket());
    let options: MySqlConnectOptions = (*db.pool.connect_options()).clone().socket(proxy.socket());
    // a new connection each time, so that a save is always as many bytes
    let connect = async || {
        let pool = MySqlPoolOptions::new().max_connections(1).connect_with(options.clone()).await.expect("connected");
        let store = MysqlStore::new(pool);
        store.rows(&votes, &["0"]).await.expect("rows");
        store
    };
    let saves = async |at: usize| {
        let ids = [3 * at, 3 * at + 1, 3 * at + 2].map(|id| (100_000 + id).to_string());
        db.run(&format!("INSERT INTO votes VALUES ({}, 0), ({}, 0)", ids[0], ids[1])).await;
        let [one, two, three] = ids;
        [save(one, row(0, None), 9, V1), save(two, row(0, None), 1000, V1), save(three, NOTHING, 9, V1)]
    };
    let store = connect().await;
    let (requests, replies) = (proxy.request_bytes(), proxy.reply_bytes());
    let done = [Saved::Done, Saved::Refused, Saved::NoRow];
    assert_eq!(store.save(&votes, &saves(0).await).await.expect("saved"), done);
    let (requests, replies) = (proxy.request_bytes() - requests, proxy.reply_bytes() - replies);

    let (mut kept, mut lost) = (0, 0);
    // all along the way but for the pool's ping, and in what the server says to COMMIT
    let along = (1..40).flat_map(|part| [(true, requests * part / 40), (false, replies * part / 40)]);
    let cuts: Vec<_> = along.chain((1..=20).map(|left| (false, replies - left))).collect();
    for (at, &(is_request, bytes)) in cuts.iter().enumerate() {
        let (store, saves) = (connect().await, saves(at + 1).await);
        match is_request {
            true => proxy.cut_requests_after(bytes),
            false => proxy.cut_replies_after(bytes),
        }
        match store.save(&votes, &saves).await {
            Err(error) => assert!(error.is_retryable() && !proxy.call_off(), "{error}"),
            // some bytes less than the first one: the cut comes behind them
            Ok(saved) => {
                proxy.call_off();
                assert_eq!(saved, done);
            }
        }
        let ids = saves.each_ref().map(name);
        let rows = db.rows(&votes, &ids).await;
        if rows == [row(0, None), row(0, None), NOTHING] {
            lost += 1;
            assert_eq!(db.save(&votes, &saves).await, done);
        } else {
            kept += 1;
            assert_eq!(db.save(&votes, &saves).await, [Saved::Done, Saved::Refused, Saved::Done]);
        }
        assert_eq!(db.rows(&votes, &ids).await, [row(9, V1), row(0, None), row(None, V1)]);
        assert_eq!(db.rejects().await.len(), 2 * (at + 2));
    }
    assert!(kept > 5 && lost > 50, "{kept} kept, {lost} lost");
}

#[tokio::test]
async fn a_lax_session_is_left_as_it_was() {
    let db = Db::new().await;
    let options: MySqlConnectOptions = (*db.pool.connect_options()).clone();
    let pool = MySqlPoolOptions::new()
        .max_connections(1)
        .after_connect(|connection, _| {
            let lax = "SET SESSION sql_mode = 'ANSI_QUOTES', SESSION sql_safe_updates = 1";
            Box::pin(async move { sqlx::raw_sql(lax).execute(connection).await.map(drop) })
        })
        .connect_with(options)
        .await
        .expect("connected");
    let votes = db.table("votes", "TINYINT NOT NULL", Table::upsert).await;
    let store = MysqlStore::new(pool.clone());
    let saves = [save(1, NOTHING, 200, V1), save(2, NOTHING, 100, V1)];
    assert_eq!(store.save(&votes, &saves).await.expect("saved"), [Saved::Refused, Saved::Done]);
    let read =
        sqlx::query("SELECT @@SESSION.sql_mode, @@SESSION.sql_safe_updates").fetch_one(&pool).await.expect("read");
    assert_eq!((read.get::<String, _>(0).as_str(), read.get::<i64, _>(1)), ("ANSI_QUOTES", 1));
}

#[tokio::test]
async fn fifty_thousand_at_once() {
    let db = Db::new().await;
    let own = db.own().await;
    let first = shuffled((0..50_000).map(|id| save(format!("product-{id}"), NOTHING, id, V1)));
    assert!(db.save(&own, &first).await.iter().all(|saved| *saved == Saved::Done));
    let before = db.store.statements();
    let second: Vec<_> =
        first.iter().map(|first| save(name(first), row(first.value, V1), first.value + 1, V2)).collect();
    assert!(db.save(&own, &second).await.iter().all(|saved| *saved == Saved::Done));
    // three to begin, a savepoint, two for each 10,000, two to commit
    assert_eq!(db.store.statements() - before, 16);
    let ids: Vec<_> = second.iter().map(name).collect();
    let expected: Vec<_> = second.iter().map(|save| row(save.value, V2)).collect();
    assert_eq!(db.rows(&own, &ids).await, expected);
}

/// Every table is looked up by a whole key, row by row.
#[tokio::test]
async fn rows_are_looked_up_and_not_scanned() {
    let db = Db::new().await;
    let own = db.own().await;
    let votes = db.table("votes", "INT NOT NULL", Table::upsert).await;
    for family in [&own, &votes] {
        for part in 0..2 {
            let new: Vec<_> = (part * 50_000..(part + 1) * 50_000).map(|id| save(id, NOTHING, 1, V1)).collect();
            db.save(family, &new).await;
        }
    }
    db.run("ANALYZE TABLE counterfoil_values, counterfoil_versions, votes").await;
    let pool = MySqlPoolOptions::new().max_connections(1).connect_with((*db.pool.connect_options()).clone());
    let pool = pool.await.expect("connected");
    let store = MysqlStore::new(pool.clone());
    let read = async || {
        let rows = sqlx::query("SHOW SESSION STATUS LIKE 'Handler_read%'").fetch_all(&pool).await.expect("status");
        // a temporary table of the given rows is scanned; those are few
        let scanned = ["Handler_read_rnd_next", "Handler_read_next", "Handler_read_first", "Handler_read_last"];
        let counts = rows.iter().filter(|row| scanned.contains(&row.get::<String, _>(0).as_str()));
        counts.map(|row| row.get::<String, _>(1).parse::<u64>().expect("a number")).sum::<u64>()
    };
    for family in [&own, &votes] {
        store.rows(family, &["1"]).await.expect("rows");
        let before = read().await;
        store.rows(family, &["7"]).await.expect("rows");
        let ids: Vec<_> = (0..100).map(|id| (id * 500).to_string()).collect();
        store.rows(family, &ids.iter().map(String::as_str).collect::<Vec<_>>()).await.expect("rows");
        let saves: Vec<_> = (0..100)
            .map(|id| save(id * 500, row(1, V1), 2, V2))
            .chain((0..100).map(|id| save(200_000 + id, NOTHING, 2, V2)))
            .collect();
        assert!(store.save(family, &saves).await.expect("saved").iter().all(|saved| *saved == Saved::Done));
        let read = read().await - before;
        assert!(read < 10_000, "{read} rows were walked over");
    }
}
