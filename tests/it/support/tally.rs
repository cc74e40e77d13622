//! The tally of a series by this machine's clock, which is also the server's: the least and the
//! most that each slice of a second may have.

use std::ops::RangeInclusive;

use crate::support::*;

/// Returns the current Unix time in milliseconds.
pub fn now_ms() -> i64 {
    i64::try_from(
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_millis(),
    )
    .unwrap()
}

/// Returns the slice of a time, by its start in Unix seconds.
fn slice_of(ms: i64) -> i64 {
    ms.div_euclid(1000)
}

/// The tally of one series. A clone is another handle to it.
#[derive(Clone, Debug, Default)]
pub struct Tally(Arc<Mutex<Bounds>>);

/// A tally at one moment.
#[derive(Clone, Debug, Default)]
pub struct Bounds {
    /// Hits that are acknowledged and definitely in this slice.
    sure: BTreeMap<i64, i64>,
    /// Hits that are acknowledged and possibly in this slice.
    possible: BTreeMap<i64, i64>,
    /// Calls that have not returned, for this slice or a later one.
    begun: BTreeMap<i64, i64>,
    pub acknowledged: i64,
}

impl Bounds {
    /// Returns the least that the slice must have.
    pub fn least(&self, slice: i64) -> i64 {
        self.sure.get(&slice).copied().unwrap_or(0)
    }

    /// Returns the most that the slice may have.
    pub fn most(&self, slice: i64) -> i64 {
        self.possible.get(&slice).copied().unwrap_or(0)
            + self.begun.range(..=slice).map(|(_, n)| n).sum::<i64>()
    }

    /// Returns what the slice must and may have once every call has returned.
    pub fn of(&self, slice: i64) -> RangeInclusive<i64> {
        self.least(slice)..=self.most(slice)
    }
}

impl Tally {
    /// Notes the start of a call, and returns its time.
    pub fn begin(&self) -> i64 {
        let now = now_ms();
        *self.bounds().begun.entry(slice_of(now)).or_default() += 1;
        now
    }

    /// Notes the end of the call that began then: it counted, or definitely did not.
    pub fn end(&self, began: i64, is_counted: bool) {
        let (first, last) = (slice_of(began), slice_of(now_ms()));
        let mut bounds = self.bounds();
        *bounds.begun.entry(first).or_default() -= 1;
        if !is_counted {
            return;
        }
        bounds.acknowledged += 1;
        for slice in first..=last {
            *bounds.possible.entry(slice).or_default() += 1;
        }
        if first == last {
            *bounds.sure.entry(first).or_default() += 1;
        }
    }

    pub fn look(&self) -> Bounds {
        self.bounds().clone()
    }

    fn bounds(&self) -> MutexGuard<'_, Bounds> {
        self.0.lock().unwrap()
    }
}
