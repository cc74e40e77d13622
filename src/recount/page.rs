//! The steps of a page: it reads the values, counts the rows, finds the differences after the wait,
//! and corrects them.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::client::handle::borrowed_ids;
use crate::error::{Error, ErrorKind, Result};
use crate::metrics;
use crate::process::tasks::bisected;
use crate::recount::movement::Cuts;
use crate::recount::recounting::{Mode, RecountIds, Recounting};
use crate::recount::verdict::{self, Proof};
use crate::scripts::partition::cached::DeleteOutcome;
use crate::store::mysql::{Cursor, Deviation, IdPage, Run};
use crate::store::{ReadFrom, Store};
use crate::testing::ablation::{self, Guard};

/// The number of ids in a page.
const PAGE: usize = 1_000;
/// The number and length of the pauses for corrected counters of a page that are being saved.
const FORGET: usize = 10;
const SAVING: Duration = Duration::from_millis(500);

/// Ids with their values before their rows are counted.
#[derive(Debug)]
pub struct InitialValues {
    values: Vec<(String, i64)>,
    /// The last cuts at the begin of the round, if rows are also deleted.
    cuts: Option<Cuts>,
}

/// Ids whose rows are counted, before the wait.
#[derive(Debug)]
pub struct Page {
    /// The ids whose values differ from their rows, with the value and the number of rows.
    pub(super) differing: Vec<(String, i64, i64)>,
    /// The number of ids whose values equal their rows. No later value can prove a difference for
    /// them.
    pub(super) same: u64,
    cuts: Option<Cuts>,
    pub(super) counted: Instant,
    /// The position of the run once this page is done.
    pub(super) until: Option<Cursor>,
    pub(super) tries: u32,
}

/// The differences between the values of a page and its rows.
#[derive(Debug, Default)]
pub struct Difference {
    checked: u64,
    pub(super) drifted: Vec<Deviation>,
    pub(super) busy: Vec<String>,
}

impl Recounting {
    /// Returns the ids after `at`, and the position after them; `None` at the end of all ids.
    pub(super) async fn next(&self, at: &Cursor) -> Result<(Vec<String>, Option<Cursor>)> {
        let (plan, family) = (&self.plan, &self.handle.registered().await?);
        let after = at.after.as_deref();
        let in_source = at.from_source || plan.ids == RecountIds::Source;
        let IdPage { mut ids, is_full } = if in_source {
            let replica = plan.replica.as_ref();
            self.source
                .ids_after(&self.mysql, replica, family, after, PAGE)
                .await?
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
            // the ids that have counters were checked as counters before
            let counters = self
                .mysql
                .read(family, &borrowed_ids(&ids), &[], ReadFrom::Primary)
                .await?;
            let mut values = counters.values.into_iter();
            ids.retain(|_| values.next() == Some(None));
        }
        Ok((ids, next))
    }

    pub(super) async fn measure(&self, ids: Vec<String>, cuts: Option<Cuts>) -> Result<Page> {
        self.repeated(|| async {
            let before = self.before(ids.clone(), cuts.clone()).await?;
            self.count(before).await
        })
        .await
    }

    /// Takes the first step: reads the values, and leaves out counters that are too large.
    pub async fn before(&self, ids: Vec<String>, cuts: Option<Cuts>) -> Result<InitialValues> {
        let found = self.values(&borrowed_ids(&ids)).await?;
        let values = ids
            .into_iter()
            .zip(found)
            .filter_map(|(id, value)| Some((id, value?)))
            .filter(|(_, value)| *value <= self.plan.largest)
            .collect();
        Ok(InitialValues { values, cuts })
    }

    /// Reads the counters exactly. One that is outside i64 has no value, and does not block others.
    async fn values(&self, ids: &[&str]) -> Result<Vec<Option<i64>>> {
        let mut found = Vec::with_capacity(ids.len());
        let is_beyond = |error: &Error| error.kind() == ErrorKind::Range;
        let read = |some| self.handle.exact_from(some, ReadFrom::Primary);
        for (_, result) in bisected(ids, is_beyond, read).await? {
            match result {
                Ok(values) => found.extend(values.into_iter().map(Some)),
                Err(error) => {
                    tracing::warn!(family = %self.family(), error = %format_args!("{error:#}"), "a counter is out of range and left out of a recount");
                    found.push(None);
                }
            }
        }
        Ok(found)
    }

    /// Takes the second step: counts the rows.
    pub async fn count(&self, before: InitialValues) -> Result<Page> {
        let InitialValues { values, cuts } = before;
        let ids: Vec<_> = values.iter().map(|(id, _)| id.as_str()).collect();
        let counts = self.rows(&ids).await?;
        let counted = Instant::now();
        let all = values.len();
        let differing: Vec<_> = values
            .into_iter()
            .zip(counts)
            .map(|((id, value), rows)| (id, value, rows))
            .filter(|(_, value, rows)| value != rows)
            .collect();
        Ok(Page {
            same: (all - differing.len()) as u64,
            differing,
            cuts,
            counted,
            until: None,
            tries: 1,
        })
    }

