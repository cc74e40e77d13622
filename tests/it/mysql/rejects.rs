//! Rejects that are retried or discarded. Each counts at most once, also for concurrent callers,
//! and a reject that is refused again stays.

use super::database::*;
use crate::support::*;

const MEND: &str = "ALTER TABLE small MODIFY n SMALLINT NOT NULL";
const SUM: &str = "SELECT COALESCE(SUM(n), 0) FROM small WHERE id <> 'good'";

const IDS: [&str; 6] = ["bad/0", "bad/1", "bad/2", "bad/3", "bad/4", "bad/5"];

/// Creates a database with 6 rejects, of [`IDS`], which do not fit in a TINYINT.
async fn six_rejects() -> (Db, Arc<Registration>) {
    let db = Db::new().await;
    db.run("CREATE TABLE small (id VARBINARY(255) PRIMARY KEY, n TINYINT NOT NULL)")
        .await;
    let family = db.table("small", by_id(Table::upsert("small"), Text)).await;
    let deltas = IDS.map(|id| (id, 200)).into_iter().chain([("good", 1)]);
    db.adds(&family, 1, deltas, (1, 6)).await;
    (db, family)
}

impl Db {
    /// Retries the rejects of these ids. Returns how many were applied, refused and left.
    pub async fn retry(&self, family: &Registration, ids: &[&str]) -> (u64, u64, u64) {
        let retried = self.store.retry_rejects(&family.family, Some(ids)).await;
        outcomes(retried.unwrap())
    }

    async fn discard(&self, family: &Registration, ids: &[&str]) -> u64 {
        let name = family.family.to_string();
        self.store.discard_rejects(&name, Some(ids)).await.unwrap()
    }

    /// Returns the ids of the rejects, in ascending order.
    pub async fn rejected_ids(&self) -> Vec<String> {
        let rejects = self.rejects().await.into_iter();
        rejects.map(|reject| reject.id).collect()
    }
}

#[tokio::test]
async fn a_reject_is_applied_again_once() {
    let (db, family) = six_rejects().await;
    // nothing was mended
    assert_eq!(db.retry(&family, &IDS[..2]).await, (0, 2, 0));
    assert_eq!(db.rejected_ids().await, IDS);

    db.run(MEND).await;
    db.run("INSERT INTO small VALUES ('bad/1', 32600)").await;
    let asked = ["bad/3", "bad/0", "none", "bad/1", "bad/0"];
    assert_eq!(db.retry(&family, &asked).await, (2, 1, 0));
    assert_eq!(db.number(SUM).await, 32600 + 400);
    assert_eq!(
        db.rejected_ids().await,
        ["bad/1", "bad/2", "bad/4", "bad/5"]
    );

    db.run("UPDATE small SET n = 0 WHERE id = 'bad/1'").await;
    assert_eq!(db.retry(&family, &IDS).await, (4, 0, 0));
    assert_eq!(db.number(SUM).await, 6 * 200);
    // nothing is left of them, and the batch itself is not applied again
    assert_eq!(
        db.number("SELECT COUNT(*) FROM counterfoil_rejects").await,
        0
    );
    assert_eq!(db.retry(&family, &IDS).await, (0, 0, 0));
    assert_eq!(db.add(&family, 0, 1, [("bad/0", 200)]).await.repeated, 1);
    db.expect_rejects(&[]).await;
}

#[tokio::test]
async fn a_reject_that_is_refused_again_has_the_new_reason() {
    let (db, family) = six_rejects().await;
    let first = async || db.rejects().await.swap_remove(0);
    let before = first().await;
    db.run(MEND).await;
    db.run("ALTER TABLE small ADD CONSTRAINT few CHECK (n < 100)")
        .await;
    let retry = async || db.retry(&family, &IDS[..1]).await;
    assert_eq!(retry().await, (0, 1, 0));
    let after = first().await;
    assert!(
        after.reason != before.reason && after.reason.contains("few"),
        "{before:?}, then {after:?}"
    );
    assert_eq!((after.first_at, after.retries), (before.first_at, 1));
    db.run("ALTER TABLE small DROP CONSTRAINT few").await;
    assert_eq!(retry().await, (1, 0, 0));
}

