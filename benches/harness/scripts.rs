//! The run times of scripts, and of plain commands that move as much, from Redis's SLOWLOG.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use counterfoil::Family;
use counterfoil::admin::Script;
use counterfoil::test_hooks::{Cut, FetchReply, Partition, RotateReply};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use redis::Value;
use redis::aio::MultiplexedConnection;

/// The SLOWLOG threshold in microseconds.
const SLOW: u64 = 20;
/// The number of ids in a writer's largest call.
const IDS_OF_CALL: u32 = 400;
/// The approximate number of ids in a page of a fetch.
const PAGE: usize = 500;

/// A reader of the SLOWLOG.
pub struct Watch(MultiplexedConnection);

/// The longest runs since the last reading, in microseconds, by name.
pub type Longest = BTreeMap<String, f64>;

/// Takes a batch from the cut to the release, while random ids are hit and read.
pub async fn batch_through(partition: &Partition, family: &Family, ids: u32) {
    let cut = partition.rotate(family, "", None, Cut::Now).await.unwrap();
    let RotateReply::Batch(batch) = cut else {
        panic!("nothing was cut: {cut:?}")
    };
    let fetched = AtomicBool::new(false);
    let fetch = async {
        assert!(matches!(
            partition
                .fetch(batch.id, Duration::ZERO, PAGE)
                .await
                .unwrap(),
            FetchReply::Deltas { .. }
        ));
        fetched.store(true, Ordering::Relaxed);
    };
    let hits = async {
        let mut calls = Calls::of(ids);
        while !fetched.load(Ordering::Relaxed) {
            let ids = calls.next();
            let pairs = ids.iter().map(|id| (id.as_str(), 1));
            let _ = partition
                .add(family, partition.unfenced(), ids.len() as u64, pairs)
                .await
                .unwrap();
            partition
                .read(&ids.iter().map(String::as_str).collect::<Vec<_>>())
                .await
                .unwrap();
        }
    };
    tokio::join!(fetch, hits);
    partition.release(batch.id).await.unwrap();
}

/// Repeats the steps of [`batch_through`] on a plain hash, with plain commands of as many ids.
pub async fn commands_through(redis: &MultiplexedConnection, hash: &str, ids: u32) {
    let (mut redis, mut other, cut) = (redis.clone(), redis.clone(), format!("{hash}/cut"));
    redis::cmd("RENAME")
        .arg(hash)
        .arg(&cut)
        .exec_async(&mut redis)
        .await
        .unwrap();
    let fetched = AtomicBool::new(false);
    let fetch = async {
        let mut cursor = "0".to_owned();
        loop {
            let mut scan = redis::cmd("HSCAN");
            scan.arg(&cut).arg(cursor).arg("COUNT").arg(PAGE);
            let (next, _): (String, Vec<(String, i64)>) =
                scan.query_async(&mut other).await.unwrap();
            cursor = next;
            if cursor == "0" {
                break;
            }
        }
        fetched.store(true, Ordering::Relaxed);
    };
    let hits = async {
        let mut calls = Calls::of(ids);
        while !fetched.load(Ordering::Relaxed) {
            let ids = calls.next();
            let mut set = redis::cmd("HSET");
            set.arg(hash);
            for id in &ids {
                set.arg(id).arg(1);
            }
            set.exec_async(&mut redis).await.unwrap();
            for hash in [hash, &cut] {
                redis::cmd("HMGET")
                    .arg(hash)
                    .arg(&ids)
                    .exec_async(&mut redis)
                    .await
                    .unwrap();
            }
        }
    };
    tokio::join!(fetch, hits);
    redis::cmd("UNLINK")
        .arg(&cut)
        .exec_async(&mut redis)
        .await
        .unwrap();
}

/// The ids of successive calls, the same in every run.
struct Calls {
    ids: u32,
    random: SmallRng,
}

impl Calls {
    fn of(ids: u32) -> Self {
        Calls {
            ids,
            random: SmallRng::seed_from_u64(1),
        }
    }

    fn next(&mut self) -> Vec<String> {
        (0..IDS_OF_CALL)
            .map(|_| format!("page/{}", self.random.random_range(0..self.ids)))
            .collect()
    }
}

/// A SLOWLOG entry: number, time, microseconds, arguments, the client's address and name.
type Entry = (u64, u64, f64, Vec<String>, Value, Value);

impl Watch {
    pub async fn start(mut redis: MultiplexedConnection) -> Self {
        let mut pipe = redis::pipe();
        pipe.cmd("CONFIG")
            .arg("SET")
            .arg("slowlog-log-slower-than")
            .arg(SLOW)
            .ignore();
        pipe.cmd("CONFIG")
            .arg("SET")
            .arg("slowlog-max-len")
            .arg(100_000)
            .ignore();
        pipe.cmd("SLOWLOG").arg("RESET").ignore();
        pipe.exec_async(&mut redis).await.unwrap();
        Watch(redis)
    }

    /// Returns the longest run of each script since the last reading.
    pub async fn scripts(&self) -> Longest {
        let script = |arguments: &[String]| {
            let [command, sha1, ..] = arguments else {
                return None;
            };
            let script = Script::all().find(|script| command == "EVALSHA" && script.sha1 == *sha1);
            script.map(|script| script.name.to_owned())
        };
        self.look(script).await
    }

    /// Returns the longest run of each plain command since the last reading.
    pub async fn commands(&self) -> Longest {
        const PLAIN: [&str; 5] = ["RENAME", "HSCAN", "HSET", "HMGET", "UNLINK"];
        let plain = |arguments: &[String]| {
            let command = arguments
                .first()
                .filter(|command| PLAIN.contains(&command.as_str()));
            command.map(|command| command.to_lowercase())
        };
        self.look(plain).await
    }

    async fn look(&self, name: impl Fn(&[String]) -> Option<String>) -> Longest {
        let mut pipe = redis::pipe();
        pipe.cmd("SLOWLOG")
            .arg("GET")
            .arg(100_000)
            .cmd("SLOWLOG")
            .arg("RESET")
            .ignore();
        let (entries,): (Vec<Entry>,) = pipe.query_async(&mut self.0.clone()).await.unwrap();
        let mut longest = Longest::new();
        for (_, _, micros, arguments, ..) in entries {
            if let Some(name) = name(&arguments) {
                let longest = longest.entry(name).or_insert(0.0);
                *longest = micros.max(*longest);
            }
        }
        assert!(!longest.is_empty(), "nothing took longer than {SLOW} us");
        longest
    }
}
