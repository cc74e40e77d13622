//! The state that the handles of one pair share: the connections, the families in use, and the work
//! for a reconciler.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use futures_util::future::join;
use parking_lot::{Mutex, RwLock};

use crate::admin;
use crate::admin::backlog::{self, Backlog};
use crate::connection::Connection;
use crate::connection::topology::Topology;
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::process::family::{OpenFamily, SHUT_DOWN};
use crate::process::runtime::PairRuntime;
use crate::process::tasks::try_each_of;
use crate::process::work::{FamilySlot, Work, WorkItem};
use crate::scripts::keys::Keys;
use crate::scripts::partition::Partition;
use crate::store::mysql::MysqlStore;
use crate::store::{Registration, Store};
use crate::writer::{Route, Writer};

/// The number of partitions that one call to one server reads. It takes Redis a fraction of a
/// millisecond.
const PARTITIONS: usize = 100;

/// The state that the handles of one pair share.
#[derive(Debug)]
pub struct Shared {
    pub redis: Connection,
    pub topology: Arc<Topology>,
    pub store: Arc<dyn Store>,
    runtime: Arc<PairRuntime>,
    families: RwLock<Families>,
    allow_evicting: AtomicBool,
    /// The kinds for which Redis was found safe.
    safe_for: Mutex<HashSet<&'static str>>,
    pub work: Arc<Work>,
    /// Set when no more hits are accepted.
    closed: Arc<AtomicBool>,
}

pub type InUse = (Arc<OpenFamily>, Arc<Writer>);

/// The families in use.
#[derive(Debug, Default)]
struct Families {
    in_use: BTreeMap<FamilySlot, InUse>,
    /// Those that were opened again with other settings, while handles may still use them.
    replaced: Vec<(Arc<OpenFamily>, Weak<Writer>)>,
    /// By namespace and name, as `NAMESPACE/NAME`.
    slots: HashMap<String, FamilySlot>,
}

impl Shared {
    /// Creates the state of a pair on the current runtime.
    pub fn new(redis: Connection, store: Arc<dyn Store>) -> Self {
        Shared {
            topology: Arc::new(Topology::of(&redis)),
            redis,
            store,
            runtime: Arc::new(PairRuntime::current()),
            families: RwLock::default(),
            allow_evicting: AtomicBool::default(),
            safe_for: Mutex::default(),
            work: Arc::default(),
            closed: Arc::default(),
        }
    }

    /// Takes a family in use and returns it with its writer. Returns the existing ones if the
    /// configuration is the same. `registered` is unknown while the database is unreachable.
    pub fn open(&self, family: Family, registered: Option<Registration>) -> Result<InUse> {
        let registered = registered.map(Arc::new);
        let is_kept = |(opened, _): &InUse| opened.try_reopen(&family, registered.as_ref());
        self.take_in_use(&family, is_kept, |slot| {
            OpenFamily::new(slot, family.clone(), registered.clone())
        })
    }

    /// Takes a family in use as the database knows it, unless it already is, or this process has
    /// opened it.
    pub fn serve(&self, registered: Arc<Registration>) -> Result<InUse> {
        let family = &registered.family;
        let is_kept =
            |(opened, _): &InUse| !opened.is_served || opened.known().as_ref() == Some(&registered);
        self.take_in_use(family, is_kept, |slot| {
            let mut opened = OpenFamily::new(slot, family.clone(), Some(registered.clone()));
            opened.is_served = true;
            opened
        })
    }

    /// Returns the family of that name that is in use, if `is_kept` accepts it. Otherwise takes a
    /// new one in use, which replaces it.
    fn take_in_use(
        &self,
        family: &Family,
        is_kept: impl Fn(&InUse) -> bool,
        open: impl FnOnce(FamilySlot) -> OpenFamily,
    ) -> Result<InUse> {
        let mut families = self.families.write();
        if self.is_closed() {
            let refused = format!("{family}: not opened: {SHUT_DOWN}");
            return Err(Error::new(ErrorKind::Closed, refused));
        }
        let next = FamilySlot(families.slots.len());
        let slot = *families.slots.entry(family.to_string()).or_insert(next);
        if let Some(kept) = families.in_use.get(&slot).filter(|known| is_kept(known)) {
            return Ok(kept.clone());
        }
        let opened = Arc::new(open(slot));
        crate::metrics::begin_family(&opened.label, opened.family.is_cached());
        let (redis, topology) = (self.redis.clone(), self.topology.clone());
        let route = Route::new(redis, opened.clone(), topology, self.work.clone());
        let writer = Writer::new(route, self.runtime.clone(), self.closed.clone())?;
        let both = (opened, Arc::new(writer));
        if let Some((opened, writer)) = families.in_use.insert(slot, both.clone()) {
            let replaced = &mut families.replaced;
            replaced.retain(|(_, writer)| writer.strong_count() > 0);
            replaced.push((opened, Arc::downgrade(&writer)));
        }
        self.work.announce(WorkItem::Family(slot));
        self.work.announce(WorkItem::Upkeep(slot));
        Ok(both)
    }

