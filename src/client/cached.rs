//! A cached family in use: counting and reading.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, try_join_all};
use tokio::time::Instant;

use crate::client::exact::Shown;
use crate::client::handle::{Handle, handle_methods};
use crate::client::open::{OpenFamily, Recountable};
use crate::client::seeding::{Read, Seeding};
use crate::error::{Error, ErrorKind, Result};
use crate::family::{CachedFamily, Retention};
use crate::metrics;
use crate::scripts::cached::Seed;
use crate::scripts::partition::Ticket;
use crate::scripts::partition::{Change, PairResult, Partition};
use crate::writer::{Progress, Request};

/// What became of one change of a cached counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "a change that was refused is not counted"]
pub enum Changed {
    /// It is counted, and will be in the database.
    Counted {
        /// The counter's value as after exactly this change.
        value: i64,
    },
    /// Not counted: it would lead out of the family's bounds, or of the signed 64-bit range.
    OutOfRange {
        /// The counter's value, which is as it was.
        value: i64,
    },
    /// Not counted: there is no row for the id, and rows are the application's to make
    /// ([`Table::update`](crate::Table::update)).
    NoRow,
}

impl Changed {
    /// The new value, if it was counted.
    #[must_use]
    pub fn counted(self) -> Option<i64> {
        match self {
            Changed::Counted { value } => Some(value),
            Changed::OutOfRange { .. } | Changed::NoRow => None,
        }
    }
}

/// What became of a request to change a cached counter once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "a change that was refused is not counted"]
pub enum ChangedOnce {
    /// Counted now.
    Counted {
        /// The counter's value as after exactly this change.
        value: i64,
    },
    /// Counted before, and nothing was done now: by an earlier call for the request, or by an earlier arrival of this one,
    /// whose reply was lost.
    CountedBefore {
        /// The counter's value as after exactly that change. Others may have changed it since.
        value: i64,
    },
    /// Not counted, now or when the request came first: it would lead out of the family's bounds, or of the signed 64-bit
    /// range.
    OutOfRange {
        /// The counter's value as it was then.
        value: i64,
    },
    /// Not counted: there is no row for the id, and rows are the application's to make. This is not remembered: once there
    /// is a row the same request counts.
    NoRow,
}

/// The counters of one open cached family: the value comes back with each increment, and lives in Redis for as long as
/// the counter is used (docs/protocol.md, section 4). Cloning is cheap.
#[derive(Clone, Debug)]
pub struct CachedCounters {
    handle: Handle,
    seeding: Arc<Seeding>,
    retention: Retention,
}

/// What a missing counter is seeded with. The read is held until that is handed in: who misses the counter meanwhile joins it.
type HeldSeed = Option<(Seed, Arc<Read>)>;

/// How often a read or an increment begins again because the counter came and went in between. Each time costs a whole
/// stay of the counter in Redis, so more than once is a sign of something wrong.
const ATTEMPTS: usize = 100;

impl OpenFamily for CachedFamily {
    type Handle = CachedCounters;

    fn in_use(self, handle: Handle) -> Result<CachedCounters> {
        let retention = handle.family().retention().ok_or_else(|| handle.family().is_not("cached"))?.clone();
        Ok(CachedCounters { handle, seeding: Arc::default(), retention })
    }
}

impl Recountable for CachedCounters {
    fn of_recount(&self) -> &Handle {
        &self.handle
    }
}

impl CachedCounters {
    handle_methods!(handle);

    /// Adds `delta` to `id`, and returns the value as after exactly this increment. Where the counter is not in Redis
    /// it is read from the database first, once for all callers of this process.
    ///
    /// Callers that come while a call to the id's partition is under way go together into the next one, equal ids
    /// summed; a lone caller's increment goes out at once. The value is in the database after the family's `save_after`
    /// and its settle time.
    ///
    /// # Errors
    /// [`InvalidInput`](ErrorKind::InvalidInput): the id is not allowed. [`Redis`](ErrorKind::Redis),
    /// [`Store`](ErrorKind::Store): not counted; may be called again. [`Unsafe`](ErrorKind::Unsafe): not counted, since
    /// the database that was asked takes no writes, as a replica does not. [`Range`](ErrorKind::Range): not counted, the
    /// row's value is no i64. [`OutcomeUnknown`](ErrorKind::OutcomeUnknown): counted once or not at all, the reply was
    /// lost and could not be asked for again within the [write timeout](Self::write_timeout).
    pub async fn incr(&self, id: &str, delta: i64) -> Result<Changed> {
        self.change(id, Change::Add(delta)).await
    }

