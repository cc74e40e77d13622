//! Series, compared with plain commands.

use std::collections::HashMap;

use counterfoil::{Durability, Family, Precision, Series};
use redis::aio::MultiplexedConnection;

use crate::measuring::{AtLeast, AtMost, Bench, Comparison, Figure, Ids, Side, Stage, connect};

const ADD: Figure = Figure {
    name: "series_add_vs_pipeline",
    what: "add().await over 7 precisions, 256 tasks, Zipf over 1,000 names, hits/s : MULTI of 7 ZADD and 7 HINCRBY",
    target: AtLeast(2.0),
};
const WINDOW: Figure = Figure {
    name: "series_get_vs_hgetall",
    what: "latency of get() of 120 slices, one task, p50 : plain HGETALL of the same",
    target: AtMost(1.3),
};
const MEMORY: Figure = Figure {
    name: "series_memory",
    what: "Redis's bytes per series, its 7 windows of 120 slices full : 7 plain hashes of the same slices",
    target: AtMost(1.15),
};
const SLICES: i64 = 120;

pub async fn measure(bench: &mut Bench) {
    measure_add(bench).await;
    measure_window(bench).await;
    measure_memory(bench).await;
}

/// Opens a series with the default precisions, none of them kept.
async fn series(stage: &Stage, name: &str) -> Series {
    let family = Family::series("bench", name).durability(Durability::Immediate);
    stage.pair.open(family).await.unwrap()
}

/// Returns the length of a slice in seconds. Days are UTC days.
fn length(precision: Precision) -> i64 {
    match precision {
        Precision::Seconds(seconds) => i64::from(seconds),
        _ => 86_400,
    }
}

/// Returns the starts of the last `slices` slices, up to the current one.
fn starts(precision: Precision, slices: i64, now: i64) -> impl Iterator<Item = i64> {
    let length = length(precision);
    (1 - slices..=0).map(move |back| (now.div_euclid(length) + back) * length)
}

/// `add().await`.
#[derive(Clone)]
struct Add(Series);

impl Side for Add {
    async fn hit(&mut self, name: &str) {
        let _ = self.0.add(name, 1).await.unwrap();
    }
}

/// The commands that a well-known book on Redis sends per hit, in one transaction over one
/// multiplexed connection.
#[derive(Clone)]
struct Textbook(MultiplexedConnection);

impl Side for Textbook {
    async fn hit(&mut self, name: &str) {
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_secs() as i64;
        let mut pipe = redis::pipe();
        pipe.atomic();
        for precision in Precision::DEFAULT.map(length) {
            let series = format!("{precision}:{name}");
            pipe.zadd("known:", &series, 0).ignore();
            pipe.hincr(format!("count:{series}"), now / precision * precision, 1)
                .ignore();
        }
        pipe.exec_async(&mut self.0).await.unwrap();
    }
}

/// Compares hits at seven precisions with the textbook's commands.
async fn measure_add(bench: &mut Bench) {
    if !bench.wants(&[ADD.name]) {
        return;
    }
    let stage = Stage::set(bench).await;
    let (ours, theirs) = (
        Add(series(&stage, "add").await),
        Textbook(connect(&stage.redis).await),
    );
    let (names, ids) = (["series_add", "series_textbook"], Ids::zipf(1_000));
    Comparison {
        figure: ADD,
        ours,
        theirs,
        names,
        ids,
        stage,
    }
    .throughput(bench)
    .await;
}

/// `get()`.
#[derive(Clone)]
struct Window(Series);

impl Side for Window {
    async fn hit(&mut self, name: &str) {
        let window = self.0.get(name, Precision::HOUR).await.unwrap();
        // at most one slice has left the window since it was filled
        assert!(window.iter().filter(|slice| slice.count > 0).count() >= 119);
    }
}

#[derive(Clone)]
struct Hash(MultiplexedConnection);

impl Side for Hash {
    async fn hit(&mut self, name: &str) {
        let window: HashMap<i64, i64> = redis::cmd("HGETALL")
            .arg(name)
            .query_async(&mut self.0)
            .await
            .unwrap();
        assert_eq!(window.len(), SLICES as usize);
    }
}

/// Compares reading a window with reading its hash.
async fn measure_window(bench: &mut Bench) {
    if !bench.wants(&[WINDOW.name]) {
        return;
    }
    let stage = Stage::set(bench).await;
    let (ours, theirs) = (
        Window(series(&stage, "window").await),
        Hash(connect(&stage.redis).await),
    );
    let ids = Ids::even(1);
    let name = ids.of_task(0, 1).next().unwrap();
    let partition = ours.0.family().partition_of(name);
    let now = stage.time().await;
    for hash in [
        name.to_owned(),
        format!("cf1:{{bench/window/{partition}}}:series:3600s:{name}"),
    ] {
        for start in starts(Precision::HOUR, SLICES, now) {
            let mut probe = stage.probe.clone();
            redis::cmd("HSET")
                .arg(&hash)
                .arg(start)
                .arg(1_000 + start % 977)
                .exec_async(&mut probe)
                .await
                .unwrap();
        }
    }
    Comparison {
        figure: WINDOW,
        ours,
        theirs,
        names: ["series_get", "hgetall"],
        ids,
        stage,
    }
    .latency(bench)
    .await;
}

/// Measures the memory in Redis of a series with full windows.
async fn measure_memory(bench: &mut Bench) {
    if !bench.wants(&[MEMORY.name]) {
        return;
    }
    let stage = Stage::set(bench).await;
    let series = series(&stage, "memory").await;
    // with seven keys each, both sides have 3/4 of a power of two: a table is half empty right
    // after it grows
    let names: Vec<_> = (0..bench.size(877, 438))
        .map(|number| format!("page/{number}"))
        .collect();
    let now = stage.time().await;
    let empty = stage.used().await;
    // a first hit creates the keys with their lifetimes and names; the earlier slices follow
    for name in &names {
        let _ = series.add(name, 1_000).await.unwrap();
    }
    for name in &names {
        let partition = series.family().partition_of(name);
        let window =
            |precision| format!("cf1:{{bench/memory/{partition}}}:series:{precision}:{name}");
        fill(&stage, window, now).await;
    }
    let ours = stage.used().await - empty;
    let before = stage.used().await;
    for name in &names {
        fill(&stage, |precision| format!("count:{precision}:{name}"), now).await;
    }
    let theirs = stage.used().await - before;
    bench.figure(MEMORY, ours / theirs);
    bench.absolute("redis_bytes_per_series", ours / names.len() as f64);
    bench.absolute("redis_bytes_per_7_hashes", theirs / names.len() as f64);
}

/// Fills seven hashes of 120 slices each.
async fn fill(stage: &Stage, key: impl Fn(Precision) -> String, now: i64) {
    let mut pipe = redis::pipe();
    for precision in Precision::DEFAULT {
        for start in starts(precision, SLICES, now) {
            pipe.hset(key(precision), start, 1_000 + start % 977)
                .ignore();
        }
    }
    pipe.exec_async(&mut stage.probe.clone()).await.unwrap();
}
