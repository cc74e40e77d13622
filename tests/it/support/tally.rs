//! What was counted of a series, by the clock of this machine, which is the server's as well: what each slice of a second
//! must have, and what it may have.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

/// Unix milliseconds.
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    i64::try_from(since.as_millis()).expect("not so long after 1970")
}

/// The slice of that time, by its start in Unix seconds.
fn slice_of(ms: i64) -> i64 {
    ms.div_euclid(1000)
}

/// The tally of one series; cloning it makes another handle to it.
#[derive(Clone, Debug, Default)]
pub struct Tally(Arc<Mutex<Bounds>>);

/// What a tally says at one moment.
#[derive(Clone, Debug, Default)]
pub struct Bounds {
    /// Acknowledged, and surely in this slice.
    sure: BTreeMap<i64, i64>,
    /// Acknowledged, and perhaps in this slice.
    possible: BTreeMap<i64, i64>,
    /// Not yet returned, and in this slice or a later one.
    begun: BTreeMap<i64, i64>,
    pub acknowledged: i64,
}

impl Bounds {
    /// What the slice must have by now.
    pub fn least(&self, slice: i64) -> i64 {
        self.sure.get(&slice).copied().unwrap_or(0)
    }

    /// What it may have by now.
    pub fn most(&self, slice: i64) -> i64 {
        self.possible.get(&slice).copied().unwrap_or(0) + self.begun.range(..=slice).map(|(_, n)| n).sum::<i64>()
    }

    /// What it must and may have once every call returned.
    pub fn of(&self, slice: i64) -> RangeInclusive<i64> {
        self.least(slice)..=self.most(slice)
    }
}

impl Tally {
    /// A call is about to be made; returns when.
    pub fn begin(&self) -> i64 {
        let now = now_ms();
        *self.bounds().begun.entry(slice_of(now)).or_default() += 1;
        now
    }

    /// The call that began then returned: it counted, or surely not.
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
        self.0.lock().expect("nobody panicked")
    }
}
