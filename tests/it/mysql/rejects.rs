//! Rejects that are retried or discarded. Each counts at most once, also for concurrent callers,
//! and a reject that is refused again stays.

use super::database::*;
use crate::support::*;

const MEND: &str = "ALTER TABLE small MODIFY n SMALLINT NOT NULL";
const SUM: &str = "SELECT COALESCE(SUM(n), 0) FROM small WHERE id <> 'good'";

/// Creates a database with 6 rejects, of `bad/0` to `bad/5`, which do not fit in a TINYINT. Returns
/// their numbers.
async fn six_rejects() -> (Db, Arc<Registered>, Vec<u64>) {
    let db = Db::new().await;
    db.run("CREATE TABLE small (id VARBINARY(255) PRIMARY KEY, n TINYINT NOT NULL)")
        .await;
    let family = db.table("small", by_id(Table::upsert("small"), Text)).await;
    let deltas = (0..6).map(|number| (format!("bad/{number}"), 200));
    db.adds(&family, 1, deltas.chain([("good".to_owned(), 1)]), (1, 6))
        .await;
    let mut rejects = db.rejects().await;
    rejects.sort_by(|one, other| one.id.cmp(&other.id));
    (
        db,
        family,
        rejects.iter().map(|reject| reject.number).collect(),
    )
}

impl Db {
    pub async fn retry(&self, family: &Registered, numbers: &[u64]) -> Vec<Retried> {
        self.store
            .retry_rejects(&family.family, numbers)
            .await
            .unwrap()
    }

    async fn discard(&self, numbers: &[u64]) -> Vec<u64> {
        self.store.discard_rejects(numbers).await.unwrap()
    }

    /// Returns the numbers of the rejects, in ascending order.
    pub async fn reject_numbers(&self) -> Vec<u64> {
        self.rejects()
            .await
            .iter()
            .map(|reject| reject.number)
            .collect()
    }
}

/// Returns these of the numbers, in ascending order.
fn ascending(numbers: &[u64], these: &[usize]) -> Vec<u64> {
    let mut these: Vec<_> = these.iter().map(|&at| numbers[at]).collect();
    these.sort_unstable();
    these
}

#[tokio::test]
async fn a_reject_is_applied_again_once() {
    use Retried::{Applied, AppliedBefore, NotFound, Refused};
    let (db, family, numbers) = six_rejects().await;
    // nothing was mended
    assert_eq!(db.retry(&family, &numbers[..2]).await, [Refused; 2]);
    assert_eq!(db.rejects().await.len(), 6);

    db.run(MEND).await;
    db.run("INSERT INTO small VALUES ('bad/1', 32600)").await;
    let asked = [numbers[3], numbers[0], 1_000_000, numbers[1], numbers[0]];
    // in the order of the arguments
    assert_eq!(
        db.retry(&family, &asked).await,
        [Applied, Applied, NotFound, Refused, Applied]
    );
    assert_eq!(db.number(SUM).await, 32600 + 400);
    assert_eq!(
        db.reject_numbers().await,
        ascending(&numbers, &[1, 2, 4, 5])
    );

    db.run("UPDATE small SET n = 0 WHERE id = 'bad/1'").await;
    let (now, before) = (Applied, AppliedBefore);
    assert_eq!(
        db.retry(&family, &numbers).await,
        [before, now, now, before, now, now]
    );
    assert_eq!(db.number(SUM).await, 6 * 200);
    db.expect_rejects(&[]).await;
    // nothing is deleted, and the batch itself is not applied again
    let kept = "SELECT COUNT(*) FROM counterfoil_rejects WHERE applied_at IS NOT NULL";
    assert_eq!(db.number(kept).await, 6);
    assert_eq!(db.add(&family, 0, 1, [("bad/0", 200)]).await.repeated, 1);
    db.expect_rejects(&[]).await;
}

#[tokio::test]
async fn a_reject_that_is_refused_again_has_the_new_reason() {
    let (db, family, numbers) = six_rejects().await;
    let reason = async || {
        db.rejects()
            .await
            .into_iter()
            .find(|one| one.number == numbers[0])
            .unwrap()
            .reason
    };
    let before = reason().await;
    db.run(MEND).await;
    db.run("ALTER TABLE small ADD CONSTRAINT few CHECK (n < 100)")
        .await;
    let retry = async || db.retry(&family, &numbers[..1]).await;
    assert_eq!(retry().await, [Retried::Refused]);
    let after = reason().await;
    assert!(
        after != before && after.contains("few"),
        "{before:?}, then {after:?}"
    );
    db.run("ALTER TABLE small DROP CONSTRAINT few").await;
    assert_eq!(retry().await, [Retried::Applied]);
}

