//! What a crash may lose: the times whose hits may be missing in MySQL.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use sqlx::MySqlPool;
use tokio::time::{sleep, timeout};

use super::journal::{Counter, Ms, now};
use super::site::Home;
use crate::Result;

/// The pause between two looks at the partitions.
const LOOK_EVERY: Duration = Duration::from_millis(25);
/// The time within which a server replies to a look.
const LOOK_LIMIT: Duration = Duration::from_millis(500);
/// The time within which a Redis that was set back must be noticed, in ms.
const NOTICED: Ms = 30_000;
/// The time after which a Redis that was restarted counts as one that was not set back, in ms.
const SETTLED: Ms = 10_000;

/// What a missing hit is explained by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A crash of Redis, or an older state of it.
    Redis,
    /// An older backup of MySQL.
    Backup,
}

/// The times whose hits a crash may lose. Those of one partition may be missing if the partition was
/// set back: then they are the hits that were counted after the cut of the last batch in the ledger,
/// and before the reset.
#[derive(Clone, Debug)]
struct Window {
    cause: Cause,
    /// `None` for all counters.
    home: Option<Home>,
    /// The first time whose hits may be lost.
    from: Ms,
    /// The time of the crash.
    crashed: Ms,
    /// The last time whose hits may be lost. It is not known before the partition was reset, or was
    /// found not to need it.
    to: Option<Ms>,
}

impl Window {
    /// Returns the last time whose hits may be lost, as far as it is known.
    fn end(&self) -> Ms {
        let is_settled = now() > self.crashed.saturating_add(SETTLED);
        self.to
            .unwrap_or(if is_settled { self.crashed } else { Ms::MAX })
    }
}

/// The windows of a round.
#[derive(Debug, Default)]
pub struct Windows(Vec<Window>);

impl Windows {
    /// Adds a time whose hits may be lost, whatever counter they are of.
    pub fn add(&mut self, from: Ms, to: Ms) {
        let (home, crashed, to) = (None, to, Some(to));
        self.0.push(Window {
            cause: Cause::Redis,
            home,
            from,
            crashed,
            to,
        });
    }

    /// Lets any hit be missing until [`know`](Self::know) is called.
    pub fn suspend(&mut self) {
        self.add(0, Ms::MAX);
    }

    /// Ends what [`suspend`](Self::suspend) began.
    pub fn know(&mut self) {
        self.0
            .retain(|window| window.from > 0 || window.to != Some(Ms::MAX));
    }

    /// Adds the hits of a partition that a crash at this time may lose.
    fn crash(&mut self, home: Home, from: Ms, crashed: Ms) {
        let (home, to) = (Some(home), None);
        self.0.push(Window {
            cause: Cause::Redis,
            home,
            from,
            crashed,
            to,
        });
    }

    /// Notes that a partition began a new incarnation: hits before that may have been dropped.
    fn reset(&mut self, home: Home, at: Ms) {
        for window in &mut self.0 {
            if window.home == Some(home) && at < window.crashed.saturating_add(NOTICED) {
                window.to = window.to.max(Some(at));
            }
        }
    }

    /// Knows from now on that no other partition was set back.
    pub fn close(&mut self) {
        for window in &mut self.0 {
            window.to = window.to.or(Some(window.crashed));
        }
    }

    /// Returns whether Redis may have been set back and not be reset yet. Cached counters then have the
    /// values of the older state (docs/protocol.md, 3.9).
    pub fn is_unsettled(&self) -> bool {
        self.0.iter().any(|window| window.end() == Ms::MAX)
    }

    /// Returns why a hit that was counted between these times may be missing, if it may.
    pub fn explain(&self, (family, id): Counter, begun: Ms, end: Ms) -> Option<Cause> {
        let is_of = |window: &&Window| {
            let is_its = window.home.is_none_or(|home| home.has(family, id));
            is_its && begun <= window.end() && end >= window.from
        };
        let mut causes = self.0.iter().filter(is_of).map(|window| window.cause);
        let first = causes.next()?;
        Some(if causes.any(|cause| cause == Cause::Redis) {
            Cause::Redis
        } else {
            first
        })
    }
}

/// A batch, by the incarnation of its partition and its number.
type Batch = (u64, u64);

/// The cuts of all partitions of a standalone Redis, as far as they were seen.
#[derive(Default)]
pub struct Cuts {
    /// The last batch of each partition, and a time before it was cut.
    seen: BTreeMap<Home, Vec<(Batch, Ms)>>,
}

/// The last batches of the partitions that MySQL has completely.
pub type Ledger = BTreeMap<Home, Vec<Batch>>;

impl Cuts {
    /// Returns a time before the cut of the last batch in the ledger.
    fn last(&self, home: Home, ledger: &Ledger) -> Ms {
        let (Some(stored), Some(seen)) = (ledger.get(&home), self.seen.get(&home)) else {
            return 0;
        };
        let is_stored = |(incarnation, seq): Batch| {
            stored
                .iter()
                .any(|last| last.0 == incarnation && seq <= last.1)
        };
        let mut last = seen.iter().rev().filter(|(batch, _)| is_stored(*batch));
        last.next().map_or(0, |(_, before)| *before)
    }
}

