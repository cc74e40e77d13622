//! The latency of an exact read, compared with the two plain reads that it consists of.

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use sqlx::MySqlPool;

use crate::measuring::{AtMost, Bench, Counters, Figure, Ids, Pending, alternate, connect, median};

const FIGURE: Figure = Figure {
    name: "exact_read_vs_plain",
    what: "latency of get(), p50 : HGET and then SELECT",
    target: AtMost(1.25),
};
const IDS: u32 = 10_000;
const HASH: &str = "plain";

/// One side of the comparison, which reads values one after the other.
trait Reader: Clone + Send + 'static {
    fn read(&mut self, id: &str) -> impl Future<Output = i64> + Send;
}

#[derive(Clone)]
struct Exact(Counters);

impl Reader for Exact {
    async fn read(&mut self, id: &str) -> i64 {
        self.0.get(id).await.unwrap()
    }
}

/// The alternative without counterfoil. It is wrong for a moment whenever a batch is on its way.
#[derive(Clone)]
struct Plain {
    redis: MultiplexedConnection,
    pool: MySqlPool,
}

impl Reader for Plain {
    async fn read(&mut self, id: &str) -> i64 {
        const SELECT: &str = "SELECT value FROM counterfoil_values WHERE family = 1 AND id = ?";
        let pending: Option<i64> = redis::cmd("HGET")
            .arg(HASH)
            .arg(id)
            .query_async(&mut self.redis)
            .await
            .unwrap();
        let stored: Option<i64> = sqlx::query_scalar(SELECT)
            .bind(id)
            .fetch_optional(&self.pool)
            .await
            .unwrap();
        pending.unwrap_or(0) + stored.unwrap_or(0)
    }
}

pub async fn measure(bench: &mut Bench) {
    if !bench.wants(&[FIGURE.name]) {
        return;
    }
    let stage = Pending::set(bench).await;
    let names = || (0..IDS).map(|number| format!("page/{number}"));
    // each id has 1 in the database, which both sides read, and 1 in Redis
    stage.fill(names()).await;
    stage.flush().await;
    stage.fill(names()).await;
    let mut redis = connect(&stage.redis).await;
    for id in names() {
        redis::cmd("HSET")
            .arg(HASH)
            .arg(id)
            .arg(1)
            .exec_async(&mut redis)
            .await
            .unwrap();
    }
    let (exact, plain) = (
        Exact(stage.counters.clone()),
        Plain {
            redis,
            pool: stage.pool.clone(),
        },
    );
    let (ids, time) = (Ids::even(IDS), bench.time());
    let ours = async || latency(exact.clone(), &ids, time).await;
    let theirs = async || latency(plain.clone(), &ids, time).await;
    let rounds = alternate(bench.rounds(), ours, theirs).await;
    bench.figure(FIGURE, rounds.ratio(|micros| *micros));
    bench.absolute("exact_read_us", median(rounds.ours));
    bench.absolute("plain_read_us", median(rounds.theirs));
}

/// Returns the median time of a read in microseconds.
async fn latency(mut reader: impl Reader, ids: &Ids, time: Duration) -> f64 {
    let ids = ids.clone();
    let reading = tokio::spawn(async move {
        let (started, mut micros) = (Instant::now(), Vec::new());
        for id in ids.of_task(0, 1) {
            let asked = Instant::now();
            assert_eq!(reader.read(id).await, 2, "{id}");
            micros.push(asked.elapsed().as_secs_f64() * 1e6);
            if started.elapsed() > time {
                break;
            }
        }
        median(micros)
    });
    reading.await.unwrap()
}
