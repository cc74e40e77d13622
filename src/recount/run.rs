//! A run of a recount. Each page reads the values, counts the rows, waits, reads the values again
//! and corrects. Many pages share one wait.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::try_join;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::client::handle::Handle;
use crate::connection::backoff::Backoff;
use crate::error::{Error, ErrorKind, Result};
use crate::metrics;
use crate::recount::plan::{Mode, Plan, RecountIds};
use crate::recount::verdict::{self, Proof};
use crate::scripts::cached::Deleted;
use crate::scripts::partition::random;
use crate::store::mysql::{Begun, Cursor, Drifted, IdPage, MysqlStore, Run, Source};
use crate::store::{ReadFrom, Registered, Store};
use crate::testing::ablation::{self, Guard};

/// The number of ids in a step.
const PAGE: usize = 1_000;
/// The maximum number of waiting pages; they are held in memory.
const PAGES: usize = 256;
/// The number of attempts at a counter in a run whose rows are deleted.
const TRIES: u32 = 3;
/// The time limit for releasing a run in the database.
const LEAVING: Duration = Duration::from_secs(2);
/// The number of attempts to delete a corrected counter from Redis while it is being saved, and the
/// pause between them.
const FORGET: usize = 10;
const SAVING: Duration = Duration::from_millis(500);
/// The time for which a step is retried while a server is unreachable.
const AWAY: Duration = Duration::from_mins(1);

/// The result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recounted {
    /// The number of the run among those of the family, as [`MysqlStore::drift`] takes it.
    pub run: u64,
    /// Counters that were compared with their rows, including those before the run was taken over.
    pub checked: u64,
    /// The compared counters that differ by a proven amount.
    pub drifted: u64,
    /// Counters that were corrected upwards.
    pub raised: u64,
    /// Counters that were corrected downwards.
    pub lowered: u64,
    /// Counters that differ but were only noted; their notes give the reason.
    pub only_noted: u64,
    /// Counters that changed while they were compared. They are left for the next run.
    pub busy: u64,
    /// The approximate number of all counters, 0 if it is unknown.
    pub about: u64,
}

/// A configured recount.
#[derive(Debug)]
pub struct Recounting {
    handle: Handle,
    mysql: MysqlStore,
    source: Source,
    within: Duration,
    plan: Plan,
    progress: Arc<Mutex<Recounted>>,
}

/// Ids with their values before their rows are counted.
#[derive(Clone, Debug)]
pub struct Before {
    ids: Vec<String>,
    values: Vec<i64>,
}

/// The ids of a step whose values differ from their rows, with the number of rows.
#[derive(Debug)]
pub struct Page {
    before: Before,
    rows: Vec<i64>,
    /// The number of ids whose values equal their rows. No later value can prove a difference for
    /// them.
    same: u64,
    counted: Instant,
    /// The position of the run once this page is done.
    until: Option<Cursor>,
    tries: u32,
}

impl Page {
    /// Returns the number of ids that were compared.
    fn ids(&self) -> u64 {
        self.same + self.rows.len() as u64
    }
}

/// The differences between the values of a page and its rows.
#[derive(Debug, Default)]
pub struct Difference {
    checked: u64,
    drifted: Vec<Drifted>,
    busy: Vec<String>,
}

/// The outcome of the work on a run.
enum Ended {
    Done,
    Stopped,
    TakenOver,
}

impl Recounting {
    /// # Errors
    /// [`Mismatch`](crate::ErrorKind::Mismatch) on a store other than MySQL.
    pub(crate) fn new(
        handle: Handle,
        source: Source,
        within: Duration,
        plan: Plan,
    ) -> Result<Self> {
        let mysql = handle.shared.mysql()?.clone();
        metrics::begin_recount(&handle.opened.label);
        Ok(Recounting {
            handle,
            mysql,
            source,
            within,
            plan,
            progress: Arc::default(),
        })
    }

    pub(crate) fn progress(&self) -> Arc<Mutex<Recounted>> {
        self.progress.clone()
    }

    pub(crate) fn family(&self) -> String {
        self.handle.family().to_string()
    }

    fn store(&self) -> &MysqlStore {
        &self.mysql
    }

    fn lease(&self) -> Duration {
        self.plan.lease + self.plan.timeout + self.plan.pause
    }

