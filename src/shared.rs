//! What the handles of one pair share: the connections, the families in use, and what there is to do for a reconciler.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use metrics::SharedString;
use redis::aio::ConnectionLike;
use tokio::sync::Notify;

use crate::error::{Error, ErrorKind, Result};
use crate::family::{Family, Kind};
use crate::partition::Partition;
use crate::read::Incarnations;
use crate::server_clock::ServerClock;
use crate::store::Registered;
use crate::topology::Topology;
use crate::writer::Writer;

/// What the handles of one pair share.
#[derive(Debug)]
pub struct Shared<C, S> {
    pub redis: C,
    pub topology: Arc<Topology>,
    pub store: S,
    families: RwLock<BTreeMap<u64, InUse<C>>>,
    pub work: Arc<Work>,
    /// No hit is taken any more.
    closed: Arc<AtomicBool>,
}

/// Why a hit is not taken.
pub const SHUT_DOWN: &str = "the pair was shut down";

pub type InUse<C> = (Arc<Opened>, Arc<Writer<C>>);

/// A family in use by this process.
#[derive(Debug)]
pub struct Opened {
    pub registered: Arc<Registered>,
    /// The family's name as metrics take it, cheap to clone.
    pub label: SharedString,
    pub clock: ServerClock,
    /// What exact reads guess.
    pub incarnations: Incarnations,
}

impl<C, S> Shared<C, S>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    pub fn new(redis: C, store: S) -> Self {
        Shared {
            redis,
            topology: Arc::new(Topology::of::<C>()),
            store,
            families: RwLock::default(),
            work: Arc::default(),
            closed: Arc::default(),
        }
    }

    /// The family, in use from now on, with its writer; the same ones as before if it is configured as before.
    pub fn open(&self, registered: Registered) -> Result<InUse<C>> {
        let mut families = self.families.write().unwrap_or_else(PoisonError::into_inner);
        if self.closed.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Closed, format!("{}: not opened: {SHUT_DOWN}", registered.family)));
        }
        if let Some(same) = families.get(&registered.number).filter(|(opened, _)| *opened.registered == registered) {
            return Ok(same.clone());
        }
        let number = registered.number;
        let opened = Arc::new(Opened::new(registered));
        let is_cached = matches!(opened.registered.family.kind, Kind::Cached(_));
        crate::metrics::begin_family(&opened.label, is_cached);
        let (topology, work, closed) = (self.topology.clone(), self.work.clone(), self.closed.clone());
        let writer = Writer::new(self.redis.clone(), opened.clone(), topology, work, closed)?;
        let both = (opened, Arc::new(writer));
        families.insert(number, both.clone());
        self.work.announce(Announced::Family(number));
        Ok(both)
    }

    /// Takes no more hits and opens no more families. Returns those in use.
    pub fn close(&self) -> Vec<InUse<C>> {
        let families = self.families.write().unwrap_or_else(PoisonError::into_inner);
        self.closed.store(true, Ordering::Relaxed);
        families.values().cloned().collect()
    }

    pub fn opened(&self) -> Vec<Arc<Opened>> {
        self.families
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .map(|(opened, _)| opened.clone())
            .collect()
    }

    pub fn family(&self, number: u64) -> Option<Arc<Opened>> {
        self.families.read().unwrap_or_else(PoisonError::into_inner).get(&number).map(|(opened, _)| opened.clone())
    }

    pub fn partition(&self, family: &Family, partition: u32) -> Partition<C> {
        Partition::new(self.redis.clone(), family, partition)
    }
}

impl Opened {
    fn new(registered: Registered) -> Self {
        let label = Arc::<str>::from(registered.family.name()).into();
        Opened {
            label,
            registered: Arc::new(registered),
            clock: ServerClock::default(),
            incarnations: Incarnations::default(),
        }
    }
}

/// What the writers tell a reconciler of the same process.
#[derive(Debug, Default)]
pub struct Work {
    announced: Mutex<HashSet<Announced>>,
    notify: Notify,
}

/// Something for the reconciler to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Announced {
    /// A family was opened.
    Family(u64),
    /// A sync is due in this partition of a family.
    Due(u64, u32),
}

impl Work {
    pub fn announce(&self, announced: Announced) {
        if self.announced.lock().unwrap_or_else(PoisonError::into_inner).insert(announced) {
            self.notify.notify_one();
        }
    }

    /// Waits until something was announced, and takes all of it.
    pub async fn take(&self) -> HashSet<Announced> {
        loop {
            let taken = std::mem::take(&mut *self.announced.lock().unwrap_or_else(PoisonError::into_inner));
            if !taken.is_empty() {
                return taken;
            }
            self.notify.notified().await;
        }
    }
}
