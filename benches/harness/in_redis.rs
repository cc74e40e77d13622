//! The cost of a hit and of a pending id in Redis.

use counterfoil::test_hooks::{CallReply, Fence};
use futures_util::future::join_all;

use crate::measuring::{AtMost, Bench, Figure, Ids, Pending, Scripts, alternate, median};

const ADD: Figure = Figure {
    name: "add_script_vs_bare",
    what: "time in Redis of an add of one id of 100 k pending ones : a script of one HINCRBY",
    target: AtMost(3.0),
};
const MEMORY: Figure = Figure {
    name: "memory_vs_hash",
    what: "Redis's bytes per pending id : the same ids in one plain hash",
    target: AtMost(1.1),
};
const BARE: &str = "return redis.call('HINCRBY', KEYS[1], ARGV[1], ARGV[2])";
const IDS: u32 = 100_000;
/// The number of concurrent calls. They keep Redis busy, so that the figure is the script's time
/// and not a wake-up's.
const CALLERS: usize = 16;

pub async fn measure(bench: &mut Bench) {
    measure_add(bench).await;
    measure_memory(bench).await;
}

/// Compares the time of an add with that of a script that only counts.
async fn measure_add(bench: &mut Bench) {
    if !bench.wants(&[ADD.name]) {
        return;
    }
    let (stage, ids, calls) = (
        Pending::set(bench).await,
        Ids::zipf(IDS),
        bench.size(10_000, 2_000),
    );
    let names = || (0..IDS).map(|number| format!("page/{number}"));
    stage.fill(names()).await;
    stage.plain.fill(names()).await;
    let mut round = 0;
    let ours = async || {
        round += 1;
        add(&stage, &ids, calls, round).await
    };
    let rounds = alternate(bench.rounds(), ours, async || {
        bare(&stage, &ids, calls).await
    })
    .await;
    bench.figure(ADD, rounds.ratio(|micros| *micros));
    bench.absolute("add_script_us", median(rounds.ours));
    bench.absolute("bare_script_us", median(rounds.theirs));
}

/// Returns the mean microseconds of a fenced add, as a writer sends it: all calls to a server have
/// one home partition.
async fn add(stage: &Pending, ids: &Ids, calls: usize, round: u64) -> f64 {
    let (family, partitions) = (
        stage.counters.family(),
        stage.partitions().collect::<Vec<_>>(),
    );
    let epoch = partitions[0].epoch(family, "").await.unwrap().unwrap();
    let before = Scripts::so_far(&mut stage.probe.clone()).await;
    let (partitions, epoch) = (&partitions, &*epoch.now);
    join_all((0..CALLERS).map(|number| async move {
        let caller = format!("{number:016x}-0");
        for (id, n) in ids
            .of_task(number, CALLERS)
            .take(calls)
            .zip(round * calls as u64..)
        {
            let fence = Fence {
                home: partitions[0].keys(),
                caller: &caller,
                n,
                epoch,
            };
            let partition = &partitions[family.partition_of(id) as usize];
            let counted = partition.add(family, fence, 1, [(id, 1)]).await.unwrap();
            assert!(
                matches!(
                    counted,
                    CallReply::Executed {
                        repeated: false,
                        ..
                    }
                ),
                "{counted:?}"
            );
        }
    }))
    .await;
    Scripts::so_far(&mut stage.probe.clone())
        .await
        .since(before)
        .mean_us()
}

/// Returns the mean microseconds of the script that only counts, on hashes of the same ids.
async fn bare(stage: &Pending, ids: &Ids, calls: usize) -> f64 {
    let mut probe = stage.probe.clone();
    let sha1: String = redis::cmd("SCRIPT")
        .arg("LOAD")
        .arg(BARE)
        .query_async(&mut probe)
        .await
        .unwrap();
    let before = Scripts::so_far(&mut probe).await;
    let sha1 = &sha1;
    join_all((0..CALLERS).map(|number| async move {
        let mut redis = stage.probe.clone();
        for id in ids.of_task(number, CALLERS).take(calls) {
            let mut call = redis::cmd("EVALSHA");
            call.arg(sha1)
                .arg(1)
                .arg(stage.plain.hash_of(id))
                .arg(id)
                .arg(1);
            call.exec_async(&mut redis).await.unwrap();
        }
    }))
    .await;
    Scripts::so_far(&mut probe).await.since(before).mean_us()
}

/// Compares the bytes of a pending id with those of the same id in a plain hash.
async fn measure_memory(bench: &mut Bench) {
    const HASH: &str = "plain";
    if !bench.wants(&[MEMORY.name]) {
        return;
    }
    // both sides have 3/4 of a power of two: a hash's table is half empty right after it grows
    let ids = bench.size(196_608, 49_152);
    let names = || (0..ids).map(|number| format!("page/{number}"));
    let stage = Pending::set(bench).await;
    stage.fill(names()).await;
    for id in names() {
        redis::cmd("HINCRBY")
            .arg(HASH)
            .arg(id)
            .arg(1)
            .exec_async(&mut stage.probe.clone())
            .await
            .unwrap();
    }
    let mut ours = 0.0;
    for kind in ["buffer", "meta", "calls", "calls_before"] {
        for key in stage.keys(kind) {
            ours += stage.bytes(&key).await;
        }
    }
    let theirs = stage.bytes(HASH).await;
    bench.figure(MEMORY, ours / theirs);
    bench.absolute("redis_bytes_per_pending_id", ours / f64::from(ids));
    bench.absolute("redis_bytes_per_id_of_hash", theirs / f64::from(ids));
}

impl Pending {
    /// Returns the exact memory usage of the key in bytes, or 0 if it does not exist.
    async fn bytes(&self, key: &str) -> f64 {
        let mut command = redis::cmd("MEMORY");
        command.arg("USAGE").arg(key).arg("SAMPLES").arg(0);
        command
            .query_async::<Option<f64>>(&mut self.probe.clone())
            .await
            .unwrap()
            .unwrap_or(0.0)
    }
}
