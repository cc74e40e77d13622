//! A buffered family in use: counting and reading.

use std::time::Duration;

use futures_util::Stream;

use crate::client::exact::Shown;
use crate::client::handle::{Handle, handle_methods};
use crate::client::open::{OpenFamily, Recountable};
use crate::error::Result;
use crate::family::BufferedFamily;
use crate::scripts::buffered::{Added, AddedOnce};
use crate::writer::{Progress, Recorded, Request};

/// The counters of one open family. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct BufferedCounters(Handle);

impl OpenFamily for BufferedFamily {
    type Handle = BufferedCounters;

    fn in_use(self, handle: Handle) -> Result<BufferedCounters> {
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

    /// Counts `delta` for `id`, and returns when Redis has done it: with the pending value as after exactly this
    /// increment. The value is in the database after the next sync, exactly once, whatever dies in between.
    ///
    /// Callers that come while a call to the id's partition is under way go together into the next one, equal ids
    /// summed; a lone caller's hit goes out at once. Where this process already keeps many hits waiting for Redis, it
    /// waits for room. After a lost reply `pending` is what it is by the time of the repeat. A call that is dropped
    /// half-way may have been counted.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput): the id is not allowed. [`Redis`](crate::ErrorKind::Redis): not
    /// counted; may be called again. [`OutcomeUnknown`](crate::ErrorKind::OutcomeUnknown): counted once or not at all,
    /// the reply was lost and could not be asked for again within the [write timeout](Self::write_timeout).
    pub async fn add(&self, id: &str, delta: i64) -> Result<Added> {
        self.family().check_id(id)?;
        self.0.writer.add(id.as_bytes(), delta, self.0.timeout, true).await?.added(self.family(), id)
    }

    /// The same, but where it would have to wait for room it is an error at once.
    ///
    /// # Errors
    /// As for [`add`](Self::add), and [`Busy`](crate::ErrorKind::Busy): not counted, since many others wait.
    pub async fn try_add(&self, id: &str, delta: i64) -> Result<Added> {
        self.family().check_id(id)?;
        self.0.writer.add(id.as_bytes(), delta, self.0.timeout, false).await?.added(self.family(), id)
    }

    /// Counts `delta` for `id` once, however often that is asked for with the same `request`, also at once and by several
    /// processes: for an application that may do its work again, since its future was dropped, the outcome of a call is
    /// unknown, or a job ran twice. A request is named by 1 to 64 bytes of the application's choice together with the id: a
    /// job may add to several counters under one name.
    ///
    /// **A request is remembered for a minute at least** by the server's clock, mostly for one to two minutes, and counts again
    /// after that. So is a refusal: use another name to try again. Redis keeps some 100 bytes and the id for each meanwhile,
    /// and forgets a request no sooner than its hit in a crash. What is remembered does not move along where a single
    /// server is made a cluster, nor where the number of partitions is changed.
    ///
    /// Each is a call of its own, which costs more than an [`add`](Self::add) under load.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput): the id or the request's name is not allowed.
    /// [`Redis`](crate::ErrorKind::Redis) and [`OutcomeUnknown`](crate::ErrorKind::OutcomeUnknown) as for
    /// [`add`](Self::add); after either the same request may be made again.
    pub async fn add_once(&self, request: &str, id: &str, delta: i64) -> Result<AddedOnce> {
        self.once(Progress::default(), request, id, delta).await
    }

    /// Returns the epoch in which Redis remembers the request if it is made now. A job that may run again minutes later stores
    /// it before its first [`add_once_since`](Self::add_once_since), beside the request's name.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) as for [`add_once`](Self::add_once);
    /// [`Redis`](crate::ErrorKind::Redis) if Redis is unreachable.
    pub async fn request_epoch(&self, request: &str, id: &str) -> Result<String> {
        self.0.writer.request_epoch(Request::new(self.family(), request, id, 0)?).await
    }

    /// Counts like [`add_once`](Self::add_once), and never twice, however late the request is made again: once Redis may have
    /// forgotten what was done since `epoch`, the request is refused. That is one to two minutes after
    /// [`request_epoch`](Self::request_epoch) returned it, and after Redis lost its memory.
    ///
    /// # Errors
    /// As for [`add_once`](Self::add_once). [`OutcomeUnknown`](crate::ErrorKind::OutcomeUnknown) also if the epoch has ended:
    /// nothing was done now, and it is unknown whether the request was executed before.
    pub async fn add_once_since(&self, epoch: &str, request: &str, id: &str, delta: i64) -> Result<AddedOnce> {
        self.once(Progress::since(epoch), request, id, delta).await
    }

    async fn once(&self, mut progress: Progress, request: &str, id: &str, delta: i64) -> Result<AddedOnce> {
        let request = Request::new(self.family(), request, id, delta)?;
        let (result, repeated) = self.0.writer.once(request, &mut progress, None, self.0.timeout).await?;
        Ok(match result.added(self.family(), id)? {
            Added::Counted { pending } if repeated => AddedOnce::CountedBefore { pending },
            Added::Counted { pending } => AddedOnce::Counted { pending },
            Added::OutOfRange => AddedOnce::OutOfRange,
            Added::Full => AddedOnce::Full,
        })
    }

    /// Counts many hits at once, and returns what became of each, in their order. Partitions are called side by side, and
    /// fail by themselves; so does a hit whose id is not allowed.
    ///
    /// # Errors
    /// For each hit as for [`add`](Self::add).
    pub async fn add_many(&self, hits: impl IntoIterator<Item = (impl AsRef<str>, i64)>) -> Vec<Result<Added>> {
        let (family, hits) = (self.family(), hits.into_iter().collect::<Vec<_>>());
        let checked = hits.iter().map(|(id, delta)| {
            let id = id.as_ref();
            family.check_id(id).map(|()| (id.as_bytes(), *delta))
        });
        let results = self.0.add_many(checked.collect()).await;
        let results = results.into_iter().zip(&hits);
        results.map(|(result, (id, _))| result?.added(family, id.as_ref())).collect()
    }

    /// Counts `delta` for `id` without waiting for Redis: summed in this process, and sent within a few milliseconds,
    /// as exactly as an [`add`](Self::add). What was not sent yet is lost when the process is killed or its tokio
    /// runtime ends; [`flush`](Self::flush) before. Dropping the last handle sends it in the background.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput): the id is not allowed. [`Busy`](crate::ErrorKind::Busy): not
    /// counted, since much waits to be sent, mostly because Redis is away: many ids, or a sum at an end of i64.
    pub fn record(&self, id: &str, delta: i64) -> Result<()> {
        self.family().check_id(id)?;
        self.0.writer.record(id.as_bytes(), delta)
    }

    /// Returns when Redis has counted, or refused, everything that was recorded before the call: with what became of the
    /// hits since the last flush.
    ///
    /// # Errors
    /// What went wrong with recorded hits since the last flush: [`Redis`](crate::ErrorKind::Redis) if some are not yet
    /// sent, which are kept and tried again; [`OutcomeUnknown`](crate::ErrorKind::OutcomeUnknown) if some may be lost;
    /// [`Corrupt`](crate::ErrorKind::Corrupt) if some were refused by a key that is not of the bundle's shape.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn flush(&self) -> Result<Recorded> {
        self.0.writer.flush().await
    }

