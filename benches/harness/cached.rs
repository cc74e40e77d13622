//! Cached counters, compared with plain commands.

use std::time::{Duration, Instant};

use counterfoil::{CachedCounters, Durability, Family, Outcome};
use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use sqlx::MySqlPool;

use crate::flush;
use crate::measuring::{
    AtLeast, AtMost, Bench, Comparison, Figure, Ids, Load, Side, Stage, alternate, connect,
    latency, median,
};

type Cached = CachedCounters;

const ONE_TASK: Figure = Figure {
    name: "cached_incr_vs_incrby",
    what: "latency of incr().await of a hot counter, one task, p50 : plain INCRBY",
    target: AtMost(1.3),
};
const THROUGHPUT: Figure = Figure {
    name: "cached_throughput_vs_incrby",
    what: "increments/s of incr().await, 256 tasks, Zipf over 100 k warm counters in 4 partitions : plain INCRBY",
    target: AtLeast(0.8),
};
const MISS: Figure = Figure {
    name: "cached_miss",
    what: "latency of a cold counter's first incr().await, p50 : GET, SELECT by primary key, SET NX, INCR",
    target: AtMost(1.2),
};
const SAVES: Figure = Figure {
    name: "cached_save_rows",
    what: "rows/s from Redis to the commit and back as bases : the better of two hand-written upsert loops from memory",
    target: AtLeast(0.8),
};
const MEMORY: Figure = Figure {
    name: "cached_memory",
    what: "Redis's bytes per warm clean counter, ids of 11 bytes : plain string keys with a TTL",
    target: AtMost(1.5),
};
/// The default number of partitions of a family.
const PARTITIONS: u32 = 4;

pub async fn measure(bench: &mut Bench) {
    measure_one_task(bench).await;
    measure_throughput(bench).await;
    measure_misses(bench).await;
    measure_saves(bench).await;
    measure_memory(bench).await;
}

/// Opens a family in `partitions` partitions. This Redis has no persistence.
async fn family(stage: &Stage, name: &str, partitions: u32) -> Cached {
    let family = Family::cached("bench", name)
        .partitions(partitions)
        .durability(Durability::Immediate)
        .sync_time(Duration::from_millis(50));
    stage.pair.open(family).await.unwrap()
}

/// Adds 1 to each counter, many at a time.
async fn fill(counters: &Cached, ids: &[String]) {
    for some in ids.chunks(2048) {
        let all = join_all(some.iter().map(|id| counters.incr(id, 1))).await;
        assert!(all.iter().all(Result::is_ok));
    }
}

/// `incr().await`.
#[derive(Clone)]
struct Incr(Cached);

impl Side for Incr {
    async fn hit(&mut self, id: &str) {
        let changed = self.0.incr(id, 1).await.unwrap();
        assert!(
            matches!(changed, Outcome::Counted(_)),
            "{id} was not counted: {changed:?}"
        );
    }
}

/// The alternative without counterfoil: one INCRBY per hit, over one multiplexed connection.
#[derive(Clone)]
struct Plain(MultiplexedConnection);

impl Side for Plain {
    async fn hit(&mut self, id: &str) {
        let _: i64 = redis::cmd("INCRBY")
            .arg(id)
            .arg(1)
            .query_async(&mut self.0)
            .await
            .unwrap();
    }
}

/// A script of nothing but the calls in Redis that an increment of one counter takes, with the keys
/// and arguments of `cached_incr`: no check, no bound and no sum.
#[derive(Clone)]
struct CallsAlone {
    redis: MultiplexedConnection,
    sha1: String,
}

const CALLS_ALONE: &str = "local call, id = redis.call, ARGV[7] \
    call('HMGET', KEYS[1], '=now', '=kind', ARGV[1], '=min', '=max') \
    call('HMGET', KEYS[6], 'hits', 'batch_hits') \
    call('HMGET', KEYS[3], id) \
    call('HLEN', KEYS[4]) \
    call('HSET', KEYS[1], ARGV[1], ARGV[2]) \
    call('HINCRBY', KEYS[4], id, ARGV[2]) \
    call('HSET', KEYS[6], 'hits', ARGV[2]) \
    call('HSET', KEYS[1], ARGV[1], ARGV[2]) \
    return { 'OK', ARGV[2] }";

impl CallsAlone {
    async fn on(stage: &Stage) -> Self {
        let mut redis = connect(&stage.redis).await;
        let mut load = redis::cmd("SCRIPT");
        let sha1 = load.arg("LOAD").arg(CALLS_ALONE);
        let sha1 = sha1.query_async(&mut redis).await.unwrap();
        CallsAlone { redis, sha1 }
    }
}

