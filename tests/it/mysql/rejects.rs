//! Rejects that are retried or discarded. Each counts at most once, also for concurrent callers,
//! and a reject that is refused again stays.

use std::sync::Arc;

use counterfoil::admin::Retried;
use counterfoil::store::Registered;
use counterfoil::{ErrorKind, Family, KeyType, MysqlStore, Store, Table};
use futures_util::future::join_all;

use super::buffered::{Db, applied, batch};
use crate::support::eventually;

/// Creates a database with 6 rejects, of `bad/0` to `bad/5`, which do not fit in a TINYINT. Returns
/// their numbers.
async fn six_rejects() -> (Db, Arc<Registered>, Vec<u64>) {
    let db = Db::new().await;
    db.run("CREATE TABLE small (id VARBINARY(255) PRIMARY KEY, n TINYINT NOT NULL)")
        .await;
    let family = db
        .table(
            "small",
            Table::upsert("small").key("id", KeyType::Text).value("n"),
        )
        .await;
    let ids: Vec<_> = (0..6).map(|number| format!("bad/{number}")).collect();
    let mut deltas: Vec<_> = ids.iter().map(|id| (id.as_str(), 200)).collect();
    deltas.push(("good", 1));
    assert_eq!(
        db.apply(&[batch(&family, 0, 1, &deltas)]).await,
        applied(1, 0, 1, 6)
    );
    let mut rejects = db.rejects().await;
    rejects.sort_by(|one, other| one.id.cmp(&other.id));
    (
        db,
        family,
        rejects.iter().map(|reject| reject.number).collect(),
    )
}

const SUM: &str = "SELECT COALESCE(SUM(n), 0) FROM small WHERE id <> 'good'";

#[tokio::test]
async fn a_reject_is_applied_again_once() {
    let (db, family, numbers) = six_rejects().await;
    let again = db
        .store
        .retry_rejects(&family.family, &numbers[..2])
        .await
        .expect("retried");
    assert_eq!(again, [Retried::Refused; 2], "nothing was mended");
    assert_eq!(db.rejects().await.len(), 6);

    db.run(
        "ALTER TABLE small MODIFY n SMALLINT NOT NULL; INSERT INTO small VALUES ('bad/1', 32600)",
    )
    .await;
    let store = MysqlStore::new(db.pool.clone());
    let asked = [numbers[3], numbers[0], 1_000_000, numbers[1], numbers[0]];
    let again = store
        .retry_rejects(&family.family, &asked)
        .await
        .expect("retried");
    let (applied, refused) = (Retried::Applied, Retried::Refused);
    assert_eq!(
        again,
        [applied, applied, Retried::NotFound, refused, applied],
        "in the order asked for"
    );
    assert_eq!(db.number(SUM).await, 32600 + 400);
    let left: Vec<_> = db
        .rejects()
        .await
        .iter()
        .map(|reject| reject.number)
        .collect();
    let expected = || [1, 2, 4, 5].map(|at| numbers[at]);
    assert_eq!(left.len(), 4);
    assert!(
        expected().iter().all(|number| left.contains(number)),
        "{left:?}"
    );

    db.run("UPDATE small SET n = 0 WHERE id = 'bad/1'").await;
    let again = store
        .retry_rejects(&family.family, &numbers)
        .await
        .expect("retried");
    let before = Retried::AppliedBefore;
    assert_eq!(again, [before, applied, applied, before, applied, applied]);
    assert_eq!(db.number(SUM).await, 6 * 200);
    assert_eq!(db.rejects().await, []);
    // nothing is deleted, and the batch itself is not applied again
    assert_eq!(
        db.number("SELECT COUNT(*) FROM counterfoil_rejects WHERE applied_at IS NOT NULL")
            .await,
        6
    );
    let deltas = [("bad/0", 200)];
    assert_eq!(db.apply(&[batch(&family, 0, 1, &deltas)]).await.repeated, 1);
    assert_eq!(db.rejects().await, []);
}

#[tokio::test]
async fn what_is_refused_again_says_why_anew() {
    let (db, family, numbers) = six_rejects().await;
    let reason = async || {
        db.rejects()
            .await
            .into_iter()
            .find(|one| one.number == numbers[0])
            .map(|one| one.reason)
    };
    let before = reason().await.expect("there");
    db.run("ALTER TABLE small MODIFY n SMALLINT NOT NULL; ALTER TABLE small ADD CONSTRAINT few CHECK (n < 100)").await;
    let again = db
        .store
        .retry_rejects(&family.family, &numbers[..1])
        .await
        .expect("retried");
    assert_eq!(again, [Retried::Refused]);
    let after = reason().await.expect("still there");
    assert!(
        after != before && after.contains("few"),
        "{before:?}, then {after:?}"
    );
    db.run("ALTER TABLE small DROP CONSTRAINT few").await;
    let again = db
        .store
        .retry_rejects(&family.family, &numbers[..1])
        .await
        .expect("retried");
    assert_eq!(again, [Retried::Applied]);
}

