//! The handle of a cached family: counting and reading.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, try_join_all};
use tokio::time::timeout_at;

use crate::client::handle::exact::ReadValues;
use crate::client::handle::{Handle, Wait, borrowed_ids, by_partition, handle_methods};
use crate::client::open::{FamilyHandle, Recountable};
use crate::client::outcome::{Outcome, beyond};
use crate::client::seeding::{RowRead, Seeding};
use crate::error::{Error, ErrorKind, Result};
use crate::family::kind::Retention;
use crate::metrics;
use crate::scripts::counting::{PairResult, Seed, Ticket, Update};
use crate::scripts::partition::Partition;
use crate::writer::{Deadline, Request, RequestState};

/// The counters of one open cached family. Each increment returns the new value, and a counter
/// stays in Redis for as long as it is used (docs/protocol.md, section 4). Cloning is cheap.
#[derive(Clone, Debug)]
pub struct CachedCounters {
    pub(super) handle: Handle,
    seeding: Arc<Seeding>,
}

/// The seed of a missing counter. The read is held until Redis has the seed: callers that miss the
/// counter meanwhile share it.
type HeldSeed = Option<(Seed, Arc<RowRead>)>;

/// A change of one counter.
enum Change<'a> {
    Update(Update),
    Once(Request<'a>, &'a mut RequestState),
}

/// The maximum number of attempts when a counter leaves Redis again before the call reaches it.
/// A counter stays in Redis for the family's retention after it was seeded, so more than one
/// attempt is a sign of a problem.
const ATTEMPTS: usize = 100;

impl FamilyHandle for CachedCounters {
    fn of(handle: Handle) -> Result<Self> {
        if !handle.family().is_cached() {
            return Err(handle.family().is_not("cached"));
        }
        Ok(CachedCounters {
            handle,
            seeding: Arc::default(),
        })
    }
}

impl Recountable for CachedCounters {
    fn of_recount(&self) -> &Handle {
        &self.handle
    }
}

impl CachedCounters {
    handle_methods!(handle);

    /// Adds `delta` to `id`, and returns the value right after this increment. A counter that is
    /// not in Redis is read from the database first, once for all callers in this process.
    ///
    /// Callers that arrive while calls are in flight share the next one, with equal ids summed. A
    /// lone caller's increment is sent at once. The value reaches the database after the family's
    /// `sync_time` and its settle time.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput): the id is not allowed.
    /// [`Redis`](crate::ErrorKind::Redis), [`Store`](crate::ErrorKind::Store): not counted, because Redis was
    /// unreachable, or the row was not read in time; the call may be retried.
    /// [`Unsafe`](crate::ErrorKind::Unsafe): not counted, because the database server that was read
    /// accepts no writes, for instance a replica. [`Range`](crate::ErrorKind::Range): not counted, because
    /// the row's value is not a valid i64. [`OutcomeUnknown`](crate::ErrorKind::OutcomeUnknown): counted
    /// once or not at all. The reply was lost, and could not be requested again within the
    /// [write timeout](Self::write_timeout).
    pub async fn incr(&self, id: &str, delta: i64) -> Result<Outcome> {
        self.change(id, Update::Add(delta)).await
    }

    /// Adds `delta` to `id` once, however often it is called with the same `request`, also
    /// concurrently and from several processes. It is for an application that may repeat its work:
    /// a future was dropped, an outcome is unknown, or a job ran twice. A request is identified by
    /// 1 to 64 bytes of the application's choice together with the id.
    ///
    /// Every call for a request returns the same value, the one right after this change, or the same
    /// refusal by the bounds, for as long as Redis remembers the request. In all else it works like
    /// [`BufferedCounters::add_once`](crate::BufferedCounters::add_once).
    ///
    /// # Errors
    /// The errors of [`incr`](Self::incr), and [`InvalidInput`](crate::ErrorKind::InvalidInput) if the
    /// request's name is not allowed. After any other error the same request may be retried.
    pub async fn incr_once(&self, request: &str, id: &str, delta: i64) -> Result<Outcome> {
        self.once(RequestState::default(), request, id, delta).await
    }