#[tokio::test]
async fn a_discarded_reject_exists_no_longer() {
    let (db, family) = six_rejects().await;
    db.run(MEND).await;
    assert_eq!(db.retry(&family, &IDS[..1]).await, (1, 0, 0));
    let asked = ["bad/2", "bad/0", "none", "bad/1", "bad/2"];
    assert_eq!(db.discard(&family, &asked).await, 2);
    assert_eq!(db.discard(&family, &asked).await, 0);
    assert_eq!(db.discard(&family, &[]).await, 0);
    assert_eq!(db.rejected_ids().await, IDS[3..]);
    assert_eq!(db.retry(&family, &IDS[..3]).await, (0, 0, 0));
    assert_eq!(db.number(SUM).await, 200);
    let all = db.store.discard_rejects("shop/small", None).await;
    assert_eq!(all.unwrap(), 3);
    db.expect_rejects(&[]).await;
    assert_eq!(
        db.store.discard_rejects("shop/none", None).await.unwrap(),
        0
    );
}

/// Each reject is added to its row or discarded.
#[tokio::test]
async fn a_retry_and_a_discard_share_no_reject() {
    const MANY: usize = 400;
    let (db, family) = six_rejects().await;
    let ids: Vec<_> = (0..MANY).map(|number| format!("many/{number}")).collect();
    let deltas = ids.iter().map(|id| (id, 200));
    let sums = db.add(&family, 0, 2, deltas).await;
    assert_eq!(sums.rejected, MANY as u64);
    db.run(MEND).await;
    let ids: Vec<_> = ids.iter().map(|id| &**id).chain(IDS).collect();
    // chunks of different sizes, from both ends, keep retries and discards close together
    let retry = async |ids: &[&str]| {
        let mut applied = 0;
        for some in ids.chunks(40) {
            applied += db.retry(&family, some).await.0;
        }
        applied
    };
    let discard = async |ids: &[&str]| {
        let mut discarded = 0;
        for some in ids.chunks(3) {
            discarded += db.discard(&family, some).await;
        }
        discarded
    };
    let backwards: Vec<_> = ids.iter().rev().copied().collect();
    // from where no retry has been yet
    let (first, second) = ids.split_at(MANY / 2);
    let from_the_middle = [second, first].concat();
    let (applied, discarded) = tokio::join!(
        join_all([&ids, &backwards, &ids, &backwards].map(|some| retry(some))),
        join_all([&from_the_middle, &backwards].map(|some| discard(some)))
    );
    let (mut applied, discarded): (u64, u64) = (applied.iter().sum(), discarded.iter().sum());
    assert!(applied > 0 && discarded > 0, "{applied} and {discarded}");
    // those that another call had locked
    applied += retry(&ids).await;
    assert_eq!(applied + discarded, ids.len() as u64);
    assert_eq!(db.number(SUM).await, 200 * applied as i64);
    db.expect_rejects(&[]).await;
}

#[tokio::test]
async fn a_transaction_that_is_cut_off_applies_nothing() {
    let (db, family) = six_rejects().await;
    db.run(MEND).await;
    // after the rows are written, and before the rejects are deleted
    db.run("CREATE TRIGGER late BEFORE DELETE ON counterfoil_rejects FOR EACH ROW SET @late = SLEEP(5)")
        .await;
    let retry = tokio::spawn({
        let (store, family) = (db.store.clone(), family.clone());
        async move { store.retry_rejects(&family.family, None).await }
    });
    db.run(&format!("KILL {}", sleeping(&db.pool).await)).await;
    refused(retry.await.unwrap(), ErrorKind::Store, "");
    assert_eq!(db.number(SUM).await, 0);
    assert_eq!(db.rejected_ids().await, IDS);
    db.run("DROP TRIGGER late").await;
    assert_eq!(retry_all(&db.store, &family.family).await, (6, 0, 0));
    assert_eq!(db.number(SUM).await, 6 * 200);
}

