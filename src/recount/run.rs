//! A run of a recount. Each page reads the values, counts the rows, waits, reads the values again
//! and corrects. Many pages share one wait.

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::{Instant, sleep_until, timeout};

use crate::error::{Error, ErrorKind, Result};
use crate::metrics;
use crate::reconciler::drain;
use crate::reconciler::flusher::Flusher;
use crate::recount::movement::Cuts;
use crate::recount::page::Page;
use crate::recount::recounting::{AWAY, RecountProgress, Recounting};
use crate::scripts::random::random;
use crate::store::mysql::{BeginAttempt, Cursor, Rows, Run, RunStart, RunState};

/// The maximum number of waiting pages; they are held in memory.
const PAGES: usize = 256;
/// The number of attempts at a counter in a run whose rows are also deleted.
const TRIES: u32 = 3;
/// The time limit for releasing a run in the database, and for estimating its length.
const LEAVING: Duration = Duration::from_secs(2);

/// The work on a run: the pages that it has yet to measure, and those that wait.
struct Work {
    /// The position after the last page; `None` at the end of all ids.
    ahead: Option<Cursor>,
    /// Busy ids, with the number of attempts so far.
    again: VecDeque<(Vec<String>, u32)>,
    waiting: VecDeque<Page>,
    round: Option<Round>,
    /// The time of the next measurement.
    next_page: Instant,
}

/// A round of a run whose rows are also deleted.
#[derive(Debug)]
struct Round {
    /// The last cuts at its begin.
    cuts: Cuts,
    /// The end of the time in which it measures pages.
    until: Instant,
}

impl Work {
    /// Returns whether a further page is measured before those that wait are finished.
    fn may_measure(&self, now: Instant) -> bool {
        let has_more = self.ahead.is_some() || !self.again.is_empty();
        let is_over = self.round.as_ref().is_some_and(|round| round.until <= now);
        has_more && self.waiting.len() < PAGES && (self.waiting.is_empty() || !is_over)
    }
}

impl Recounting {
    /// Begins a run and works on it until its end, or until `stop`. Returns `None` if it was
    /// stopped.
    pub(crate) async fn run_now(
        &self,
        stop: impl Future<Output = ()>,
    ) -> Result<Option<RecountProgress>> {
        let RunStart::Run(run) = self.begin(self.lease(), Duration::ZERO).await? else {
            return Err(self.busy(format_args!(
                "is working on a run, or was interrupted within the last {:?}",
                self.lease()
            )));
        };
        let mut was_stopped = false;
        let stopping = async {
            stop.await;
            was_stopped = true;
        };
        let recounted = self.run(run, stopping).await?;
        if recounted.is_none() && !was_stopped {
            return Err(self.busy("took over the run"));
        }
        Ok(recounted)
    }

    fn busy(&self, what: impl fmt::Display) -> Error {
        let message = format!("{}: another recount {what}", self.family());
        Error::new(ErrorKind::Busy, message)
    }

    /// Begins a run if the last one began at least that long ago, or takes over one that no process
    /// has touched for the lease.
    pub(crate) async fn begin(&self, lease: Duration, every: Duration) -> Result<RunStart> {
        let family = self.handle.registered().await?;
        let begin = BeginAttempt {
            family: family.clone(),
            holder: random()?,
            lease,
            every,
        };
        let begun = self.mysql.begin_recount(begin).await;
        self.handle.or_renewed(&family, begun).await
    }

