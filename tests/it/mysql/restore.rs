//! A database that returns to an older state while its partitions are busy (docs/protocol.md,
//! section 3.9): the next batch of each shows how many were lost.

use counterfoil::admin::{Loss, SetBack};
use counterfoil::metrics::{DATABASE_SET_BACK, LOST_BATCHES};
use counterfoil::test_hooks::Partition;

use crate::support::*;

const TABLES: [&str; 2] = ["counterfoil_ledger", "counterfoil_values"];
/// Locks the ledger, so that no batch is applied until the transaction ends.
const LOCK: &str = "SELECT seq FROM counterfoil_ledger FOR UPDATE";
const PARTITIONS: u32 = 4;

/// The loss by a restored backup.
#[derive(Debug, PartialEq, Eq)]
struct Lost {
    batches: i64,
    hits: i64,
}

/// Copies the tables as of one moment.
async fn back_up(pair: &Pair) {
    for table in TABLES {
        pair.sql(&format!("CREATE TABLE backup_{table} LIKE {table}"))
            .await;
    }
    let copies = TABLES.map(|table| format!("INSERT INTO backup_{table} SELECT * FROM {table};"));
    let copies = copies.concat();
    pair.sql(&format!("START TRANSACTION; {LOCK}; {copies} COMMIT"))
        .await;
}

/// Restores the copies as of one moment. Returns what is lost by that.
async fn restore(pair: &Pair) -> Lost {
    let mut transaction = pair.pool.begin().await.unwrap();
    let run = async |sql: &str, transaction: &mut sqlx::MySqlConnection| {
        let sql = AssertSqlSafe(sql.to_owned());
        sqlx::raw_sql(sql).execute(transaction).await.unwrap();
    };
    run(LOCK, &mut transaction).await;
    let mut differences = [0; 2];
    for (difference, (table, column)) in differences
        .iter_mut()
        .zip(TABLES.into_iter().zip(["seq", "value"]))
    {
        let select = format!(
            "SELECT CAST((SELECT SUM({column}) FROM {table}) - SUM({column}) AS SIGNED) FROM backup_{table}"
        );
        *difference = sqlx::query_scalar::<_, i64>(AssertSqlSafe(select))
            .fetch_one(&mut *transaction)
            .await
            .unwrap();
    }
    for table in TABLES {
        let back = format!("DELETE FROM {table}; INSERT INTO {table} SELECT * FROM backup_{table}");
        run(&back, &mut transaction).await;
    }
    transaction.commit().await.unwrap();
    let [batches, hits] = differences;
    Lost { batches, hits }
}

/// Waits until each partition has been flushed so many times more.
async fn flushed(pair: &Pair, more: u64) {
    let seqs = async || {
        let select = "SELECT partition_no, seq FROM counterfoil_ledger";
        let rows = sqlx::query_as::<_, (u32, u64)>(select).fetch_all(&pair.pool);
        BTreeMap::from_iter(rows.await.unwrap())
    };
    let before = seqs().await;
    eventually("batches of all partitions", async || {
        let now = seqs().await;
        let has_more =
            |(partition, seq): (&u32, &u64)| *seq >= before.get(partition).unwrap_or(&0) + more;
        now.len() == PARTITIONS as usize && now.iter().all(has_more)
    })
    .await;
}

/// Restores a backup under load and a running reconciler. Returns the loss, and what the database
/// records of it.
async fn restored_under_load(without: Option<Guard>) -> (Lost, Vec<SetBack>) {
    take_out(without);
    let (pair, views) = Pair::of(family("views").partitions(PARTITIONS)).await;
    let reconciler = pair.reconcile().await;
    let load = Load::start(PARTITIONS as usize * 2, |task, stop| {
        let views = views.clone();
        async move {
            let mut counted = 0;
            while !stop.is_set() {
                counted += counted_one(&views, &format!("page/{task}/{}", counted % 7)).await;
                pause(1).await;
            }
            counted
        }
    });
    flushed(&pair, 3).await;
    back_up(&pair).await;
    flushed(&pair, 3).await;
    let lost = restore(&pair).await;
    flushed(&pair, 2).await;
    let counted: i64 = load.end().await.into_iter().sum();
    reconciler.stop().await;
    pair.drain().await;
    take_out(None);
    assert_eq!(pair.stored().await, counted - lost.hits);
    let set_backs = pair.mysql().set_backs().await.unwrap();
    (lost, set_backs)
}

async fn counted_one(views: &BufferedCounters, id: &str) -> i64 {
    let _ = views.add(id, 1).await.unwrap();
    1
}

#[tokio::test]
async fn a_backup_that_is_restored_under_load_is_reported_for_each_partition() {
    let (log, metrics) = (Log::begin(), Metrics::record());
    let (lost, set_backs) = restored_under_load(None).await;
    assert!(lost.batches >= i64::from(PARTITIONS) * 3, "{lost:?}");
    let [found] = &set_backs[..] else {
        panic!("{set_backs:?}")
    };
    assert_eq!(
        (&*found.family, found.partitions),
        ("views", PARTITIONS.into())
    );
    assert_eq!(found.loss, Loss::Batches(lost.batches.cast_unsigned()));
    metrics.expect([
        (DATABASE_SET_BACK, PARTITIONS.into()),
        (LOST_BATCHES, lost.batches as f64),
    ]);
    assert!(!log.lines("ERROR", "the database was set back").is_empty());
}

#[tokio::test]
async fn without_the_guard_a_restored_backup_goes_unnoticed() {
    let (lost, set_backs) = restored_under_load(Some(Guard::LostBatch)).await;
    assert!(lost.batches > 0 && lost.hits > 0, "{lost:?}");
    assert_eq!(set_backs, []);
}

#[tokio::test]
async fn a_read_of_a_database_that_lost_a_batch_reports_it_until_the_next_batch_is_written() {
    let metrics = Metrics::record();
    let (pair, views) = Pair::of(family("views").partitions(1)).await;
    for _ in 0..2 {
        let _ = views.add("page", 1).await.unwrap();
        pair.drain().await;
    }
    // a backup from between the two batches; a third one is on its way
    pair.sql(
        "UPDATE counterfoil_ledger SET seq = seq - 1; UPDATE counterfoil_values SET value = 1",
    )
    .await;
    let _ = views.add("page", 1).await.unwrap();
    let registered = pair.mysql().register(views.family()).await.unwrap();
    let partition = Partition::new(pair.redis.manager().await, views.family(), 0);
    let rotated = partition.rotate(views.family(), &registered.database, None, Cut::Now);
    assert!(matches!(rotated.await.unwrap(), RotateReply::Batch(_)));
    let hasty = pair.over(pair.redis.manager().await).read_timeout(secs(2));
    let hasty = hasty.open(family("views").partitions(1)).await.unwrap();
    refused(
        hasty.get("page").await,
        ErrorKind::Store,
        "was set back to an older state",
    );

    pair.drain().await;
    metrics.expect([(DATABASE_SET_BACK, 1.0), (LOST_BATCHES, 1.0)]);
    assert_eq!(views.get("page").await.unwrap(), 2);
    let [found] = &pair.mysql().set_backs().await.unwrap()[..] else {
        panic!("not recorded")
    };
    assert_eq!(found.loss, Loss::Batches(1));
    // what is acknowledged is no problem any more; a later one is
    pair.mysql().acknowledge_set_backs(found.at).await.unwrap();
    assert_eq!(pair.mysql().set_backs().await.unwrap(), []);
}
