//! A Redis that is repeatedly killed and restored from older data, while all kinds count
//! (docs/protocol.md, section 3.9). No row ever has more than was counted. What it lacks was
//! pending at the kill, or was reported as dropped.

use counterfoil::metrics::{DROPPED, SET_BACK};

use crate::support::*;

/// The source of Redis's older data.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Restore {
    /// The last snapshot of a Redis that keeps only snapshots.
    Snapshot,
    /// An older copy of the append-only file.
    OlderFile,
}

/// Returns the values of these two metrics by family. A snapshot resets them to 0.
fn measured(metrics: &Metrics, names: [&str; 2]) -> [BTreeMap<String, i64>; 2] {
    let mut found = [BTreeMap::new(), BTreeMap::new()];
    for (key, _, _, value) in metrics.snapshotter.snapshot().into_vec() {
        let index = names.iter().position(|name| *name == key.key().name());
        if let (Some(index), DebugValue::Counter(count)) = (index, value) {
            let family = key.key().labels().next().unwrap().value().to_owned();
            found[index].insert(family, count.cast_signed());
        }
    }
    found
}

/// Kills Redis under load and starts it from older data. Returns the hits that were pending at the
/// kill, by kind.
async fn set_back(pair: &Pair, site: &Site, restore: Restore, random: &mut StdRng) -> [i64; 5] {
    let mut wait = |most: u64| random.random_range(0..most);
    let (before, after) = (wait(400), wait(800));
    pause(before).await;
    let mut length = 0;
    match restore {
        Restore::Snapshot => pair.redis.does("SAVE").await,
        Restore::OlderFile => length = pair.redis.aof_len(),
    }
    pause(after).await;
    let mut stored = [0; 5];
    for (kind, stored) in stored.iter_mut().enumerate() {
        *stored = site.stored(kind).await;
    }
    pair.redis.kill();
    let pending = [0, 1, 2, 3, 4].map(|kind| site.tallies[kind].most() - stored[kind]);
    if restore == Restore::OlderFile {
        pair.redis.cut_aof(length);
    }
    pair.redis.start_again().await;
    pending
}

async fn rounds(options: RedisOptions, durability: Durability, restore: Restore) {
    let mut random = random::numbers();
    let metrics = Metrics::record();
    let pair = Pair::with(options).await;
    let handles = Handles::open(&pair, durability, 4, millis(500)).await;
    if restore == Restore::Snapshot {
        pair.redis.does("SAVE").await;
    }
    let reconciler = pair.reconcile().await;
    let (site, load) = Site::start(&handles.unwrap(), &pair.pool);
    let mut pending = [0; 5];
    for _ in 0..random::cases(4) {
        let at_kill = set_back(&pair, &site, restore, &mut random).await;
        pending
            .iter_mut()
            .zip(at_kill)
            .for_each(|(sum, more)| *sum += more);
    }
    // the set-back is detected while hits are counted
    pause(4000).await;
    load.end().await;
    reconciler.stop().await;
    pair.drain().await;

    let [resets, dropped] = measured(&metrics, [SET_BACK, DROPPED]);
    for (kind, name) in site::NAMES.iter().enumerate() {
        let (stored, tally) = (site.stored(kind).await, &site.tallies[kind]);
        let dropped = dropped.get(*name).copied().unwrap_or(0);
        let (least, most) = (tally.acknowledged() - pending[kind] - dropped, tally.most());
        assert!(stored <= most, "{name}: {stored} stored of {most} at most");
        // a kept slice counts as one dropped hit, so series and activity have only an upper bound
        assert!(
            ["hits", "site"].contains(name) || stored >= least,
            "{name}: {stored} stored, {least} at least"
        );
    }
    // no set-back was detected: the test shows nothing
    assert!(resets.values().sum::<i64>() > 0);
}

#[tokio::test]
async fn snapshots_only_never_double_a_hit() {
    // Redis's default `save` lines
    rounds(
        RedisOptions::volatile().arg("save", "3600 1 300 100 60 10000"),
        Durability::Immediate,
        Restore::Snapshot,
    )
    .await;
}

#[tokio::test]
async fn an_older_append_only_file_never_doubles_a_hit() {
    rounds(
        RedisOptions::aof("everysec"),
        Durability::Settle(millis(100)),
        Restore::OlderFile,
    )
    .await;
}
