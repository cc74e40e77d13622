//! The windows: the times whose hits a crash may lose.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use sqlx::MySqlPool;
use tokio::time::{sleep, timeout};

use super::journal::{Counter, Ms, Time, now};
use super::site::{Home, TENANT};
use crate::Result;

/// The pause between two looks at the partitions.
const LOOK_EVERY: Duration = Duration::from_millis(25);
/// The time within which a server replies to a look.
const LOOK_LIMIT: Duration = Duration::from_millis(500);
/// The time within which a Redis that was set back must be noticed, in ms.
const NOTICED: Ms = 45_000;
/// The time after which a partition of a Redis that was restarted counts as one that was not set back,
/// in ms.
const RESTARTED: Ms = 10_000;
/// The same time without a restart: then reconcilers compare an idle partition every 30 s only
/// (docs/protocol.md, 3.9).
const NOT_RESTARTED: Ms = 40_000;

/// The reason why a hit may be missing.
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
    /// The time from which the partition counts as one that was not set back.
    settled: Ms,
    /// The last time whose hits may be lost. It is not known before the partition was reset, or was
    /// found not to need it.
    to: Option<Ms>,
}

impl Window {
    /// Returns the last time whose hits may be lost, as far as it is known.
    fn end(&self) -> Ms {
        let is_settled = now() > self.settled;
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
        self.0.push(Window {
            cause: Cause::Redis,
            home: None,
            from,
            crashed: to,
            settled: to,
            to: Some(to),
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
    fn crash(&mut self, home: Home, from: Ms, crashed: Ms, is_restarted: bool) {
        let home = Some(home);
        if let Some(before) = self.last_crash(home) {
            // A partition that is still set back may have cut batches whose numbers MySQL has. They look
            // stored, so the new window may begin after them.
            before.to = before.to.or(Some(before.end().min(crashed)));
        }
        self.0.push(Window {
            cause: Cause::Redis,
            home,
            from,
            crashed,
            settled: crashed
                + if is_restarted {
                    RESTARTED
                } else {
                    NOT_RESTARTED
                },
            to: None,
        });
    }

    /// Notes that a partition began a new incarnation: hits before that may have been dropped.
    fn reset(&mut self, home: Home, at: Ms) {
        if let Some(window) = self.last_crash(Some(home))
            && at < window.crashed.saturating_add(NOTICED)
        {
            window.to = window.to.max(Some(at));
        }
    }

    /// Returns the window of a partition's last crash.
    fn last_crash(&mut self, home: Option<Home>) -> Option<&mut Window> {
        let is_its = |window: &&mut Window| window.home == home && window.cause == Cause::Redis;
        self.0.iter_mut().rev().find(is_its)
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

    /// Returns whether no hit of this time or later may be lost.
    pub fn are_over_by(&self, time: Ms) -> bool {
        self.0.iter().all(|window| window.end() < time)
    }

    /// Returns the last time at which Redis was set back, as far as it is known. Its windows may lack all
    /// hits from before, also those that MySQL has.
    pub fn set_back(&self) -> Ms {
        let of_redis = self.0.iter().filter(|it| it.cause == Cause::Redis);
        of_redis.map(|window| window.crashed).max().unwrap_or(0)
    }

    /// Returns why an acknowledged hit of this time may be missing, if it may.
    pub fn explain(&self, (family, id): Counter, time: Time) -> Option<Cause> {
        let is_of = |window: &&Window| {
            let is_its = window.home.is_none_or(|home| home.has(family, id));
            // what a reset dropped is not acknowledged after it
            let begun = match window.cause {
                Cause::Redis => time.begun,
                Cause::Backup => time.first,
            };
            is_its && begun <= window.end() && time.end >= window.from
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

/// A batch, by the incarnation of its partition, its number, and its nonce: a Redis that returned to
/// an older state cuts other batches of the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Batch {
    incarnation: u64,
    seq: u64,
    /// `None` if it is not known.
    nonce: Option<u64>,
}

impl Batch {
    /// Returns whether MySQL has the batch if this is the last that it has completely.
    fn includes(self, batch: Batch) -> bool {
        let is_same = self.nonce.is_none() || self.nonce == batch.nonce;
        let is_earlier = batch.seq < self.seq || batch.seq == self.seq && is_same;
        self.incarnation == batch.incarnation && is_earlier
    }
}

/// The cuts of all partitions of a standalone Redis, as far as they were seen.
#[derive(Default)]
pub struct Cuts {
    /// The last batch of each partition, and a time before it was cut.
    seen: BTreeMap<Home, Vec<(Batch, Ms)>>,
}

/// The last batches of the partitions that MySQL has completely.
#[derive(Default)]
pub struct Ledger {
    last: BTreeMap<Home, Vec<Batch>>,
    /// The partitions of which MySQL reports lost batches.
    reported: BTreeSet<Home>,
}

impl Cuts {
    /// Returns a time before the cut of the last batch in the ledger.
    fn last(&self, home: Home, ledger: &Ledger) -> Ms {
        let (Some(stored), Some(seen)) = (ledger.last.get(&home), self.seen.get(&home)) else {
            return 0;
        };
        let is_stored = |batch: Batch| stored.iter().any(|last| last.includes(batch));
        let mut last = seen.iter().rev().filter(|(batch, _)| is_stored(*batch));
        last.next().map_or(0, |(_, before)| *before)
    }

    /// Returns whether Redis has released a batch that the ledger lacks: it has cut one after that.
    fn is_ahead(&self, home: Home, ledger: &Ledger) -> bool {
        let (Some(stored), Some(seen)) = (ledger.last.get(&home), self.seen.get(&home)) else {
            return false;
        };
        let is_ahead = |(cut, _): &(Batch, Ms)| {
            let mut of_it = stored
                .iter()
                .filter(|last| last.incarnation == cut.incarnation);
            of_it.any(|last| cut.seq > last.seq + 1)
        };
        seen.last().is_some_and(is_ahead)
    }
}

/// The windows of a round, and the observations that they follow from.
#[derive(Clone)]
pub struct Watch {
    /// A time before the first hit.
    started: Ms,
    pub windows: Rc<RefCell<Windows>>,
    cuts: Rc<RefCell<Cuts>>,
    /// The partitions whose batches MySQL lost, which it must report.
    lost: Rc<RefCell<BTreeSet<Home>>>,
    /// The address of the server, which changes by a failover.
    address: Rc<RefCell<String>>,
}

impl Watch {
    pub fn new() -> Self {
        Watch {
            started: now(),
            windows: Rc::default(),
            cuts: Rc::default(),
            lost: Rc::default(),
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
            // a Redis that returned to an older state has an earlier batch or incarnation again
            if seen.iter().any(|(earlier, _)| *earlier == batch) {
                continue;
            }
            let is_first = seen.is_empty();
            let mut earlier = seen.iter().map(|(earlier, _)| earlier.incarnation);
            if !is_first && earlier.all(|incarnation| incarnation != batch.incarnation) {
                self.windows.borrow_mut().reset(home, now());
            }
            seen.push((batch, if is_first { self.started } else { before }));
        }
    }

    /// Notes that Redis crashed or was set back at this time, ahead of MySQL or not.
    pub fn crash(&self, ledger: &Ledger, crashed: Ms, is_restarted: bool) {
        let cuts = self.cuts.borrow();
        for home in Home::all() {
            let from = cuts.last(home, ledger);
            let mut windows = self.windows.borrow_mut();
            windows.crash(home, from, crashed, is_restarted);
        }
    }

    /// Notes that Redis may lack something: then it may not show either what MySQL has lost.
    pub fn excuse(&self) {
        self.lost.borrow_mut().clear();
    }

    /// Returns the number of partitions whose batches MySQL lost without a report.
    pub fn unreported(&self, ledger: &Ledger) -> u64 {
        self.lost.borrow().difference(&ledger.reported).count() as u64
    }

    /// Notes that MySQL returned to the state of `backed_up`, which had at least the ledger `least` and at
    /// most the ledger `most`.
    pub fn restored(&self, least: &Ledger, most: &Ledger, backed_up: Ms, at: Ms) {
        let (cuts, mut windows) = (self.cuts.borrow(), self.windows.borrow_mut());
        if !windows.is_unsettled() {
            let has_lost = |home: &Home| !home.is_of(TENANT) && cuts.is_ahead(*home, most);
            self.lost.borrow_mut().extend(Home::all().filter(has_lost));
        }
        let counted = Home::all().map(|home| (home, cuts.last(home, least)));
        let written = std::iter::once((Home::outside(), backed_up));
        for (home, from) in counted.chain(written) {
            windows.0.push(Window {
                cause: Cause::Backup,
                home: Some(home),
                from,
                crashed: at,
                settled: at,
                to: Some(at),
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
            .arg(&["incarnation", "seq", "nonce"]);
    }
    let cuts: Vec<(Option<String>, Option<u64>, Option<String>)> = look.query_async(redis).await?;
    let number = |digits: Option<String>| u64::from_str_radix(&digits?, 16).ok();
    let known = all.into_iter().zip(cuts);
    let known = known.filter_map(|(home, (incarnation, seq, nonce))| {
        let batch = Batch {
            incarnation: number(incarnation)?,
            seq: seq.unwrap_or(0),
            nonce: number(nonce),
        };
        Some((home, batch))
    });
    Ok(known.collect())
}

/// Namespace and name of a family, a partition, its incarnation, the number and nonce of the last batch, and
/// whether batches were lost.
type LedgerRow = (String, String, u32, u64, u64, Option<u64>, bool);

/// Reads which batches MySQL has completely.
pub async fn ledger(mysql: &MySqlPool) -> Result<Ledger> {
    // a batch that MySQL has a part of was cut after the one before it was complete
    let rows: Vec<LedgerRow> = sqlx::query_as(
        "SELECT CAST(f.namespace AS CHAR), CAST(f.name AS CHAR), l.partition_no, l.incarnation, \
           IF(l.position IS NULL, l.seq, l.seq - 1), \
           IF(l.position IS NULL, l.nonce, NULL), l.lost_batches > 0 \
         FROM counterfoil_ledger AS l JOIN counterfoil_families AS f ON f.number = l.family",
    )
    .fetch_all(mysql)
    .await?;
    let mut ledger = Ledger::default();
    for (namespace, name, partition, incarnation, seq, nonce, has_lost) in rows {
        let batch = Batch {
            incarnation,
            seq,
            nonce,
        };
        if let Some(home) = Home::find(&namespace, &name, partition) {
            ledger.last.entry(home).or_default().push(batch);
            ledger.reported.extend(has_lost.then_some(home));
        }
    }
    Ok(ledger)
}
