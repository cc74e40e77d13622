//! The faults of Redis.

use std::time::Duration;

use testkit::{Fate, RedisServer, contains};
use tokio::time::{Instant, sleep};

use super::super::fault::Fault;
use super::super::journal::now;
use super::super::server::Loss;
use super::super::site::Home;
use super::super::window::{Ledger, ledger};
use super::settle::Epoch;
use super::{LATE, OLDER, Stage, WRITERS, pause};
use crate::Result;
use crate::zipf::Random;

/// The time in which a partition saves one batch, in ms.
const ONE_BATCH: u64 = 400;
/// The number of calls of a sort that arrive again, of each 10 ms before an older dump is restored.
const AGAIN: usize = 4;
/// The longest time after which they do, in ms.
const MUCH_LATER: u64 = 1_500;
/// The longest delay of a reply after that, in ms.
const SLOW: u64 = 800;
/// The longest step of a clock by some seconds, and by up to two epochs, in ms.
const STEPS: [u64; 2] = [10_000, 120_000];

impl Stage<'_> {
    pub(super) async fn strike_redis(&mut self, fault: Fault, random: &mut Random) -> Result<()> {
        match fault {
            Fault::RedisCrashed => {
                // no late call of a cached counter outlives a crash (docs/protocol.md, 4.2)
                self.calm().await;
                self.watch.excuse();
                self.watch.windows.borrow_mut().suspend();
                let stored = ledger(&self.pool).await?;
                let loss = self.redis.crash(random).await?;
                if let Some(server) = self.redis.standalone() {
                    self.watch.look_at(server.url());
                }
                self.note(loss, stored).await?;
                self.repeat_jobs().await
            }
            Fault::RedisRestored
            | Fault::RedisRestoredBehindTheirBacks
            | Fault::RedisRestoredByReplication => self.restore_redis(fault, random).await,
            Fault::PrimaryHandedOver => {
                self.redis.hand_over(random).await;
                Ok(())
            }
            Fault::SlotsMoved => {
                let homes: Vec<_> = Home::all().collect();
                let home = homes[random.below(homes.len() as u64) as usize];
                self.redis.move_slot(&home.key("calls"), random).await
            }
            Fault::UnknownFamilyAnnounced => {
                let announce = "SADD cf1:wanted nobody/knows not-a-family";
                Ok(self
                    .redis
                    .server_of("cf1:wanted")
                    .await?
                    .run(announce)
                    .await?)
            }
            Fault::ClockForward | Fault::ClockBack => {
                self.step_clock(fault, random);
                Ok(())
            }
            fault => strike_server(self.redis.primary(random).await, fault, random).await,
        }
    }

    /// Restores an older dump, and kills a writer in that time. Calls from before arrive again after it.
    async fn restore_redis(&mut self, fault: Fault, random: &mut Random) -> Result<()> {
        let is_behind = fault == Fault::RedisRestoredBehindTheirBacks;
        let (Some(server), Some(proxy)) = (self.redis.standalone(), self.redis.proxy()) else {
            return Ok(());
        };
        self.calm().await;
        let dump = server.back_up().await;
        let other = match fault {
            Fault::RedisRestoredByReplication => Some(self.redis.start_from(&dump).await?),
            _ => None,
        };
        // a partition is set back by one batch, or by many
        let older = [ONE_BATCH, OLDER][random.below(2) as usize];
        let end = Instant::now() + Duration::from_millis(random.below(older));
        while Instant::now() < end {
            for is_late in [is_count as fn(&[u8]) -> bool, is_of_batch].repeat(AGAIN) {
                let after = Duration::from_millis(random.below(MUCH_LATER));
                proxy.disturb_where(is_late, Fate::Twice { after });
            }
            sleep(Duration::from_millis(10)).await;
        }
        proxy.calm();
        if is_behind {
            self.reconcilers.kill_all().await?;
            if let Some((daemon, _)) = &mut self.daemon {
                daemon.kill().await?;
            }
        }
        // its callers make no further calls, behind which earlier ones would be late
        self.writers.remove(0).0.kill().await?;
        self.watch.excuse();
        self.watch.windows.borrow_mut().suspend();
        let stored = ledger(&self.pool).await?;
        if let Some(proxy) = self.redis.proxy().filter(|_| !is_behind) {
            proxy.delay_replies(Duration::from_millis(random.below(SLOW)));
        }
        let is_restarted = other.is_none();
        if !is_restarted {
            // so that hits are counted before the next cut
            self.signal_reconcilers("STOP")?;
        }
        match (self.redis.standalone(), other) {
            (Some(server), Some(other)) => {
                server.replica_of(&other).await;
                server.run::<()>("REPLICAOF NO ONE").await?;
            }
            (Some(server), None) => server.restore(&dump).await,
            (None, _) => {}
        }
        let restored = now();
        let loss = Loss::Pending {
            crashed: restored,
            is_restarted,
        };
        self.note(loss, stored).await?;
        if !is_restarted {
            sleep(Duration::from_millis(random.below(SLOW))).await;
            self.signal_reconcilers("CONT")?;
        }
        if is_behind {
            pause(random).await;
            for (writer, _) in self.writers.drain(..) {
                writer.kill().await?;
            }
            self.reconcilers.start_all().await?;
            if let Some((daemon, _)) = &mut self.daemon {
                daemon.keep_running()?;
            }
            pause(random).await;
            // Redis knows these jobs, but a reset has dropped their hits
            self.finish_jobs(Epoch::New, |begun| begun > restored)
                .await?;
        }
        if let Some(proxy) = self.redis.proxy() {
            pause(random).await;
            proxy.delay_replies(Duration::ZERO);
        }
        while self.writers.len() < WRITERS {
            self.start_writer(None).await?;
        }
        self.repeat_jobs().await
    }

    /// Sends a signal to the daemon and all reconcilers.
    fn signal_reconcilers(&mut self, signal: &str) -> Result<()> {
        self.reconcilers.signal_all(signal);
        match &mut self.daemon {
            Some((daemon, _)) => daemon.signal(signal),
            None => Ok(()),
        }
    }

    /// Steps the clock of Redis by some slices of a window, or by far more.
    fn step_clock(&self, fault: Fault, random: &mut Random) {
        let Some(server) = self.redis.standalone() else {
            return;
        };
        let step = STEPS[random.below(2) as usize];
        let by = random.below(step);
        let length = Duration::from_millis(by);
        let mut clock = self.clock.borrow_mut();
        if fault == Fault::ClockForward {
            clock.step(by.cast_signed(), || server.step_clock_forward(length));
        } else {
            clock.step(-by.cast_signed(), || server.step_clock_back(length));
        }
    }

    /// Ends the disturbances of calls, and waits until those that are late have arrived.
    pub(super) async fn calm(&self) {
        if let Some(proxy) = self.redis.proxy() {
            proxy.calm();
            sleep(Duration::from_millis(LATE)).await;
        }
    }

    /// Notes what a crash may have lost. MySQL had `stored` completely before it.
    async fn note(&self, loss: Loss, stored: Ledger) -> Result<()> {
        let mut windows = self.watch.windows.borrow_mut();
        match loss {
            Loss::Nothing => {}
            Loss::Of(time) => windows.add(*time.start(), *time.end()),
            Loss::Pending {
                crashed,
                is_restarted,
            } => {
                drop(windows);
                self.watch.crash(&stored, crashed, is_restarted);
                windows = self.watch.windows.borrow_mut();
            }
        }
        windows.know();
        Ok(())
    }
}

