//! Counters per second from Redis to a commit, against a loop that compares and sets the same rows from memory.

use std::time::{Duration, Instant};

use sqlx::MySqlPool;

use crate::alternate::{alternate, median};
use crate::bench::Bench;
use crate::cached::stage::{Cached, Stage, fill};
use crate::figure::{Figure, Target::AtLeast};
use crate::servers::connect;

const FIGURE: Figure = Figure {
    name: "cached_save_rows",
    what: "saves/s from Redis to the commit and its being marked : hand-written compare-and-set upserts of the same rows",
    target: AtLeast(0.7),
};
/// As many as counterfoil takes unless told otherwise.
const ROWS_OF_TRANSACTION: usize = 50_000;
const ROWS_OF_STATEMENT: usize = 10_000;

pub async fn measure(bench: &mut Bench) {
    if !bench.wants(&[FIGURE.name]) {
        return;
    }
    let stage = Stage::set(bench).await;
    let counters = stage.family("saves", 4).await;
    let names: Vec<_> = (0..bench.size(200_000, 50_000)).map(|number| format!("page/{number:07}")).collect();
    create_tables(&stage.pool).await;
    let rows_per_second = |seconds: f64| names.len() as f64 / seconds;
    let mut round = 0;
    let ours = async || {
        fill(&counters, &names).await;
        rows_per_second(saved(&stage, &counters).await)
    };
    let theirs = async || {
        round += 1;
        rows_per_second(written_by_hand(&stage.pool, &names, round).await)
    };
    let rounds = alternate(bench.size(6, 2), ours, theirs).await;
    bench.figure(FIGURE, rounds.ratio(|rows| *rows));
    bench.absolute("saves_per_second", median(rounds.ours));
    bench.absolute("hand_written_saves_per_second", median(rounds.theirs));
}

/// Runs a reconciler until everything is saved; returns the seconds that it took. All counters are due when it starts.
async fn saved(stage: &Stage, counters: &Cached) -> f64 {
    tokio::time::sleep(Duration::from_millis(60)).await;
    let started = Instant::now();
    let reconciler = stage.pair.reconciler().redis(connect(&stage.redis).await).start().await.unwrap();
    while is_dirty(stage, counters).await {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let seconds = started.elapsed().as_secs_f64();
    reconciler.shutdown().await.unwrap();
    seconds
}

/// Whether anything is planned before the counters' deletion, which is far ahead.
async fn is_dirty(stage: &Stage, counters: &Cached) -> bool {
    const PLANNED: &str = "\
local soon = redis.call('TIME')[1] * 1000 + 60000
local sum = 0
for i = 1, #KEYS do sum = sum + redis.call('ZCOUNT', KEYS[i], 0, soon) end
return sum";
    let family = counters.family();
    let keys: Vec<_> = (0..family.partitions()).map(|number| format!("cf1:{{{family}/{number}}}:schedule")).collect();
    let mut command = redis::cmd("EVAL");
    command.arg(PLANNED).arg(keys.len()).arg(keys);
    command.query_async::<u64>(&mut stage.probe.clone()).await.unwrap() > 0
}

/// Values and versions as counterfoil has them: the version lies beside the value, whose table may be the application's.
async fn create_tables(pool: &MySqlPool) {
    const CREATE: &str = "CREATE TABLE values_by_hand LIKE counterfoil_values; \
         CREATE TABLE versions_by_hand LIKE counterfoil_versions";
    sqlx::raw_sql(CREATE).execute(pool).await.unwrap();
}

/// Writes each row's value where it is the one before, and its version likewise, from memory; returns the seconds.
async fn written_by_hand(pool: &MySqlPool, names: &[String], round: u64) -> f64 {
    const IDS: &str = "JSON_TABLE(?, '$[*]' COLUMNS(id VARCHAR(255) PATH '$[0]')) AS j ON DUPLICATE KEY UPDATE";
    let saves = [
        format!(
            "INSERT INTO values_by_hand (family, id, value) SELECT 1, j.id, ? FROM {IDS} \
             value = IF(values_by_hand.value = ?, VALUES(value), values_by_hand.value)"
        ),
        format!(
            "INSERT INTO versions_by_hand (family, id, lineage, n) SELECT 1, j.id, 1, ? FROM {IDS} \
             n = IF(versions_by_hand.n = ?, VALUES(n), versions_by_hand.n)"
        ),
    ];
    let (writer, names) = (pool.clone(), names.to_vec());
    let writing = tokio::spawn(async move {
        let started = Instant::now();
        for rows in names.chunks(ROWS_OF_TRANSACTION) {
            let mut transaction = writer.begin().await.unwrap();
            for rows in rows.chunks(ROWS_OF_STATEMENT) {
                let ids: Vec<_> = rows.iter().map(|id| format!("[\"{id}\"]")).collect();
                for save in &saves {
                    let query = sqlx::query(sqlx::AssertSqlSafe(save.as_str()))
                        .bind(round)
                        .bind(format!("[{}]", ids.join(",")));
                    query.bind(round - 1).execute(&mut *transaction).await.unwrap();
                }
            }
            transaction.commit().await.unwrap();
        }
        started.elapsed().as_secs_f64()
    });
    let seconds = writing.await.unwrap();
    const WRONG: &str =
        "SELECT COUNT(*) FROM values_by_hand JOIN versions_by_hand USING (family, id) WHERE value <> ? OR n <> ?";
    let wrong: i64 = sqlx::query_scalar(WRONG).bind(round).bind(round).fetch_one(pool).await.unwrap();
    assert_eq!(wrong, 0);
    seconds
}
