//! What the handles of one pair share: the connections, the families in use, and what there is to do for a reconciler.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use futures_util::future::join;
use metrics::SharedString;
use redis::aio::ConnectionLike;
use tokio::sync::Notify;

use crate::access;
use crate::check;
use crate::error::Result;
use crate::family::Family;
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
    allow_evicting: AtomicBool,
    /// The kinds that Redis was found to be safe for.
    safe_for: Mutex<HashSet<&'static str>>,
    pub work: Arc<Work>,
}

type InUse<C> = (Arc<Opened>, Arc<Writer<C>>);

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
            allow_evicting: AtomicBool::new(false),
            safe_for: Mutex::default(),
            work: Arc::default(),
        }
    }

    /// The family, in use from now on, with its writer; the same ones as before if it is configured as before.
    pub fn open(&self, registered: Registered) -> Result<InUse<C>> {
        let mut families = self.families.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(same) = families.get(&registered.number).filter(|(opened, _)| *opened.registered == registered) {
            return Ok(same.clone());
        }
        let number = registered.number;
        let opened = Arc::new(Opened::new(registered));
        let writer = Writer::new(self.redis.clone(), opened.clone(), self.topology.clone(), self.work.clone())?;
        let both = (opened, Arc::new(writer));
        families.insert(number, both.clone());
        self.work.announce(Announced::Family(number));
        Ok(both)
    }

    pub fn opened(&self) -> Vec<Arc<Opened>> {
        self.families
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .map(|(opened, _)| opened.clone())
            .collect()
    }

    /// The configurations of the families in use.
    pub fn families(&self) -> Vec<Family> {
        self.opened().iter().map(|opened| opened.registered.family.clone()).collect()
    }

    /// Whether a Redis will do that throws counts away when its memory is full.
    pub fn allows_evicting(&self) -> bool {
        self.allow_evicting.load(Ordering::Relaxed)
    }

    pub fn allow_evicting(&self, allow: bool) {
        self.allow_evicting.store(allow, Ordering::Relaxed);
    }

    /// Refuses a family for which Redis is not safe, or its user lacks something; looked at once for each kind.
    pub async fn refuse_unsafe(&self, family: &Family) -> Result<()> {
        let safe_for = || self.safe_for.lock().unwrap_or_else(PoisonError::into_inner);
        if safe_for().contains(family.kind_name()) {
            return Ok(());
        }
        let eviction = check::eviction(&self.redis, std::slice::from_ref(family));
        let (access, eviction) = join(access::refuse_lacking(&self.redis, family), eviction).await;
        access?;
        if !self.allows_evicting() {
            eviction?;
        }
        safe_for().insert(family.kind_name());
        Ok(())
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
