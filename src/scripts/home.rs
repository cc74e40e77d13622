//! The home of calls, which issues the epochs that they name (docs/protocol.md, section 3.2).

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::connection::outage::Outage;
use crate::connection::topology::Topology;
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::family::calendar::Precision;
use crate::scripts::keys::Keys;
use crate::scripts::partition::Partition;
use crate::scripts::partition::epoch::Epoch;
use crate::scripts::partition::settings::Destination;

/// The time for which new calls name an epoch. Redis remembers it for at least 30 s more, for
/// repeats.
const FRESH: Duration = Duration::from_secs(30);

/// A home, and the epoch that it last returned. A home is a partition whose keys hold the family's
/// settings and epochs, and remember the callers: partition 0 for all partitions of one server, and
/// in a cluster each partition for itself.
#[derive(Debug)]
pub struct Home {
    partition: Partition,
    number: u32,
    topology: Arc<Topology>,
    known: Mutex<Option<(Epoch, Instant)>>,
    /// The labels that it last returned.
    labels: Mutex<Arc<[Precision]>>,
    /// The outage of its node. It is used in a cluster only.
    outage: Arc<Outage>,
}

impl Home {
    pub fn new(partition: Partition, number: u32, topology: Arc<Topology>) -> Self {
        Home {
            partition,
            number,
            topology,
            known: Mutex::default(),
            labels: Mutex::new([].into()),
            outage: Arc::default(),
        }
    }

    pub fn keys(&self) -> &Keys {
        &self.partition.keys
    }

    /// Returns the epoch for a new call, read from Redis if the known one is older than [`FRESH`].
    /// Configures the family again if Redis lost its data.
    pub async fn epoch(&self, family: &Family, to: &Destination<'_>) -> Result<Epoch> {
        let asked = Instant::now();
        if let Some((epoch, at)) = &*self.known.lock()
            && asked - *at < FRESH
        {
            return Ok(epoch.clone());
        }
        let database = to.database;
        let epoch = match self.partition.epoch(family, database).await? {
            Some(epoch) => epoch,
            None => {
                tracing::warn!(%family, home = self.number, "Redis does not know the family: configuring it");
                let partitions = self
                    .topology
                    .partitions_of(self.number, family.partitions());
                self.partition.configure(family, to, partitions).await?;
                let emptied = || {
                    Error::new(
                        ErrorKind::Redis,
                        format!("{family}: Redis has just lost its memory"),
                    )
                };
                self.partition
                    .epoch(family, database)
                    .await?
                    .ok_or_else(emptied)?
            }
        };
        *self.labels.lock() = epoch.labels.clone();
        *self.known.lock() = Some((epoch.clone(), asked));
        Ok(epoch)
    }

    pub fn outage(&self) -> &Arc<Outage> {
        self.topology.outage().unwrap_or(&self.outage)
    }

    /// Returns the labels of the windows in Redis, which the keys of a series' call name. They are
    /// known once an epoch is.
    pub fn labels(&self) -> Arc<[Precision]> {
        self.labels.lock().clone()
    }

    /// Forgets the known epoch if it is this one, because Redis no longer knows it.
    pub fn forget(&self, epoch: &str) {
        self.known.lock().take_if(|(known, _)| *known.now == *epoch);
    }

    /// Forgets the known epoch: the next call asks Redis.
    pub fn forget_known(&self) {
        self.known.lock().take();
    }
}
