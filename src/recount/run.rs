//! A run of a recount. Each page reads the values, counts the rows, waits, reads the values again
//! and corrects. Many pages share one wait.

use std::collections::{HashMap, VecDeque};
use std::future::pending;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::client::handle::{Handle, borrowed_ids};
use crate::connection::backoff::Retries;
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::metrics;
use crate::recount::movement::{self, Cuts};
use crate::recount::plan::{Mode, Plan, RecountIds};
use crate::recount::verdict::{self, Proof};
use crate::scripts::cached::Deleted;
use crate::scripts::partition::random;
use crate::store::mysql::{
    Begin, Begun, Cursor, Drifted, IdPage, MysqlStore, Rejections, Run, RunState, Source,
};
use crate::store::{ReadFrom, Store};
use crate::testing::ablation::{self, Guard};

/// The number of ids in a step.
const PAGE: usize = 1_000;
/// The maximum number of waiting pages; they are held in memory.
const PAGES: usize = 256;
/// The number of attempts at a counter in a run whose rows are deleted.
const TRIES: u32 = 3;
/// The time limit for releasing a run in the database, and for estimating its length.
pub(super) const LEAVING: Duration = Duration::from_secs(2);
/// The number and length of the pauses for corrected counters of a page that are being saved.
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
    progress: watch::Sender<Recounted>,
}

/// Ids with their values before their rows are counted.
#[derive(Debug)]
pub struct Before {
    values: Vec<(String, i64)>,
    rejections: Rejections,
    /// The last cuts at the begin of the round, if rows are also deleted.
    cuts: Option<Cuts>,
}

/// Ids whose rows are counted, before the wait.
#[derive(Debug)]
pub struct Page {
    /// The ids whose values differ from their rows, with the value and the number of rows.
    differing: Vec<(String, i64, i64)>,
    /// The number of ids whose values equal their rows. No later value can prove a difference for
    /// them.
    same: u64,
    rejections: Rejections,
    cuts: Option<Cuts>,
    counted: Instant,
    /// The position of the run once this page is done.
    until: Option<Cursor>,
    tries: u32,
}

/// A round of a run whose rows are also deleted.
#[derive(Debug)]
struct Round {
    /// The last cuts at its begin.
    cuts: Cuts,
    /// The end of the time in which it measures pages.
    until: Instant,
}