    /// Takes the third step, after the wait: finds the differences.
    pub async fn after(&self, page: &Page) -> Result<Difference> {
        let ids: Vec<_> = page.differing.iter().map(|(id, ..)| id.as_str()).collect();
        let values = self.values(&ids).await?;
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
            ..Difference::default()
        };
        for (index, (id, before, rows)) in page.differing.iter().enumerate() {
            let Some(after) = values[index] else {
                difference.busy.push(id.clone());
                continue;
            };
            let (before, rows) = (*before, *rows);
            let latest = caught_up.get(id.as_str()).copied().unwrap_or(rows);
            let proof = match &moved {
                Some(moved) => verdict::unmoved(before, rows, after, moved[index]),
                None if ablation::is_out(Guard::RecountBounds) => {
                    Proof::Off(i128::from(rows) - i128::from(before))
                }
                None => verdict::bounded(before, rows, latest, after),
            };
            match proof {
                Proof::Busy => {
                    difference.busy.push(id.clone());
                    continue;
                }
                Proof::Same | Proof::Off(0) => {}
                Proof::Off(off) => difference.drifted.push(Deviation {
                    id: id.clone(),
                    before,
                    rows: if off < 0 { latest } else { rows },
                    after,
                    delta: i64::try_from(off).unwrap_or(0),
                    only_noted: self.why_only_noted(off),
                }),
            }
            difference.checked += 1;
        }
        Ok(difference)
    }

    /// Counts again the rows of counters above their rows. The replica may have lacked rows that
    /// the first value contains; by the end of the wait it has them.
    async fn caught_up<'p>(&self, page: &'p Page) -> Result<HashMap<&'p str, i64>> {
        let above: Vec<_> = page
            .differing
            .iter()
            .filter(|(_, value, rows)| value > rows)
            .map(|(id, ..)| id.as_str())
            .collect();
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

    /// Adds the outcome of a page to the progress and the metrics.
    pub(super) fn note(&self, run: &mut Run, found: &Difference) {
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
        let raised = found.drifted.iter().filter(|one| one.delta > 0).count() as u64;
        let lowered = found.drifted.iter().filter(|one| one.delta < 0).count() as u64;
        for (direction, count) in [("up", raised), ("down", lowered)] {
            ::metrics::counter!(metrics::RECOUNT_CORRECTED, "family" => label.clone(), "direction" => direction)
                .increment(count);
        }
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
    pub(super) async fn correct(
        &self,
        run: &Run,
        difference: &Difference,
    ) -> Result<Option<Vec<Deviation>>> {
        if difference.drifted.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let family = &self.handle.registered().await?;
        let drifted = difference.drifted.clone();
        let noted = self.mysql.correct(family, run, drifted).await?;
        if let Some(deviations) = &noted
            && self.family().is_cached()
        {
            self.forget(deviations.iter().map(|one| (&*one.id, one.delta)))
                .await?;
        }
        Ok(noted)
    }

    /// Does [`forget`](Self::forget) for all that the run has corrected: its former holder may have
    /// died before it did so.
    pub(super) async fn forget_corrected(&self, run: &Run) -> Result<()> {
        let mut after: Option<String> = None;
        while self.family().is_cached() {
            let page = self
                .mysql
                .drift(self.family(), run.number, after.as_deref(), PAGE as u64)
                .await?;
            let Some(last) = page.last() else { break };
            self.forget(page.iter().map(|one| (&*one.id, one.delta)))
                .await?;
            after = Some(last.id.clone());
        }
        Ok(())
    }

    /// Deletes the cached counters with a delta from Redis, so that their next use reads the
    /// corrected rows. Waits for counters that are being saved. One that stays shows the correction
    /// with its next save.
    async fn forget(&self, noted: impl Iterator<Item = (&str, i64)>) -> Result<()> {
        let ids: Vec<_> = noted
            .filter(|(_, delta)| *delta != 0)
            .map(|(id, _)| id)
            .collect();
        let mut pauses = FORGET;
        for (number, indexes) in self.handle.by_partition_of_row(&ids) {
            let partition = self.handle.partition(number);
            let home = self.handle.shared.home(self.family(), number);
            let mut left: Vec<_> = indexes.into_iter().map(|index| ids[index]).collect();
            loop {
                let mut deleted = partition.delete(&home, &left).await?.into_iter();
                left.retain(|_| deleted.next() == Some(DeleteOutcome::InFlight));
                if left.is_empty() || pauses == 0 {
                    break;
                }
                pauses -= 1;
                sleep(SAVING).await;
            }
        }
        Ok(())
    }

    async fn rows(&self, ids: &[&str]) -> Result<Vec<i64>> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        if let Some(replica) = &self.plan.replica
            && let Some(lag) = replica.lag().await?
            && lag >= self.within
        {
            let within = self.within;
            return Err(Error::store(format!(
                "the replica lags by {lag:?}, within() allows less than {within:?}"
            )));
        }
        let family = &self.handle.registered().await?;
        let (replica, limit) = (self.plan.replica.as_ref(), self.plan.timeout);
        self.source
            .count(&self.mysql, replica, family, ids, limit, self.plan.rows)
            .await
    }

    /// Corrects the difference. Returns `false` if the run no longer belongs to this holder.
    #[cfg(feature = "test-hooks")]
    pub async fn settle(&self, run: &Run, difference: &Difference) -> Result<bool> {
        Ok(self.correct(run, difference).await?.is_some())
    }
}
