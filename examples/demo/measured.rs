//! What the library measured in this process.

use counterfoil::metrics::{LAG_SECONDS, RETRIES};
use metrics::Key;
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};

use crate::Result;
use crate::families::{REQUESTS, VISITORS};

/// Collects the metrics of this process.
pub struct Recorder(Snapshotter);

/// What was measured since it was asked before.
#[derive(Debug, Default)]
pub struct Measured {
    /// For each batch that reached MySQL the age of its oldest hit then, in seconds.
    pub lags: Vec<f64>,
    /// Calls that were made again after a failure.
    pub retries: u64,
}

impl Recorder {
    /// To be called once a process.
    pub fn install() -> Result<Self> {
        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        recorder.install()?;
        Ok(Recorder(snapshotter))
    }

    pub fn take(&self) -> Measured {
        let mut measured = Measured::default();
        for (key, _, _, value) in self.0.snapshot().into_vec() {
            match (key.key().name(), value) {
                (LAG_SECONDS, DebugValue::Histogram(ages)) if !is_simulated(key.key()) => {
                    measured.lags.extend(ages.into_iter().map(f64::from))
                }
                (RETRIES, DebugValue::Counter(retries)) => measured.retries += retries,
                _ => {}
            }
        }
        measured
    }
}

/// Whether it is of a family that counts at the log's own time, from which no age follows.
fn is_simulated(key: &Key) -> bool {
    key.labels().any(|label| label.key() == "family" && [REQUESTS, VISITORS].contains(&label.value()))
}