    /// Works on the run until its end, or until `stop`. Returns `None` if it was stopped or taken
    /// over.
    pub(crate) async fn run(
        &self,
        mut run: Run,
        stop: impl Future<Output = ()>,
    ) -> Result<Option<RecountProgress>> {
        let (started, family, number) = (Instant::now(), self.family(), run.number);
        // Dropping a step is harmless. A correction in progress is finished by a task of its own,
        // and is refused if the run then belongs to another holder.
        let ended = tokio::select! {
            ended = self.work_from_start(&mut run) => ended.map(Some),
            () = stop => Ok(None),
        };
        let Ok(Some(is_done)) = ended else {
            // if the database is unreachable, the lease expires anyway
            let leave = self.mysql.save_recount(&run, RunState::Left);
            let _ = timeout(LEAVING, leave).await;
            return ended.map(|_| None);
        };
        if !is_done {
            tracing::warn!(%family, run = number, "a recount was taken over by another process");
            return Ok(None);
        }
        if !self.mysql.save_recount(&run, RunState::Finished).await? {
            return Ok(None);
        }
        let done = *self.progress.borrow();
        ::metrics::histogram!(metrics::RECOUNT_SECONDS, "family" => self.handle.opened.label.clone())
            .record(started.elapsed());
        self.record_finish(SystemTime::now());
        tracing::info!(%family, ?done, "recount finished");
        Ok(Some(done))
    }

    /// Announces the run and works on it. Returns `false` if it no longer belongs to this holder.
    async fn work_from_start(&self, run: &mut Run) -> Result<bool> {
        self.announce(run).await?;
        self.repeated(|| self.forget_corrected(run)).await?;
        self.work(run).await
    }

    /// Sets the progress to the state of a run that begins or is taken over.
    async fn announce(&self, run: &Run) -> Result<()> {
        let family = self.handle.registered().await?;
        // the estimate is for display only
        let about = match timeout(LEAVING, self.mysql.about_counters(&family)).await {
            Ok(Ok(about)) => about,
            Ok(Err(_)) | Err(_) => 0,
        };
        self.progress.send_replace(RecountProgress {
            run: run.number,
            checked: run.checked,
            drifted: run.drifted,
            about,
            ..RecountProgress::default()
        });
        tracing::info!(family = %self.family(), run = run.number, about, "recount started");
        Ok(())
    }

    /// Records when the last full run ended, for the metric.
    pub(crate) async fn record_age(&self) -> Result<()> {
        let family = &self.handle.registered().await?;
        if let Some(finished) = self.mysql.recounted_at(family).await? {
            self.record_finish(finished);
        }
        Ok(())
    }

    fn record_finish(&self, finished: SystemTime) {
        let since_1970 = finished.duration_since(UNIX_EPOCH).unwrap_or_default();
        ::metrics::gauge!(metrics::RECOUNT_FINISHED, "family" => self.handle.opened.label.clone())
            .set(since_1970.as_secs_f64());
    }

    /// Measures pages, and finishes each once its wait is over. Returns `false` if the run no
    /// longer belongs to this holder.
    ///
    /// If rows are also deleted, it works in rounds. Each begins with a cut of all partitions and a
    /// hold of further cuts, waits until a replica has the rows that were counted before, measures
    /// pages for the time of a wait, and finishes all of them.
    async fn work(&self, run: &mut Run) -> Result<bool> {
        let mut touched = Instant::now();
        let mut work = Work {
            ahead: Some(run.at.clone()),
            again: VecDeque::new(),
            waiting: VecDeque::new(),
            round: None,
            next_page: touched,
        };
        loop {
            let now = Instant::now();
            let touch = touched + self.lease() / 4;
            let finish = work.waiting.front().map(|page| page.counted + self.within);
            let measure = work.may_measure(now).then_some(work.next_page);
            let is_due = |time: Option<Instant>| time.is_some_and(|time| time <= now);
            if touch <= now {
                touched = now;
                let save = || self.mysql.save_recount(run, RunState::Held);
                if !self.repeated(save).await? {
                    return Ok(false);
                }
            } else if is_due(finish)
                && let Some(page) = work.waiting.pop_front()
            {
                if !self.finish(run, page, &mut work.again).await? {
                    return Ok(false);
                }
                if work.waiting.is_empty() {
                    work.round = None;
                }
            } else if is_due(measure)
                && self.plan.rows == Rows::AddedAndDeleted
                && work.round.is_none()
            {
                self.begin_round(&mut work).await?;
            } else if is_due(measure) {
                self.measure_next(&mut work).await?;
            } else if let Some(next) = finish.into_iter().chain(measure).min() {
                sleep_until(next.min(touch)).await;
            } else {
                return Ok(true);
            }
        }
    }

