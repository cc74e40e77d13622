//! Repeated samples of families, which turn their counts into rates.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use crate::daemon::metrics::{count_hits, count_refused};
use crate::status::{FamilyStatus, State, unix_now};
use crate::view::{FamilyView, Sample};

/// The maximum number of samples of a family.
const SAMPLES: usize = 90;

/// The earlier samples of all families.
#[derive(Debug)]
pub struct Sampler {
    pair: String,
    families: HashMap<String, Past>,
}

#[derive(Debug)]
struct Past {
    at: Instant,
    status: FamilyStatus,
    /// The time since which its state is the present one, in Unix seconds.
    state_since: u64,
    /// Empty while the family is idle.
    samples: VecDeque<Sample>,
}

impl Sampler {
    pub fn new(pair: &str) -> Self {
        Sampler {
            pair: pair.to_owned(),
            families: HashMap::new(),
        }
    }

    /// Adds a sample of each family, and returns rates and samples. Families that no longer exist
    /// are forgotten.
    pub fn sample(&mut self, families: Vec<FamilyStatus>) -> Vec<FamilyView> {
        let mut before = std::mem::take(&mut self.families);
        let sample = |status: FamilyStatus| {
            let name = status.name();
            let past = before.remove(&name);
            let (view, past) = match past {
                Some(past) if status.seen.is_none() => not_read(status, past),
                past => sampled(&self.pair, status, past),
            };
            self.families.insert(name, past);
            view
        };
        families.into_iter().map(sample).collect()
    }
}

impl Past {
    /// Returns the time since which the family is in this state.
    fn since(&self, state: State) -> u64 {
        if self.status.state == state {
            self.state_since
        } else {
            unix_now()
        }
    }
}

/// Returns the last figures of a family that could not be read, with the new problem.
fn not_read(status: FamilyStatus, mut past: Past) -> (FamilyView, Past) {
    past.state_since = past.since(status.state);
    past.status.state = status.state;
    let status = FamilyStatus {
        state: status.state,
        problem: status.problem,
        ..past.status.clone()
    };
    let view = FamilyView {
        status,
        rate: None,
        state_since: past.state_since,
        history: past.samples.iter().copied().collect(),
    };
    (view, past)
}

/// Returns the state of a family with its rate and samples, and the same for the next sample.
fn sampled(pair: &str, status: FamilyStatus, past: Option<Past>) -> (FamilyView, Past) {
    let now = Instant::now();
    let new = |number: fn(&FamilyStatus) -> Option<u64>| {
        let before = past.as_ref().and_then(|past| number(&past.status));
        // a lower count means that Redis lost a part, and has the rest of what was counted before
        let new = |count: u64| count.saturating_sub(before.unwrap_or(0));
        number(&status).map(new)
    };
    let (counted, refused) = (new(|status| status.counted), new(|status| status.refused));
    if let Some(counted) = counted {
        count_hits(pair, &status.family, counted);
    }
    if let Some(refused) = refused {
        count_refused(pair, &status.family, refused);
    }
    let since = past.as_ref().map(|past| now.duration_since(past.at));
    let seconds = since
        .map(|since| since.as_secs_f64())
        .filter(|seconds| *seconds > 0.0);
    let rate = counted
        .zip(seconds)
        .map(|(counted, seconds)| counted as f64 / seconds);
    let state_since = past
        .as_ref()
        .map_or_else(unix_now, |past| past.since(status.state));
    let mut samples = past.map_or_else(VecDeque::new, |past| past.samples);
    samples.push_back(Sample {
        at: unix_now(),
        rate,
        pending: status.pending,
        oldest_seconds: status.oldest_seconds.unwrap_or(0.0),
    });
    if samples.len() > SAMPLES {
        samples.pop_front();
    }
    if samples.iter().all(Sample::is_idle) {
        samples = VecDeque::new();
    }
    let past = Past {
        at: now,
        status: status.clone(),
        state_since,
        samples: samples.clone(),
    };
    let view = FamilyView {
        status,
        rate,
        state_since,
        history: samples.into(),
    };
    (view, past)
}
