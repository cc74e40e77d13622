//! A Redis that may lose its memory, a family in it, and the time.

use std::collections::VecDeque;
use std::ops::RangeFrom;

use counterfoil::test_hooks::Partition;
use redis::Pipeline;

use super::*;
use crate::support::*;

/// The lengths of the append-only file that a crash has cut off. An effect is lost if the file had
/// such a length after it was written.
pub type Gone = RangeFrom<u64>;

/// The lengths of the append-only file over time, oldest first. The length one settle time ago is
/// durable.
#[derive(Debug)]
pub struct Lengths {
    settle: u64,
    noted: VecDeque<(u64, u64)>,
}

impl Lengths {
    pub fn new(settle: u64) -> Self {
        Lengths {
            settle,
            noted: VecDeque::new(),
        }
    }

    /// Notes the current length of the file.
    pub fn note(&mut self, now: u64, length: u64) {
        self.noted.push_back((now, length));
        // keeps the newest durable length, and all later ones
        while self
            .noted
            .get(1)
            .is_some_and(|(time, _)| time + self.settle <= now)
        {
            self.noted.pop_front();
        }
    }

    /// Returns the length that is left when a crash keeps this share of what is not durable.
    pub fn left(&self, kept: u8) -> u64 {
        self.noted[(self.noted.len() - 1) * usize::from(kept) / 255].1
    }

    /// Handles a restart of Redis with a file of this length, all of which is durable.
    pub fn restart(&mut self, now: u64, length: u64) {
        self.noted.clear();
        self.noted
            .push_back((now.saturating_sub(self.settle), length));
    }
}

/// The environment of a case: a Redis that may lose its memory, a family in it, and the time.
pub struct Stage<'s, C> {
    server: &'s RedisServer,
    pub redis: C,
    pub family: Arc<Registration>,
    crashes: Crashes,
    /// The time by the server's clock, in ms.
    pub now: u64,
    /// The time in ms without the clock's steps back.
    elapsed: u64,
    lengths: Lengths,
    names: u64,
}

impl<'s, C: Connect> Stage<'s, C> {
    /// Begins with an empty Redis.
    pub async fn new(
        server: &'s RedisServer,
        crashes: Crashes,
        family: Registration,
        now: u64,
    ) -> Self {
        let (redis, family, lengths) =
            (C::to(server).await, Arc::new(family), Lengths::new(SETTLE));
        let mut stage = Stage {
            server,
            redis,
            family,
            crashes,
            now,
            elapsed: now,
            lengths,
            names: 0,
        };
        stage.run("FLUSHALL").await.unwrap();
        stage.note_length();
        stage
    }

    pub fn partition(&self, number: u32) -> Partition {
        Partition::new(self.redis.clone(), &self.family.family, number).at(self.now)
    }

    /// Resets the partition if its last cut is the proven one.
    pub async fn reset(&self, number: u32, proven: LastCut) -> Checked<Option<ResetReply>> {
        Ok(self
            .partition(number)
            .reset(&self.family.family, self.partition(0).keys(), proven)
            .await?)
    }

    /// Returns this number of writers.
    pub fn writers<Call>(&mut self, many: usize) -> Vec<Writer<Call>> {
        (0..many).map(|_| Writer::new(self.new_name())).collect()
    }

    pub async fn ask<T: FromRedisValue>(&self, pipeline: &Pipeline) -> Checked<T> {
        Ok(pipeline.query_async(&mut self.redis.clone()).await?)
    }

    /// Returns the state of the family in Redis.
    pub async fn state(&self) -> State {
        State::of(&self.redis, &self.family.family).await
    }

    pub fn partition_of(&self, id: &str) -> u32 {
        self.family.family.partition_of(id)
    }

    /// Returns a key of the partition, as it is in Redis.
    pub fn key(&self, partition: u32, kind: &str) -> String {
        format!("cf1:{{{}/{partition}}}:{kind}", self.family.family)
    }

    /// Returns a number that is unique in this case.
    pub fn new_name(&mut self) -> u64 {
        self.names += 1;
        self.names
    }

    pub fn pass(&mut self, ms: u64) {
        self.now += ms;
        self.elapsed += ms;
    }

    /// Sets the server's clock back.
    pub fn set_back(&mut self, ms: u64) {
        self.now -= ms;
    }

    /// Notes and returns the length of the append-only file; 0 if none is needed.
    pub fn note_length(&mut self) -> u64 {
        if self.crashes != Crashes::BackToTheLastFsync {
            return 0;
        }
        let length = self.server.aof_len();
        self.lengths.note(self.elapsed, length);
        length
    }

    /// Applies the mishap. Returns the lost lengths of the file if Redis lost any counts.
    pub async fn suffer(&mut self, mishap: Mishap) -> Checked<Option<Gone>> {
        // the name of an epoch derives from the time: a Redis that has forgotten the last epoch
        // must not begin one at the same time
        self.pass(1);
        match mishap {
            Mishap::ScriptFlush => {
                self.run("SCRIPT FLUSH").await?;
                Ok(None)
            }
            Mishap::Crash { kept } => Ok(Some(self.crash(kept).await)),
            Mishap::Emptied => {
                self.run("FLUSHALL").await?;
                self.run("SCRIPT FLUSH").await?;
                Ok(Some(0..))
            }
        }
    }

    async fn crash(&mut self, kept: u8) -> Gone {
        let left = self.lengths.left(kept);
        self.server.kill();
        self.server.cut_aof(left);
        start_again(self.server);
        self.redis.again(self.server).await;
        self.lengths.restart(self.elapsed, self.server.aof_len());
        left + 1..
    }

    async fn run(&self, words: &str) -> Checked {
        let mut cmd = Cmd::new();
        for word in words.split(' ') {
            cmd.arg(word);
        }
        Ok(cmd.exec_async(&mut self.redis.clone()).await?)
    }

    /// Checks that nothing is pending for the database.
    pub async fn expect_nothing_pending(&self) -> Checked {
        for number in 0..PARTITIONS {
            if self.partition(number).has_pending().await? {
                return Err(failed(format!("WEDGED: partition {number} is not empty")));
            }
        }
        Ok(())
    }
}

/// Starts the server on a runtime of its own, in a thread: the clock of the test's runtime may be
/// paused, and the start waits by the clock.
fn start_again(server: &RedisServer) {
    let start = || runtime().block_on(server.start_again());
    std::thread::scope(|scope| scope.spawn(start).join()).unwrap();
}