/// What may be missing, and what it follows from.
#[derive(Clone)]
pub struct Watch {
    /// A time before the first hit.
    started: Ms,
    pub windows: Rc<RefCell<Windows>>,
    cuts: Rc<RefCell<Cuts>>,
    /// The address of the server, which changes by a failover.
    address: Rc<RefCell<String>>,
}

impl Watch {
    pub fn new() -> Self {
        Watch {
            started: now(),
            windows: Rc::default(),
            cuts: Rc::default(),
            address: Rc::default(),
        }
    }

    /// Looks at the server with this URL from now on.
    pub fn look_at(&self, url: String) {
        *self.address.borrow_mut() = url;
    }

    /// Notes every cut and every new incarnation, until it is dropped.
    pub async fn run(self) -> Result<()> {
        let mut connection: Option<(String, MultiplexedConnection)> = None;
        let mut before = now();
        loop {
            sleep(LOOK_EVERY).await;
            let url = self.address.borrow().clone();
            if connection
                .as_ref()
                .is_none_or(|(current, _)| *current != url)
            {
                let client = redis::Client::open(&*url)?;
                let connect = client.get_multiplexed_async_connection();
                connection = match timeout(LOOK_LIMIT, connect).await {
                    Ok(Ok(connected)) => Some((url, connected)),
                    _ => None,
                };
            }
            let Some((_, redis)) = &mut connection else {
                continue;
            };
            let begun = now();
            match timeout(LOOK_LIMIT, last_cuts(redis)).await {
                Ok(Ok(cuts)) => self.note(cuts, before),
                // the server is down or silent
                _ => connection = None,
            }
            before = begun;
        }
    }

    fn note(&self, cuts: Vec<(Home, Batch)>, before: Ms) {
        let mut seen = self.cuts.borrow_mut();
        for (home, batch) in cuts {
            let seen = seen.seen.entry(home).or_default();
            let last = seen.last().map(|(batch, _)| *batch);
            if last.is_some_and(|last| last.0 != batch.0) {
                self.windows.borrow_mut().reset(home, now());
            }
            if last != Some(batch) {
                seen.push((batch, last.map_or(self.started, |_| before)));
            }
        }
    }

    /// Notes that Redis crashed at this time, ahead of MySQL or not.
    pub fn crash(&self, ledger: &Ledger, crashed: Ms) {
        let cuts = self.cuts.borrow();
        for home in Home::all() {
            let from = cuts.last(home, ledger);
            self.windows.borrow_mut().crash(home, from, crashed);
        }
    }

    /// Notes that MySQL returned to the state of `backed_up`, which had this ledger.
    pub fn restored(&self, ledger: &Ledger, backed_up: Ms, at: Ms) {
        let (cuts, mut windows) = (self.cuts.borrow(), self.windows.borrow_mut());
        let counted = Home::all().map(|home| (home, cuts.last(home, ledger)));
        let written = std::iter::once((Home::outside(), backed_up));
        for (home, from) in counted.chain(written) {
            let (home, to) = (Some(home), Some(at));
            windows.0.push(Window {
                cause: Cause::Backup,
                home,
                from,
                crashed: at,
                to,
            });
        }
    }
}

async fn last_cuts(redis: &mut MultiplexedConnection) -> redis::RedisResult<Vec<(Home, Batch)>> {
    let mut look = redis::pipe();
    let all: Vec<_> = Home::all().collect();
    for home in &all {
        look.cmd("HMGET")
            .arg(home.key("meta"))
            .arg(&["incarnation", "seq"]);
    }
    let cuts: Vec<(Option<String>, Option<u64>)> = look.query_async(redis).await?;
    let known = all
        .into_iter()
        .zip(cuts)
        .filter_map(|(home, (incarnation, seq))| {
            let incarnation = u64::from_str_radix(&incarnation?, 16).ok()?;
            Some((home, (incarnation, seq.unwrap_or(0))))
        });
    Ok(known.collect())
}

/// Reads which batches MySQL has completely.
pub async fn ledger(mysql: &MySqlPool) -> Result<Ledger> {
    let rows: Vec<(String, String, u32, u64, u64)> = sqlx::query_as(
        "SELECT CAST(f.namespace AS CHAR), CAST(f.name AS CHAR), l.partition_no, l.incarnation, \
           l.seq - (l.position IS NOT NULL) \
         FROM counterfoil_ledger AS l JOIN counterfoil_families AS f ON f.number = l.family",
    )
    .fetch_all(mysql)
    .await?;
    let mut ledger = Ledger::new();
    for (namespace, name, partition, incarnation, seq) in rows {
        if let Some(home) = Home::find(&namespace, &name, partition) {
            ledger.entry(home).or_default().push((incarnation, seq));
        }
    }
    Ok(ledger)
}
