//! The clock of Redis, which steps.

use std::ops::RangeInclusive;

use super::journal::{Ms, now};

/// The differences between the clocks of Redis and of this machine, in the order of time.
#[derive(Debug)]
pub struct Clock(Vec<Period>);

/// A time in which the clock may have had this difference. It overlaps the next one by a step.
#[derive(Debug)]
struct Period {
    from: Ms,
    to: Ms,
    ahead: i64,
}

impl Default for Clock {
    fn default() -> Self {
        Clock(vec![Period {
            from: 0,
            to: Ms::MAX,
            ahead: 0,
        }])
    }
}

impl Clock {
    /// Notes that the clock steps by these ms in `step`.
    pub fn step(&mut self, by: i64, step: impl FnOnce()) {
        let from = now();
        step();
        let mut ahead = by;
        if let Some(last) = self.0.last_mut() {
            last.to = now();
            ahead += last.ahead;
        }
        self.0.push(Period {
            from,
            to: Ms::MAX,
            ahead,
        });
    }

    /// Returns whether it may have stepped since then.
    pub fn has_stepped_since(&self, time: Ms) -> bool {
        self.0.last().is_some_and(|last| last.from >= time)
    }

    /// Returns the least and the greatest time that Redis may have had between these times.
    pub fn times(&self, from: Ms, to: Ms) -> RangeInclusive<i64> {
        let first = self.0.partition_point(|period| period.to < from);
        let periods = self.0[first..].iter().take_while(|it| it.from <= to);
        let (mut least, mut greatest) = (i64::MAX, i64::MIN);
        for period in periods {
            least = least.min(from.max(period.from).cast_signed() + period.ahead);
            // a millisecond is not over when it is noted
            greatest = greatest.max(to.min(period.to).cast_signed() + 1 + period.ahead);
        }
        least..=greatest
    }
}
