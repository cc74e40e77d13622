//! How long scripts run, by Redis's own SLOWLOG.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use counterfoil::test_hooks::{Cut, FetchReply, Partition, RotateReply};
use counterfoil::{Family, Incarnation, Script};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use redis::Value;
use redis::aio::MultiplexedConnection;

use crate::alternate::median;

/// Everything that took longer is looked at, in microseconds.
const SLOW: u64 = 100;
/// How many ids a busy writer adds in a call.
const IDS_OF_CALL: u32 = 400;
/// About how many ids a page of a fetch has.
const PAGE: usize = 500;

/// Looks at what ran long, time and again.
pub struct Watch {
    redis: MultiplexedConnection,
    /// For each look what ran longest, by name.
    looks: Vec<BTreeMap<String, f64>>,
}

/// Takes a batch from the cut to the release, while hits come in on random ones of the ids, and are read.
pub async fn batch_through(partition: &Partition<MultiplexedConnection>, family: &Family, ids: u32) {
    let cut = partition.rotate(Incarnation(1), None, Cut::Now).await.unwrap();
    let RotateReply::Batch(batch) = cut else { panic!("nothing was cut: {cut:?}") };
    let fetched = AtomicBool::new(false);
    let fetch = async {
        assert!(matches!(partition.fetch(&batch, Duration::ZERO, PAGE).await.unwrap(), FetchReply::Deltas(_)));
        fetched.store(true, Ordering::Relaxed);
    };
    let hits = async {
        let mut random = SmallRng::seed_from_u64(1);
        while !fetched.load(Ordering::Relaxed) {
            let ids: Vec<_> = (0..IDS_OF_CALL).map(|_| format!("page/{}", random.random_range(0..ids))).collect();
            let pairs: Vec<_> = ids.iter().map(|id| (id.as_str(), 1)).collect();
            let _ = partition.add(family, None, pairs.len() as u64, pairs.iter().copied()).await.unwrap();
            partition.read(&pairs.iter().map(|(id, _)| *id).collect::<Vec<_>>()).await.unwrap();
        }
    };
    tokio::join!(fetch, hits);
    partition.release(&batch).await.unwrap();
}

/// Number, time, microseconds, arguments, client's address and name.
type Entry = (u64, u64, f64, Vec<String>, Value, Value);

impl Watch {
    pub async fn start(mut redis: MultiplexedConnection) -> Self {
        let mut pipe = redis::pipe();
        pipe.cmd("CONFIG").arg("SET").arg("slowlog-log-slower-than").arg(SLOW).ignore();
        pipe.cmd("CONFIG").arg("SET").arg("slowlog-max-len").arg(100_000).ignore();
        pipe.cmd("SLOWLOG").arg("RESET").ignore();
        pipe.exec_async(&mut redis).await.unwrap();
        Watch { redis, looks: Vec::new() }
    }

    /// Takes what ran long since the last look.
    pub async fn look(&mut self) {
        let mut pipe = redis::pipe();
        pipe.cmd("SLOWLOG").arg("GET").arg(100_000).cmd("SLOWLOG").arg("RESET").ignore();
        let (entries,): (Vec<Entry>,) = pipe.query_async(&mut self.redis).await.unwrap();
        let mut longest = BTreeMap::new();
        for (_, _, micros, arguments, ..) in entries {
            let longest = longest.entry(name(&arguments)).or_insert(0.0);
            *longest = micros.max(*longest);
        }
        self.looks.push(longest);
    }
}

/// The script's name, or `command` for anything else.
fn name(arguments: &[String]) -> String {
    let [command, sha1, ..] = arguments else { return "command".to_owned() };
    let script = Script::all().find(|script| command == "EVALSHA" && script.sha1 == *sha1);
    script.map_or("command", |script| script.name).to_owned()
}

impl Watch {
    /// The longest run of each script, and of what is no script.
    pub fn longest(&self) -> BTreeMap<String, f64> {
        let mut longest = BTreeMap::new();
        for (name, micros) in self.looks.iter().flatten() {
            let longest = longest.entry(name.clone()).or_insert(0.0);
            *longest = micros.max(*longest);
        }
        longest
    }

    /// The median of the looks' longest runs: a script that the machine itself interrupts is none of ours.
    pub fn longest_script(&self) -> f64 {
        median(self.looks.iter().map(|look| {
            let scripts = look.iter().filter(|(name, _)| *name != "command");
            scripts.map(|(_, micros)| *micros).fold(0.0, f64::max)
        }))
    }
}