    /// Begins a round. It measures pages once a replica has the rows that were counted before.
    async fn begin_round(&self, work: &mut Work) -> Result<()> {
        let cuts = self.repeated(|| self.hold()).await?;
        work.next_page = Instant::now() + self.lag();
        work.round = Some(Round {
            cuts,
            until: work.next_page + self.within,
        });
        Ok(())
    }

    /// Measures the next page: one of busy ids, or else the one ahead.
    async fn measure_next(&self, work: &mut Work) -> Result<()> {
        let began = Instant::now();
        let cuts = work.round.as_ref().map(|round| round.cuts.clone());
        let mut page;
        if let Some((busy, tries)) = work.again.pop_front() {
            page = self.measure(busy, cuts).await?;
            page.tries = tries + 1;
        } else if let Some(at) = &work.ahead {
            let (ids, until) = self.repeated(|| self.next(at)).await?;
            work.ahead.clone_from(&until);
            page = self.measure(ids, cuts).await?;
            page.until = until;
        } else {
            return Ok(());
        }
        let ids = page.same + page.differing.len() as u64;
        let time = ids as f64 / f64::from(self.plan.ids_per_second);
        let paced = began + Duration::from_secs_f64(time);
        work.next_page = paced.max(Instant::now() + self.plan.pause);
        work.waiting.push_back(page);
        Ok(())
    }

    /// Cuts all partitions, so that no earlier hit is taken for a movement, and makes reconcilers
    /// delay further cuts until the round is over, an hour at most. A round takes two waits and a
    /// count of rows, after the lag of a replica. Correctness does not depend on the delay.
    async fn hold(&self) -> Result<Cuts> {
        let round = self.lag() + 2 * self.within + self.plan.timeout;
        let time = round.min(Duration::from_hours(1));
        let flusher = Flusher::new(self.handle.shared.clone());
        timeout(AWAY, drain::hold(&flusher, &self.handle.opened, time))
            .await
            .unwrap_or_else(|_| Err(Error::store("the hits were not written in time")))?;
        Cuts::read(&self.handle).await
    }

    /// Corrects the differences of a page. Adds busy counters to `again`, for up to [`TRIES`]
    /// attempts. Returns `false` if the run no longer belongs to this holder.
    async fn finish(
        &self,
        run: &mut Run,
        page: Page,
        again: &mut VecDeque<(Vec<String>, u32)>,
    ) -> Result<bool> {
        let mut found = self.repeated(|| self.after(&page)).await?;
        let Some(noted) = self.repeated(|| self.correct(run, &found)).await? else {
            return Ok(false);
        };
        found.drifted = noted;
        if page.tries < TRIES && !found.busy.is_empty() {
            again.push_back((std::mem::take(&mut found.busy), page.tries));
        }
        self.note(run, &found);
        if let Some(until) = page.until {
            run.at = until;
        }
        Ok(true)
    }
}

/// The steps that tests take one by one.
#[cfg(feature = "test-hooks")]
impl Recounting {
    /// Begins a run, or takes over the current one from any holder.
    pub async fn take(&self) -> Result<Option<Run>> {
        match self.begin(Duration::ZERO, Duration::ZERO).await? {
            RunStart::Run(run) => Ok(Some(run)),
            RunStart::Held | RunStart::Early(_) => Ok(None),
        }
    }

    /// Returns the last cuts, if rows are also deleted.
    pub async fn cuts(&self) -> Result<Option<Cuts>> {
        if self.plan.rows == Rows::AddedAndDeleted {
            Cuts::read(&self.handle).await.map(Some)
        } else {
            Ok(None)
        }
    }

    /// Ends the run at once.
    pub async fn end(&self, run: &Run) -> Result<bool> {
        self.mysql.save_recount(run, RunState::Finished).await
    }
}
