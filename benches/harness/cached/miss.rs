//! How long the first increment of a counter takes that is not in Redis, against the query that it cannot do without.

use std::time::Instant;

use sqlx::MySqlPool;

use crate::alternate::{alternate, median};
use crate::bench::Bench;
use crate::cached::stage::{Cached, Stage, fill};
use crate::figure::{Figure, Target::AtMost};
use crate::servers::flush_all;

const FIGURE: Figure = Figure {
    name: "cached_miss_vs_select",
    what: "latency of a cold counter's first incr().await, p50 : a SELECT by primary key",
    target: AtMost(2.8),
};

pub async fn measure(bench: &mut Bench) {
    if !bench.wants(&[FIGURE.name]) {
        return;
    }
    let stage = Stage::set(bench).await;
    let counters = stage.family("cold", 4).await;
    let names: Vec<_> = (0..bench.size(10_000, 2_000)).map(|number| format!("page/{number}")).collect();
    fill(&counters, &names).await;
    stage.pair.drain().await.unwrap();
    let ours = async || {
        // nothing is in Redis any more; what was added in the round before was not saved, and is gone
        flush_all(&mut stage.probe.clone()).await;
        incremented(counters.clone(), names.clone()).await
    };
    let theirs = async || selected(stage.pool.clone(), names.clone()).await;
    let rounds = alternate(bench.rounds(), ours, theirs).await;
    bench.figure(FIGURE, rounds.ratio(|micros| *micros));
    bench.absolute("cached_miss_us", median(rounds.ours));
    bench.absolute("select_us", median(rounds.theirs));
}

/// The median time of each counter's first increment in microseconds.
async fn incremented(counters: Cached, names: Vec<String>) -> f64 {
    let incrementing = tokio::spawn(async move {
        // the scripts and the producers of the partitions are there
        for name in &names[..100] {
            assert_eq!(counters.incr(name, 1).await.unwrap().counted(), Some(2));
        }
        let mut micros = Vec::with_capacity(names.len());
        for name in &names[100..] {
            let started = Instant::now();
            let changed = counters.incr(name, 1).await.unwrap();
            micros.push(started.elapsed().as_secs_f64() * 1e6);
            assert_eq!(changed.counted(), Some(2), "{name}");
        }
        median(micros)
    });
    incrementing.await.unwrap()
}

async fn selected(pool: MySqlPool, names: Vec<String>) -> f64 {
    const SELECT: &str = "SELECT value FROM counterfoil_values WHERE family = 1 AND id = ?";
    let selecting = tokio::spawn(async move {
        let mut micros = Vec::with_capacity(names.len());
        for name in names {
            let started = Instant::now();
            let value: Option<i64> = sqlx::query_scalar(SELECT).bind(&name).fetch_optional(&pool).await.unwrap();
            micros.push(started.elapsed().as_secs_f64() * 1e6);
            assert_eq!(value, Some(1), "{name}");
        }
        median(micros)
    });
    selecting.await.unwrap()
}