#[tokio::test]
async fn many_who_apply_the_same_rejects_count_them_once() {
    let (db, family, numbers) = six_rejects().await;
    db.run("ALTER TABLE small MODIFY n SMALLINT NOT NULL").await;
    let stores: Vec<_> = (0..8).map(|_| MysqlStore::new(db.pool.clone())).collect();
    let mut backwards = numbers.clone();
    backwards.reverse();
    let at_once = stores.iter().enumerate().map(|(at, store)| {
        let numbers = if at % 2 == 0 { &numbers } else { &backwards };
        store.retry_rejects(&family.family, numbers)
    });
    let retried: Vec<_> = join_all(at_once)
        .await
        .into_iter()
        .flat_map(|one| one.expect("retried"))
        .collect();
    assert_eq!(
        retried
            .iter()
            .filter(|one| **one == Retried::Applied)
            .count(),
        6
    );
    assert_eq!(
        retried
            .iter()
            .filter(|one| **one == Retried::AppliedBefore)
            .count(),
        42
    );
    assert_eq!(db.number(SUM).await, 6 * 200);
}

#[tokio::test]
async fn a_discarded_reject_is_neither_listed_nor_applied() {
    let (db, family, numbers) = six_rejects().await;
    db.run("ALTER TABLE small MODIFY n SMALLINT NOT NULL").await;
    let long = format!(
        "UPDATE counterfoil_rejects SET reason = REPEAT('\u{e9}', 1024) WHERE number = {}",
        numbers[1]
    );
    db.run(&long).await;
    let again = db
        .store
        .retry_rejects(&family.family, &numbers[..1])
        .await
        .expect("retried");
    assert_eq!(again, [Retried::Applied]);
    let asked = [numbers[2], numbers[0], 1_000_000, numbers[1], numbers[2]];
    let mut expected = [numbers[1], numbers[2]];
    expected.sort_unstable();
    assert_eq!(
        db.store.discard_rejects(&asked).await.expect("discarded"),
        expected,
        "each once, ascending"
    );
    assert_eq!(
        db.store
            .discard_rejects(&asked)
            .await
            .expect("nothing to do"),
        [0; 0]
    );
    assert_eq!(
        db.store.discard_rejects(&[]).await.expect("nothing to do"),
        [0; 0]
    );

    let left: Vec<_> = db
        .rejects()
        .await
        .iter()
        .map(|reject| reject.number)
        .collect();
    assert_eq!(left.len(), 3);
    assert!(
        numbers[3..].iter().all(|number| left.contains(number)),
        "{left:?}"
    );
    let again = db
        .store
        .retry_rejects(&family.family, &numbers[..3])
        .await
        .expect("retried");
    assert_eq!(
        again,
        [
            Retried::AppliedBefore,
            Retried::Discarded,
            Retried::Discarded
        ]
    );
    assert_eq!(db.number(SUM).await, 200);
    let kept = |number: u64, is: &str| {
        format!(
            "SELECT COUNT(*) FROM counterfoil_rejects WHERE number = {number} AND applied_at IS NOT NULL AND {is}"
        )
    };
    let short =
        "reason = CONCAT('discarded: ', REPEAT('\u{e9}', 1013)) AND CHAR_LENGTH(reason) = 1024";
    assert_eq!(db.number(&kept(numbers[1], short)).await, 1);
    assert_eq!(
        db.number(&kept(numbers[2], "reason LIKE 'discarded: %Out of range%'"))
            .await,
        1
    );
    assert_eq!(
        db.number(&kept(numbers[0], "reason NOT LIKE 'discarded%'"))
            .await,
        1
    );
}

/// Each reject is added to its row or discarded.
#[tokio::test]
async fn a_retry_and_a_discard_share_no_reject() {
    const MANY: usize = 400;
    let (db, family, _) = six_rejects().await;
    let ids: Vec<_> = (0..MANY).map(|number| format!("many/{number}")).collect();
    let deltas: Vec<_> = ids.iter().map(|id| (id.as_str(), 200)).collect();
    assert_eq!(
        db.apply(&[batch(&family, 0, 2, &deltas)]).await.rejected,
        MANY as u64
    );
    db.run("ALTER TABLE small MODIFY n SMALLINT NOT NULL").await;
    let numbers: Vec<_> = db
        .rejects()
        .await
        .iter()
        .map(|reject| reject.number)
        .collect();
    // chunks of different sizes, from both ends, keep retries and discards close together
    let retry = async |numbers: &[u64]| {
        let mut applied = Vec::new();
        for some in numbers.chunks(40) {
            let retried = db
                .store
                .retry_rejects(&family.family, some)
                .await
                .expect("retried");
            let done = some
                .iter()
                .zip(retried)
                .filter(|(_, retried)| *retried == Retried::Applied);
            applied.extend(done.map(|(number, _)| *number));
        }
        applied
    };
    let discard = async |numbers: &[u64]| {
        let mut discarded = Vec::new();
        for some in numbers.chunks(3) {
            discarded.extend(db.store.discard_rejects(some).await.expect("discarded"));
        }
        discarded
    };
    let backwards: Vec<_> = numbers.iter().rev().copied().collect();
    // from where no retry has been yet
    let (first, second) = numbers.split_at(MANY / 2);
    let from_the_middle = [second, first].concat();
    let (one, two, three, four) = tokio::join!(
        retry(&numbers),
        discard(&from_the_middle),
        discard(&backwards),
        retry(&backwards)
    );
    let (applied, discarded) = ([one, four].concat(), [two, three].concat());
    assert!(
        !applied.is_empty() && !discarded.is_empty(),
        "{} and {}",
        applied.len(),
        discarded.len()
    );
    let mut both = [applied.clone(), discarded].concat();
    both.sort_unstable();
    assert_eq!(both, numbers, "each once");
    assert_eq!(db.number(SUM).await, 200 * applied.len() as i64);
    assert_eq!(db.rejects().await, []);
}