#[tokio::test]
async fn a_discarded_reject_is_neither_listed_nor_applied() {
    use Retried::{Applied, AppliedBefore, Discarded};
    let (db, family, numbers) = six_rejects().await;
    db.run(MEND).await;
    db.run(&format!(
        "UPDATE counterfoil_rejects SET reason = REPEAT('\u{e9}', 1024) WHERE number = {}",
        numbers[1]
    ))
    .await;
    assert_eq!(db.retry(&family, &numbers[..1]).await, [Applied]);
    let asked = [numbers[2], numbers[0], 1_000_000, numbers[1], numbers[2]];
    let expected = ascending(&numbers, &[1, 2]);
    // each once, ascending
    assert_eq!(db.discard(&asked).await, expected);
    assert_eq!(db.discard(&asked).await, [0; 0]);
    assert_eq!(db.discard(&[]).await, [0; 0]);

    assert_eq!(db.reject_numbers().await, ascending(&numbers, &[3, 4, 5]));
    assert_eq!(
        db.retry(&family, &numbers[..3]).await,
        [AppliedBefore, Discarded, Discarded]
    );
    assert_eq!(db.number(SUM).await, 200);
    let short =
        "reason = CONCAT('discarded: ', REPEAT('\u{e9}', 1013)) AND CHAR_LENGTH(reason) = 1024";
    for (number, reason) in [
        (numbers[1], short),
        (numbers[2], "reason LIKE 'discarded: %Out of range%'"),
        (numbers[0], "reason NOT LIKE 'discarded%'"),
    ] {
        let kept = format!("number = {number} AND applied_at IS NOT NULL AND {reason}");
        let kept = format!("SELECT COUNT(*) FROM counterfoil_rejects WHERE {kept}");
        assert_eq!(db.number(&kept).await, 1, "{reason}");
    }
}

/// Each reject is added to its row or discarded.
#[tokio::test]
async fn a_retry_and_a_discard_share_no_reject() {
    const MANY: usize = 400;
    let (db, family, _) = six_rejects().await;
    assert_eq!(
        db.add(
            &family,
            0,
            2,
            (0..MANY).map(|number| (format!("many/{number}"), 200))
        )
        .await
        .rejected,
        MANY as u64
    );
    db.run(MEND).await;
    let numbers = db.reject_numbers().await;
    // chunks of different sizes, from both ends, keep retries and discards close together
    let retry = async |numbers: &[u64]| {
        let mut applied = vec![];
        for some in numbers.chunks(40) {
            let retried = some.iter().zip(db.retry(&family, some).await);
            applied.extend(
                retried
                    .filter(|(_, retried)| *retried == Retried::Applied)
                    .map(|(number, _)| *number),
            );
        }
        applied
    };
    let discard = async |numbers: &[u64]| {
        let mut discarded = vec![];
        for some in numbers.chunks(3) {
            discarded.extend(db.discard(some).await);
        }
        discarded
    };
    let backwards: Vec<_> = numbers.iter().rev().copied().collect();
    // from where no retry has been yet
    let (first, second) = numbers.split_at(MANY / 2);
    let from_the_middle = [second, first].concat();
    let (applied, discarded) = tokio::join!(
        join_all([&numbers, &backwards, &numbers, &backwards].map(|some| retry(some))),
        join_all([&from_the_middle, &backwards].map(|some| discard(some)))
    );
    let (applied, discarded) = (applied.concat(), discarded.concat());
    let counts = (applied.len(), discarded.len());
    assert!(counts.0 > 0 && counts.1 > 0, "{counts:?}");
    let mut both = [applied, discarded].concat();
    both.sort_unstable();
    // each once
    assert_eq!(both, numbers);
    assert_eq!(db.number(SUM).await, 200 * counts.0 as i64);
    db.expect_rejects(&[]).await;
}

#[tokio::test]
async fn a_transaction_that_is_cut_off_applies_nothing() {
    let (db, family, numbers) = six_rejects().await;
    db.run(MEND).await;
    // after the rows are written, and before the rejects are marked
    db.run("CREATE TRIGGER late BEFORE UPDATE ON counterfoil_rejects FOR EACH ROW SET @late = SLEEP(5)")
        .await;
    let retry = tokio::spawn({
        let (store, family, numbers) = (db.store.clone(), family.clone(), numbers.clone());
        async move { store.retry_rejects(&family.family, &numbers).await }
    });
    db.run(&format!("KILL {}", sleeping(&db.pool).await)).await;
    refused(retry.await.unwrap(), ErrorKind::Store, "");
    assert_eq!(db.number(SUM).await, 0);
    assert_eq!(db.rejects().await.len(), 6);
    db.run("DROP TRIGGER late").await;
    assert_eq!(db.retry(&family, &numbers).await, [Retried::Applied; 6]);
    assert_eq!(db.number(SUM).await, 6 * 200);
}

