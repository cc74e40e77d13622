//! A Redis and a database that belong together, and the families kept in them.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use metrics::SharedString;
use redis::aio::{ConnectionLike, ConnectionManager};
use tokio::sync::Notify;

use crate::buffered::Partition;
use crate::check::{self, Finding};
use crate::counters::Counters;
use crate::error::Result;
use crate::family::Family;
use crate::flush::Flusher;
use crate::mysql::MysqlStore;
use crate::reconciler::ReconcilerBuilder;
use crate::store::{Registered, Store};
use crate::writer::Lanes;

/// One Redis and one database that keep an application's counters together.
///
/// `C` is any asynchronous connection of the redis crate: multiplexed, connection manager or cluster. It is cloned for
/// every call. A multiplexed connection does not come back once it is lost; a connection manager does.
///
/// An application with several pairs makes one of these for each; families are opened, also by the thousand, while it
/// runs. Cloning is cheap and gives the same pair.
///
/// The types are those that [`connect`](Counterfoil::connect) makes, where they are not named.
#[derive(Debug)]
pub struct Counterfoil<C = ConnectionManager, S = MysqlStore> {
    shared: Arc<Shared<C, S>>,
}

impl<C, S> Clone for Counterfoil<C, S> {
    fn clone(&self) -> Self {
        Counterfoil { shared: self.shared.clone() }
    }
}

impl<C, S> Counterfoil<C, S>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
    S: Store,
{
    /// Brings a Redis and a database together. Nothing is sent yet.
    pub fn new(redis: C, store: S) -> Self {
        let patience = Duration::from_secs(5);
        Counterfoil {
            shared: Arc::new(Shared { redis, store, patience, families: RwLock::default(), work: Work::default() }),
        }
    }

    /// How long an [`add`](Counters::add) repeats a call that fails before it gives up; 5 s unless said otherwise.
    /// To be said before the first clone and the first family.
    #[must_use]
    pub fn write_timeout(mut self, patience: Duration) -> Self {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.patience = patience;
        }
        self
    }

    /// The database.
    pub fn store(&self) -> &S {
        &self.shared.store
    }

    /// Opens a family: registers it with the database, or compares it with what the database knows of it.
    ///
    /// # Errors
    /// [`Mismatch`](crate::ErrorKind::Mismatch) naming the setting in which the family is known differently, or what
    /// its table lacks; [`Store`](crate::ErrorKind::Store) where the database cannot be asked.
    pub async fn open(&self, family: Family) -> Result<Counters<C, S>> {
        let number = self.shared.store.register(&family).await?;
        let mut families = self.shared.families.write().unwrap_or_else(PoisonError::into_inner);
        let opened = match families.get(&number) {
            Some(opened) if opened.registered.family == family => opened.clone(),
            _ => {
                let lanes = (0..family.partitions()).map(|_| Lanes::default()).collect();
                let label = Arc::<str>::from(family.name()).into();
                let registered = Arc::new(Registered { family, number });
                let opened = Arc::new(Opened { registered, label, lanes, turn: AtomicU32::new(0) });
                families.insert(number, opened.clone());
                self.shared.work.announce(Announced::Family(number));
                opened
            }
        };
        Ok(Counters::new(self.shared.clone(), opened))
    }

    /// Looks at the servers and answers what should be known or changed, the worst first. An empty answer is a good one.
    pub async fn check(&self) -> Vec<Finding> {
        let families: Vec<_> = self.shared.opened().iter().map(|opened| opened.registered.family.clone()).collect();
        let mut findings = check::redis(&self.shared.redis, &families).await;
        findings.extend(self.shared.store.check(&families).await);
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        findings
    }

    /// Configures a reconciler, which brings what the families of this pair have pending to the database.
    pub fn reconciler(&self) -> ReconcilerBuilder<C, S> {
        ReconcilerBuilder::new(self.shared.clone())
    }

    /// Returns when every hit on an open family that was acknowledged before the call is in the database. It needs no
    /// reconciler, and waits as long as Redis or the database is away.
    ///
    /// # Errors
    /// What no waiting mends: [`Corrupt`](crate::ErrorKind::Corrupt) keys in Redis.
    pub async fn drain(&self) -> Result<()> {
        Flusher::new(self.shared.clone()).drain().await
    }
}

/// What the handles of one pair share.
#[derive(Debug)]
pub struct Shared<C, S> {
    pub redis: C,
    pub store: S,
    pub patience: Duration,
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

impl<C: Clone + ConnectionLike, S> Shared<C, S> {
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