#[tokio::test]
async fn a_locked_row_delays_its_own_reject_only() {
    let (db, family) = six_rejects().await;
    db.run(MEND).await;
    db.run("INSERT INTO small VALUES ('bad/1', 0)").await;
    let mut shop = db.pool.begin().await.unwrap();
    sqlx::query("SELECT n FROM small WHERE id = 'bad/1' FOR UPDATE")
        .execute(&mut *shop)
        .await
        .unwrap();
    assert_eq!(db.retry(&family, &IDS).await, (5, 0, 1));
    assert_eq!(db.rejected_ids().await, ["bad/1"]);
    shop.rollback().await.unwrap();
    assert_eq!(db.retry(&family, &IDS).await, (1, 0, 0));
    assert_eq!(db.number(SUM).await, 6 * 200);
}

/// 400 made-up addresses, each visited twice.
#[tokio::test]
async fn made_up_ids_are_dropped_or_one_reject_each_that_ends_with_its_row() {
    let pair = Pair::new().await;
    pair.sql("CREATE TABLE page (id VARBINARY(255) PRIMARY KEY, n BIGINT NOT NULL DEFAULT 0)")
        .await;
    let rejects = "SELECT COUNT(*) FROM counterfoil_rejects";
    let views = "SELECT COALESCE(SUM(n), 0) FROM page";
    let visit = async |table: Table| {
        let pages = family("pages").table(table.key("id", Text).value("n"));
        let pages = pair.open(pages).await;
        for _ in 0..2 {
            for number in 0..400 {
                pages.count(&format!("/{number}"), 1).await;
            }
            pair.drain().await;
        }
    };
    visit(Table::update_or_drop("page")).await;
    assert_eq!(pair.number(rejects).await, 0);
    visit(Table::update("page")).await;
    assert_eq!(pair.number(rejects).await, 400);

    pair.sql("INSERT INTO page (id) VALUES ('/7'), ('/300'), ('/399')")
        .await;
    let reconcilers = [pair.reconcile().await, pair.reconcile().await];
    eventually("the three are applied", async || {
        pair.number(rejects).await == 397
    })
    .await;
    for reconciler in reconcilers {
        reconciler.stop().await;
    }
    assert_eq!(pair.number(views).await, 3 * 2);
}

/// A reject keeps only a part of an id that is too long. The part may be the id of another counter.
#[tokio::test]
async fn an_id_that_no_row_can_have_is_refused_again() {
    let (db, family) = six_rejects().await;
    db.run(MEND).await;
    let part = "x".repeat(255);
    let ids = [&b"caf\xe9"[..], &[b'x'; 300], part.as_bytes()];
    let sums = db.add(&family, 1, 1, ids.map(|id| (id, 200))).await;
    assert_eq!((sums.rows, sums.rejected), (1, 2));
    assert_eq!(retry_all(&db.store, &family.family).await, (6, 2, 0));
    let rejects = db.rejects().await;
    let seen = |one: &Reject| (one.retry_at, one.delta, one.retries, one.reason.clone());
    let [one, other] = &rejects[..] else {
        panic!("{rejects:?}")
    };
    assert_eq!(seen(one), (None, 200, 1, "the id is not UTF-8".to_owned()));
    assert_eq!((other.retry_at, other.delta), (None, 200));
    assert!(other.reason.contains("300 bytes"), "{other:?}");
    assert_eq!(db.number(SUM).await, 7 * 200);
}

#[tokio::test]
async fn rejects_of_other_families_are_left_alone() {
    let (db, family) = six_rejects().await;
    db.run(MEND).await;
    let other = db.family(Family::buffered("shop", "other")).await;
    assert_eq!(db.retry(&other, &IDS).await, (0, 0, 0));
    assert_eq!(retry_all(&db.store, &other.family).await, (0, 0, 0));
    assert_eq!(db.discard(&other, &IDS).await, 0);
    assert_eq!(db.retry(&family, &[]).await, (0, 0, 0));
    assert_eq!(db.number(SUM).await, 0);
    let of_other = db.store.rejects(Some("shop/other"), None, 10).await;
    assert_eq!(of_other.unwrap(), []);
}

