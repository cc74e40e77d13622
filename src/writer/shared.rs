//! What the handles of one pair share: the connections, the families in use, and what there is to do for a reconciler.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use futures_util::future::join;
use metrics::SharedString;
use redis::aio::ConnectionLike;
use tokio::sync::{Notify, OnceCell};

use crate::client::read::Incarnations;
use crate::connection::topology::Topology;
use crate::error::{Error, ErrorKind, Result};
use crate::family::{Family, Kind};
use crate::scripts::access;
use crate::scripts::check;
use crate::scripts::partition::Partition;
use crate::scripts::server_clock::ServerClock;
use crate::store::{Registered, Store};
use crate::writer::Writer;

/// What the handles of one pair share.
#[derive(Debug)]
pub struct Shared<C, S> {
    pub redis: C,
    pub topology: Arc<Topology>,
    pub store: S,
    families: RwLock<Families<C>>,
    allow_evicting: AtomicBool,
    /// The kinds that Redis was found to be safe for.
    safe_for: Mutex<HashSet<&'static str>>,
    pub work: Arc<Work>,
    /// No hit is taken any more.
    closed: Arc<AtomicBool>,
}

/// Why a hit is not taken.
pub const SHUT_DOWN: &str = "the pair was shut down";

pub type InUse<C> = (Arc<Opened>, Arc<Writer<C>>);

/// The families in use, by their numbers in this process.
#[derive(Debug)]
struct Families<C> {
    in_use: BTreeMap<u64, InUse<C>>,
    /// By namespace and name.
    numbers: HashMap<(String, String), u64>,
}

/// A family in use by this process.
#[derive(Debug)]
pub struct Opened {
    /// Its number in this process.
    pub number: u64,
    pub family: Family,
    /// It is in use because a reconciler found it in the database: what the process opens takes its place.
    is_served: bool,
    /// The family as the database knows it, once it does.
    registered: OnceCell<Arc<Registered>>,
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
            families: RwLock::new(Families { in_use: BTreeMap::new(), numbers: HashMap::new() }),
            allow_evicting: AtomicBool::new(false),
            safe_for: Mutex::default(),
            work: Arc::default(),
            closed: Arc::default(),
        }
    }

    /// The family, in use from now on, with its writer; the same ones as before if it is configured as before. The
    /// database's number for it is not known where that is away.
    pub fn open(&self, family: Family, registered: Option<u64>) -> Result<InUse<C>> {
        let mut families = self.families.write().unwrap_or_else(PoisonError::into_inner);
        if self.closed.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::Closed, format!("{family}: not opened: {SHUT_DOWN}")));
        }
        let number = families.number_of(&family);
        let registered = registered.map(|number| Arc::new(Registered { family: family.clone(), number }));
        if let Some(same) =
            families.in_use.get(&number).filter(|(opened, _)| opened.is_same(&family, registered.as_ref()))
        {
            return Ok(same.clone());
        }
        self.take_in_use(&mut families, Opened::new(number, family, registered))
    }

    /// Takes a family in use as the database knows it, unless it is so already or this process has opened it. Returns its
    /// number in this process.
    pub fn serve(&self, registered: Arc<Registered>) -> Result<u64> {
        let mut families = self.families.write().unwrap_or_else(PoisonError::into_inner);
        let number = families.number_of(&registered.family);
        let is_kept = |(opened, _): &InUse<C>| !opened.is_served || opened.registered.get() == Some(&registered);
        if !families.in_use.get(&number).is_some_and(is_kept) {
            let opened = Opened::new(number, registered.family.clone(), Some(registered));
            self.take_in_use(&mut families, Opened { is_served: true, ..opened })?;
        }
        Ok(number)
    }

    fn take_in_use(&self, families: &mut Families<C>, opened: Opened) -> Result<InUse<C>> {
        let (number, opened) = (opened.number, Arc::new(opened));
        let is_cached = matches!(opened.family.kind, Kind::Cached(_));
        crate::metrics::begin_family(&opened.label, is_cached);
        let (topology, work, closed) = (self.topology.clone(), self.work.clone(), self.closed.clone());
        let writer = Writer::new(self.redis.clone(), opened.clone(), topology, work, closed)?;
        let both = (opened, Arc::new(writer));
        families.in_use.insert(number, both.clone());
        self.work.announce(Announced::Family(number));
        Ok(both)
    }

    /// Takes no more hits and opens no more families. Returns those in use.
    pub fn close(&self) -> Vec<InUse<C>> {
        let families = self.families.write().unwrap_or_else(PoisonError::into_inner);
        self.closed.store(true, Ordering::Relaxed);
        families.in_use.values().cloned().collect()
    }

    /// Whether a family of that name is.
    pub fn is_in_use(&self, family: &Family) -> bool {
        let families = self.families.read().unwrap_or_else(PoisonError::into_inner);
        families.numbers.contains_key(&named(family))
    }

    pub fn opened(&self) -> Vec<Arc<Opened>> {
        self.families
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .in_use
            .values()
            .map(|(opened, _)| opened.clone())
            .collect()
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
        self.families
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .in_use
            .get(&number)
            .map(|(opened, _)| opened.clone())
    }

    pub fn partition(&self, family: &Family, partition: u32) -> Partition<C> {
        Partition::new(self.redis.clone(), family, partition)
    }
}

impl Opened {
    fn new(number: u64, family: Family, registered: Option<Arc<Registered>>) -> Self {
        let label = Arc::<str>::from(family.name()).into();
        Opened {
            number,
            family,
            is_served: false,
            registered: OnceCell::new_with(registered),
            label,
            clock: ServerClock::default(),
            incarnations: Incarnations::default(),
        }
    }

    /// Whether it is the family as it is opened now. The database's number for it is kept where it was not known.
    fn is_same(&self, family: &Family, registered: Option<&Arc<Registered>>) -> bool {
        if let (None, Some(registered)) = (self.registered.get(), registered)
            && self.family == *family
        {
            let _ = self.registered.set(registered.clone());
        }
        let is_known = || self.registered.get().zip(registered).is_none_or(|(known, new)| known == new);
        !self.is_served && self.family == *family && is_known()
    }

    /// The family as the database knows it, which is asked if it was away when the family was opened. Nothing is brought
    /// there, and none of its rows is read, before it has agreed to the configuration.
    pub async fn registered(&self, store: &impl Store) -> Result<&Arc<Registered>> {
        let register = || async {
            let number = store.register(&self.family).await?;
            Ok(Arc::new(Registered { family: self.family.clone(), number }))
        };
        self.registered.get_or_try_init(register).await
    }
}

impl<C> Families<C> {
    fn number_of(&mut self, family: &Family) -> u64 {
        let next = self.numbers.len() as u64;
        *self.numbers.entry(named(family)).or_insert(next)
    }
}

fn named(family: &Family) -> (String, String) {
    (family.namespace().to_owned(), family.name().to_owned())
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
