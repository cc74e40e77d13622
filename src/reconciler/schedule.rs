//! The times at which partitions and families are checked.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use tokio::time::Instant;

use crate::process::work::WorkItem;

/// The time of the next check of each partition and family.
#[derive(Debug, Default)]
pub struct Schedule {
    by_time: BTreeSet<(Instant, WorkItem)>,
    times: HashMap<WorkItem, Instant>,
    /// The earliest time of the next check, after a pause.
    not_before: HashMap<WorkItem, Instant>,
}

impl Schedule {
    /// Schedules a check, unless an earlier one is scheduled.
    pub fn check(&mut self, what: WorkItem, after: Duration) {
        let mut time = Instant::now() + after;
        if let Some(not_before) = self.not_before.get(&what) {
            time = time.max(*not_before);
        }
        if let Some(&scheduled) = self.times.get(&what) {
            if scheduled <= time {
                return;
            }
            self.by_time.remove(&(scheduled, what));
        }
        self.times.insert(what, time);
        self.by_time.insert((time, what));
    }

    /// Schedules a check after this time, and none before.
    pub fn check_not_before(&mut self, what: WorkItem, after: Duration) {
        self.not_before.insert(what, Instant::now() + after);
        self.check(what, after);
    }

    /// Returns the time of the earliest check.
    pub fn next(&self) -> Option<Instant> {
        self.by_time.first().map(|(time, _)| *time)
    }

    /// Takes the earliest check off the schedule if it is due at this time.
    pub fn pop_due(&mut self, now: Instant) -> Option<WorkItem> {
        if self.next()? > now {
            return None;
        }
        let (_, what) = self.by_time.pop_first()?;
        self.times.remove(&what);
        self.not_before.remove(&what);
        Some(what)
    }
}