#[tokio::test]
async fn the_deltas_of_an_id_are_one_reject_with_the_last_reason() {
    let db = Db::new().await;
    db.run("CREATE TABLE item (id VARBINARY(255) PRIMARY KEY, n TINYINT NOT NULL)")
        .await;
    let family = db.table("item", by_id(Table::update("item"), Text)).await;
    let rejects = async || {
        let rejects = db.rejects().await.into_iter();
        let one = |one: Reject| (one.id, one.delta, one.reason == "no such row");
        rejects.map(one).collect::<Vec<_>>()
    };
    let expected = |a, b, is_missing| [("a".to_owned(), a, is_missing), ("b".to_owned(), b, true)];
    for (seq, times) in [(1, 1), (2, 2)] {
        let sums = db.add(&family, 0, seq, [("a", 1), ("b", 20)]).await;
        assert_eq!(sums.rejected, 2);
        assert_eq!(rejects().await, expected(times, 20 * times, true));
    }
    // one transaction with both, as after a change of partitions
    let both = [2, 3].map(|partition| batch(&family, partition, 1, [("a", 100)]));
    assert_eq!(db.apply(&both).await.rejected, 2);
    assert_eq!(rejects().await, expected(202, 40, true));
    db.run("INSERT INTO item VALUES ('a', 0)").await;
    db.adds(&family, 3, [("a", 1000)], (0, 1)).await;
    assert_eq!(rejects().await, expected(1202, 40, false));

    db.run("ALTER TABLE item MODIFY n INT NOT NULL").await;
    assert_eq!(db.retry(&family, &["a", "b"]).await, (1, 1, 0));
    db.run("DELETE FROM item").await;
    db.add(&family, 0, 4, [("a", 5), ("b", 5)]).await;
    assert_eq!(rejects().await, expected(5, 45, true));
    // nothing is left to add
    db.add(&family, 0, 5, [("a", -5)]).await;
    assert_eq!(db.retry(&family, &["a"]).await, (1, 0, 0));
}

/// The sum is added in parts.
#[tokio::test]
async fn a_reject_may_be_beyond_the_signed_range() {
    let db = Db::new().await;
    let family = db.numbers("big", "BIGINT UNSIGNED").await;
    db.run("ALTER TABLE big ADD CONSTRAINT few CHECK (n < 100)")
        .await;
    for seq in [1, 2] {
        db.adds(&family, seq, [("1", i64::MAX)], (0, 1)).await;
    }
    assert_eq!(db.rejects().await[0].delta, 2 * i128::from(i64::MAX));
    db.run("ALTER TABLE big DROP CONSTRAINT few").await;
    assert_eq!(db.retry(&family, &["1"]).await, (0, 0, 1));
    assert_eq!(db.rejects().await[0].delta, i64::MAX.into());
    assert_eq!(db.retry(&family, &["1"]).await, (1, 0, 0));
    assert_eq!(
        db.number("SELECT n = 18446744073709551614 FROM big").await,
        1
    );
}

/// The pause before the next retry doubles, whatever hits arrive meanwhile.
#[tokio::test]
async fn the_pauses_of_retries_grow() {
    let (db, family) = six_rejects().await;
    const PAUSE: &str = "SELECT ROUND(TIMESTAMPDIFF(MICROSECOND, last_at, retry_at) / 1000000) \
         FROM counterfoil_rejects WHERE id = 'bad/0'";
    for (seq, pause) in (2..).zip([5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600]) {
        assert_eq!(db.number(PAUSE).await, pause);
        let until = "SELECT UNIX_TIMESTAMP(retry_at) FROM counterfoil_rejects WHERE id = 'bad/0'";
        let before = db.number(until).await;
        db.adds(&family, seq, [("bad/0", 200)], (0, 1)).await;
        assert_eq!(db.number(until).await, before);
        assert_eq!(db.retry(&family, &["bad/0"]).await, (0, 1, 0));
    }
}