#[tokio::test]
async fn a_transaction_that_is_cut_off_applies_nothing() {
    let (db, family, numbers) = six_rejects().await;
    db.run("ALTER TABLE small MODIFY n SMALLINT NOT NULL").await;
    // after the rows are written, and before the rejects are marked
    db.run("CREATE TRIGGER late BEFORE UPDATE ON counterfoil_rejects FOR EACH ROW SET @late = SLEEP(5)").await;
    let (store, family, asked) = (db.store.clone(), family.clone(), numbers.clone());
    let retry = tokio::spawn({
        let family = family.clone();
        async move { store.retry_rejects(&family.family, &asked).await }
    });
    let waiting = "SELECT COALESCE(MAX(ID), 0) FROM information_schema.PROCESSLIST \
         WHERE STATE = 'User sleep' AND DB = DATABASE()";
    eventually("it waits", async || db.number(waiting).await > 0).await;
    db.run(&format!("KILL {}", db.number(waiting).await)).await;
    assert_eq!(
        retry.await.expect("ended").expect_err("cut off").kind(),
        ErrorKind::Store
    );
    assert_eq!(db.number(SUM).await, 0);
    assert_eq!(db.rejects().await.len(), 6);
    db.run("DROP TRIGGER late").await;
    assert_eq!(
        db.store
            .retry_rejects(&family.family, &numbers)
            .await
            .expect("retried"),
        [Retried::Applied; 6]
    );
    assert_eq!(db.number(SUM).await, 6 * 200);
}

/// A reject keeps only a part of this id, which may be the id of another counter.
#[tokio::test]
async fn an_id_of_which_a_part_is_kept_is_refused_again() {
    let (db, family, _) = six_rejects().await;
    let long = "x".repeat(300);
    let mut batch = batch(&family, 1, 1, &[(&long, 1)]);
    Arc::make_mut(&mut batch)
        .deltas
        .insert(0, (b"caf\xe9".to_vec(), 1));
    assert_eq!(db.apply(&[batch]).await.rejected, 2);
    let rejects = db.rejects().await;
    let numbers: Vec<_> = rejects
        .iter()
        .filter(|one| one.partition == 1)
        .map(|one| one.number)
        .collect();
    for _ in 0..2 {
        let again = db
            .store
            .retry_rejects(&family.family, &numbers)
            .await
            .expect("retried");
        assert_eq!(again, [Retried::Refused; 2]);
    }
    assert_eq!(db.rejects().await, rejects, "with the same reasons");
}

#[tokio::test]
async fn rejects_of_cached_counters_are_applied_again() {
    let db = Db::new().await;
    let family = Family::cached("shop", "votes")
        .build()
        .expect("valid")
        .clone();
    let number = db.store.register(&family).await.expect("registered");
    let votes = Arc::new(Registered { family, number });
    assert_eq!(
        db.apply(&[batch(&votes, 0, 1, &[("1", i64::MAX)])]).await,
        applied(1, 0, 1, 0)
    );
    assert_eq!(
        db.apply(&[batch(&votes, 0, 2, &[("1", 5)])]).await,
        applied(1, 0, 0, 1)
    );
    let numbers = [db.rejects().await[0].number];
    let retry = async || {
        db.store
            .retry_rejects(&votes.family, &numbers)
            .await
            .expect("retried")
    };
    assert_eq!(retry().await, [Retried::Refused]);
    db.run("UPDATE counterfoil_values SET value = 7").await;
    assert_eq!(retry().await, [Retried::Applied]);
    assert_eq!(db.values(&votes, &["1"]).await, [Some(12)]);
}

#[tokio::test]
async fn rejects_of_others_are_left_alone() {
    let (db, family, numbers) = six_rejects().await;
    db.run("ALTER TABLE small MODIFY n SMALLINT NOT NULL").await;
    let other = db.family(Family::buffered("shop", "other")).await;
    let again = db
        .store
        .retry_rejects(&other.family, &numbers)
        .await
        .expect("retried");
    assert_eq!(again, [Retried::NotFound; 6]);
    assert_eq!(
        db.store
            .retry_rejects(&family.family, &[])
            .await
            .expect("nothing to do"),
        []
    );
    assert_eq!(db.number(SUM).await, 0);
}
