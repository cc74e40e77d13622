//! The end of a round: everything is brought to MySQL.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use super::super::job;
use super::super::journal::{Counter, Journals, Ms, Scribe};
use super::super::server::Redis;
use super::super::site::{self, VIEWS};
use super::super::way::{Means, Way};
use super::super::window::{Windows, ledger};
use super::{Stage, finish};
use crate::Result;
use crate::families;

/// The time after which the end of a process is noted.
const LONG: Duration = Duration::from_secs(10);
/// The time within which everything must be in MySQL after the last fault.
const SAVED_WITHIN: Duration = Duration::from_secs(60);

/// The epoch in which a job is made again.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Epoch {
    /// That of its first call.
    First,
    /// The current one, in which Redis must know the job.
    New,
}

/// The journals and the contents of MySQL at the end of a round.
pub struct Settled {
    pub journals: Journals,
    /// The name of the client of each journal.
    pub names: Vec<String>,
    pub stored: BTreeMap<Counter, i64>,
    pub windows: Rc<RefCell<Windows>>,
    /// The files of the round are kept or removed with it.
    _redis: Redis,
    /// The hits and batches that set-backs dropped and lost, as MySQL reports them.
    pub dropped: u64,
    pub lost_batches: u64,
    /// The time from the last fault until everything was in MySQL.
    pub saved_within: Duration,
    /// The saves whose counters were not those of their rows after a last recount.
    pub miscounted: u64,
    /// The partitions whose batches MySQL lost without a report.
    pub unreported: u64,
}

impl Stage<'_> {
    /// Ends the writers, and waits until everything is in MySQL.
    pub async fn settle(mut self) -> Result<Settled> {
        let ended = Instant::now();
        for proxy in self.redis.proxy().into_iter().chain([&self.mysql_proxy]) {
            proxy.call_off();
            proxy.calm();
        }
        let wedged = |what: &str| format!("{what} {SAVED_WITHIN:?} after the last fault");
        for package in std::mem::take(&mut self.packages) {
            let name = package.client.name();
            let stopped = timeout(SAVED_WITHIN, package.stop()).await;
            stopped.map_err(|_| wedged(&format!("{name} has not ended")))??;
            slow(&name, ended);
        }
        for writer in std::mem::take(&mut self.writers) {
            let finished = timeout(SAVED_WITHIN, finish(writer)).await;
            finished.map_err(|_| wedged("a writer has not ended"))??;
            slow("a writer", ended);
        }
        let jobs = timeout(SAVED_WITHIN, self.finish_jobs(Epoch::First, |_| true)).await;
        jobs.map_err(|_| wedged("a job has no outcome"))??;
        slow("a job", ended);
        if self.way == Way::Library {
            let Ok(saved) = timeout(SAVED_WITHIN, self.wait_until_saved()).await else {
                // before the servers are dropped, and their files with them
                testkit::keep();
                let pending = self.redis.pending().await?.join(", ");
                let rejects = families::rejects(&self.pool).await?;
                let why = wedged("not everything is in MySQL");
                return Err(format!("{why}: {pending}, and {rejects} rejects").into());
            };
            saved?;
        }
        let saved_within = ended.elapsed();
        self.reconcilers.stop().await?;
        if let Some((daemon, _)) = self.daemon.take() {
            daemon.terminate().await?;
        }
        self.means.drain().await?;
        let mut stored = self.means.stored(&self.pool).await?;
        for (id, hits) in &self.deleted {
            *stored.entry((VIEWS, *id)).or_default() += hits;
        }
        let miscounted = match &self.means {
            Means::Library(site) => {
                site.recount_at_the_end().await?;
                site::miscounted(&self.pool).await?
            }
            Means::ByHand(_) => 0,
        };
        let unreported = self.watch.unreported(&ledger(&self.pool).await?);
        let (dropped, lost_batches) = sqlx::query_as(
            "SELECT CAST(COALESCE(SUM(dropped_hits), 0) AS UNSIGNED), \
               CAST(COALESCE(SUM(lost_batches), 0) AS UNSIGNED) FROM counterfoil_ledger",
        )
        .fetch_one(&self.pool)
        .await?;
        let mut journals = Journals::new(self.redis.directory());
        journals.read()?;
        self.watch.windows.borrow_mut().close();
        Ok(Settled {
            journals,
            names: self.journals,
            stored,
            windows: self.watch.windows,
            _redis: self.redis,
            dropped,
            lost_batches,
            saved_within,
            miscounted,
            unreported,
        })
    }

    /// Returns once the reconcilers have brought everything to MySQL.
    async fn wait_until_saved(&mut self) -> Result<()> {
        loop {
            if let Some((daemon, _)) = &mut self.daemon {
                daemon.keep_running()?;
            }
            if self.redis.pending().await?.is_empty() {
                self.retry_rejects().await?;
                if families::rejects(&self.pool).await? == 0 {
                    return Ok(());
                }
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Makes the jobs of killed writers again that began at such a time.
    pub(super) async fn finish_jobs(
        &mut self,
        epoch: Epoch,
        is_chosen: impl Fn(Ms) -> bool,
    ) -> Result<()> {
        let (journals, number) = (self.read_journals()?, self.journal("the crate"));
        let Means::Library(site) = &self.means else {
            return Ok(());
        };
        let scribe = Scribe::create(&self.redis.directory(), number)?;
        for (job, _) in journals.open.iter().filter(|(_, begun)| is_chosen(**begun)) {
            let first = journals.epochs.get(job).cloned();
            let epoch = first.filter(|_| epoch == Epoch::First);
            job::count(site, &scribe, job, epoch).await?;
        }
        Ok(())
    }

    /// Adds the deltas that a small column refused.
    pub(super) async fn retry_rejects(&self) -> Result<()> {
        if let Means::Library(site) = &self.means {
            let store = site.pair.mysql()?;
            for family in site.refused() {
                families::patiently(async || store.retry_rejects(family, None).await).await?;
            }
        }
        Ok(())
    }
}

/// Notes what ended late, as a hint if a round is slow.
fn slow(what: &str, ended: Instant) {
    if ended.elapsed() > LONG {
        eprintln!("{what} ended {:?} after the last fault", ended.elapsed());
    }
}
