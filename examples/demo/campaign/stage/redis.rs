//! The faults of Redis.

use std::time::Duration;

use testkit::RedisServer;
use tokio::time::sleep;

use super::super::fault::Fault;
use super::super::journal::now;
use super::super::server::Loss;
use super::super::site::Home;
use super::super::window::{Ledger, ledger};
use super::{LATE, OLDER, Stage, pause};
use crate::Result;
use crate::zipf::Random;

/// The longest step of a clock, in ms.
const STEP: u64 = 120_000;

impl Stage<'_> {
    pub(super) async fn strike_redis(&mut self, fault: Fault, random: &mut Random) -> Result<()> {
        match fault {
            Fault::RedisCrashed => {
                // no late call of a cached counter outlives a crash (docs/protocol.md, 4.2)
                self.calm().await;
                self.watch.windows.borrow_mut().suspend();
                let stored = ledger(&self.pool).await?;
                let loss = self.redis.crash(random).await?;
                if let Some(server) = self.redis.standalone() {
                    self.watch.look_at(server.url());
                }
                self.note(loss, stored).await?;
                self.repeat_jobs().await
            }
            Fault::RedisRestored | Fault::RedisRestoredBehindTheirBacks => {
                let Some(server) = self.redis.standalone() else {
                    return Ok(());
                };
                let dump = server.back_up().await;
                sleep(Duration::from_millis(random.below(OLDER))).await;
                self.calm().await;
                let is_behind = fault == Fault::RedisRestoredBehindTheirBacks;
                if is_behind {
                    self.reconcilers.kill_all().await?;
                    if let Some((daemon, _)) = &mut self.daemon {
                        daemon.kill().await?;
                    }
                }
                self.watch.windows.borrow_mut().suspend();
                let stored = ledger(&self.pool).await?;
                if let Some(server) = self.redis.standalone() {
                    server.restore(&dump).await;
                }
                self.note(Loss::Pending(now()), stored).await?;
                self.repeat_jobs().await?;
                if is_behind {
                    pause(random).await;
                    self.reconcilers.start_all().await?;
                    if let Some((daemon, _)) = &mut self.daemon {
                        daemon.keep_running()?;
                    }
                }
                Ok(())
            }
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
            fault => strike_server(self.redis.primary(random).await, fault, random).await,
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
            Loss::Pending(crashed) => {
                drop(windows);
                self.watch.crash(&stored, crashed);
                windows = self.watch.windows.borrow_mut();
            }
        }
        windows.know();
        Ok(())
    }
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
        Fault::ClockForward => server.step_clock_forward(Duration::from_millis(random.below(STEP))),
        Fault::ClockBack => server.step_clock_back(Duration::from_millis(random.below(STEP))),
        Fault::ScriptsFlushed => server.run::<()>("SCRIPT FLUSH").await?,
        _ => server.run::<()>("CLIENT KILL TYPE normal").await?,
    }
    Ok(())
}
