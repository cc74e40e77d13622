//! The handle of a buffered family: counting and reading.

use std::time::Duration;

use futures_util::Stream;

use crate::client::handle::exact::ReadValues;
use crate::client::handle::{Handle, borrowed_ids, handle_methods};
use crate::client::open::{FamilyHandle, Recountable};
use crate::client::outcome::Outcome;
use crate::error::Result;
use crate::writer::{Recorded, Request, RequestState};

/// The counters of one open family. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct BufferedCounters(pub(super) Handle);

impl FamilyHandle for BufferedCounters {
    fn of(handle: Handle) -> Result<Self> {
        Ok(BufferedCounters(handle))
    }
}

impl Recountable for BufferedCounters {
    fn of_recount(&self) -> &Handle {
        &self.0
    }
}

impl BufferedCounters {
    handle_methods!(0);

    /// Counts `delta` for `id`, and returns the pending value right after this increment when Redis
    /// has counted it. The hit is in the database after the next sync, exactly once, whichever
    /// process or server fails in between.
    ///
    /// Callers that arrive while calls are in flight share the next one, with equal ids summed. A
    /// lone caller's hit is sent at once. If many hits of this process already wait for Redis, the
    /// call waits for room. If a reply was lost, the returned value is the one at the time of the
    /// retry. A call whose future is dropped before it completes may have been counted.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput): the id is not allowed.
    /// [`Redis`](crate::ErrorKind::Redis): not counted; the call may be retried.
    /// [`OutcomeUnknown`](crate::ErrorKind::OutcomeUnknown): counted once or not at all. The reply
    /// was lost, and could not be requested again within the [write timeout](Self::write_timeout).
    /// [`Closed`](crate::ErrorKind::Closed): not counted, because the pair was [shut
    /// down](crate::Counterfoil::shutdown), or the runtime has ended.
    pub async fn add(&self, id: &str, delta: i64) -> Result<Outcome> {
        self.count(id, delta, true).await
    }

    /// Counts like [`add`](Self::add), but returns an error at once instead of waiting for room.
    ///
    /// # Errors
    /// The errors of [`add`](Self::add), and [`Busy`](crate::ErrorKind::Busy): not counted, because
    /// many other hits wait.
    pub async fn try_add(&self, id: &str, delta: i64) -> Result<Outcome> {
        self.count(id, delta, false).await
    }

    async fn count(&self, id: &str, delta: i64, wait: bool) -> Result<Outcome> {
        self.0.check_given(id)?;
        let result = self.0.add(id.as_bytes(), delta, wait).await?;
        Outcome::of(result, self.family(), id)
    }

    /// Counts `delta` for `id` once, however often it is called with the same `request`, also
    /// concurrently and from several processes. It is for an application that may repeat its work:
    /// a future was dropped, an outcome is unknown, or a job ran twice. A request is identified by
    /// 1 to 64 bytes of the application's choice together with the id: a job may add to several
    /// counters under one name.
    ///
    /// **Redis remembers a request for an hour**, or as long as
    /// [`remember_requests`](crate::FamilyBuilder::remember_requests), and at most for twice as
    /// long; a later call counts again. It remembers [`OutOfRange`](Outcome::OutOfRange) as well:
    /// use another name to try again. Each request takes about 50 bytes beside its name and id. In
    /// a crash Redis forgets a request no sooner than its hit. Requests are not carried over when a
    /// single server becomes a cluster, or when the number of partitions of a cluster changes.
    ///
    /// Requests share calls with other hits.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput): the id or the request's name is not
    /// allowed. [`Redis`](crate::ErrorKind::Redis) and
    /// [`OutcomeUnknown`](crate::ErrorKind::OutcomeUnknown) as for [`add`](Self::add); after either
    /// the same request may be retried.
    pub async fn add_once(&self, request: &str, id: &str, delta: i64) -> Result<Outcome> {
        self.once(RequestState::default(), request, id, delta).await
    }