    /// Stops accepting hits and opening families. Returns the families in use, including those of
    /// handles that were opened with other settings.
    pub fn close(&self) -> Vec<InUse> {
        let families = self.families.write();
        self.closed.store(true, Ordering::Relaxed);
        let replaced = families
            .replaced
            .iter()
            .filter_map(|(opened, writer)| Some((opened.clone(), writer.upgrade()?)));
        families.in_use.values().cloned().chain(replaced).collect()
    }

    /// Returns whether hits are refused because of a shutdown.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Returns the family of that name that is in use.
    pub fn in_use(&self, family: &Family) -> Option<InUse> {
        let families = self.families.read();
        let slot = families.slots.get(&family.to_string())?;
        families.in_use.get(slot).cloned()
    }

    pub fn opened(&self) -> Vec<Arc<OpenFamily>> {
        self.families
            .read()
            .in_use
            .values()
            .map(|(opened, _)| opened.clone())
            .collect()
    }

    /// Returns the configurations of the families in use.
    pub fn families(&self) -> Vec<Family> {
        self.opened()
            .iter()
            .map(|opened| opened.family.clone())
            .collect()
    }

    /// Returns whether a Redis is accepted that evicts counts when its memory is full.
    pub fn allows_evicting(&self) -> bool {
        self.allow_evicting.load(Ordering::Relaxed)
    }

    pub fn allow_evicting(&self, allow: bool) {
        self.allow_evicting.store(allow, Ordering::Relaxed);
    }

    /// Refuses a family for which Redis is unsafe, or its user lacks a permission. Each kind must
    /// pass once.
    pub async fn refuse_unsafe(&self, family: &Family) -> Result<()> {
        let safe_for = || self.safe_for.lock();
        if safe_for().contains(family.kind()) {
            return Ok(());
        }
        let eviction = admin::redis::eviction(&self.redis, std::slice::from_ref(family));
        let (access, eviction) =
            join(admin::access::refuse_lacking(&self.redis, family), eviction).await;
        access?;
        if !self.allows_evicting() {
            eviction?;
        }
        safe_for().insert(family.kind());
        Ok(())
    }

    /// Returns the partitions of the family that remember callers, each with the numbers of those
    /// whose callers it remembers.
    pub fn homes(&self, family: &Family) -> Vec<(Range<u32>, Partition)> {
        let all = family.partitions();
        self.topology
            .homes(all)
            .map(|number| {
                let partitions = self.topology.partitions_of(number, all);
                (partitions, self.partition(family, number))
            })
            .collect()
    }

    /// Makes a call for each group of up to `size` items, a few at a time. In a cluster each item
    /// has a call of its own, because a call cannot read several slots.
    pub async fn by_group<'a, T, R, F>(
        &self,
        items: &'a [T],
        size: usize,
        call: impl Fn(&'a [T]) -> F,
    ) -> Result<Vec<R>>
    where
        F: Future<Output = Result<R>>,
    {
        // few large calls on one server, which has other clients
        let (size, calls) = if self.topology.is_cluster() {
            (1, 64)
        } else {
            (size, 4)
        };
        let groups: Vec<_> = items.chunks(size).collect();
        try_each_of(calls, &groups, |group| call(group)).await
    }

    pub fn family(&self, slot: FamilySlot) -> Option<Arc<OpenFamily>> {
        self.families
            .read()
            .in_use
            .get(&slot)
            .map(|(opened, _)| opened.clone())
    }

    /// Returns the store, for operations that only MySQL supports: recounting, rejects, drift.
    pub fn mysql(&self) -> Result<&MysqlStore> {
        let other = || {
            Error::new(
                ErrorKind::Mismatch,
                "only MysqlStore supports recounting, rejects and drift",
            )
        };
        self.store.as_mysql().ok_or_else(other)
    }

    /// Returns the keys of the partition that is the home of calls to this one, and has the family's
    /// settings.
    pub fn home(&self, family: &Family, partition: u32) -> Keys {
        Keys::new(family, self.topology.home_of(partition))
    }

    pub fn partition(&self, family: &Family, partition: u32) -> Partition {
        Partition::new(self.redis.clone(), family, partition)
    }

    /// Returns the backlog of all partitions of the family.
    pub async fn backlog(&self, family: &Family) -> Result<Backlog> {
        let found = self.backlogs(std::slice::from_ref(family)).await?;
        Ok(found.into_iter().fold(Backlog::default(), Backlog::join))
    }

    /// Returns the backlog of each of these families.
    pub async fn backlogs(&self, families: &[Family]) -> Result<Vec<Backlog>> {
        let mut all = Vec::new();
        for (index, family) in families.iter().enumerate() {
            all.extend((0..family.partitions()).map(|number| (index, Keys::new(family, number))));
        }
        let read = async |some: &[(usize, Keys)]| {
            let keys: Vec<_> = some.iter().map(|(_, keys)| keys).collect();
            backlog::of_partitions(&self.redis, &keys).await
        };
        let found = self.by_group(&all, PARTITIONS, read).await?;
        let mut backlogs = vec![Backlog::default(); families.len()];
        for ((index, _), more) in all.iter().zip(found.into_iter().flatten()) {
            backlogs[*index] = backlogs[*index].join(more);
        }
        Ok(backlogs)
    }
}