    /// Begins a run and works on it until its end.
    pub(crate) async fn run_now(&self) -> Result<Recounted> {
        let (_running, stop) = watch::channel(false);
        match self.begin(None).await? {
            Begun::Run(run) => match self.run(run, stop).await? {
                Some(recounted) => Ok(recounted),
                None => Err(self.busy("took over the run")),
            },
            Begun::Held | Begun::Early(_) => Err(self.busy("is working on a run")),
        }
    }

    fn busy(&self, what: &str) -> Error {
        Error::new(
            ErrorKind::Busy,
            format!("{}: another recount {what}", self.handle.family()),
        )
    }

    /// Begins a run, or takes over an abandoned one. With `every`, only if the last run began at
    /// least that long ago.
    pub(crate) async fn begin(&self, every: Option<Duration>) -> Result<Begun> {
        let registered = self.handle.registered().await?;
        self.store()
            .begin_recount(registered, random()?, self.lease(), every)
            .await
    }

    /// Works on the run until its end. Returns `None` if it was stopped or taken over.
    pub(crate) async fn run(
        &self,
        mut run: Run,
        mut stop: watch::Receiver<bool>,
    ) -> Result<Option<Recounted>> {
        let started = Instant::now();
        let registered = self.handle.registered().await?;
        let about = self.store().about_counters(registered).await.unwrap_or(0);
        *self.seen() = Recounted {
            run: run.number,
            checked: run.checked,
            drifted: run.drifted,
            about,
            ..Recounted::default()
        };
        tracing::info!(family = %self.handle.family(), run = run.number, about, "recount started");
        // a step may be dropped half-way: a correction in progress either belongs to this run or is
        // refused
        let ended = tokio::select! {
            ended = self.work(registered, &mut run) => ended,
            // an error means that the sender was dropped, which stops the run as well
            _ = stop.wait_for(|stop| *stop) => Ok(Ended::Stopped),
        };
        match ended {
            Ok(Ended::Done) => {
                if !self.store().finish_recount(registered, &run).await? {
                    return Ok(None);
                }
                let done = *self.seen();
                ::metrics::histogram!(metrics::RECOUNT_SECONDS, "family" => self.handle.opened.label.clone())
                    .record(started.elapsed());
                self.record_finish(Duration::ZERO);
                tracing::info!(family = %self.handle.family(), ?done, "recount finished");
                Ok(Some(done))
            }
            Ok(Ended::TakenOver) => {
                tracing::warn!(family = %self.handle.family(), run = run.number, "a recount was taken over by another process");
                Ok(None)
            }
            Ok(Ended::Stopped) => {
                self.leave(registered, &run).await;
                Ok(None)
            }
            Err(error) => {
                self.leave(registered, &run).await;
                Err(error)
            }
        }
    }

    /// Releases the run for other processes. If the database is unreachable, the lease expires
    /// anyway.
    async fn leave(&self, registered: &Registered, run: &Run) {
        let _ = timeout(LEAVING, self.store().leave_recount(registered, run)).await;
    }

    /// Records when the last full run ended, for the metric.
    pub(crate) async fn record_age(&self) -> Result<()> {
        if let Some(ago) = self
            .store()
            .recounted_ago(self.handle.registered().await?)
            .await?
        {
            self.record_finish(ago);
        }
        Ok(())
    }