    /// Adds `delta` to `id` once, however often that is asked for with the same `request`, also at once and by several
    /// processes: for an application that may do its work again, since its future was dropped, the outcome of a call is
    /// unknown, or a job ran twice. A request is named by 1 to 64 bytes of the application's choice together with the id.
    ///
    /// Everybody who asks is told the same value, that as after exactly this change, for as long as the request is
    /// remembered: **for a minute at least** by the server's clock, mostly for one to two minutes. After that it counts again.
    /// All else is as for [`BufferedCounters::add_once`](crate::BufferedCounters::add_once).
    ///
    /// Each is a call of its own, which costs more than an [`incr`](Self::incr) under load, and one more where another process
    /// had to seed the counter for it.
    ///
    /// # Errors
    /// As for [`incr`](Self::incr), and [`InvalidInput`](ErrorKind::InvalidInput) where the request's name is not allowed.
    /// After any other the same request may be made again.
    pub async fn incr_once(&self, request: &str, id: &str, delta: i64) -> Result<ChangedOnce> {
        self.once(Progress::default(), request, id, delta).await
    }

    /// Returns the epoch in which Redis remembers the request if it is made now, as
    /// [`BufferedCounters::request_epoch`](crate::BufferedCounters::request_epoch) does.
    ///
    /// # Errors
    /// [`InvalidInput`](ErrorKind::InvalidInput) as for [`incr_once`](Self::incr_once); [`Redis`](ErrorKind::Redis) if Redis is
    /// unreachable.
    pub async fn request_epoch(&self, request: &str, id: &str) -> Result<String> {
        self.handle.writer.request_epoch(Request::new(self.family(), request, id, 0)?).await
    }

    /// Counts like [`incr_once`](Self::incr_once), and never twice, however late the request is made again, as
    /// [`BufferedCounters::add_once_since`](crate::BufferedCounters::add_once_since) does.
    ///
    /// # Errors
    /// As for [`incr_once`](Self::incr_once). [`OutcomeUnknown`](ErrorKind::OutcomeUnknown) also if the epoch has ended: nothing
    /// was done now, and it is unknown whether the request was executed before.
    pub async fn incr_once_since(&self, epoch: &str, request: &str, id: &str, delta: i64) -> Result<ChangedOnce> {
        self.once(Progress::since(epoch), request, id, delta).await
    }

    async fn once(&self, mut progress: Progress, request: &str, id: &str, delta: i64) -> Result<ChangedOnce> {
        let request = Request::new(self.family(), request, id, delta)?;
        let mut timeout = self.handle.timeout;
        let mut held: HeldSeed = None;
        for _ in 0..ATTEMPTS {
            let began = Instant::now();
            let seed = held.as_ref().map(|(seed, _)| *seed);
            let ticket = match self.handle.writer.once(request, &mut progress, seed, timeout).await? {
                (PairResult::Counted(value), false) => return Ok(ChangedOnce::Counted { value }),
                (PairResult::Counted(value), true) => return Ok(ChangedOnce::CountedBefore { value }),
                (PairResult::OutOfRange(value), _) => return Ok(ChangedOnce::OutOfRange { value }),
                (PairResult::Missing(ticket), _) => ticket,
                (other, _) => return Err(other.corrupt(self.family(), id)),
            };
            timeout = timeout.saturating_sub(began.elapsed());
            held = self.missed(id, ticket).await?;
            if held.is_none() {
                return Ok(ChangedOnce::NoRow);
            }
        }
        Err(self.comes_and_goes(id))
    }

