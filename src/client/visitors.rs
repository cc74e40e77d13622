//! The handle of a family of unique visitors: counting and reading.

use futures_util::Stream;

use crate::client::handle::{Handle, borrowed_ids, handle_methods};
use crate::client::open::FamilyHandle;
use crate::client::outcome::Outcome;
use crate::error::{Error, Result};
use crate::family::day::Day;
use crate::family::kind::visit;
use crate::writer::Recorded;

/// The visitors of one open family, each counted once for a scope and day (docs/protocol.md,
/// section 5). Cloning is cheap.
#[derive(Clone, Debug)]
pub struct Visitors(pub(super) Handle);

impl FamilyHandle for Visitors {
    fn of(handle: Handle) -> Result<Self> {
        Ok(Visitors(handle))
    }
}

impl Visitors {
    handle_methods!(0);

    /// Counts the visitor for `SCOPE/DAY` if this is the first visit to the scope on that day, and
    /// returns [`Counted(1)`](Outcome::Counted) if it is and
    /// [`CountedBefore(0)`](Outcome::CountedBefore) if not. Of concurrent calls exactly one is the
    /// first, even if a reply is lost on the way. The number reaches the database exactly once.
    ///
    /// The caller chooses the day. A visitor is 1 to 255 bytes of any kind. Only Redis knows the
    /// visitors: if it loses its memory, visitors of the day count again.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput): the scope or the visitor is not allowed.
    /// [`Redis`](crate::ErrorKind::Redis): not counted; the call may be retried.
    /// [`OutcomeUnknown`](crate::ErrorKind::OutcomeUnknown): counted once or not at all. The reply
    /// was lost, and could not be requested again within the [write timeout](Self::write_timeout).
    pub async fn first_visit(
        &self,
        scope: &str,
        day: Day,
        visitor: impl AsRef<[u8]>,
    ) -> Result<Outcome> {
        let id = self.id(scope, day)?;
        self.family().check_visitor(visitor.as_ref())?;
        let key = visit::key(&id, visitor.as_ref());
        Outcome::of(self.0.add(&key, 1, true).await?, self.family(), &id)
    }

    /// Counts a visitor without waiting for Redis, if it is a first visit: it is sent within a few
    /// milliseconds. Unsent visits are lost when the process is killed; call
    /// [`flush`](Self::flush) before it ends.
    ///
    /// # Errors
    /// See [`BufferedCounters::record`](crate::BufferedCounters::record).
    pub fn record(&self, scope: &str, day: Day, visitor: impl AsRef<[u8]>) -> Result<()> {
        let id = self.id(scope, day)?;
        self.family().check_visitor(visitor.as_ref())?;
        self.0.writer.record(&visit::key(&id, visitor.as_ref()), 1)
    }

    /// Waits until Redis has counted or refused everything that was recorded before the call, and
    /// returns the outcome.
    ///
    /// # Errors
    /// See [`BufferedCounters::flush`](crate::BufferedCounters::flush).
    pub async fn flush(&self) -> Result<Recorded> {
        self.0.writer.flush().await
    }

    /// Returns the exact number of visitors of the scope on that day.
    ///
    /// # Errors
    /// See [`BufferedCounters::get`](crate::BufferedCounters::get).
    pub async fn get(&self, scope: &str, day: Day) -> Result<i64> {
        Ok(self.get_many([(scope, day)]).await?[0])
    }

    /// Returns the exact numbers of many scopes and days, in their order.
    ///
    /// # Errors
    /// See [`get`](Self::get).
    pub async fn get_many(
        &self,
        days: impl IntoIterator<Item = (impl AsRef<str>, Day)>,
    ) -> Result<Vec<i64>> {
        let ids = days
            .into_iter()
            .map(|(scope, day)| self.id(scope.as_ref(), day))
            .collect::<Result<Vec<_>>>()?;
        self.0.exact(&borrowed_ids(&ids)).await
    }

    /// Returns up to `limit` ids, `SCOPE/DAY`, that begin with `prefix` and follow `after` in byte
    /// order, ascending, each with its exact number. Pass the last one as `after` for the next
    /// page.
    ///
    /// # Errors
    /// See [`get`](Self::get).
    pub async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, i64)>> {
        self.0.list(prefix, after, limit).await
    }

    /// Returns all ids that begin with `prefix`, like [`list`](Self::list), as a stream that reads
    /// page by page. An id that is counted for the first time meanwhile may be missing; values are
    /// exact as of their page. The stream ends after an error.
    ///
    /// # Errors
    /// See [`get`](Self::get).
    pub fn list_all(
        &self,
        prefix: &str,
    ) -> impl Stream<Item = Result<(String, i64)>> + Send + Unpin + use<> {
        self.0.list_all(prefix)
    }

    /// Returns `SCOPE/DAY`, joined by the separator. Refuses one that would read as another scope and
    /// day.
    fn id(&self, scope: &str, day: Day) -> Result<String> {
        let (family, day) = (self.family(), day.to_string());
        let separator = family.separator();
        let id = format!("{scope}{separator}{day}");
        self.0.check_given(&id)?;
        if id.rsplit(separator).next() == Some(day.as_str()) {
            return Ok(id);
        }
        let joined = format!("scope {scope:?} and day {day}, joined by {separator:?}");
        Err(Error::invalid(format!("{family}: {joined}, are ambiguous")))
    }
}