    fn record_finish(&self, ago: Duration) {
        let finished = std::time::SystemTime::now() - ago;
        let seconds = finished
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0.0, |since| since.as_secs_f64());
        ::metrics::gauge!(metrics::RECOUNT_FINISHED, "family" => self.handle.opened.label.clone())
            .set(seconds);
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Recounted> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn work(&self, registered: &Registered, run: &mut Run) -> Result<Ended> {
        let (mut ahead, mut is_all) = (run.at.clone(), false);
        let mut waiting: VecDeque<Page> = VecDeque::new();
        let (mut touched, mut next_page) = (Instant::now(), Instant::now());
        loop {
            let now = Instant::now();
            let (ready, touch) = (
                waiting.front().map(|page| page.counted + self.within),
                touched + self.lease() / 4,
            );
            let next = (!is_all && waiting.len() < PAGES).then_some(next_page);
            let finishing = if ready.is_some_and(|ready| ready <= now) {
                waiting.pop_front()
            } else {
                None
            };
            let measures = next.is_some_and(|next| next <= now);
            if finishing.is_none() && !measures {
                let Some(due) = ready.into_iter().chain(next).min() else {
                    return Ok(Ended::Done);
                };
                sleep_until(due.min(touch)).await;
            }
            let finish = async {
                let Some(page) = &finishing else {
                    return Ok(None);
                };
                let difference = self.repeated(|| self.after(page)).await?;
                let noted = self.repeated(|| self.correct(run, &difference)).await?;
                Ok::<_, Error>(Some((difference, noted)))
            };
            let measure = async {
                if measures {
                    self.next_page(registered, &ahead).await.map(Some)
                } else {
                    Ok(None)
                }
            };
            let (finished, measured) = try_join(finish, measure).await?;
            if let (Some((difference, noted)), Some(page)) = (finished, finishing) {
                let Some(noted) = noted else {
                    return Ok(Ended::TakenOver);
                };
                let again = self.note(
                    run,
                    Difference {
                        drifted: noted,
                        ..difference
                    },
                    page.tries,
                );
                run.at = page.until.unwrap_or_else(|| run.at.clone());
                if !again.is_empty() {
                    waiting.push_back(Page {
                        tries: page.tries + 1,
                        ..self.measure(again).await?
                    });
                }
            }
            if let Some((page, until)) = measured {
                let time = Duration::from_secs_f64(
                    page.ids() as f64 / f64::from(self.plan.ids_per_second),
                );
                next_page = (now + time).max(Instant::now() + self.plan.pause);
                is_all = until.is_none();
                ahead = until.unwrap_or(ahead);
                waiting.push_back(Page {
                    until: Some(ahead.clone()),
                    ..page
                });
            }
            if touch <= Instant::now() {
                touched = Instant::now();
                if !self
                    .repeated(|| self.store().note_recount(registered, run))
                    .await?
                {
                    return Ok(Ended::TakenOver);
                }
            }
        }
    }

