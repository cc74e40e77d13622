//! The metrics that a test records.

use crate::support::*;

/// Metrics since the last look. One thread runs the test and all its tasks.
pub struct Metrics {
    _recorder: metrics::LocalRecorderGuard<'static>,
    pub snapshotter: Snapshotter,
}

impl Metrics {
    pub fn record() -> Self {
        let recorder = Box::leak(Box::new(DebuggingRecorder::new()));
        Metrics {
            snapshotter: recorder.snapshotter(),
            _recorder: metrics::set_default_local_recorder(recorder),
        }
    }

    /// Returns the metrics, summed by name: counts, last values of gauges, and the number of a
    /// histogram's values.
    pub fn look(&self) -> HashMap<String, f64> {
        let all = self.snapshotter.snapshot().into_vec().into_iter();
        let number = |value| match value {
            DebugValue::Counter(count) => count as f64,
            DebugValue::Gauge(value) => value.0,
            DebugValue::Histogram(values) => values.len() as f64,
        };
        let mut sums = HashMap::new();
        all.for_each(|(key, _, _, value)| {
            *sums.entry(key.key().name().to_owned()).or_default() += number(value)
        });
        sums
    }

    /// Checks the metrics.
    #[track_caller]
    pub fn expect<const N: usize>(&self, expected: [(&str, f64); N]) {
        let seen = self.look();
        for (name, value) in expected {
            assert_eq!(seen.get(name), Some(&value), "{name} in {seen:?}");
        }
    }

    /// Waits until a value is above this one.
    pub async fn is_above(&self, least: f64, name: &str) {
        eventually(name, || async {
            self.look().get(name).is_some_and(|value| *value > least)
        })
        .await;
    }
}
