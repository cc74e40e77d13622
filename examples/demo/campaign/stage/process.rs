//! The faults of writers, packages and reconcilers.

use std::time::Duration;

use sha1_smol::Sha1;
use testkit::contains;
use tokio::time::{sleep, timeout};

use super::super::fault::Fault;
use super::super::journal::Journals;
use super::super::package::{Counting, Order};
use super::super::site::{self, Home, JOBS, TOO_LATE, WITHIN};
use super::super::way::Means;
use super::{LATE, Stage, WRITERS, finish, pause};
use crate::Result;
use crate::disturb::cut_mysql;
use crate::zipf::Random;

/// The number of jobs that are made again.
const REPEATED: usize = 50;
/// Reads values, as a recounter does.
const READ: &str = include_str!("../../../../lua/v1/buffered_read.lua");
/// Begins an epoch, as a client does that asks for one.
const EPOCH: &str = include_str!("../../../../lua/v1/family_epoch.lua");

impl Stage<'_> {
    pub(super) async fn strike_process(&mut self, fault: Fault, random: &mut Random) -> Result<()> {
        match fault {
            Fault::WriterKilled => {
                let (writer, _) = self.writers.remove(0);
                writer.kill().await?;
                self.start_writer(None).await
            }
            Fault::WriterPaused => {
                self.writers[0].0.signal("STOP");
                pause(random).await;
                self.writers[0].0.signal("CONT");
                Ok(())
            }
            Fault::WriterPausedForTwoEpochs => {
                self.writers[0].0.signal("STOP");
                let homes = Home::all().filter(|home| home.partition == 0);
                self.begin_two_epochs("calls", homes).await?;
                self.writers[0].0.signal("CONT");
                Ok(())
            }
            Fault::RequestsRepeatedLate => {
                let homes = Home::all().filter(|home| home.is_of(JOBS));
                self.begin_two_epochs("requests", homes).await?;
                self.repeat_jobs().await
            }
            Fault::AllWritersRestarted => self.restart_writers().await,
            Fault::MachineResumedTwice => self.resume_twice(random).await,
            Fault::PackageKilled => {
                self.any_package(random).order(Order::Kill);
                Ok(())
            }
            Fault::PackagePaused => {
                let package = self.any_package(random);
                package.order(Order::Signal("STOP"));
                pause(random).await;
                package.order(Order::Signal("CONT"));
                Ok(())
            }
            Fault::ReconcilerKilled => self.reconcilers.kill_one().await,
            Fault::RecounterPaused => self.pause_recounter(random).await,
            _ => {
                self.reconcilers.signal_one("STOP");
                pause(random).await;
                self.reconcilers.signal_one("CONT");
                Ok(())
            }
        }
    }

    /// Pauses the reconciler that corrects saves, about when it does so. Another one continues its run, and
    /// corrects them, too.
    async fn pause_recounter(&mut self, random: &mut Random) -> Result<()> {
        let Some(proxy) = self.redis.proxy() else {
            return Ok(());
        };
        // rows are left to the recount
        self.mysql.pause();
        sleep(TOO_LATE + Duration::from_millis(LATE)).await;
        self.mysql.resume();
        self.reconcilers.kill_others().await?;
        let run = site::wait_for_correction(&self.pool).await?;
        let read = Sha1::from(READ).digest().to_string();
        let is_read =
            move |call: &[u8]| contains(call, read.as_bytes()) && contains(call, b"/saves/");
        let reads = proxy.await_call(is_read);
        let proxies = [proxy, &self.mysql_proxy];
        let delay = |by| proxies.iter().for_each(|proxy| proxy.delay_replies(by));
        delay(Duration::from_millis(LATE / 2));
        let _ = timeout(WITHIN, reads).await;
        sleep(Duration::from_millis(random.below(3 * LATE))).await;
        self.reconcilers.signal_one("STOP");
        delay(Duration::ZERO);
        // its transactions end, which the other one would wait for
        cut_mysql(&self.pool).await?;
        self.reconcilers.start_all().await?;
        site::wait_for_end(&self.pool, run).await?;
        self.reconcilers.signal_one("CONT");
        Ok(())
    }

    fn any_package(&self, random: &mut Random) -> &Counting {
        &self.packages[random.below(self.packages.len() as u64) as usize]
    }

    /// Has Redis forget the last call of each caller, or requests.
    async fn begin_two_epochs(&self, of: &str, homes: impl Iterator<Item = Home>) -> Result<()> {
        let Some(server) = self.redis.standalone() else {
            return Ok(());
        };
        let mut redis = server.manager().await;
        for home in homes {
            let keys = ["calls", "calls_before", "requests", "requests_before"];
            let keys = keys.map(|name| home.key(name));
            for _ in 0..2 {
                // an epoch that began long ago is over
                let memory = home.key(of);
                let began = [&*memory, "=began_at", "0"];
                if redis::cmd("EXISTS")
                    .arg(&memory)
                    .query_async(&mut redis)
                    .await?
                {
                    redis::cmd("HSET")
                        .arg(&began)
                        .exec_async(&mut redis)
                        .await?;
                    let mut begin = redis::cmd("EVAL");
                    begin.arg(EPOCH).arg(keys.len()).arg(&keys).arg(&[""; 4]);
                    begin.exec_async(&mut redis).await?;
                }
            }
        }
        Ok(())
    }

    /// Makes jobs again that were counted, after Redis has forgotten or lost them. None may count that
    /// MySQL has or will have, whatever the call returns.
    pub(super) async fn repeat_jobs(&self) -> Result<()> {
        let Means::Library(site) = &self.means else {
            return Ok(());
        };
        let Journals { open, epochs, .. } = self.read_journals()?;
        let counted = epochs.iter().filter(|(job, _)| !open.contains_key(job));
        for (job, epoch) in counted.rev().take(REPEATED) {
            let _ = site.count_job(job, epoch).await;
        }
        Ok(())
    }

    /// Replaces all writers by two that begin with the callers of one snapshot.
    async fn resume_twice(&mut self, random: &mut Random) -> Result<()> {
        for (writer, _) in self.writers.drain(..) {
            writer.kill().await?;
        }
        let snapshot = format!("{:016x}", random.below(u64::MAX));
        while self.writers.len() < WRITERS {
            self.start_writer(Some(&snapshot)).await?;
        }
        Ok(())
    }

    /// Replaces all writers, as a release of the application does. Each finishes its calls.
    async fn restart_writers(&mut self) -> Result<()> {
        for package in &self.packages {
            package.order(Order::Restart);
        }
        for _ in 0..self.writers.len() {
            self.start_writer(None).await?;
            let writer = self.writers.remove(0);
            finish(writer).await?;
        }
        Ok(())
    }
}
