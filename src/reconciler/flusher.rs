//! The context of a reconciler's steps: its connection, its settings, and the log of their failures.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::connection::Connection;
use crate::connection::failures::Failures;
use crate::error::{Error, Result};
use crate::family::Family;
use crate::process::shared::Shared;
use crate::process::work::PartitionId;
use crate::reconciler::step::{Step, caught};
use crate::scripts::bundle;
use crate::scripts::keys::Key;
use crate::scripts::partition::Partition;

/// The context of a reconciler's steps. A drain and the upkeep of other processes use it without a
/// reconciler.
#[derive(Debug)]
pub struct Flusher {
    pub shared: Arc<Shared>,
    pub redis: Connection,
    /// The time of its leases beyond the settle time; `None` if it takes no leases.
    pub lease: Option<Duration>,
    /// The name of this lease holder.
    pub owner: String,
    /// The limit of the rows that one transaction changes; `None` leaves it to the store.
    pub max_rows: Option<u64>,
    /// Set when the reconciler stops: then it no longer waits for the database.
    pub stop: watch::Receiver<bool>,
    /// The deletion passes of the partitions of cached families.
    pub passes: Mutex<HashMap<PartitionId, Pass>>,
    pub failures: Arc<Mutex<Failures<Step>>>,
}

/// The deletion of due counters in a partition: the time of its next step, and the cursor.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    pub at: Instant,
    pub cursor: u64,
}

impl Flusher {
    /// Creates a flusher without leases, on the pair's own connection.
    pub fn new(shared: Arc<Shared>) -> Self {
        let redis = shared.redis.clone();
        Flusher {
            shared,
            redis,
            lease: None,
            owner: String::new(),
            max_rows: None,
            stop: watch::channel(false).1,
            passes: Mutex::default(),
            failures: Arc::default(),
        }
    }

    /// Notes a failure for the log.
    pub fn failed(&self, step: Step, error: &Error) {
        let name = match step.family().and_then(|number| self.shared.family(number)) {
            Some(opened) => format!("{} of {}", step.name(), opened.family),
            None => step.name().to_owned(),
        };
        self.failures.lock().failed(step, name, error);
    }

    /// Notes a success for the log.
    pub fn succeeded(&self, step: Step) {
        self.failures.lock().succeeded(&step);
    }

    /// Takes a step, and notes for the log that it failed or succeeded. A panic is an error.
    pub async fn noted<T>(&self, step: Step, taken: impl Future<Output = Result<T>>) -> Result<T> {
        let result = caught(taken).await;
        match &result {
            Ok(_) => self.succeeded(step),
            Err(error) => self.failed(step, error),
        }
        result
    }

    pub fn partition(&self, family: &Family, number: u32) -> Partition {
        Partition::new(self.redis.clone(), family, number)
    }

    /// Returns true if any of the keys exists, or may exist. One server is asked. A cluster refuses
    /// a call with keys of several slots, so this returns true for it, and the caller asks for each
    /// partition.
    pub async fn has_any(&self, keys: impl Iterator<Item = Key>) -> Result<bool> {
        if self.shared.topology.is_cluster() {
            return Ok(true);
        }
        bundle::any_exists(&self.redis, &keys.collect::<Vec<_>>()).await
    }
}