    /// Returns the epoch in which Redis remembers the request if it is made now, like
    /// [`BufferedCounters::request_epoch`](crate::BufferedCounters::request_epoch).
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) as for [`incr_once`](Self::incr_once);
    /// [`Redis`](crate::ErrorKind::Redis) if Redis is unreachable.
    pub async fn request_epoch(&self, request: &str, id: &str) -> Result<String> {
        self.handle.request_epoch(request, id).await
    }

    /// Counts like [`incr_once`](Self::incr_once), and never twice, however late the request is
    /// retried. See [`BufferedCounters::add_once_since`](crate::BufferedCounters::add_once_since).
    ///
    /// # Errors
    /// The errors of [`incr_once`](Self::incr_once). [`OutcomeUnknown`](crate::ErrorKind::OutcomeUnknown)
    /// also if the epoch has ended: nothing was done now, and it is unknown whether the request was
    /// executed before.
    pub async fn incr_once_since(
        &self,
        epoch: &str,
        request: &str,
        id: &str,
        delta: i64,
    ) -> Result<Outcome> {
        self.once(RequestState::since(epoch), request, id, delta)
            .await
    }

    async fn once(
        &self,
        mut progress: RequestState,
        request: &str,
        id: &str,
        delta: i64,
    ) -> Result<Outcome> {
        let request = Request::new(&self.handle.opened, request, id, delta)?;
        let made = self.make(id, Change::Once(request, &mut progress)).await;
        made.map_err(|error| progress.doubtful(self.family(), error))
    }

    /// Replaces the value of `id`, and returns the new value. Increments acknowledged before are
    /// overwritten, later ones are added. The row receives the difference to the previous value, so
    /// a concurrent write of another program to the row persists. A difference beyond i64 is out of
    /// range.
    ///
    /// # Errors
    /// See [`incr`](Self::incr).
    pub async fn set(&self, id: &str, value: i64) -> Result<Outcome> {
        self.change(id, Update::Set(value)).await
    }

    /// Returns the exact value: every increment acknowledged before the call, none twice; 0 for an
    /// id without a row. A counter that has a row but is not in Redis is loaded, and stays in Redis
    /// for the family's retention.
    ///
    /// # Errors
    /// [`Redis`](crate::ErrorKind::Redis) or [`Store`](crate::ErrorKind::Store) if that server is unreachable,
    /// and the errors of [`incr`](Self::incr).
    pub async fn get(&self, id: &str) -> Result<i64> {
        Ok(self.get_many(&[id]).await?[0])
    }

    /// Returns the exact values of many ids, in their order. It takes one call per partition
    /// involved. Ids that are not in Redis take one query together, and another call per partition.
    ///
    /// # Errors
    /// See [`get`](Self::get).
    #[tracing::instrument(level = "debug", skip_all, fields(family = %self.family()))]
    pub async fn get_many(
        &self,
        ids: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Vec<i64>> {
        let checked = self.handle.check_all_given(ids)?;
        let ids = borrowed_ids(&checked);
        self.handle
            .repeating(|wait| self.get_once(&ids, wait))
            .await
    }

    async fn get_once(&self, ids: &[&str], wait: Wait) -> Result<Vec<i64>> {
        let mut values = vec![0; ids.len()];
        let mut left: Vec<_> = (0..ids.len()).map(|index| (index, None)).collect();
        for _ in 0..ATTEMPTS {
            let missing = self
                .read_values(ids, &left, false, &mut values, wait)
                .await?;
            let reading = self.rows(ids, &missing);
            let rows = self.handle.stored_by(wait.deadline, reading).await?;
            left.clear();
            for ((index, ticket), row) in missing.into_iter().zip(rows) {
                // a counter without a row is 0, and a read does not bring it to Redis
                let Some(value) = row else { continue };
                if ticket == Ticket::NONE {
                    values[index] = value;
                } else {
                    left.push((index, Some(Seed { ticket, value })));
                }
            }
            if left.is_empty() {
                return Ok(values);
            }
        }
        Err(self.comes_and_goes(ids[left[0].0]))
    }

    /// Returns the exact values of ids in their order, like [`get_many`](Self::get_many), without
    /// writing to Redis: a counter that is not there is read from its row, and stays out of Redis.
    /// It is for monitoring, and for public requests, which could name any ids and so fill Redis.
    ///
    /// # Errors
    /// See [`get`](Self::get).
    pub async fn peek_many(
        &self,
        ids: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Vec<i64>> {
        let values = self.find_many(ids).await?.into_iter();
        Ok(values.map(Option::unwrap_or_default).collect())
    }

    /// Returns the exact values like [`peek_many`](Self::peek_many), but `None` for an id without a
    /// row if only the application inserts rows. Increments of such an id are refused as
    /// [`NoRow`](Outcome::NoRow).
    ///
    /// # Errors
    /// See [`get`](Self::get).
    #[tracing::instrument(level = "debug", skip_all, fields(family = %self.family()))]
    pub async fn find_many(
        &self,
        ids: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Vec<Option<i64>>> {
        let checked = self.handle.check_all_given(ids)?;
        let ids = borrowed_ids(&checked);
        self.handle
            .repeating(|wait| self.peek_once(&ids, wait))
            .await
    }

    /// Reads Redis first: a counter that is not there has nothing pending, so that its row, read
    /// later, has every hit so far.
    async fn peek_once(&self, ids: &[&str], wait: Wait) -> Result<Vec<Option<i64>>> {
        let mut in_redis = vec![0; ids.len()];
        let all: Vec<_> = (0..ids.len()).map(|index| (index, None)).collect();
        let missing = self
            .read_values(ids, &all, true, &mut in_redis, wait)
            .await?;
        let mut values: Vec<_> = in_redis.into_iter().map(Some).collect();
        if missing.is_empty() {
            return Ok(values);
        }
        let without_row = self.family().makes_rows().then_some(0);
        let reading = self.rows_together(ids, &missing);
        let rows = self.handle.stored_by(wait.deadline, reading).await?;
        for ((index, _), row) in missing.iter().zip(rows) {
            values[*index] = row.or(without_row);
        }
        Ok(values)
    }

    /// Returns the exact values if they can be read within `within`, or else the
    /// [stored](Self::stored) ones, 0 for an id without a row. It is for pages that prefer a
    /// slightly old number to waiting for an unreachable Redis. The stored values are read once
    /// half of the time is over, or as soon as the exact ones cannot be read. The call ends in
    /// time, even without any values.
    ///
    /// # Errors
    /// [`Store`](crate::ErrorKind::Store) if no values were read in time; it may be retried.
    /// [`Range`](crate::ErrorKind::Range) as for [`get`](Self::get).
    pub async fn get_or_stored(
        &self,
        ids: impl IntoIterator<Item = impl AsRef<str>>,
        within: Duration,
    ) -> Result<ReadValues> {
        let checked = self.handle.check_all_given(ids)?;
        let ids = borrowed_ids(&checked);
        let exact = self.get_many(&ids);
        self.handle.or_stored(&ids, within, exact).await
    }

    /// Returns the value of each id in the database, `None` without a row. It may lag by the time
    /// until the next save, or by a read replica's lag.
    ///
    /// # Errors
    /// [`Store`](crate::ErrorKind::Store) if the database is unreachable.
    pub async fn stored(
        &self,
        ids: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Vec<Option<i64>>> {
        let checked = self.handle.check_all_given(ids)?;
        self.handle.stored(&borrowed_ids(&checked)).await
    }

    async fn change(&self, id: &str, update: Update) -> Result<Outcome> {
        self.handle.check_given(id)?;
        self.make(id, Change::Update(update)).await
    }

    /// Makes a change, after seeding the counter if it is missing.
    async fn make(&self, id: &str, mut change: Change<'_>) -> Result<Outcome> {
        let (handle, deadline) = (&self.handle, self.handle.write_deadline());
        let mut held: HeldSeed = None;
        for _ in 0..ATTEMPTS {
            let seed = held.as_ref().map(|(seed, _)| *seed);
            let result = match &mut change {
                Change::Update(update) => {
                    let (id, options) = (id.as_bytes(), deadline.into());
                    handle.writer.change(id, *update, seed, options).await?
                }
                Change::Once(request, progress) => {
                    let once = handle.writer.once(*request, progress, seed, deadline);
                    once.await?
                }
            };
            let PairResult::Missing(ticket) = result else {
                return Outcome::of(result, self.family(), id);
            };
            if held.is_some() {
                self.check_home(id, deadline).await?;
            }
            held = self.missed(id, ticket, deadline).await?;
            if held.is_none() {
                return Ok(Outcome::NoRow);
            }
        }
        Err(self.comes_and_goes(id))
    }

    /// Asks for the epoch again after a seed that had no effect: mostly the counter came and went,
    /// but Redis also refuses the rows of another database. The epoch that the call named may be from
    /// a time when this process did not know its database.
    async fn check_home(&self, id: &str, deadline: Deadline) -> Result<()> {
        let (handle, limit) = (&self.handle, self.handle.timeouts.write);
        let renewing = handle.writer.route().renew(self.family().partition_of(id));
        let late = |_| Err(handle.late(ErrorKind::Redis, limit));
        let renewed = timeout_at(deadline.start_by, renewing).await;
        renewed.unwrap_or_else(late)
    }

    /// Reads the seed of a missing counter. Returns `None` if the id has no row and the family
    /// inserts none.
    async fn missed(&self, id: &str, ticket: Ticket, deadline: Deadline) -> Result<HeldSeed> {
        let read = self.read_row(id, ticket);
        let value = timeout_at(deadline.start_by, read.row())
            .await
            .map_err(|_| {
                let (family, limit) = (self.family(), self.handle.timeouts.write);
                let what = "was not read within the write timeout of";
                Error::store(format!(
                    "{family}: not counted: the row of {id:?} {what} {limit:?}"
                ))
            })??;
        let row = self.check_row(id, value)?;
        if row.is_none() && !self.family().makes_rows() {
            return Ok(None);
        }
        let value = row.unwrap_or(0);
        Ok(Some((Seed { ticket, value }, read)))
    }

    /// Reads the ids at the given indexes, after seeding those that have a seed. Writes their
    /// values at these indexes, and returns the missing ones with their tickets, whose rows the
    /// caller may read. If it only peeks, Redis does not know the tickets.
    ///
    /// # Errors
    /// [`Mismatch`](ErrorKind::Mismatch) if the family in Redis belongs to another database.
    async fn read_values(
        &self,
        ids: &[&str],
        left: &[(usize, Option<Seed>)],
        peeks: bool,
        values: &mut [i64],
        wait: Wait,
    ) -> Result<Vec<(usize, Ticket)>> {
        let known = self.handle.opened.known();
        let database = known.as_ref().map_or("", |known| &known.database);
        let missing = self
            .read_redis(database, ids, left, peeks, values, wait)
            .await?;
        if known.is_some() || missing.is_empty() {
            return Ok(missing);
        }
        // The rows are of a database whose id Redis has not compared yet.
        let registering = self.handle.registered();
        let registered = self.handle.stored_by(wait.deadline, registering).await?;
        self.read_redis(&registered.database, ids, left, peeks, values, wait)
            .await
    }

    /// Reads the ids for [`read_values`](Self::read_values), naming this database; empty for any.
    async fn read_redis(
        &self,
        database: &str,
        ids: &[&str],
        left: &[(usize, Option<Seed>)],
        peeks: bool,
        values: &mut [i64],
        wait: Wait,
    ) -> Result<Vec<(usize, Ticket)>> {
        let chunks = by_partition(
            left.iter()
                .map(|one| (self.family().partition_of(ids[one.0]), *one)),
            Partition::READ_IDS,
        );
        let reads = chunks.iter().map(|(number, some)| async move {
            let partition = self.handle.partition(*number);
            let names: Vec<_> = some.iter().map(|(index, _)| ids[*index]).collect();
            let seeds: Vec<_> = some
                .iter()
                .filter_map(|(index, seed)| Some((ids[*index].as_bytes(), (*seed)?)))
                .collect();
            let family = self.family();
            let read = async {
                if peeks {
                    partition.peek(family, database, &names).await
                } else {
                    partition.values(family, database, &names).await
                }
            };
            let home = self.handle.shared.home(self.family(), *number);
            // Both calls are sent together, the seeds first, so that the read finds the seeded
            // counters. A counter whose seed failed is missing again.
            let (seeded, values) = join(
                partition.seed(family, database, &home, &seeds),
                self.handle.ask(*number, wait, read),
            )
            .await;
            values.map(|values| (seeded, values))
        });
        let mut missing = Vec::new();
        for ((_, some), (seeded, results)) in chunks.iter().zip(try_join_all(reads).await?) {
            let before = missing.len();
            for (&(index, _), result) in some.iter().zip(results) {
                let (family, id) = (self.family(), ids[index]);
                match result {
                    PairResult::Counted(value) => values[index] = value,
                    PairResult::Missing(ticket) => missing.push((index, ticket)),
                    PairResult::Beyond => return Err(beyond(family, id)),
                    other => return Err(other.corrupt(family, id)),
                }
            }
            if missing.len() > before {
                seeded?;
            }
        }
        Ok(missing)
    }

    /// Reads the rows of the missing counters. Other callers that miss the counter share the read
    /// of a single row; several rows take one query.
    async fn rows(&self, ids: &[&str], missing: &[(usize, Ticket)]) -> Result<Vec<Option<i64>>> {
        match missing {
            [] => Ok(Vec::new()),
            [(index, ticket)] if *ticket != Ticket::NONE => {
                let row = self.read_row(ids[*index], *ticket).row().await?;
                Ok(vec![self.check_row(ids[*index], row)?])
            }
            _ => {
                let seeds = missing.len() as u64;
                metrics::count(metrics::SEEDS, &self.handle.opened.label, seeds);
                self.rows_together(ids, missing).await
            }
        }
    }

    /// Reads the rows of the missing counters by one query.
    async fn rows_together(
        &self,
        ids: &[&str],
        missing: &[(usize, Ticket)],
    ) -> Result<Vec<Option<i64>>> {
        let missing_ids: Vec<_> = missing.iter().map(|(index, _)| ids[*index]).collect();
        let family = self.handle.registered().await?;
        let rows = self.handle.shared.store.rows(&family, &missing_ids).await;
        let rows = self.handle.or_renewed(&family, rows).await?;
        missing_ids
            .iter()
            .zip(rows)
            .map(|(id, row)| self.check_row(id, row))
            .collect()
    }

    /// Refuses a row whose value no cached counter can have: its size is not below 2^53.
    fn check_row(&self, id: &str, row: Option<i64>) -> Result<Option<i64>> {
        if row.is_some_and(Retention::is_beyond) {
            return Err(beyond(self.family(), id));
        }
        Ok(row)
    }

    fn read_row(&self, id: &str, ticket: Ticket) -> Arc<RowRead> {
        let Handle { shared, opened, .. } = &self.handle;
        self.seeding.read(shared, opened, id, ticket)
    }

    fn comes_and_goes(&self, id: &str) -> Error {
        let family = self.family();
        Error::redis(format!(
            "{family}: {id:?} was dropped from Redis before it was seeded; retain may be too short"
        ))
    }
}