    /// Records the outcome of a page, and returns the ids to check again.
    fn note(&self, run: &mut Run, done: Difference, tries: u32) -> Vec<String> {
        let label = &self.handle.opened.label;
        let count = |name: &'static str, many: u64| {
            ::metrics::counter!(name, "family" => label.clone()).increment(many);
        };
        let mut seen = self.seen();
        let corrected = |direction: &'static str, is_so: &dyn Fn(i64) -> bool| {
            let many = done.drifted.iter().filter(|one| is_so(one.delta)).count() as u64;
            ::metrics::counter!(metrics::RECOUNT_CORRECTED, "family" => label.clone(), "direction" => direction)
                .increment(many);
            many
        };
        let drifted = done.drifted.len() as u64;
        let (raised, lowered) = (
            corrected("up", &|delta| delta > 0),
            corrected("down", &|delta| delta < 0),
        );
        for one in &done.drifted {
            tracing::debug!(family = %self.handle.family(), id = one.id, before = one.before, rows = one.rows,
                after = one.after, delta = one.delta, note = one.only_noted, "a counter differs from its rows");
        }
        (seen.raised, seen.lowered) = (seen.raised + raised, seen.lowered + lowered);
        seen.only_noted += drifted - raised - lowered;
        seen.checked += done.checked;
        seen.drifted += drifted;
        (run.checked, run.drifted) = (seen.checked, seen.drifted);
        count(metrics::RECOUNT_CHECKED, done.checked);
        count(metrics::RECOUNT_DRIFTED, drifted);
        if tries < TRIES {
            return done.busy;
        }
        seen.busy += done.busy.len() as u64;
        count(metrics::RECOUNT_BUSY, done.busy.len() as u64);
        Vec::new()
    }

    /// Returns the ids after `at`, and the position after them; `None` at the end of all ids.
    async fn next(
        &self,
        registered: &Registered,
        at: &Cursor,
    ) -> Result<(Vec<String>, Option<Cursor>)> {
        let (store, after) = (self.store(), at.after.as_deref());
        let in_source = at.from_source || self.plan.ids == RecountIds::Source;
        let IdPage { ids, is_full } = if in_source {
            self.source
                .ids_after(store, self.plan.replica.as_ref(), registered, after, PAGE)
                .await?
        } else {
            store.ids_after(registered, after, PAGE).await?
        };
        let next = match ids.last() {
            Some(last) if is_full => Some(Cursor {
                from_source: in_source,
                after: Some(last.clone()),
            }),
            _ if !in_source && self.plan.ids == RecountIds::Both => Some(Cursor {
                from_source: true,
                after: None,
            }),
            _ => None,
        };
        let mut wanted = ids;
        wanted.retain(|id| {
            !self.plan.leave_out.contains(id)
                && !self
                    .plan
                    .leave_out_prefixes
                    .iter()
                    .any(|prefix| id.starts_with(prefix))
        });
        if in_source && self.plan.ids == RecountIds::Both {
            wanted = self.without_counter(registered, wanted).await?;
        }
        Ok((wanted, next))
    }

    /// Returns the ids that have no counter: the others were checked as counters before.
    async fn without_counter(
        &self,
        registered: &Registered,
        ids: Vec<String>,
    ) -> Result<Vec<String>> {
        let asked: Vec<_> = ids.iter().map(String::as_str).collect();
        let found = self
            .store()
            .read(registered, &asked, &[], ReadFrom::Primary)
            .await?
            .values;
        Ok(ids
            .into_iter()
            .zip(found)
            .filter(|(_, value)| value.is_none())
            .map(|(id, _)| id)
            .collect())
    }

    /// Measures the next page. Returns it with the position after it, as [`next`](Self::next) does.
    async fn next_page(
        &self,
        registered: &Registered,
        at: &Cursor,
    ) -> Result<(Page, Option<Cursor>)> {
        let (ids, until) = self.repeated(|| self.next(registered, at)).await?;
        Ok((self.measure(ids).await?, until))
    }

    async fn measure(&self, ids: Vec<String>) -> Result<Page> {
        let before = self.repeated(|| self.before(ids.clone())).await?;
        self.repeated(|| self.count(&before)).await
    }

    /// Takes the first step: reads the values, and leaves out counters that are too large.
    pub async fn before(&self, ids: Vec<String>) -> Result<Before> {
        let values = self.exact(&ids).await?;
        let kept = ids
            .into_iter()
            .zip(values)
            .filter(|(_, value)| *value <= self.plan.largest);
        let (ids, values) = kept.unzip();
        Ok(Before { ids, values })
    }

    /// Takes the second step: counts the rows.
    pub async fn count(&self, before: &Before) -> Result<Page> {
        if let Some(replica) = &self.plan.replica
            && let Some(lag) = self
                .store()
                .lag(replica)
                .await?
                .filter(|lag| *lag >= self.within)
        {
            return Err(Error::new(
                ErrorKind::Store,
                format!(
                    "the replica lags by {lag:?}, within() allows less than {:?}",
                    self.within
                ),
            ));
        }
        let rows = self.rows(&before.ids).await?;
        let counted = Instant::now();
        let all = before.ids.iter().zip(&before.values).zip(rows);
        let differing: Vec<_> = all.filter(|((_, value), rows)| **value != *rows).collect();
        let same = (before.ids.len() - differing.len()) as u64;
        let (before, rows): (Vec<_>, Vec<_>) = differing.into_iter().unzip();
        let (ids, values) = before
            .into_iter()
            .map(|(id, value)| (id.clone(), *value))
            .unzip();
        Ok(Page {
            before: Before { ids, values },
            rows,
            same,
            counted,
            until: None,
            tries: 1,
        })
    }

    /// Ends the run at once, for tests that take the steps one by one.
    #[cfg(feature = "test-hooks")]
    pub async fn end(&self, run: &Run) -> Result<bool> {
        self.store()
            .finish_recount(self.handle.registered().await?, run)
            .await
    }

    /// Corrects the difference. Returns `false` if the run no longer belongs to this holder.
    #[cfg(feature = "test-hooks")]
    pub async fn settle(&self, run: &Run, difference: &Difference) -> Result<bool> {
        Ok(self.correct(run, difference).await?.is_some())
    }

    /// Begins a run, or takes over the current one from any holder.
    #[cfg(feature = "test-hooks")]
    pub async fn take(&self) -> Result<Option<Run>> {
        let registered = self.handle.registered().await?;
        match self
            .store()
            .begin_recount(registered, random()?, Duration::ZERO, None)
            .await?
        {
            Begun::Run(run) => Ok(Some(run)),
            Begun::Held | Begun::Early(_) => Ok(None),
        }
    }

    /// Takes the third step, after the wait: finds the differences.
    pub async fn after(&self, page: &Page) -> Result<Difference> {
        let Before { ids, values } = &page.before;
        let after = self.exact(ids).await?;
        let again = if self.plan.rows_are_deleted {
            Some(self.rows(ids).await?)
        } else {
            None
        };
        let mut difference = Difference {
            checked: page.same,
            ..Difference::default()
        };
        for (at, id) in ids.iter().enumerate() {
            let (before, rows, after) = (values[at], page.rows[at], after[at]);
            let verdict = match &again {
                Some(again) => verdict::still(before, rows, after, again[at]),
                None if ablation::is_out(Guard::RecountBounds) => {
                    Proof::Off(i128::from(rows) - i128::from(before))
                }
                None => verdict::bounded(before, rows, after),
            };
            match verdict {
                Proof::Same | Proof::Off(0) => difference.checked += 1,
                Proof::Off(off) => {
                    difference.checked += 1;
                    let only_noted = self.why_only_noted(off);
                    let delta = i64::try_from(off).unwrap_or(0);
                    difference.drifted.push(Drifted {
                        id: id.clone(),
                        before,
                        rows,
                        after,
                        delta,
                        only_noted,
                    });
                }
                Proof::Busy => difference.busy.push(id.clone()),
            }
        }
        Ok(difference)
    }

    /// Corrects and notes the differences. Returns `None` if the run no longer belongs to this
    /// holder.
    pub(crate) async fn correct(
        &self,
        run: &Run,
        difference: &Difference,
    ) -> Result<Option<Vec<Drifted>>> {
        if difference.drifted.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let registered = self.handle.registered().await?;
        let trusting = ablation::is_out(Guard::RecountRun);
        let noted = self
            .store()
            .correct(registered, run, difference.drifted.clone(), trusting)
            .await?;
        if let Some(noted) = noted.as_ref().filter(|_| self.handle.family().is_cached()) {
            let corrected = noted
                .iter()
                .filter(|one| one.delta != 0)
                .map(|one| one.id.as_str());
            self.forget(corrected.collect()).await;
        }
        Ok(noted)
    }

    /// Deletes these cached counters from Redis, so that their next use reads the corrected rows.
    /// Retries a counter that is being saved. One that stays shows the correction with its next
    /// save.
    async fn forget(&self, mut ids: Vec<&str>) {
        for _ in 0..FORGET {
            let mut left = Vec::new();
            for id in ids {
                let partition = self.handle.partition(self.handle.family().partition_of(id));
                match partition.delete(&[id]).await.as_deref() {
                    Ok([Deleted::InFlight]) => left.push(id),
                    Ok(_) => {}
                    Err(error) => {
                        tracing::debug!(family = %self.handle.family(), id, error = %format_args!("{error:#}"), "dropping a counter from Redis failed");
                    }
                }
            }
            if left.is_empty() {
                return;
            }
            ids = left;
            sleep(SAVING).await;
        }
    }

    /// Reads exact values, without loading cached counters into Redis.
    async fn exact(&self, ids: &[String]) -> Result<Vec<i64>> {
        let ids: Vec<_> = ids.iter().map(String::as_str).collect();
        if ids.is_empty() {
            Ok(Vec::new())
        } else {
            self.handle.exact(&ids).await
        }
    }

    fn why_only_noted(&self, off: i128) -> Option<&'static str> {
        match off.unsigned_abs() {
            _ if self.plan.mode == Mode::Report => Some("reported only"),
            more if more > self.plan.at_most.into() => Some("more than at_most"),
            _ if i64::try_from(off).is_err() => Some("beyond the signed 64-bit range"),
            _ => None,
        }
    }

    async fn rows(&self, ids: &[String]) -> Result<Vec<i64>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<_> = ids.iter().map(String::as_str).collect();
        let registered = self.handle.registered().await?;
        self.source
            .count(
                self.store(),
                self.plan.replica.as_ref(),
                registered,
                &ids,
                self.plan.timeout,
            )
            .await
    }

    /// Repeats a step while a server is unreachable, for up to a minute.
    async fn repeated<T, F>(&self, mut step: impl FnMut() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let (until, mut pause) = (Instant::now() + AWAY, Backoff::default());
        loop {
            match step().await {
                Err(error) if error.is_retryable() && Instant::now() < until => {
                    tracing::warn!(family = %self.handle.family(), error = %format_args!("{error:#}"), "a step of the recount failed, will retry");
                    sleep(pause.next()).await;
                }
                result => return result,
            }
        }
    }
}