impl Side for CallsAlone {
    async fn hit(&mut self, id: &str) {
        let mut call = redis::cmd("EVALSHA");
        call.arg(&self.sha1).arg(6);
        for key in ["calls", "calls_before", "base", "buffer", "batch", "meta"] {
            call.arg(format!("cf1:{{bench/alone/0}}:{key}"));
        }
        for arg in ["0123456789abcdef", "1", "0123456789abcdef", "", "0", "1"] {
            call.arg(arg);
        }
        call.arg(id)
            .arg(1)
            .exec_async(&mut self.redis)
            .await
            .unwrap();
    }
}

/// Measures the latency of an increment by a single task, with the counter in Redis.
async fn measure_one_task(bench: &mut Bench) {
    if !bench.wants(&[ONE_TASK.name]) {
        return;
    }
    let stage = Stage::set(bench).await;
    let (alone, plain) = (
        CallsAlone::on(&stage).await,
        Plain(connect(&stage.redis).await),
    );
    let (ids, time) = (Ids::even(1), bench.time());
    let rounds = alternate(
        bench.rounds(),
        async || latency(alone.clone(), &ids, time).await,
        async || latency(plain.clone(), &ids, time).await,
    );
    let ratio = rounds.await.ratio(|micros| *micros);
    bench.absolute("cached_calls_alone_vs_incrby", ratio);
    Comparison {
        figure: ONE_TASK,
        ours: Incr(family(&stage, "hot", PARTITIONS).await),
        theirs: plain,
        names: ["cached_incr", "incrby"],
        ids,
        stage,
    }
    .latency(bench)
    .await;
}

/// Measures increments of counters that are in Redis, and also fewer and more partitions.
async fn measure_throughput(bench: &mut Bench) {
    if !bench.wants(&[THROUGHPUT.name]) {
        return;
    }
    let rounds = warm(bench, PARTITIONS)
        .await
        .load(bench, bench.rounds())
        .await;
    bench.figure(THROUGHPUT, rounds.ratio(Load::per_second));
    let ours = |what: fn(&Load) -> f64| median(rounds.ours.iter().map(what));
    bench.absolute("cached_per_second", ours(Load::per_second));
    bench.absolute(
        "cached_incrby_per_second",
        median(rounds.theirs.iter().map(Load::per_second)),
    );
    bench.absolute(
        "cached_per_call",
        ours(|load| load.hits / load.scripts.calls),
    );
    bench.absolute("cached_script_us", ours(|load| load.scripts.mean_us()));
    bench.absolute(
        "cached_redis_busy",
        ours(|load| load.redis_cpu / load.seconds),
    );
    for partitions in [1, 2, 8] {
        let rounds = warm(bench, partitions)
            .await
            .load(bench, bench.size(3, 1))
            .await;
        bench.absolute(
            format!("cached_throughput_in_{partitions}_partitions"),
            rounds.ratio(Load::per_second),
        );
    }
}

async fn warm(bench: &Bench, partitions: u32) -> Comparison<Incr, Plain> {
    const IDS: u32 = 100_000;
    let stage = Stage::set(bench).await;
    let counters = family(&stage, &format!("warm-{partitions}"), partitions).await;
    let names: Vec<_> = (0..IDS).map(|number| format!("page/{number}")).collect();
    fill(&counters, &names).await;
    let (ours, theirs) = (Incr(counters), Plain(connect(&stage.redis).await));
    Comparison {
        figure: THROUGHPUT,
        ours,
        theirs,
        names: ["cached", "incrby"],
        ids: Ids::zipf(IDS),
        stage,
    }
}

/// Compares the first increment of a counter that is not in Redis with the commands and the query
/// of an application's own cache.
async fn measure_misses(bench: &mut Bench) {
    if !bench.wants(&[MISS.name]) {
        return;
    }
    let stage = Stage::set(bench).await;
    let counters = family(&stage, "cold", PARTITIONS).await;
    let names: Vec<_> = (0..bench.size(10_000, 2_000))
        .map(|number| format!("page/{number}"))
        .collect();
    fill(&counters, &names).await;
    stage.pair.drain().await.unwrap();
    let ours = async || {
        // this empties Redis; the increments of the previous round were not saved and are lost
        stage.emptied().await;
        incremented(counters.clone(), names.clone()).await
    };
    let theirs =
        async || cached_by_hand(stage.pool.clone(), stage.emptied().await, names.clone()).await;
    let rounds = alternate(bench.rounds(), ours, theirs).await;
    bench.figure(MISS, rounds.ratio(|micros| *micros));
    bench.absolute("cached_miss_us", median(rounds.ours));
    bench.absolute("cached_by_hand_miss_us", median(rounds.theirs));
}

