//! What the handles of one pair share: the connections, the families in use, and what there is to do for a reconciler.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use futures_util::future::join;

use crate::connection::Connection;
use crate::connection::topology::Topology;
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::scripts::access;
use crate::scripts::check;
use crate::scripts::partition::Partition;
use crate::store::mysql::MysqlStore;
use crate::store::{Registered, Store};
use crate::writer::Writer;
use crate::writer::opened::{Announced, Opened, SHUT_DOWN, Work};

/// What the handles of one pair share.
#[derive(Debug)]
pub struct Shared {
    pub redis: Connection,
    pub topology: Arc<Topology>,
    pub store: Arc<dyn Store>,
    families: RwLock<Families>,
    allow_evicting: AtomicBool,
    /// The kinds that Redis was found to be safe for.
    safe_for: Mutex<HashSet<&'static str>>,
    pub work: Arc<Work>,
    /// No hit is taken any more.
    closed: Arc<AtomicBool>,
}

pub type InUse = (Arc<Opened>, Arc<Writer>);

/// The families in use, by their numbers in this process.
#[derive(Debug)]
struct Families {
    in_use: BTreeMap<u64, InUse>,
    /// By namespace and name.
    numbers: HashMap<(String, String), u64>,
}

impl Shared {
    pub fn new(redis: Connection, store: Arc<dyn Store>) -> Self {
        Shared {
            topology: Arc::new(Topology::of(&redis)),
            redis,
            store,
            families: RwLock::new(Families { in_use: BTreeMap::new(), numbers: HashMap::new() }),
            allow_evicting: AtomicBool::new(false),
            safe_for: Mutex::default(),
            work: Arc::default(),
            closed: Arc::default(),
        }
    }

    /// The family, in use from now on, with its writer; the same ones as before if it is configured as before. The
    /// database's number for it is not known where that is away.
    pub fn open(&self, family: Family, registered: Option<u64>) -> Result<InUse> {
        let mut families = self.families_mut();
        self.refuse_closed(&family)?;
        let number = families.number_of(&family);
        let registered = registered.map(|number| Arc::new(Registered { family: family.clone(), number }));
        if let Some(same) =
            families.in_use.get(&number).filter(|(opened, _)| opened.is_same(&family, registered.as_ref()))
        {
            return Ok(same.clone());
        }
        self.take_in_use(&mut families, Opened::new(number, family, registered))
    }

    /// Takes a family in use as the database knows it, unless it is so already or this process has opened it.
    pub fn serve(&self, registered: Arc<Registered>) -> Result<InUse> {
        let mut families = self.families_mut();
        self.refuse_closed(&registered.family)?;
        let number = families.number_of(&registered.family);
        let is_kept = |(opened, _): &&InUse| !opened.is_served || opened.registered.get() == Some(&registered);
        if let Some(kept) = families.in_use.get(&number).filter(is_kept) {
            return Ok(kept.clone());
        }
        let opened = Opened::new(number, registered.family.clone(), Some(registered));
        self.take_in_use(&mut families, Opened { is_served: true, ..opened })
    }

    fn refuse_closed(&self, family: &Family) -> Result<()> {
        if self.closed.load(Ordering::Relaxed) {
            Err(Error::new(ErrorKind::Closed, format!("{family}: not opened: {SHUT_DOWN}")))
        } else {
            Ok(())
        }
    }

    fn take_in_use(&self, families: &mut Families, opened: Opened) -> Result<InUse> {
        let (number, opened) = (opened.number, Arc::new(opened));
        crate::metrics::begin_family(&opened.label, opened.family.is_cached());
        let (topology, work, closed) = (self.topology.clone(), self.work.clone(), self.closed.clone());
        let writer = Writer::new(self.redis.clone(), opened.clone(), topology, work, closed)?;
        let both = (opened, Arc::new(writer));
        families.in_use.insert(number, both.clone());
        self.work.announce(Announced::Family(number));
        Ok(both)
    }

    /// Takes no more hits and opens no more families. Returns those in use.
    pub fn close(&self) -> Vec<InUse> {
        let families = self.families_mut();
        self.closed.store(true, Ordering::Relaxed);
        families.in_use.values().cloned().collect()
    }

    /// Whether a family of that name is.
    pub fn is_in_use(&self, family: &Family) -> bool {
        let families = self.families_in_use();
        families.numbers.contains_key(&named(family))
    }

    pub fn opened(&self) -> Vec<Arc<Opened>> {
        self.families_in_use().in_use.values().map(|(opened, _)| opened.clone()).collect()
    }

    /// The configurations of the families in use.
    pub fn families(&self) -> Vec<Family> {
        self.opened().iter().map(|opened| opened.family.clone()).collect()
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
        if safe_for().contains(family.kind()) {
            return Ok(());
        }
        let eviction = check::eviction(&self.redis, std::slice::from_ref(family));
        let (access, eviction) = join(access::refuse_lacking(&self.redis, family), eviction).await;
        access?;
        if !self.allows_evicting() {
            eviction?;
        }
        safe_for().insert(family.kind());
        Ok(())
    }

    pub fn family(&self, number: u64) -> Option<Arc<Opened>> {
        self.families_in_use().in_use.get(&number).map(|(opened, _)| opened.clone())
    }

    /// The store, for what only MySQL supports: recounting, rejects, drift.
    pub fn mysql(&self) -> Result<&MysqlStore> {
        let other = || Error::new(ErrorKind::Mismatch, "only MysqlStore supports recounting, rejects and drift");
        self.store.as_mysql().ok_or_else(other)
    }

    pub fn partition(&self, family: &Family, partition: u32) -> Partition {
        Partition::new(self.redis.clone(), family, partition)
    }

    fn families_in_use(&self) -> RwLockReadGuard<'_, Families> {
        self.families.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn families_mut(&self) -> RwLockWriteGuard<'_, Families> {
        self.families.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Families {
    fn number_of(&mut self, family: &Family) -> u64 {
        let next = self.numbers.len() as u64;
        *self.numbers.entry(named(family)).or_insert(next)
    }
}

fn named(family: &Family) -> (String, String) {
    (family.namespace().to_owned(), family.name().to_owned())
}
