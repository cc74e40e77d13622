//! The latency of a server: the times of its last replies.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

/// The number of replies that count: those of five minutes, of a server that is asked every two
/// seconds.
const REPLIES: usize = 150;
/// The number of replies from which a server may count as slow.
const MIN_REPLIES: usize = 3;
/// The median from which a server counts as slow. A server nearby takes a few milliseconds.
const SLOW: Duration = Duration::from_millis(250);

/// The times of the last replies of a server.
#[derive(Default)]
pub struct Replies(VecDeque<Duration>);

/// The quantiles of the last replies.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Latency {
    pub p50_seconds: f64,
    pub p99_seconds: f64,
    /// True if most replies take long.
    #[serde(rename = "slow")]
    pub is_slow: bool,
}

impl Replies {
    /// Adds a reply, and returns the quantiles.
    pub fn add(&mut self, reply: Duration) -> Latency {
        if self.0.len() == REPLIES {
            self.0.pop_front();
        }
        self.0.push_back(reply);
        let mut sorted: Vec<_> = self.0.iter().copied().collect();
        sorted.sort();
        // the shortest time within which this percentage of the replies arrived
        let quantile = |percent: usize| sorted[(sorted.len() * percent).div_ceil(100) - 1];
        let (median, p99) = (quantile(50), quantile(99));
        Latency {
            p50_seconds: median.as_secs_f64(),
            p99_seconds: p99.as_secs_f64(),
            is_slow: self.are_enough() && median >= SLOW,
        }
    }

    /// Returns whether there are enough replies to judge the server.
    pub fn are_enough(&self) -> bool {
        self.0.len() >= MIN_REPLIES
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [median, p99] = [self.p50_seconds, self.p99_seconds].map(|seconds| seconds * 1000.0);
        write!(f, "{median:.1} ms (p50), {p99:.1} ms (p99)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_last_replies() {
        let mut replies = Replies::default();
        let mut add = |ms| replies.add(Duration::from_millis(ms));
        assert!(!add(300).is_slow && !add(300).is_slow && add(300).is_slow);
        for _ in 0..REPLIES {
            add(1);
        }
        let one = add(2000);
        assert_eq!((one.p50_seconds, one.p99_seconds), (0.001, 0.001));
        let two = add(2000);
        assert_eq!(
            (two.p50_seconds, two.p99_seconds, two.is_slow),
            (0.001, 2.0, false)
        );
    }
}
