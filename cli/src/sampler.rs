//! Repeated samples of families, which turn their counts into rates.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use crate::status::{FamilyStatus, now};
use crate::view::{FamilyView, Sample};

/// The maximum number of samples of a family.
const SAMPLES: usize = 90;

/// The earlier samples of all families.
#[derive(Debug, Default)]
pub struct Sampler {
    families: HashMap<String, Past>,
}

#[derive(Debug)]
struct Past {
    at: Instant,
    counted: Option<u64>,
    /// Empty while the family is idle.
    samples: VecDeque<Sample>,
}

impl Sampler {
    /// Adds a sample of each family, and returns rates and samples. Families that no longer exist
    /// are forgotten.
    pub fn sample(&mut self, families: Vec<FamilyStatus>) -> Vec<FamilyView> {
        let (at, seconds) = (Instant::now(), now());
        let mut before = std::mem::take(&mut self.families);
        let mut views = Vec::with_capacity(families.len());
        for status in families {
            let name = status.name();
            let (rate, mut samples) = match before.remove(&name) {
                Some(past) => (rate(&past, &status, at), past.samples),
                None => (None, VecDeque::new()),
            };
            let is_idle = status.pending == 0 && rate.unwrap_or(0.0) == 0.0;
            if !(is_idle && samples.is_empty()) {
                let oldest_seconds = status.oldest_seconds.unwrap_or(0.0);
                samples.push_back(Sample {
                    at: seconds,
                    rate,
                    pending: status.pending,
                    oldest_seconds,
                });
            }
            if samples.len() > SAMPLES {
                samples.pop_front();
            }
            if is_idle
                && samples
                    .iter()
                    .all(|sample| sample.pending == 0 && sample.rate.unwrap_or(0.0) == 0.0)
            {
                samples.clear();
            }
            let history = samples.iter().copied().collect();
            self.families.insert(
                name,
                Past {
                    at,
                    counted: status.counted,
                    samples,
                },
            );
            views.push(FamilyView {
                status,
                rate,
                history,
            });
        }
        views
    }
}

/// Returns the hits a second since `past`, or 0 if Redis has forgotten its count.
fn rate(past: &Past, status: &FamilyStatus, at: Instant) -> Option<f64> {
    let counted = status.counted?.saturating_sub(past.counted?);
    let seconds = at.duration_since(past.at).as_secs_f64();
    (seconds > 0.0).then(|| counted as f64 / seconds)
}