/// The differences between the values of a page and its rows.
#[derive(Debug, Default)]
pub struct Difference {
    checked: u64,
    drifted: Vec<Drifted>,
    busy: Vec<String>,
    rejections: Rejections,
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
            progress: watch::Sender::default(),
        })
    }

    pub(crate) fn progress(&self) -> watch::Receiver<Recounted> {
        self.progress.subscribe()
    }

    pub(crate) fn family(&self) -> &Family {
        self.handle.family()
    }

    fn lease(&self) -> Duration {
        self.plan.lease + self.plan.timeout + self.plan.pause
    }

    /// Begins a run and works on it until its end.
    pub(crate) async fn run_now(&self) -> Result<Recounted> {
        let busy = |what| {
            let busy = format!("{}: another recount {what}", self.family());
            Error::new(ErrorKind::Busy, busy)
        };
        match self.begin(Duration::ZERO).await? {
            Begun::Run(run) => {
                let recounted = self.run(run, pending()).await?;
                recounted.ok_or_else(|| busy("took over the run"))
            }
            Begun::Held | Begun::Early(_) => Err(busy("is working on a run")),
        }
    }

    /// Begins a run if the last one began at least that long ago, or takes over an abandoned one.
    pub(crate) async fn begin(&self, every: Duration) -> Result<Begun> {
        self.begin_after(self.lease(), every).await
    }

    async fn begin_after(&self, lease: Duration, every: Duration) -> Result<Begun> {
        let begin = Begin {
            family: self.handle.registered().await?.number,
            holder: random()?,
            lease,
            every,
        };
        self.mysql.begin_recount(begin).await
    }

    /// Works on the run until its end, or until `stop`. Returns `None` if it was stopped or taken
    /// over.
    pub(crate) async fn run(
        &self,
        mut run: Run,
        stop: impl Future<Output = ()>,
    ) -> Result<Option<Recounted>> {
        let (started, family, number) = (Instant::now(), self.family(), run.number);
        let work = async {
            self.announce(&run).await?;
            self.work(&mut run).await
        };
        // a step may be dropped half-way: a correction in progress either belongs to this run or is
        // refused
        let ended = tokio::select! {
            ended = work => ended.map(Some),
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
        self.record_finish(Duration::ZERO);
        tracing::info!(%family, ?done, "recount finished");
        Ok(Some(done))
    }

    /// Sets the progress to the state of a run that begins or is taken over.
    async fn announce(&self, run: &Run) -> Result<()> {
        let family = self.handle.registered().await?;
        let about = self.mysql.about_counters(&family);
        // the estimate is for display only
        let about = timeout(LEAVING, about).await;
        let about = about.ok().and_then(Result::ok).unwrap_or(0);
        self.progress.send_replace(Recounted {
            run: run.number,
            checked: run.checked,
            drifted: run.drifted,
            about,
            ..Recounted::default()
        });
        tracing::info!(family = %self.family(), run = run.number, about, "recount started");
        Ok(())
    }

    /// Records when the last full run ended, for the metric.
    pub(crate) async fn record_age(&self) -> Result<()> {
        let family = &self.handle.registered().await?;
        if let Some(ago) = self.mysql.recounted_ago(family).await? {
            self.record_finish(ago);
        }
        Ok(())
    }

    fn record_finish(&self, ago: Duration) {
        let finished = (SystemTime::now() - ago).duration_since(UNIX_EPOCH);
        ::metrics::gauge!(metrics::RECOUNT_FINISHED, "family" => self.handle.opened.label.clone())
            .set(finished.unwrap_or_default().as_secs_f64());
    }

    /// Measures pages, and finishes each once its wait is over. Returns `false` if the run no longer
    /// belongs to this holder.
    ///
    /// If rows are also deleted, it works in rounds. Each begins with a cut of all partitions and a
    /// hold of further cuts, waits until a replica has the rows that were counted before, measures
    /// pages for the time of a wait, and finishes all of them.
    async fn work(&self, run: &mut Run) -> Result<bool> {
        let mut ahead = Some(run.at.clone());
        let mut waiting: VecDeque<Page> = VecDeque::new();
        // busy ids, with the number of attempts so far
        let mut again: VecDeque<(Vec<String>, u32)> = VecDeque::new();
        let (mut touched, mut next_page) = (Instant::now(), Instant::now());
        let mut round: Option<Round> = None;
        loop {
            let now = Instant::now();
            let touch = touched + self.lease() / 4;
            let ready = waiting.front().map(|page| page.counted + self.within);
            let is_in_round =
                waiting.is_empty() || round.as_ref().is_none_or(|round| now < round.until);
            let has_more = ahead.is_some() || !again.is_empty();
            let may_measure = has_more && is_in_round && waiting.len() < PAGES;
            if touch <= now {
                touched = now;
                let saved = self.repeated(|| self.mysql.save_recount(run, RunState::Held));
                if !saved.await? {
                    return Ok(false);
                }
            } else if ready.is_some_and(|ready| ready <= now)
                && let Some(page) = waiting.pop_front()
            {
                if !self.finish(run, page, &mut again).await? {
                    return Ok(false);
                }
                if waiting.is_empty() {
                    round = None;
                }
            } else if may_measure
                && next_page <= now
                && self.plan.rows_are_deleted
                && round.is_none()
            {
                let cuts = self.repeated(|| self.hold()).await?;
                next_page = Instant::now() + self.lag();
                round = Some(Round {
                    cuts,
                    until: next_page + self.within,
                });
            } else if may_measure && next_page <= now {
                let cuts = round.as_ref().map(|round| round.cuts.clone());
                let page = match (again.pop_front(), &ahead) {
                    (Some((busy, tries)), _) => Page {
                        tries: tries + 1,
                        ..self.measure(busy, cuts).await?
                    },
                    (None, Some(at)) => {
                        let (ids, until) = self.repeated(|| self.next(at)).await?;
                        ahead.clone_from(&until);
                        Page {
                            until,
                            ..self.measure(ids, cuts).await?
                        }
                    }
                    (None, None) => continue,
                };
                let ids = page.same + page.differing.len() as u64;
                let time = ids as f64 / f64::from(self.plan.ids_per_second);
                next_page = now + Duration::from_secs_f64(time);
                next_page = next_page.max(Instant::now() + self.plan.pause);
                waiting.push_back(page);
            } else {
                let next = may_measure.then_some(next_page);
                let Some(due) = ready.into_iter().chain(next).min() else {
                    return Ok(true);
                };
                sleep_until(due.min(touch)).await;
            }
        }
    }

    /// Begins a round: cuts all partitions, and holds further cuts until the round is over. A round
    /// takes two waits and a count of rows, after the lag of a replica.
    async fn hold(&self) -> Result<Cuts> {
        let time = self.lag() + 2 * self.within + self.plan.timeout;
        movement::hold(&self.handle, time).await?;
        Cuts::read(&self.handle).await
    }

    /// Returns the longest lag of the rows.
    fn lag(&self) -> Duration {
        match self.plan.replica {
            Some(_) => self.within,
            None => Duration::ZERO,
        }
    }

    /// Returns the ids after `at`, and the position after them; `None` at the end of all ids.
    async fn next(&self, at: &Cursor) -> Result<(Vec<String>, Option<Cursor>)> {
        let (plan, family) = (&self.plan, &self.handle.registered().await?);
        let after = at.after.as_deref();
        let in_source = at.from_source || plan.ids == RecountIds::Source;
        let IdPage { mut ids, is_full } = if in_source {
            let replica = plan.replica.as_ref();
            let source = &self.source;
            let ids = source.ids_after(&self.mysql, replica, family, after, PAGE);
            ids.await?
        } else {
            self.mysql.ids_after(family, after, PAGE).await?
        };
        let next = match ids.last() {
            Some(last) if is_full => Some(Cursor {
                from_source: in_source,
                after: Some(last.clone()),
            }),
            _ if !in_source && plan.ids == RecountIds::Both => Some(Cursor {
                from_source: true,
                after: None,
            }),
            _ => None,
        };
        ids.retain(|id| {
            let mut prefixes = plan.leave_out_prefixes.iter();
            !plan.leave_out.contains(id) && !prefixes.any(|prefix| id.starts_with(prefix))
        });
        if in_source && plan.ids == RecountIds::Both {
            // those that have counters were checked as counters before
            let wanted = borrowed_ids(&ids);
            let found = self.mysql.read(family, &wanted, &[], ReadFrom::Primary);
            let mut values = found.await?.values.into_iter();
            ids.retain(|_| values.next() == Some(None));
        }
        Ok((ids, next))
    }

    async fn measure(&self, ids: Vec<String>, cuts: Option<Cuts>) -> Result<Page> {
        let before = self
            .repeated(|| self.before(ids.clone(), cuts.clone()))
            .await?;
        self.repeated(|| self.count(&before)).await
    }

    /// Takes the first step: reads the values, and leaves out counters that are too large.
    pub async fn before(&self, ids: Vec<String>, cuts: Option<Cuts>) -> Result<Before> {
        let (family, wanted) = (&self.handle.registered().await?, borrowed_ids(&ids));
        let rejections = self.mysql.rejections(family, &wanted).await?;
        let values = self.handle.exact(&wanted).await?;
        let values = ids.into_iter().zip(values);
        let values = values.filter(|(_, value)| *value <= self.plan.largest);
        Ok(Before {
            values: values.collect(),
            rejections,
            cuts,
        })
    }

    /// Takes the second step: counts the rows.
    pub async fn count(&self, before: &Before) -> Result<Page> {
        let ids: Vec<_> = before.values.iter().map(|(id, _)| id.as_str()).collect();
        let rows = self.rows(&ids).await?;
        let counted = Instant::now();
        let all = before.values.iter().zip(rows);
        let all = all.map(|((id, value), rows)| (id.clone(), *value, rows));
        let differing: Vec<_> = all.filter(|(_, value, rows)| value != rows).collect();
        Ok(Page {
            same: (ids.len() - differing.len()) as u64,
            differing,
            rejections: before.rejections.clone(),
            cuts: before.cuts.clone(),
            counted,
            until: None,
            tries: 1,
        })
    }

    /// Takes the third step, after the wait: finds the differences.
    pub async fn after(&self, page: &Page) -> Result<Difference> {
        let ids: Vec<_> = page.differing.iter().map(|(id, ..)| id.as_str()).collect();
        let values = self.handle.exact(&ids).await?;
        let moved = match &page.cuts {
            Some(cuts) => Some(cuts.moved(&self.handle, &ids).await?),
            None => None,
        };
        let caught_up = match self.plan.replica {
            Some(_) if moved.is_none() => self.caught_up(page).await?,
            _ => HashMap::new(),
        };
        let mut difference = Difference {
            checked: page.same,
            rejections: page.rejections.clone(),
            ..Difference::default()
        };
        for (index, (id, before, rows)) in page.differing.iter().enumerate() {
            let (before, rows, after) = (*before, *rows, values[index]);
            let caught_up = caught_up.get(id.as_str()).copied().unwrap_or(rows);
            let proof = match &moved {
                Some(moved) => verdict::unmoved(before, rows, after, moved[index]),
                None if ablation::is_out(Guard::RecountBounds) => {
                    Proof::Off(i128::from(rows) - i128::from(before))
                }
                None => verdict::bounded(before, rows, caught_up, after),
            };
            match proof {
                Proof::Busy => {
                    difference.busy.push(id.clone());
                    continue;
                }
                Proof::Same | Proof::Off(0) => {}
                Proof::Off(off) => difference.drifted.push(Drifted {
                    id: id.clone(),
                    before,
                    rows: if off < 0 { caught_up } else { rows },
                    after,
                    delta: i64::try_from(off).unwrap_or(0),
                    only_noted: self.why_only_noted(off),
                }),
            }
            difference.checked += 1;
        }
        Ok(difference)
    }

    /// Counts again the rows of counters above their rows: the replica may have lacked rows in the
    /// first value, and by the end of the wait it has them.
    async fn caught_up<'p>(&self, page: &'p Page) -> Result<HashMap<&'p str, i64>> {
        let above = page
            .differing
            .iter()
            .filter(|(_, value, rows)| value > rows);
        let above: Vec<_> = above.map(|(id, ..)| id.as_str()).collect();
        let rows = self.rows(&above).await?;
        Ok(above.into_iter().zip(rows).collect())
    }

    fn why_only_noted(&self, off: i128) -> Option<&'static str> {
        match off.unsigned_abs() {
            _ if self.plan.mode == Mode::Report => Some("reported only"),
            more if more > self.plan.at_most.into() => Some("more than at_most"),
            _ if i64::try_from(off).is_err() => Some("beyond the signed 64-bit range"),
            _ => None,
        }
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
        let noted = self.repeated(|| self.correct(run, &found)).await?;
        let Some(noted) = noted else {
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

    /// Adds the outcome of a page to the progress and the metrics.
    fn note(&self, run: &mut Run, found: &Difference) {
        let label = &self.handle.opened.label;
        let (drifted, busy) = (found.drifted.len() as u64, found.busy.len() as u64);
        let counts = [
            (metrics::RECOUNT_CHECKED, found.checked),
            (metrics::RECOUNT_DRIFTED, drifted),
            (metrics::RECOUNT_BUSY, busy),
        ];
        for (name, count) in counts {
            metrics::count(name, label, count);
        }
        let corrected = |direction: &'static str, is_so: fn(&&Drifted) -> bool| {
            let count = found.drifted.iter().filter(is_so).count() as u64;
            ::metrics::counter!(metrics::RECOUNT_CORRECTED, "family" => label.clone(), "direction" => direction)
                .increment(count);
            count
        };
        let raised = corrected("up", |one| one.delta > 0);
        let lowered = corrected("down", |one| one.delta < 0);
        for one in &found.drifted {
            tracing::debug!(family = %self.family(), id = one.id, before = one.before, rows = one.rows,
                after = one.after, delta = one.delta, note = one.only_noted, "a counter differs from its rows");
        }
        run.checked += found.checked;
        run.drifted += drifted;
        self.progress.send_modify(|seen| {
            (seen.checked, seen.drifted) = (run.checked, run.drifted);
            seen.raised += raised;
            seen.lowered += lowered;
            seen.only_noted += drifted - raised - lowered;
            seen.busy += busy;
        });
    }

    /// Corrects and notes the differences. Returns `None` if the run no longer belongs to this
    /// holder.
    async fn correct(&self, run: &Run, difference: &Difference) -> Result<Option<Vec<Drifted>>> {
        if difference.drifted.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let family = &self.handle.registered().await?;
        let trusting = ablation::is_out(Guard::RecountRun);
        let rejections =
            (!ablation::is_out(Guard::RecountRejects)).then_some(&difference.rejections);
        let (drifted, rejections) = (difference.drifted.clone(), rejections.cloned());
        let noted = self
            .mysql
            .correct(family, run, drifted, rejections, trusting);
        let noted = noted.await?;
        if let Some(noted) = noted.as_ref().filter(|_| self.family().is_cached()) {
            let corrected = noted.iter().filter(|one| one.delta != 0);
            self.forget(corrected.map(|one| one.id.as_str())).await;
        }
        Ok(noted)
    }

    /// Deletes these cached counters from Redis, so that their next use reads the corrected rows.
    /// Waits for counters that are being saved. One that stays shows the correction with its next
    /// save.
    async fn forget(&self, ids: impl Iterator<Item = &str>) {
        let mut pauses = FORGET;
        for id in ids {
            let partition = self.handle.partition(self.family().partition_of(id));
            loop {
                match partition.delete(&[id]).await.as_deref() {
                    Ok([Deleted::InFlight]) if pauses > 0 => {}
                    Ok(_) => break,
                    Err(error) => {
                        tracing::debug!(family = %self.family(), id, error = %format_args!("{error:#}"), "dropping a counter from Redis failed");
                        break;
                    }
                }
                pauses -= 1;
                sleep(SAVING).await;
            }
        }
    }

    async fn rows(&self, ids: &[&str]) -> Result<Vec<i64>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        if let Some(replica) = &self.plan.replica
            && let Some(lag) = self.mysql.lag(replica).await?
            && lag >= self.within
        {
            let within = self.within;
            return Err(Error::store(format!(
                "the replica lags by {lag:?}, within() allows less than {within:?}"
            )));
        }
        let family = &self.handle.registered().await?;
        let (replica, limit) = (self.plan.replica.as_ref(), self.plan.timeout);
        let rows = self.source.count(&self.mysql, replica, family, ids, limit);
        rows.await
    }

    /// Repeats a step while a server is unreachable, for up to a minute.
    async fn repeated<T, F>(&self, mut step: impl FnMut() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let (until, mut retries) = (Instant::now() + AWAY, Retries::default());
        loop {
            match step().await {
                Err(error) if Instant::now() < until => {
                    let name = format!("recount of {}", self.family());
                    retries.wait_out(name, error).await?;
                }
                result => {
                    retries.succeeded();
                    return result;
                }
            }
        }
    }
}

/// The steps that tests take one by one.
#[cfg(feature = "test-hooks")]
impl Recounting {
    /// Begins a run, or takes over the current one from any holder.
    pub async fn take(&self) -> Result<Option<Run>> {
        match self.begin_after(Duration::ZERO, Duration::ZERO).await? {
            Begun::Run(run) => Ok(Some(run)),
            Begun::Held | Begun::Early(_) => Ok(None),
        }
    }

    /// Returns the last cuts, if rows are also deleted.
    pub async fn cuts(&self) -> Result<Option<Cuts>> {
        match self.plan.rows_are_deleted {
            true => Cuts::read(&self.handle).await.map(Some),
            false => Ok(None),
        }
    }

    /// Corrects the difference. Returns `false` if the run no longer belongs to this holder.
    pub async fn settle(&self, run: &Run, difference: &Difference) -> Result<bool> {
        Ok(self.correct(run, difference).await?.is_some())
    }

    /// Ends the run at once.
    pub async fn end(&self, run: &Run) -> Result<bool> {
        self.mysql.save_recount(run, RunState::Finished).await
    }
}