#[tokio::test]
async fn deltas_without_a_row_are_dropped_if_the_family_says_so() {
    let db = Db::new().await;
    db.run("CREATE TABLE item (id VARBINARY(255) PRIMARY KEY, n TINYINT NOT NULL); INSERT INTO item VALUES ('a', 1)")
        .await;
    let family = db
        .table("item", by_id(Table::update_or_drop("item"), Text))
        .await;
    let mut mixed = batch(&family, 0, 1, [("a", 1), ("b", 1), ("c", 1)]);
    Arc::make_mut(&mut mixed).deltas.push((b"\xff".to_vec(), 1));
    let applied = db.store.apply(&[mixed], None).await.unwrap();
    assert_eq!((applied.rows, applied.rejected, applied.dropped), (1, 1, 2));
    assert_eq!(db.add(&family, 0, 2, [("a", 1000)]).await.rejected, 1);
    let reasons = [("a", 1000, "Out of range"), ("\u{fffd}", 1, "UTF-8")];
    db.expect_rejects(&reasons).await;
    assert_eq!(db.number("SELECT n FROM item").await, 2);
    // the policy does not identify the family
    db.table("item", by_id(Table::update("item"), Text)).await;
}

/// The rejects of several families, of which the others' tables are gone.
#[tokio::test]
async fn a_table_that_is_gone_holds_up_the_rejects_of_its_own_family_only() {
    let db = Db::new().await;
    let redis = new_redis().await;
    let counterfoil = patient(Counterfoil::new(redis.manager().await, db.store.clone()));
    let mut opened = vec![];
    for name in ["gone_first", "small", "gone_last"] {
        let family = db.numbers(name, "TINYINT").await;
        db.adds(&family, 1, [("1", 200)], (0, 1)).await;
        let table = by_id(Table::upsert(name), Signed);
        let family = Family::buffered("shop", name).table(table);
        opened.push(counterfoil.opened(family).await);
    }
    db.run("DROP TABLE gone_first, gone_last").await;
    db.run(MEND).await;
    let reconciler = counterfoil.reconcile().await;
    eventually("the reject is applied", async || {
        db.rejects().await.len() == 2
    })
    .await;
    assert_eq!(db.number("SELECT n FROM small").await, 200);
    let is_of_gone = |one: &counterfoil::Failing| format!("{:#}", one.error).contains("gone_");
    eventually("the error is reported", async || {
        reconciler.failing().iter().any(is_of_gone)
    })
    .await;
    reconciler.stop().await;
}

/// Reasons of the greatest length.
#[tokio::test]
async fn rejects_with_long_reasons_are_taken_page_by_page() {
    let db = Db::new().await;
    let views = db.views().await;
    for part in 0..3 {
        db.run(&format!(
            "INSERT INTO counterfoil_rejects (family, id, delta, reason)
             WITH RECURSIVE rejects (id) AS
                 (SELECT 1 UNION ALL SELECT id + 1 FROM rejects WHERE id < 1000)
             SELECT {}, CONCAT({part}, '/', id), 1, REPEAT('\u{1f600}', 1024) FROM rejects",
            views.number
        ))
        .await;
    }
    assert_eq!(
        db.store.discard_rejects("shop/views", None).await.unwrap(),
        3000
    );
    db.expect_rejects(&[]).await;
}

/// Hopeless rejects, of which so many are due that the reconciler takes many pages for them.
#[tokio::test]
async fn a_new_reject_is_retried_before_many_old_ones() {
    let db = Db::new().await;
    db.run("CREATE TABLE item (id INT PRIMARY KEY, n INT NOT NULL)")
        .await;
    let table = by_id(Table::update("item"), Unsigned);
    let family = db.table("item", table.clone()).await;
    let old = random::cases(4_000).max(4_000);
    for first in (0..old).step_by(1_000) {
        db.run(&format!(
            "INSERT INTO counterfoil_rejects (family, id, delta, reason, retry_at)
             WITH RECURSIVE ids (id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM ids WHERE id < 1000)
             SELECT {}, CAST(id + {first} AS CHAR), 1, '', NOW() - INTERVAL 1 HOUR FROM ids",
            family.number
        ))
        .await;
    }
    db.adds(&family, 1, [("1000000000", 7)], (0, 1)).await;
    db.run("INSERT INTO item VALUES (1000000000, 0)").await;
    db.run("UPDATE counterfoil_rejects SET retry_at = NOW() WHERE id = '1000000000'")
        .await;
    let redis = new_redis().await;
    let counterfoil = patient(Counterfoil::new(redis.manager().await, db.store.clone()));
    let _item = counterfoil
        .opened(Family::buffered("shop", "item").table(table))
        .await;
    let reconciler = counterfoil.reconcile().await;
    let not_yet = "SELECT COUNT(*) FROM counterfoil_rejects WHERE retries = 0";
    eventually("the new one is applied", async || {
        db.number("SELECT n FROM item").await == 7
    })
    .await;
    assert!(db.number(not_yet).await > 0);
    // and each of the others in its turn
    let mut left = db.number(not_yet).await;
    while left > 0 {
        let retried = async || db.number(not_yet).await < left;
        eventually("further ones are retried", retried).await;
        left = db.number(not_yet).await;
    }
    reconciler.stop().await;
}