#[tokio::test]
async fn a_locked_row_delays_its_own_rejects_only() {
    let (db, family, numbers) = six_rejects().await;
    db.run(MEND).await;
    db.run("INSERT INTO small VALUES ('bad/1', 0)").await;
    let mut shop = db.pool.begin().await.unwrap();
    sqlx::query("SELECT n FROM small WHERE id = 'bad/1' FOR UPDATE")
        .execute(&mut *shop)
        .await
        .unwrap();
    let retried = db.store.retry_rejects(&family.family, &numbers).await;
    refused(retried, ErrorKind::Busy, "");
    assert_eq!(db.reject_numbers().await, [numbers[1]]);
    let one = |at| match at {
        1 => Retried::Applied,
        _ => Retried::AppliedBefore,
    };
    // it waits a moment for the row
    let unlocked = async {
        pause(300).await;
        shop.rollback().await.unwrap();
    };
    let (retried, ()) = tokio::join!(db.retry(&family, &numbers), unlocked);
    assert_eq!(retried, [0, 1, 2, 3, 4, 5].map(one));
    assert_eq!(db.number(SUM).await, 6 * 200);
}

/// 400 made-up addresses, each visited twice.
#[tokio::test]
async fn made_up_ids_are_dropped_or_one_reject_each_that_closes_with_its_row() {
    let pair = Pair::new().await;
    pair.sql("CREATE TABLE page (id VARBINARY(255) PRIMARY KEY, n BIGINT NOT NULL DEFAULT 0)")
        .await;
    let rejects = "SELECT COUNT(*) FROM counterfoil_rejects WHERE applied_at IS NULL";
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

/// A reject keeps only a part of this id, which may be the id of another counter.
#[tokio::test]
async fn an_id_of_which_a_part_is_kept_is_refused_again() {
    let (db, family, before) = six_rejects().await;
    assert_eq!(
        db.add(&family, 1, 1, [(&b"caf\xe9"[..], 1), (&[b'x'; 300], 1)])
            .await
            .rejected,
        2
    );
    let rejects = db.rejects().await;
    let mut numbers = db.reject_numbers().await;
    numbers.retain(|number| !before.contains(number));
    for _ in 0..2 {
        assert_eq!(db.retry(&family, &numbers).await, [Retried::Refused; 2]);
    }
    // with the same reasons
    assert_eq!(db.rejects().await, rejects);
}

#[tokio::test]
async fn rejects_of_other_families_are_left_alone() {
    let (db, family, numbers) = six_rejects().await;
    db.run(MEND).await;
    let other = db.family(Family::buffered("shop", "other")).await;
    assert_eq!(db.retry(&other, &numbers).await, [Retried::NotFound; 6]);
    assert_eq!(db.retry(&family, &[]).await, []);
    assert_eq!(db.number(SUM).await, 0);
}

impl Db {
    /// Returns the id, sum and number of the deltas of each reject, in the order of the ids.
    async fn joined(&self) -> Vec<(String, i64, u64)> {
        let rejects = self.rejects().await.into_iter();
        let mut joined: Vec<_> = rejects.map(|one| (one.id, one.delta, one.times)).collect();
        joined.sort();
        joined
    }
}

#[tokio::test]
async fn equal_rejects_of_an_id_are_one_until_it_is_applied() {
    let db = Db::new().await;
    db.run("CREATE TABLE item (id VARBINARY(255) PRIMARY KEY, n BIGINT NOT NULL)")
        .await;
    let family = db.table("item", by_id(Table::update("item"), Text)).await;
    let joined = |a, b, times| {
        let rows = [("a", a), ("b", b)];
        rows.map(|(id, delta)| (id.to_owned(), delta, times))
    };
    for (seq, times) in [(1, 1), (2, 2)] {
        assert_eq!(
            db.add(&family, 0, seq, [("a", 1), ("b", 20)])
                .await
                .rejected,
            2
        );
        let times = i64::from(times);
        assert_eq!(
            db.joined().await,
            joined(times, 20 * times, times.unsigned_abs())
        );
    }
    // one transaction with both, as after a change of partitions
    let both = [2, 3].map(|partition| batch(&family, partition, 1, [("a", 100)]));
    assert_eq!(db.apply(&both).await.rejected, 2);
    let before = db.rejects().await;
    let [a, b] = &before[..] else {
        panic!("{before:?}")
    };
    assert_eq!((a.delta, a.times, a.partition, a.seq), (202, 4, 3, 1));
    assert!(a.last_at >= a.at && b.seq == 2);

    db.run("INSERT INTO item VALUES ('a', 0)").await;
    assert_eq!(
        db.retry(&family, &[a.number, b.number]).await,
        [Retried::Applied, Retried::Refused]
    );
    db.run("DELETE FROM item").await;
    db.add(&family, 0, 3, [("a", 5), ("b", 5)]).await;
    assert_eq!(
        db.joined().await,
        [("a".to_owned(), 5, 1), ("b".to_owned(), 45, 3)]
    );
}

#[tokio::test]
async fn a_reject_whose_sum_is_full_is_joined_by_another() {
    let (db, family, _) = six_rejects().await;
    let add = async |seq, delta| db.add(&family, 0, seq, [("x", delta)]).await.rejected;
    for (seq, delta) in [(2, i64::MAX), (3, 200), (4, i64::MAX), (5, -300)] {
        assert_eq!(add(seq, delta).await, 1, "{delta}");
    }
    let rejects = db.rejects().await.into_iter();
    let sums: Vec<_> = rejects
        .filter(|one| one.id == "x")
        .map(|one| (one.delta, one.times))
        .collect();
    assert_eq!(sums, [(i64::MAX, 1), (200, 1), (i64::MAX - 300, 2)]);
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
    let reasons = [("\u{fffd}", 1, "UTF-8"), ("a", 1000, "Out of range")];
    db.expect_rejects(&reasons).await;
    assert_eq!(db.number("SELECT n FROM item").await, 2);
    // the policy does not identify the family
    db.table("item", by_id(Table::update("item"), Text)).await;
}

#[tokio::test]
async fn rejects_that_were_done_long_ago_are_deleted() {
    let (db, family, numbers) = six_rejects().await;
    db.run(MEND).await;
    db.retry(&family, &numbers[..2]).await;
    db.discard(&numbers[2..4]).await;
    for (number, days) in [(numbers[0], 91), (numbers[1], 89), (numbers[2], 91)] {
        db.run(&format!(
            "UPDATE counterfoil_rejects SET applied_at = NOW() - INTERVAL {days} DAY WHERE number = {number}"
        ))
        .await;
    }
    db.run("UPDATE counterfoil_rejects SET rejected_at = NOW() - INTERVAL 1 YEAR")
        .await;
    let redis = new_redis().await;
    let counterfoil = Counterfoil::new(redis.manager().await, db.store.clone());
    let reconciler = counterfoil.reconcile().await;
    let left = "SELECT COUNT(*) FROM counterfoil_rejects";
    eventually("two are deleted", async || db.number(left).await == 4).await;
    reconciler.stop().await;
    assert_eq!(db.retry(&family, &numbers[..1]).await, [Retried::NotFound]);
    assert_eq!(db.reject_numbers().await, numbers[4..]);

    let shorter = db.store.clone().keep_rejects(Duration::from_hours(24));
    let reconciler = Counterfoil::new(redis.manager().await, shorter)
        .reconcile()
        .await;
    eventually("the one of 89 days is deleted", async || {
        db.number(left).await == 3
    })
    .await;
    reconciler.stop().await;
}

/// The rejects of several families, of which the others' tables are gone.
#[tokio::test]
async fn a_table_that_is_gone_holds_up_the_rejects_of_its_own_family_only() {
    let db = Db::new().await;
    let redis = new_redis().await;
    let counterfoil = Counterfoil::new(redis.manager().await, db.store.clone());
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
        db.reject_numbers().await.len() == 2
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

/// Reasons of the greatest length, in one transaction.
#[tokio::test]
async fn rejects_with_long_reasons_are_resolved_together() {
    let db = Db::new().await;
    let views = db.views().await;
    for part in 0..3 {
        db.run(&format!(
            "INSERT INTO counterfoil_rejects (family, partition_no, incarnation, seq, id, delta, reason)
             WITH RECURSIVE rejects (id) AS
                 (SELECT 1 UNION ALL SELECT id + 1 FROM rejects WHERE id < 1000)
             SELECT {}, 0, 1, 1, CONCAT({part}, '/', id), 1, REPEAT('\u{1f600}', 1024) FROM rejects",
            views.number
        ))
        .await;
    }
    let numbers = db.reject_numbers().await;
    assert_eq!(numbers.len(), 3000);
    assert_eq!(db.discard(&numbers).await, numbers);
    db.expect_rejects(&[]).await;
}