/// Returns whether a call counts hits.
fn is_count(call: &[u8]) -> bool {
    is_about(call, b"}:calls")
}

/// Returns whether a call is a reconciler's, of a batch.
fn is_of_batch(call: &[u8]) -> bool {
    is_about(call, b"}:batch")
}

/// Returns whether a script has such a key, of no cached counters: no late call of them outlives a set-back
/// (docs/protocol.md, 4.2).
fn is_about(call: &[u8], key: &[u8]) -> bool {
    let is_cached = contains(call, b"/votes/") || contains(call, b"/seats/");
    contains(call, b"EVALSHA") && contains(call, key) && !is_cached
}

async fn strike_server(server: &RedisServer, fault: Fault, random: &mut Random) -> Result<()> {
    match fault {
        Fault::RedisPaused => {
            server.pause();
            pause(random).await;
            server.resume();
        }
        Fault::RedisWithoutMemory => {
            server.run::<()>("CONFIG SET maxmemory 1").await?;
            pause(random).await;
            server.run::<()>("CONFIG SET maxmemory 0").await?;
        }
        Fault::RedisDiskFull => {
            if let Some(disk) = server.disk() {
                disk.fill();
                pause(random).await;
                disk.free();
                // what did not fit waits in memory, where a crash would lose it
                let is_written = async || {
                    let info: String = server.run("INFO persistence").await?;
                    Ok::<_, redis::RedisError>(info.contains("aof_last_write_status:ok"))
                };
                while !is_written().await? {
                    sleep(Duration::from_millis(1)).await;
                }
            }
        }
        Fault::ScriptsFlushed => server.run::<()>("SCRIPT FLUSH").await?,
        _ => server.run::<()>("CLIENT KILL TYPE normal").await?,
    }
    Ok(())
}