    /// Returns the epoch in which Redis remembers the request if it is made now. A job that may run
    /// again later stores it with the request's name, before its first
    /// [`add_once_since`](Self::add_once_since).
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) as for [`add_once`](Self::add_once);
    /// [`Redis`](crate::ErrorKind::Redis) if Redis is unreachable.
    pub async fn request_epoch(&self, request: &str, id: &str) -> Result<String> {
        self.0.request_epoch(request, id).await
    }

    /// Counts like [`add_once`](Self::add_once), and never twice, however late the request is
    /// retried. The request is refused once Redis may have forgotten what was done since `epoch`:
    /// an hour after [`request_epoch`](Self::request_epoch) returned it at the earliest, and after
    /// Redis has lost its memory.
    ///
    /// # Errors
    /// The errors of [`add_once`](Self::add_once).
    /// [`OutcomeUnknown`](crate::ErrorKind::OutcomeUnknown) also if the epoch has ended: nothing
    /// was done now, and it is unknown whether the request was executed before.
    pub async fn add_once_since(
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
        let request = Request::new(&self.0.opened, request, id, delta)?;
        let deadline = self.0.write_deadline();
        let writer = &self.0.writer;
        let result = writer.once(request, &mut progress, None, deadline).await?;
        Outcome::of(result, self.family(), id)
    }

    /// Counts many hits at once, and returns the outcome of each, in their order. Calls of some
    /// hundred hits each are made a few at a time, and fail independently; so does a hit whose id
    /// is not allowed. The write timeout covers all of them: the hits that have no time left are
    /// not counted.
    ///
    /// # Errors
    /// Each outcome may have the errors of [`add`](Self::add).
    pub async fn add_many(
        &self,
        hits: impl IntoIterator<Item = (impl AsRef<str>, i64)>,
    ) -> Vec<Result<Outcome>> {
        let (family, hits) = (self.family(), hits.into_iter().collect::<Vec<_>>());
        let checked = hits.iter().map(|(id, delta)| {
            let id = id.as_ref();
            self.0.check_given(id).map(|()| (id.as_bytes(), *delta))
        });
        let results = self.0.add_many(checked.collect()).await;
        results
            .into_iter()
            .zip(&hits)
            .map(|(result, (id, _))| Outcome::of(result?, family, id.as_ref()))
            .collect()
    }

    /// Counts `delta` for `id` without waiting for Redis: the hit is summed in this process and
    /// sent within a few milliseconds, as exactly as with [`add`](Self::add). Unsent hits are lost
    /// when the process is killed or its tokio runtime ends; call [`flush`](Self::flush) before.
    /// Dropping the last handle sends them in the background.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput): the id is not allowed.
    /// [`Busy`](crate::ErrorKind::Busy): not counted, because too many ids wait to be sent. The
    /// usual cause is an unreachable Redis.
    pub fn record(&self, id: &str, delta: i64) -> Result<()> {
        self.0.check_given(id)?;
        self.0.writer.record(id.as_bytes(), delta)
    }

    /// Waits until Redis has counted or refused everything that was recorded before the call.
    /// Returns the outcome of the hits recorded since the last flush.
    ///
    /// # Errors
    /// The failure of recorded hits since the last flush: [`Redis`](crate::ErrorKind::Redis) if
    /// some are not yet sent; they are kept and retried.
    /// [`OutcomeUnknown`](crate::ErrorKind::OutcomeUnknown) if some may be lost.
    /// [`Corrupt`](crate::ErrorKind::Corrupt) if some were refused because a key does not have the
    /// shape that the scripts write. [`Closed`](crate::ErrorKind::Closed) if the runtime of the pair
    /// has ended, and the hits with it.
    pub async fn flush(&self) -> Result<Recorded> {
        self.0.writer.flush().await
    }

    /// Returns the exact value: every increment acknowledged before the call, none twice, even
    /// while a batch is in flight. 0 for an id that was never counted.
    ///
    /// # Errors
    /// [`Redis`](crate::ErrorKind::Redis) or [`Store`](crate::ErrorKind::Store) if that server is
    /// unreachable; [`Range`](crate::ErrorKind::Range) if the sum leaves the signed 64-bit range.
    pub async fn get(&self, id: &str) -> Result<i64> {
        Ok(self.get_many(&[id]).await?[0])
    }

    /// Returns the exact values of many ids, in their order. It takes one call per partition
    /// involved and one query.
    ///
    /// # Errors
    /// See [`get`](Self::get).
    #[tracing::instrument(level = "debug", skip_all, fields(family = %self.family()))]
    pub async fn get_many(
        &self,
        ids: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Vec<i64>> {
        let checked = self.0.check_all_given(ids)?;
        self.0.exact(&borrowed_ids(&checked)).await
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
        let checked = self.0.check_all_given(ids)?;
        let ids = borrowed_ids(&checked);
        self.0.or_stored(&ids, within, self.0.exact(&ids)).await
    }

    /// Returns the value of each id in the database, `None` without a row. It may lag by a sync, or
    /// by a read replica's lag.
    ///
    /// # Errors
    /// [`Store`](crate::ErrorKind::Store) if the database is unreachable.
    pub async fn stored(
        &self,
        ids: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Vec<Option<i64>>> {
        let checked = self.0.check_all_given(ids)?;
        self.0.stored(&borrowed_ids(&checked)).await
    }

    /// Returns the pending value of each id in Redis, without reading the database. The deltas of a
    /// batch in flight may already be in the database, so do not add the result to
    /// [`stored`](Self::stored): [`get_many`](Self::get_many) combines the two exactly.
    ///
    /// # Errors
    /// [`Redis`](crate::ErrorKind::Redis) if Redis is unreachable;
    /// [`Range`](crate::ErrorKind::Range) as for [`get`](Self::get).
    pub async fn pending(
        &self,
        ids: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Vec<i64>> {
        let checked = self.0.check_all_given(ids)?;
        self.0.pending(&borrowed_ids(&checked)).await
    }

    /// Returns up to `limit` ids that begin with `prefix` and follow `after` in byte order,
    /// ascending, each with its exact value. Pass the last one as `after` for the next page. Ids
    /// that are so far only in Redis are included.
    ///
    /// The call scans all ids that are pending in the family, 1,000 at a time, and keeps `limit` of
    /// them: about 3 µs for each. The [read timeout](Self::read_timeout) limits each step, not the
    /// scan.
    ///
    /// # Errors
    /// See [`get`](Self::get).
    #[tracing::instrument(level = "debug", skip_all, fields(family = %self.family(), prefix, limit))]
    pub async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, i64)>> {
        self.0.list(prefix, after, limit).await
    }

    /// Returns all ids that begin with `prefix`, like [`list`](Self::list), as a stream that reads
    /// pages of 1,000, with a scan for each. An id that is counted for the first time meanwhile may
    /// be missing; values are exact as of their page. The stream ends after an error.
    ///
    /// # Errors
    /// See [`get`](Self::get).
    pub fn list_all(
        &self,
        prefix: &str,
    ) -> impl Stream<Item = Result<(String, i64)>> + Send + Unpin + use<> {
        self.0.list_all(prefix)
    }
}
