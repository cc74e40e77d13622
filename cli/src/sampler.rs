//! Repeated samples of families, which turn their counts into rates.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use crate::daemon::metrics::count_hits;
use crate::status::{FamilyStatus, unix_now};
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
    counted: u64,
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
            let (view, past) = sampled(&self.pair, status, past);
            self.families.insert(name, past);
            view
        };
        families.into_iter().map(sample).collect()
    }
}

/// Returns the state of a family with its rate and samples, and the same for the next sample.
fn sampled(pair: &str, status: FamilyStatus, past: Option<Past>) -> (FamilyView, Past) {
    let now = Instant::now();
    let mut rate = None;
    if let Some(counted) = status.counted {
        let before = past.as_ref().map_or(0, |past| past.counted);
        // a lower count means that Redis started again at 0
        let new = counted.checked_sub(before).unwrap_or(counted);
        count_hits(pair, &status.family, new);
        rate = past
            .as_ref()
            .map(|past| now.duration_since(past.at).as_secs_f64())
            .filter(|seconds| *seconds > 0.0)
            .map(|seconds| new as f64 / seconds);
    }
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
        counted: status.counted.unwrap_or(0),
        samples: samples.clone(),
    };
    let view = FamilyView {
        status,
        rate,
        history: samples.into(),
    };
    (view, past)
}