    /// Replaces the value of `id`, and returns it. Increments that are acknowledged before are overwritten, later ones are
    /// added. What travels to the row is the difference to the value before, so a write of another program to the row
    /// meanwhile persists. A difference beyond i64 is out of range.
    ///
    /// # Errors
    /// As for [`incr`](Self::incr).
    pub async fn set(&self, id: &str, value: i64) -> Result<Changed> {
        self.change(id, Change::Set(value)).await
    }

    /// The exact value: every increment acknowledged before the call, none twice. 0 for an id without a row. A counter
    /// that was not in Redis is there from now on, for the time that the family lets counters stay.
    ///
    /// # Errors
    /// [`Redis`](ErrorKind::Redis) or [`Store`](ErrorKind::Store) where one of the two cannot be asked, and as for
    /// [`incr`](Self::incr).
    pub async fn get(&self, id: &str) -> Result<i64> {
        Ok(self.get_many(&[id]).await?[0])
    }

    /// The exact values of many ids, in their order: in one call per partition concerned, and where some are not in Redis
    /// one query for all of these and one more call per partition.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    #[tracing::instrument(level = "debug", skip_all, fields(family = %self.family()))]
    pub async fn get_many(&self, ids: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Vec<i64>> {
        let ids: Vec<_> = ids.into_iter().collect();
        let ids = self.family().check_ids(&ids)?;
        self.handle.repeating(|deadline| self.get_once(&ids, deadline)).await
    }

    async fn get_once(&self, ids: &[&str], deadline: Instant) -> Result<Vec<i64>> {
        let mut values = vec![0; ids.len()];
        let mut left: Vec<_> = (0..ids.len()).map(|place| (place, None)).collect();
        for _ in 0..ATTEMPTS {
            let missing = self.look(ids, &left, &mut values).await?;
            let rows = self.handle.stored_by(deadline, self.rows(ids, &missing)).await?;
            // a counter without a row is 0, and does not get into Redis by a read
            let seeds = missing
                .into_iter()
                .zip(rows)
                .filter_map(|((place, ticket), row)| row.map(|value| (place, Some(Seed { ticket, value }))));
            left = seeds.collect();
            if left.is_empty() {
                return Ok(values);
            }
        }
        Err(self.comes_and_goes(ids[left[0].0]))
    }

    /// The exact values if they can be read within that time, or else what the database [holds](Self::stored), 0 where there
    /// is no row: for pages that would rather show a number of a moment ago than wait for a Redis that is away.
    ///
    /// # Errors
    /// [`Store`](ErrorKind::Store) where the database cannot be asked either; [`Range`](ErrorKind::Range).
    pub async fn get_or_stored(
        &self,
        ids: impl IntoIterator<Item = impl AsRef<str>>,
        within: Duration,
    ) -> Result<Shown> {
        let ids: Vec<_> = ids.into_iter().collect();
        let ids = self.family().check_ids(&ids)?;
        self.handle.or_stored(&ids, within, self.get_many(&ids)).await
    }

    /// What the database holds of each id, `None` where there is no row. It may lag behind by the time to save, or by a
    /// read replica's lag.
    ///
    /// # Errors
    /// [`Store`](ErrorKind::Store) where the database cannot be asked.
    pub async fn stored(&self, ids: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Vec<Option<i64>>> {
        let ids: Vec<_> = ids.into_iter().collect();
        let ids = self.family().check_ids(&ids)?;
        self.handle.stored(&ids).await
    }

    async fn change(&self, id: &str, change: Change) -> Result<Changed> {
        self.family().check_id(id)?;
        let mut timeout = self.handle.timeout;
        let mut held: HeldSeed = None;
        for _ in 0..ATTEMPTS {
            let began = Instant::now();
            let seed = held.as_ref().map(|(seed, _)| *seed);
            let ticket = match self.handle.writer.change(id.as_bytes(), change, seed, timeout, true).await? {
                PairResult::Counted(value) => return Ok(Changed::Counted { value }),
                PairResult::OutOfRange(value) => return Ok(Changed::OutOfRange { value }),
                PairResult::Missing(ticket) => ticket,
                other => return Err(other.corrupt(self.family(), id)),
            };
            timeout = timeout.saturating_sub(began.elapsed());
            held = self.missed(id, ticket).await?;
            if held.is_none() {
                return Ok(Changed::NoRow);
            }
        }
        Err(self.comes_and_goes(id))
    }

    /// Reads what the missing counter is to be seeded with; `None` where there is no row, nor will be.
    async fn missed(&self, id: &str, ticket: Ticket) -> Result<HeldSeed> {
        let read = self.seeding.read(&self.handle.shared, &self.handle.opened, id, ticket);
        let row = read.row().await?;
        let seed = Seed { ticket, value: row.unwrap_or(0) };
        Ok((row.is_some() || self.family().makes_rows()).then_some((seed, read)))
    }

    /// Reads the ids at the places given, after seeding those that come with a seed. Puts the values in their places, and
    /// returns what is missing, with the tickets.
    async fn look(
        &self,
        ids: &[&str],
        left: &[(usize, Option<Seed>)],
        values: &mut [i64],
    ) -> Result<Vec<(usize, Ticket)>> {
        let chunks = self.by_partition(ids, left.iter().copied());
        let reads = chunks.iter().map(|(number, some)| async move {
            let partition = self.handle.partition(*number);
            let names: Vec<_> = some.iter().map(|(place, _)| ids[*place]).collect();
            let seeds: Vec<_> =
                some.iter().filter_map(|(place, seed)| Some((ids[*place].as_bytes(), (*seed)?))).collect();
            // both travel together, the seeds first: a counter whose seed failed is missing again
            join(partition.seed(&self.retention, &seeds), partition.values(&names)).await.1
        });
        let mut missing = Vec::new();
        for ((_, some), results) in chunks.iter().zip(try_join_all(reads).await?) {
            for ((place, _), result) in some.iter().zip(results) {
                match result {
                    PairResult::Counted(value) => values[*place] = value,
                    PairResult::Missing(ticket) => missing.push((*place, ticket)),
                    PairResult::OutOfRange(_) => {
                        let (family, id) = (self.family(), ids[*place]);
                        let what = format!("{family}: the value of {id:?} with what is pending is not a valid i64");
                        return Err(Error::new(ErrorKind::Range, what));
                    }
                    other => return Err(other.corrupt(self.family(), ids[*place])),
                }
            }
        }
        Ok(missing)
    }

    /// What a call to one partition carries of these, by places in `ids`.
    fn by_partition<T: Copy>(
        &self,
        ids: &[&str],
        items: impl Iterator<Item = (usize, T)>,
    ) -> Vec<(u32, Vec<(usize, T)>)> {
        let mut partitions: BTreeMap<u32, Vec<(usize, T)>> = BTreeMap::new();
        for (place, item) in items {
            partitions.entry(self.family().partition_of(ids[place])).or_default().push((place, item));
        }
        let chunks = |(number, all): (u32, Vec<(usize, T)>)| {
            let chunks: Vec<_> = all.chunks(Partition::READ_IDS).map(|some| (number, some.to_vec())).collect();
            chunks
        };
        partitions.into_iter().flat_map(chunks).collect()
    }

    /// The rows of the missing counters: a single one is shared with others who miss it, many come in one query.
    async fn rows(&self, ids: &[&str], missing: &[(usize, Ticket)]) -> Result<Vec<Option<i64>>> {
        match missing {
            [] => Ok(Vec::new()),
            [(place, ticket)] => {
                let read = self.seeding.read(&self.handle.shared, &self.handle.opened, ids[*place], *ticket);
                Ok(vec![read.row().await?])
            }
            _ => {
                let ids: Vec<_> = missing.iter().map(|(place, _)| ids[*place]).collect();
                metrics::seeded(&self.handle.opened.label, ids.len());
                self.handle.shared.store.rows(self.handle.registered().await?, &ids).await
            }
        }
    }

    fn comes_and_goes(&self, id: &str) -> Error {
        let family = self.family();
        Error::new(
            ErrorKind::Redis,
            format!("{family}: {id:?} leaves Redis again before it is seeded; is retain too short?"),
        )
    }
}