/// A table of children of `product`, which has the ids from 1 to 100.
async fn children(db: &Db, key: &str, table: fn(&'static str) -> Table) -> Arc<Registration> {
    db.run(&format!(
        "CREATE TABLE product (id {key} PRIMARY KEY);
         INSERT INTO product WITH RECURSIVE ids (id) AS \
             (SELECT 1 UNION ALL SELECT id + 1 FROM ids WHERE id < 100) SELECT id FROM ids;
         CREATE TABLE views (id {key} PRIMARY KEY, n TINYINT NOT NULL, \
             CONSTRAINT of_product FOREIGN KEY (id) REFERENCES product (id))"
    ))
    .await;
    db.table("views", by_id(table("views"), Unsigned)).await
}

/// Applies a batch of 100 good rows and some bad ones in one transaction. Returns the number of its
/// statements.
async fn statements_of(
    db: &Db,
    family: &Arc<Registration>,
    seq: u64,
    bad: usize,
) -> (ApplyReply, u64) {
    let ids = (1..=100).chain(1_000..1_000 + bad);
    let deltas = ids.map(|id| (id.to_string(), 1));
    let batch = [batch(family, 0, seq, deltas)];
    let before = db.store.statements();
    let applied = db.store.apply(&batch, Some(100_000)).await.unwrap();
    assert_eq!(
        (applied.rows, &*applied.progress),
        (100, &[Progress::Complete][..])
    );
    (applied, db.store.statements() - before)
}

#[tokio::test]
async fn many_rows_without_a_parent_cost_no_more_statements_than_few() {
    let db = Db::new().await;
    let family = children(&db, "INT", Table::upsert).await;
    // the first transaction inserts the rows, and counts the rejects
    statements_of(&db, &family, 1, 1).await;
    let (few, some) = statements_of(&db, &family, 2, 2).await;
    let (many, all) = statements_of(&db, &family, 3, 3_000).await;
    assert_eq!((few.rejected, many.rejected, all), (2, 3_000, some));
    assert_eq!(db.number("SELECT SUM(n = 3) FROM views").await, 100);
    let rejects = db.rejects().await;
    assert_eq!(rejects.len(), 3_000);
    assert!(rejects.iter().all(|one| one.reason.contains("of_product")));
    let sums: Vec<_> = rejects.iter().map(|one| one.delta).take(4).collect();
    assert_eq!(sums, [3, 2, 1, 1]);

    // a reject whose parent exists now is added, among the others
    db.run("INSERT INTO product VALUES (1002), (2500)").await;
    assert_eq!(retry_all(&db.store, &family.family).await, (2, 2_998, 0));
    assert_eq!(
        db.number("SELECT SUM(n) FROM views WHERE id > 100").await,
        2
    );
}

#[tokio::test]
async fn many_missing_rows_cost_no_more_statements_than_few() {
    let db = Db::new().await;
    let family = children(&db, "INT", Table::update).await;
    db.run("INSERT INTO views SELECT id, 0 FROM product").await;
    // the first transaction also counts the rejects
    statements_of(&db, &family, 1, 1).await;
    let (few, some) = statements_of(&db, &family, 2, 2).await;
    let (many, all) = statements_of(&db, &family, 3, 3_000).await;
    assert_eq!((few.rejected, many.rejected, all), (2, 3_000, some));
}

#[tokio::test]
async fn rows_without_a_parent_are_dropped_if_the_family_says_so() {
    let db = Db::new().await;
    let family = children(&db, "INT", Table::upsert_or_drop).await;
    let (applied, _) = statements_of(&db, &family, 1, 50).await;
    assert_eq!((applied.rejected, applied.dropped), (0, 50));
    let single = db.add(&family, 0, 2, [("999", 1), ("7", 100)]).await;
    assert_eq!((single.rows, single.rejected), (1, 0));
    // other reasons are kept
    db.adds(&family, 3, [("7", 100)], (0, 1)).await;
    db.expect_rejects(&[("7", 100, "Out of range")]).await;
    // the policy does not identify the family
    db.table("views", by_id(Table::upsert("views"), Unsigned))
        .await;
}

/// INSERT IGNORE would clip the key to one that has a parent, and the value.
#[tokio::test]
async fn rows_that_are_refused_for_several_reasons_are_told_apart() {
    let db = Db::new().await;
    let family = children(&db, "SMALLINT", Table::upsert).await;
    db.run("INSERT INTO product VALUES (32767)").await;
    let good = (1..=50).map(|id| (id.to_string(), 1));
    let orphans = (200..230).map(|id| (id.to_string(), 1));
    let bad = [("70000", 1), ("77", 1000)].map(|(id, delta)| (id.to_owned(), delta));
    let deltas = good.chain(orphans).chain(bad);
    db.adds(&family, 1, deltas, (50, 32)).await;
    assert_eq!(
        db.number("SELECT COUNT(*) FROM views WHERE n = 1").await,
        50
    );
    assert_eq!(db.number("SELECT COUNT(*) FROM views").await, 50);
    let rejects = db.rejects().await;
    let of = |id: &str| rejects.iter().find(|one| one.id == id).unwrap();
    assert!(
        of("70000")
            .reason
            .contains("Out of range value for column 'id'")
    );
    assert!(
        of("77")
            .reason
            .contains("Out of range value for column 'n'")
    );
    assert!(of("201").reason.contains("of_product"));
}

/// The writes of many bad rows wait for a lock meanwhile. `COUNTERFOIL_CASES` sets their number.
#[tokio::test]
async fn another_familys_hits_arrive_while_one_has_many_bad_rows() {
    let pair = Pair::new().await;
    pair.sql(
        "CREATE TABLE product (id INT PRIMARY KEY); INSERT INTO product VALUES (1); \
         CREATE TABLE seen (id INT PRIMARY KEY, n INT NOT NULL, FOREIGN KEY (id) REFERENCES product (id)); \
         CREATE TRIGGER held_up BEFORE INSERT ON counterfoil_rejects FOR EACH ROW BEGIN \
         DO GET_LOCK(DATABASE(), 50); DO RELEASE_LOCK(DATABASE()); END",
    )
    .await;
    let table = by_id(Table::upsert("seen"), Unsigned);
    let seen = pair.open(family("seen").table(table)).await;
    let other = pair.open(family("other")).await;
    let bad = u64::from(random::cases(3_000));
    for first in (1..=bad).step_by(1_000) {
        let some = (first..=bad.min(first + 999)).map(|id| (id + 1).to_string());
        let some: Vec<_> = some.collect();
        join_all(some.iter().map(|id| seen.count(id, 1))).await;
    }
    seen.count("1", 1).await;
    let mut holder = pair.pool.acquire().await.unwrap();
    let hold = sqlx::raw_sql("DO GET_LOCK(DATABASE(), 0)");
    hold.execute(&mut *holder).await.unwrap();
    let reconciler = pair.reconcile().await;
    let locks = "SELECT COUNT(*) FROM information_schema.PROCESSLIST \
         WHERE STATE = 'User lock' AND DB = DATABASE()";
    eventually("bad rows wait", async || pair.number(locks).await > 0).await;
    other.count("a", 1).await;
    eventually("the other's hit is stored", async || {
        other.stored(&["a"]).await.unwrap() == [Some(1)]
    })
    .await;
    assert!(pair.number(locks).await > 0);
    assert_eq!(
        pair.number("SELECT COUNT(*) FROM counterfoil_rejects")
            .await,
        0
    );
    drop(holder.detach());
    pair.drain().await;
    eventually("all of them are rejects", async || {
        pair.number("SELECT COUNT(*) FROM counterfoil_rejects")
            .await
            == bad as i64
    })
    .await;
    assert_eq!(pair.number("SELECT n FROM seen").await, 1);
    reconciler.stop().await;
}

/// Crawlers count ids that have no product, and one hit in a hundred is real. `COUNTERFOIL_CASES` sets
/// the number of ids.
#[tokio::test]
async fn real_hits_arrive_among_many_bad_ones() {
    let pair = Pair::new().await;
    // a run of few cases still has a real hit
    let bad = i64::from(random::cases(3_000)).max(100);
    let real = bad / 100;
    pair.sql(&format!(
        "CREATE TABLE product (id INT PRIMARY KEY); INSERT INTO product SELECT seq FROM \
         (WITH RECURSIVE ids (seq) AS (SELECT 1 UNION ALL SELECT seq + 1 FROM ids WHERE seq < {real}) \
         SELECT seq FROM ids) AS all_ids; \
         CREATE TABLE seen (id INT PRIMARY KEY, n INT NOT NULL, FOREIGN KEY (id) REFERENCES product (id))"
    ))
    .await;
    let table = by_id(Table::upsert("seen"), Unsigned);
    let seen = pair.open(family("seen").table(table)).await;
    let ids: Vec<_> = (1..=real + bad).map(|id| id.to_string()).collect();
    for some in ids.chunks(1_000) {
        join_all(some.iter().map(|id| seen.count(id, 1))).await;
    }
    let stored = async |what: &str, sql: &str, number: i64| {
        let started = Instant::now();
        while pair.number(sql).await != number {
            assert!(started.elapsed() < secs(300), "{what}");
            tokio::time::sleep(millis(50)).await;
        }
        println!(
            "{bad} bad ids: {what} after {:.1} s",
            started.elapsed().as_secs_f64()
        );
    };
    let reconciler = pair.reconcile().await;
    stored(
        "the real hits",
        "SELECT COALESCE(SUM(n), 0) FROM seen",
        real,
    )
    .await;
    let rejects = "SELECT COUNT(*) FROM counterfoil_rejects";
    stored("then the rejects", rejects, bad).await;
    pair.sql(&format!("INSERT INTO product VALUES ({})", real + bad))
        .await;
    stored("a reject with a product", rejects, bad - 1).await;
    assert_eq!(pair.number("SELECT SUM(n) FROM seen").await, real + 1);
    reconciler.stop().await;
}

#[tokio::test]
async fn rejects_beyond_the_limit_are_lost_and_reported() {
    let (db, family) = six_rejects().await;
    let store = db.store.clone().max_rejects(8);
    let apply = async |seq, deltas: &[(&str, i64)]| {
        let batch = batch(&family, 0, seq, deltas.iter().copied());
        let applied = store.apply(&[batch], None).await.unwrap();
        (applied.rows, applied.rejected, applied.lost)
    };
    let is_found = async || {
        let findings = store.check(std::slice::from_ref(&family.family)).await;
        findings
            .iter()
            .any(|one| one.message.contains("max_rejects"))
    };
    assert_eq!(apply(2, &[("a", 200), ("good", 1)]).await, (1, 1, 0));
    assert!(!is_found().await);
    // the existing ones take further deltas
    let many = [
        ("a", 200),
        ("b", 200),
        ("bad/0", 200),
        ("c", 200),
        ("good", 1),
    ];
    assert_eq!(apply(3, &many).await, (1, 3, 1));
    assert!(is_found().await);
    assert_eq!(apply(4, &[("c", 200), ("bad/0", 200)]).await, (0, 1, 1));
    let rejects = db.rejects().await;
    let sums: Vec<_> = rejects.iter().map(|one| (&*one.id, one.delta)).collect();
    let first = [("a", 400), ("b", 200), ("bad/0", 600)];
    assert_eq!((sums.len(), &sums[..3]), (8, &first[..]));
    // another process counts anew
    db.discard(&family, &IDS).await;
    let other = db.store.clone().max_rejects(8);
    let batch = batch(&family, 0, 5, [("c", 200)]);
    assert_eq!(other.apply(&[batch], None).await.unwrap().lost, 0);
}
