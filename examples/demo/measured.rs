//! The metrics that the library recorded in this process.

use counterfoil::metrics::{LAG_SECONDS, RETRIES};
use metrics::Key;
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};

use crate::Result;
use crate::families::{REQUESTS, VISITORS};

/// The collector of this process's metrics.
pub struct Recorder(Snapshotter);

/// The measurements since the previous call of `Recorder::take`.
#[derive(Debug, Default)]
pub struct Measured {
    /// The age of each batch's oldest hit when the batch reached MySQL, in seconds.
    pub lags: Vec<f64>,
    /// Calls that were retried after a failure.
    pub retries: u64,
}

impl Recorder {
    /// Installs the recorder. Call it once per process.
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

/// Returns whether the metric's family counts at the log's own time, which makes its ages
/// meaningless.
fn is_simulated(key: &Key) -> bool {
    key.labels()
        .any(|label| label.key() == "family" && [REQUESTS, VISITORS].contains(&label.value()))
}