    /// The exact value: every increment acknowledged before the call, none twice, also while a batch is on its way.
    /// 0 for an id that was never counted.
    ///
    /// # Errors
    /// [`Redis`](crate::ErrorKind::Redis) or [`Store`](crate::ErrorKind::Store) where one of the two cannot be asked;
    /// [`Range`](crate::ErrorKind::Range) where the sum leaves the signed 64-bit range.
    pub async fn get(&self, id: &str) -> Result<i64> {
        Ok(self.get_many(&[id]).await?[0])
    }

    /// The exact values of many ids, in their order, in one call per partition concerned and one query.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    #[tracing::instrument(level = "debug", skip_all, fields(family = %self.family()))]
    pub async fn get_many(&self, ids: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Vec<i64>> {
        let ids: Vec<_> = ids.into_iter().collect();
        let ids = self.family().check_ids(&ids)?;
        self.0.exact(&ids).await
    }

    /// The exact values if they can be read within that time, or else what the database [holds](Self::stored), 0 where there
    /// is no row: for pages that would rather show a number of a moment ago than wait for a Redis that is away.
    ///
    /// # Errors
    /// [`Store`](crate::ErrorKind::Store) where the database cannot be asked either; [`Range`](crate::ErrorKind::Range).
    pub async fn get_or_stored(
        &self,
        ids: impl IntoIterator<Item = impl AsRef<str>>,
        within: Duration,
    ) -> Result<Shown> {
        let ids: Vec<_> = ids.into_iter().collect();
        let ids = self.family().check_ids(&ids)?;
        self.0.or_stored(&ids, within, self.0.exact(&ids)).await
    }

    /// What the database holds of each id, `None` where there is no row. It may lag behind by a sync, or by a read
    /// replica's lag.
    ///
    /// # Errors
    /// [`Store`](crate::ErrorKind::Store) where the database cannot be asked.
    pub async fn stored(&self, ids: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Vec<Option<i64>>> {
        let ids: Vec<_> = ids.into_iter().collect();
        let ids = self.family().check_ids(&ids)?;
        self.0.stored(&ids).await
    }

    /// What Redis holds of each id, for which no database is needed. While a batch is on its way its part may be in the
    /// database already, so this is not to be added to [`stored`](Self::stored): [`get_many`](Self::get_many) does
    /// that.
    ///
    /// # Errors
    /// [`Redis`](crate::ErrorKind::Redis) where it cannot be asked; [`Range`](crate::ErrorKind::Range).
    pub async fn pending(&self, ids: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Vec<i64>> {
        let ids: Vec<_> = ids.into_iter().collect();
        let ids = self.family().check_ids(&ids)?;
        self.0.pending(&ids).await
    }

    /// Up to `limit` ids that begin with `prefix` and come after `after` in byte order, ascending, each with its exact
    /// value; pass the last one as `after` for the next page. Ids that are only in Redis so far are among them. It
    /// looks through all that is pending in the family, page by page.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    #[tracing::instrument(level = "debug", skip_all, fields(family = %self.family(), prefix, limit))]
    pub async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<(String, i64)>> {
        self.0.list(prefix, after, limit).await
    }

    /// The same for all ids that begin with `prefix`, as a stream that asks for one page after the other. An id that is
    /// counted for the first time meanwhile may be missing; values are exact as of their page. After an error it ends.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn list_all(&self, prefix: &str) -> impl Stream<Item = Result<(String, i64)>> + Send + Unpin + use<> {
        self.0.list_all(prefix)
    }
}
