//! What the handles of one pair share: the connections, the families in use, and what there is to do for a reconciler.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use metrics::SharedString;
use redis::aio::ConnectionLike;
use tokio::sync::Notify;

use crate::buffered::Partition;
use crate::family::Family;
use crate::resend::ResendProbe;
use crate::store::Registered;
use crate::writer::Lanes;

/// What the handles of one pair share.
#[derive(Debug)]
pub struct Shared<C, S> {
    pub redis: C,
    /// Whether the connection is safe to count with.
    pub resend: ResendProbe,
    pub store: S,
    families: RwLock<BTreeMap<u64, Arc<Opened>>>,
    pub work: Work,
}

/// A family in use by this process.
#[derive(Debug)]
pub struct Opened {
    pub registered: Arc<Registered>,
    /// The family's name as metrics take it, cheap to clone.
    pub label: SharedString,
    lanes: Vec<Lanes>,
    /// Whose turn the next increment of a wide family is.
    turn: AtomicU32,
}

impl<C: Clone + ConnectionLike + 'static, S> Shared<C, S> {
    pub fn new(redis: C, store: S) -> Self {
        Shared { redis, resend: ResendProbe::default(), store, families: RwLock::default(), work: Work::default() }
    }

    /// The family, in use from now on; the same one as before if it is configured as before.
    pub fn open(&self, registered: Registered) -> Arc<Opened> {
        let mut families = self.families.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(opened) = families.get(&registered.number).filter(|opened| *opened.registered == registered) {
            return opened.clone();
        }
        let number = registered.number;
        let opened = Arc::new(Opened::new(registered));
        families.insert(number, opened.clone());
        self.work.announce(Announced::Family(number));
        opened
    }

    pub fn opened(&self) -> Vec<Arc<Opened>> {
        self.families.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    pub fn family(&self, number: u64) -> Option<Arc<Opened>> {
        self.families.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned()
    }

    pub fn partition(&self, family: &Family, partition: u32) -> Partition<C> {
        Partition::new(self.redis.clone(), family, partition)
    }
}

impl Opened {
    fn new(registered: Registered) -> Self {
        Opened {
            label: Arc::<str>::from(registered.family.name()).into(),
            lanes: (0..registered.family.partitions()).map(|_| Lanes::default()).collect(),
            turn: AtomicU32::new(0),
            registered: Arc::new(registered),
        }
    }

    /// The partition that takes an increment of this id.
    pub fn partition_for(&self, id: &str) -> u32 {
        let family = &self.registered.family;
        match family.is_wide() {
            true => self.turn.fetch_add(1, Ordering::Relaxed) % family.partitions(),
            false => family.partition_of(id),
        }
    }

    pub fn lanes(&self, partition: u32) -> &Lanes {
        &self.lanes[partition as usize]
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