/// Returns the median time of a counter's first increment in microseconds.
async fn incremented(counters: Cached, names: Vec<String>) -> f64 {
    let incrementing = tokio::spawn(async move {
        // a warm-up: it loads the scripts and sets up the producers of the partitions
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

async fn cached_by_hand(
    pool: MySqlPool,
    mut redis: MultiplexedConnection,
    names: Vec<String>,
) -> f64 {
    const SELECT: &str = "SELECT value FROM counterfoil_values WHERE family = 1 AND id = ?";
    let incrementing = tokio::spawn(async move {
        let mut micros = Vec::with_capacity(names.len());
        for name in names {
            let started = Instant::now();
            let held: Option<i64> = redis::cmd("GET")
                .arg(&name)
                .query_async(&mut redis)
                .await
                .unwrap();
            assert_eq!(held, None, "{name}");
            let row: i64 = sqlx::query_scalar(SELECT)
                .bind(&name)
                .fetch_one(&pool)
                .await
                .unwrap();
            redis::cmd("SET")
                .arg(&name)
                .arg(row)
                .arg("EX")
                .arg(600)
                .arg("NX")
                .exec_async(&mut redis)
                .await
                .unwrap();
            let value: i64 = redis::cmd("INCR")
                .arg(&name)
                .query_async(&mut redis)
                .await
                .unwrap();
            micros.push(started.elapsed().as_secs_f64() * 1e6);
            assert_eq!(value, 2, "{name}");
        }
        median(micros)
    });
    incrementing.await.unwrap()
}

/// Compares saves from Redis to a commit and back with loops that add the same deltas from memory.
async fn measure_saves(bench: &mut Bench) {
    if !bench.wants(&[SAVES.name]) {
        return;
    }
    let stage = Stage::set(bench).await;
    let counters = family(&stage, "saves", PARTITIONS).await;
    let names: Vec<_> = (0..bench.size(200_000, 50_000))
        .map(|number| format!("page/{number:07}"))
        .collect();
    flush::create_tables(&stage.pool).await;
    let rows_per_second = |seconds: f64| names.len() as f64 / seconds;
    let ours = async || {
        fill(&counters, &names).await;
        // until all of them are due
        tokio::time::sleep(Duration::from_millis(60)).await;
        [rows_per_second(stage.flush(counters.family()).await); 2]
    };
    let theirs = async || {
        flush::by_hand(&stage.pool, &names)
            .await
            .map(rows_per_second)
    };
    let rounds = alternate(bench.size(6, 2), ours, theirs).await;
    bench.figure(SAVES, rounds.ratio(|[values, json]| values.max(*json)));
    bench.absolute(
        "saves_per_second",
        median(rounds.ours.iter().map(|both| both[0])),
    );
    bench.absolute(
        "hand_written_saves_per_second",
        median(rounds.theirs.iter().map(|[values, json]| values.max(*json))),
    );
}

/// Measures the memory in Redis of a saved counter.
async fn measure_memory(bench: &mut Bench) {
    if !bench.wants(&[MEMORY.name]) {
        return;
    }
    // both sides have 3/4 of a power of two: a table is half empty right after it grows
    let ids = bench.size(196_608, 49_152);
    let names: Vec<_> = (0..ids).map(|number| format!("item/{number:06}")).collect();
    let stage = Stage::set(bench).await;
    let ours = used_by(&stage, &names).await;
    let mut probe = stage.probe.clone();
    let before = stage.used().await;
    for some in names.chunks(1000) {
        let mut pipe = redis::pipe();
        for id in some {
            pipe.cmd("SET").arg(id).arg(1).arg("EX").arg(600).ignore();
        }
        pipe.exec_async(&mut probe).await.unwrap();
    }
    let theirs = stage.used().await - before;
    bench.figure(MEMORY, ours / theirs);
    bench.absolute("redis_bytes_per_cached_counter", ours / f64::from(ids));
    bench.absolute("redis_bytes_per_string_key", theirs / f64::from(ids));
}

/// Returns the bytes of Redis that saved counters of these names take.
pub async fn used_by(stage: &Stage, names: &[String]) -> f64 {
    let counters = family(stage, "memory", PARTITIONS).await;
    let before = stage.used().await;
    fill(&counters, names).await;
    stage.pair.drain().await.unwrap();
    stage.used().await - before
}
