//! Batches against a real server: each counts once, whatever interrupts it.

use Progress::{Complete, Partial, Repeated, SetBack};

use super::database::*;
use crate::support::*;

fn with_id(batch: &Batch, id: BatchId) -> Arc<Batch> {
    Arc::new(Batch {
        id,
        ..batch.clone()
    })
}

/// Returns the batch with another nonce, as cut by a Redis that was set back.
fn other_cut(batch: &Batch) -> Arc<Batch> {
    let nonce = Nonce(0);
    with_id(batch, BatchId { nonce, ..batch.id })
}

fn part(progress: impl Into<Vec<Progress>>, rows: u64, rejected: u64) -> ApplyReply {
    ApplyReply {
        progress: progress.into(),
        rows,
        rejected,
        ..ApplyReply::default()
    }
}

/// Checks the contract of a store: parts, marks and set-backs.
pub async fn keeps_the_contract(store: &impl Store, family: &Arc<Registration>) {
    let mut one = batch(family, 0, 1, [("1", 1), ("2", 2), ("3", 3)]);
    // a client in another language can count such an id
    Arc::make_mut(&mut one).deltas.push((b"\xff".to_vec(), 9));
    let two = batch(family, 1, 1, [("1", 10), ("4", 40)]);
    let both = [two.clone(), one.clone()];
    let apply =
        async |batches: &[Arc<Batch>], max_rows| store.apply(batches, max_rows).await.unwrap();
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
    let expect_marks = async |expected: &[LedgerRow]| {
        let mut rows = store
            .ledger(&[family.number, family.number, FamilyNumber(u32::MAX.into())])
            .await
            .unwrap();
        rows.sort_by_key(|row| row.partition);
        assert_eq!(rows, expected);
    };
    let rows = async |ids: &[&str]| store.rows(family, ids).await.unwrap();

    // parts follow the order of the ledger, not the order of the arguments
    let progress = [Partial { left: 2 }, Partial { left: 1 }];
    assert_eq!(apply(&both, Some(3)).await, part(progress, 3, 0));
    expect_marks(&[mark(0, 1, Some(b"3"))]).await;
    let ledger = [(1, I1), (0, I1), (0, Incarnation(1))];
    for ids in [&["2"][..], &["2", "4"]] {
        let read = store.read(family, ids, &ledger, ReadFrom::Primary).await;
        let read = read.unwrap();
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
    // only the rest
    assert_eq!(apply(&both, None).await, part([Complete; 2], 2, 1));
    assert_eq!(apply(&both, None).await, part([Repeated; 2], 0, 0));
    expect_marks(&[mark(0, 1, None), mark(1, 1, None)]).await;
    assert_eq!(rows(&["4", "9", "1"]).await, [Some(40), None, Some(11)]);

    // a batch that proves a set-back changes nothing and does not hold up the other batches
    let next = batch(family, 0, 2, [("1", -1), ("2", -1)]);
    let progress = [SetBack, Partial { left: 1 }];
    assert_eq!(
        apply(&[other_cut(&two), next.clone()], Some(1)).await,
        part(progress, 1, 0)
    );
    for behind in [other_cut(&next), one.clone()] {
        // while a batch is partial
        assert_eq!(apply(&[behind], None).await, part([SetBack], 0, 0));
    }
    expect_marks(&[mark(0, 2, Some(b"1")), mark(1, 1, None)]).await;
    let both = [next.clone(), next];
    let progress = [Complete, Repeated];
    assert_eq!(apply(&both, None).await.progress, progress);
    assert_eq!(apply(&[one], None).await, part([SetBack], 0, 0));
    assert_eq!(rows(&["1", "2"]).await, [Some(10), Some(1)]);
    // a database that was set back to the middle of batch 3 lacks batch 4
    let three = batch(family, 3, 3, [("7", 1), ("8", 1)]);
    let lost = |progress, batches| ApplyReply {
        database_set_back: vec![(0, batches)],
        ..part([progress], 1, 0)
    };
    let applied = apply(&[three], Some(1)).await;
    assert_eq!(applied, lost(Partial { left: 1 }, 2));
    let four = batch(family, 3, 4, [("8", 5)]);
    assert_eq!(apply(&[four], None).await, lost(Complete, 1));
    // Redis has released batches 5 and 6
    let mut six = batch(family, 3, 6, [("7", 0); 0]);
    Arc::make_mut(&mut six).is_lost = true;
    let applied = apply(&[six.clone()], None).await;
    assert_eq!(applied.database_set_back, [(0, 2)]);
    assert_eq!(apply(&[six], None).await, part([Repeated], 0, 0));
    assert_eq!(rows(&["7", "8"]).await, [Some(1), Some(5)]);
    assert_eq!(apply(&[], None).await, ApplyReply::default());

    // no part ends with an id that a ledger row cannot hold
    let long = "2".repeat(256);
    let cut = [batch(
        family,
        2,
        1,
        [("1", 0), (&*long, 9), ("3", 1), ("4", 1)],
    )];
    let progress = [Partial { left: 1 }];
    assert_eq!(apply(&cut, Some(2)).await.progress, progress);
    let others = [mark(0, 2, None), mark(1, 1, None)];
    let cut_mark = mark(2, 1, Some(b"3"));
    expect_marks(&[&others[..], &[cut_mark, mark(3, 6, None)]].concat()).await;
    assert_eq!(apply(&cut, None).await, part([Complete], 1, 0));
    assert_eq!(rows(&["1", "3", "4"]).await, [Some(10), Some(4), Some(41)]);

    // a new incarnation starts at seq 1 again
    let again = batch(family, 0, 1, [("1", 100), ("2", -3)]);
    let incarnation = Incarnation(0);
    let id = BatchId {
        incarnation,
        ..again.id
    };
    assert_eq!(
        apply(&[with_id(&again, id)], None).await,
        part([Complete], 2, 0)
    );
    assert_eq!(rows(&["1", "2"]).await, [Some(110), Some(-2)]);

    for (seq, guard, doubled) in [
        (10, Guard::Ledger, 1),
        (20, Guard::Position, 1),
        (30, Guard::Nonce, 0),
    ] {
        let cut = batch(family, 9, seq, [("5", 1), ("6", 1)]);
        assert_eq!(
            apply(std::slice::from_ref(&cut), Some(1)).await.progress,
            [Partial { left: 1 }]
        );
        let again = match guard {
            Guard::Nonce => other_cut(&cut),
            _ => cut,
        };
        let before = rows(&["5", "6"]).await;
        take_out(Some(guard));
        let progress = apply(&[again], None).await.progress;
        take_out(None);
        let after = rows(&["5", "6"]).await;
        assert_eq!(
            (
                progress,
                [0, 1].map(|at| after[at].unwrap_or(0) - before[at].unwrap_or(0))
            ),
            (vec![Complete], [doubled, 1]),
            "{guard:?}"
        );
    }
}

#[tokio::test]
async fn the_contract_of_a_store_is_kept() {
    let db = Db::new().await;
    keeps_the_contract(&db.store, &db.views().await).await;
    db.run("CREATE TABLE t (id BIGINT UNSIGNED PRIMARY KEY, n INT NOT NULL)")
        .await;
    let table = by_id(Table::upsert("t"), Unsigned);
    keeps_the_contract(&db.store, &db.table("t", table).await).await;
    let rejects = db.rejects().await;
    assert!(
        rejects.len() == 4 && rejects.iter().all(|one| one.delta == 9),
        "{rejects:?}"
    );
}

/// By default a transaction writes 500 rows of an application's table, or 10,000 rows of
/// counterfoil's own.
#[tokio::test]
async fn a_part_is_short() {
    let db = Db::new().await;
    let (table, own) = (db.numbers("t", "INT").await, db.views().await);
    for (family, rows) in [(&table, 500), (&own, 10_000)] {
        let applied = db
            .store
            .apply(&[batch(family, 0, 1, many(10_100, 1))], None)
            .await
            .unwrap();
        let left = 10_100 - rows;
        assert_eq!(applied, part([Partial { left }], rows, 0));
    }
    // small batches share a transaction
    let few = [&own, &table].map(|family| batch(family, 1, 1, many(300, 1)));
    let progress = [Partial { left: 100 }, Complete];
    assert_eq!(
        db.store.apply(&few, None).await.unwrap(),
        part(progress, 500, 0)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_batches_from_many_tasks_count_once() {
    let db = Db::new().await;
    let families = [db.views().await, db.numbers("t", "BIGINT").await];
    for seq in 1..=5 {
        let batches = (0..8).flat_map(|partition| {
            families
                .each_ref()
                .map(|family| batch(family, partition, seq, many(200, 1)))
        });
        let batches: Vec<_> = batches.collect();
        let tasks = (0..8).map(|task| {
            let (store, mut batches) = (db.store.clone(), batches.clone());
            if task % 2 == 1 {
                batches.reverse();
            }
            // in parts, so that the tasks alternate on each batch
            tokio::spawn(async move { complete(&store, &batches, Some(700)).await })
        });
        let mut rows = 0;
        for task in tasks.collect::<Vec<_>>() {
            let sums = task.await.unwrap().unwrap();
            assert_eq!((sums.complete + sums.repeated, sums.set_back), (16, 0));
            rows += sums.rows;
        }
        assert_eq!(rows, 16 * 200);
    }
    for count in [
        "SELECT SUM(value = 40) FROM counterfoil_values",
        "SELECT SUM(n = 40) FROM t",
    ] {
        assert_eq!(db.number(count).await, 200, "{count}");
    }
}

/// Two transactions lock two rows in opposite orders. The server aborts one of them, and its retry
/// succeeds.
#[tokio::test(flavor = "multi_thread")]
async fn a_deadlock_is_retried() {
    let db = Db::new().await;
    let views = db.views().await;
    let others = db.family(Family::buffered("shop", "others")).await;
    db.add(&views, 0, 1, [("a", 0), ("b", 0)]).await;
    db.add(&others, 0, 1, many(500, 0)).await;
    for round in 0..3 {
        // READ COMMITTED keeps locks only on changed rows, even when it scans the whole table
        let begin = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION";
        let mut other = db.pool.begin_with(begin).await.unwrap();
        let touch = |family: &Registration, id| {
            let update =
                "UPDATE counterfoil_values SET value = value + 1 WHERE family = ? AND id LIKE ?";
            sqlx::query(update).bind(family.number).bind(id)
        };
        // the server aborts the transaction that has changed fewer rows
        for (family, id) in [(&others, "%"), (&views, "b")] {
            touch(family, id).execute(&mut *other).await.unwrap();
        }
        let before = db.store.statements();
        let batches = [batch(&views, 0, 2 + round, [("a", 1), ("b", 1)])];
        let store = db.store.clone();
        let apply = tokio::spawn(async move { complete(&store, &batches, None).await });
        pause(200).await;
        // the store has locked "a" and waits for "b"
        touch(&views, "a").execute(&mut *other).await.unwrap();
        other.rollback().await.unwrap();
        assert_eq!(apply.await.unwrap().unwrap(), applied(1, 0, 2, 0));
        let statements = db.store.statements() - before;
        assert!(statements > 9, "{statements}: it was not aborted");
    }
    db.has(&views, &["a", "b"], [Some(3), Some(3)]).await;
}

/// Group replication fails the commit of a transaction that conflicts with another member's.
#[tokio::test]
async fn a_failed_certification_is_retried() {
    let db = Db::new().await;
    let family = db.numbers("t", "INT").await;
    db.run(
        "CREATE TRIGGER fails BEFORE INSERT ON t FOR EACH ROW BEGIN \
         SET @tried = COALESCE(@tried, 0) + 1; \
         IF @tried = 1 THEN SIGNAL SQLSTATE '40000' SET MYSQL_ERRNO = 3101; END IF; END",
    )
    .await;
    let one = db.alone();
    let batches = [batch(&family, 0, 1, [("1", 1)])];
    let applied_once = one.store.apply(&batches, None).await.unwrap();
    assert_eq!(applied_once.progress, [Complete]);
    db.has(&family, &["1"], [Some(1)]).await;
}

/// A trigger may give its refusal any number, also one of a server that is gone or read-only.
#[tokio::test]
async fn a_transaction_with_a_refusal_of_any_number_is_committed() {
    let db = Db::new().await;
    let family = db.numbers("t", "INT").await;
    for (seq, number) in (1..).zip([1047, 1053, 1290, 1927, 4031]) {
        db.run("DROP TRIGGER IF EXISTS fails").await;
        db.run(&format!(
            "CREATE TRIGGER fails BEFORE INSERT ON t FOR EACH ROW BEGIN \
             IF NEW.id = 2 THEN SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = {number}; END IF; END"
        ))
        .await;
        let deltas = [("1", 1), ("2", 1)];
        db.adds(&family, seq, deltas, (1, 1)).await;
        let repeated = db.add(&family, 0, seq, deltas).await;
        assert_eq!(repeated, applied(0, 1, 0, 0), "{number}");
    }
    db.has(&family, &["1"], [Some(5)]).await;
    let rejects = db.number("SELECT SUM(delta) FROM counterfoil_rejects");
    assert_eq!(rejects.await, 5);
}

#[tokio::test]
async fn a_lock_that_is_not_released_is_a_retryable_error() {
    let db = Db::new().await;
    let views = db.views().await;
    let mut other = db.pool.begin().await.unwrap();
    let insert = sqlx::query("INSERT INTO counterfoil_values VALUES (?, 'a', 1)");
    let inserted = insert.bind(views.number).execute(&mut *other).await;
    inserted.unwrap();
    let batches = [batch(&views, 0, 1, [("a", 1)])];
    let error = refused(db.store.apply(&batches, None).await, Busy, "");
    assert!(error.is_retryable(), "{error}");
    assert!(std::error::Error::source(&error).is_some());
    other.commit().await.unwrap();
    // nothing was kept of the first attempt
    assert_eq!(db.apply(&batches).await, applied(1, 0, 1, 0));
    db.has(&views, &["a"], [Some(2)]).await;
}

#[tokio::test]
async fn a_dropped_future_does_not_stop_its_transaction() {
    let db = Db::new().await;
    let views = db.views().await;
    for seq in 1..=40 {
        let batches = [batch(&views, 0, seq, [("a", 1)])];
        let apply = db.store.apply(&batches, None);
        drop(timeout(Duration::from_micros(50 * seq), apply).await);
        let (ids, ledger) = (["a"], [(0, I1)]);
        drop(
            timeout(
                Duration::from_micros(20 * seq),
                db.store.read(&views, &ids, &ledger, ReadFrom::Primary),
            )
            .await,
        );
        // as the reconciler does: repeats the same batch until there is a reply
        db.apply(&batches).await;
    }
    db.has(&views, &["a"], [Some(40)]).await;
}

#[tokio::test]
async fn a_transaction_takes_few_statements() {
    let db = Db::new().await;
    let views = db.views().await;
    let before = db.store.statements();
    let batches = (0..8).map(|partition| batch(&views, partition, 1, many(1000, 1)));
    db.apply(&batches.collect::<Vec<_>>()).await;
    // three to begin, two for the ledger, one for the values, two to commit; five round trips
    assert_eq!(db.store.statements() - before, 8);
}

#[tokio::test]
async fn a_fault_of_the_table_keeps_nothing() {
    let db = Db::new().await;
    let batches = [
        batch(&db.views().await, 0, 1, [("a", 1)]),
        batch(&db.numbers("t", "INT").await, 0, 1, [("1", 1)]),
    ];
    for (fault, mend) in [
        ("RENAME TO gone", "TABLE gone RENAME TO t"),
        ("ADD c INT NOT NULL", "TABLE t DROP c"),
    ] {
        db.run(&format!("ALTER TABLE t {fault}")).await;
        let error = db.store.apply(&batches, None).await.expect_err(fault);
        // not retryable: the reconciler continues with the other families
        assert!(error.kind() == Mismatch && !error.is_retryable(), "{error}");
        for kept in ["values", "ledger", "rejects"] {
            let count = format!("SELECT COUNT(*) FROM counterfoil_{kept}");
            assert_eq!(db.number(&count).await, 0, "{fault}: {kept}");
        }
        db.run(&format!("ALTER {mend}")).await;
    }
    assert_eq!(db.apply(&batches).await, applied(2, 0, 2, 0));
}

/// A process that was stopped during a removal, or whose database was replaced by one that lacks
/// the registration, has a number that no family or another one has.
#[tokio::test]
async fn a_batch_is_refused_without_its_family_under_its_number() {
    let db = Db::new().await;
    let views = db.views().await;
    db.adds(&views, 1, [("a".to_owned(), 7)], (1, 0)).await;
    for (change, restore) in [
        ("SET state = 'removed'", "SET state = 'used'"),
        ("SET name = 'other'", "SET name = 'views'"),
        (
            "SET database_id = CONCAT(database_id, '2')",
            "SET database_id = LEFT(database_id, 32)",
        ),
        ("SET number = number + 1", "SET number = number - 1"),
        ("SET kind = 'cached'", "SET kind = 'buffered'"),
        ("SET target = 'upsert t'", "SET target = 'own'"),
    ] {
        let length = db
            .number("SELECT MAX(LENGTH(database_id)) FROM counterfoil_families")
            .await;
        let restore = restore.replace("32", &length.to_string());
        db.run(&format!("UPDATE counterfoil_families {change}"))
            .await;
        let next = batch(&views, 0, 2, [("a", 1)]);
        let refused = db.store.apply(&[next], None).await;
        let error = refused.expect_err(change);
        assert_eq!(error.kind(), Mismatch, "{change}: {error}");
        assert!(
            error.to_string().contains("is not registered as number 1"),
            "{error}"
        );
        take_out(Some(Guard::Registration));
        let next = batch(&views, 1, 1, [("without the check", 1)]);
        let _ = db.store.apply(&[next], None).await;
        take_out(None);
        db.run(&format!("UPDATE counterfoil_families {restore}"))
            .await;
    }
    let found = [Some(7), Some(1)];
    db.has(&views, &["a", "without the check"], found).await;
    db.adds(&views, 2, [("a".to_owned(), 1)], (1, 0)).await;
}

/// Each statement that is prepared again ends another one, and the next one waits for that.
#[tokio::test]
async fn the_statements_of_many_tables_stay_prepared() {
    let db = Db::new().await;
    let url = mysql().await.url(&db.name);
    let store = MysqlStore::new(url).unwrap().max_connections(1);
    let mut families = Vec::new();
    for number in 0..60 {
        families.push(db.numbers(&format!("t{number}"), "BIGINT").await);
    }
    let mut prepared = Vec::new();
    for seq in 1..=3 {
        for family in &families {
            let one = batch(family, 0, seq, [("1", 1)]);
            store.apply(std::slice::from_ref(&one), None).await.unwrap();
            store.rows(family, &["1"]).await.unwrap();
            let ledger = [(0, one.id.incarnation)];
            let read = store.read(family, &["1"], &ledger, ReadFrom::Primary).await;
            assert_eq!(read.unwrap().values, [Some(seq as i64)]);
        }
        let status = sqlx::raw_sql("SHOW SESSION STATUS LIKE 'Com_stmt_prepare'");
        let status: String = status.fetch_one(store.pool()).await.unwrap().get("Value");
        prepared.push(status.parse::<u64>().unwrap());
    }
    assert_eq!(prepared[1], prepared[2], "{prepared:?}");
}
