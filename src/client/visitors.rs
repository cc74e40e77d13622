//! A family of unique visitors in use: counting and reading.

use redis::aio::ConnectionLike;

use crate::client::handle::{Handle, handle_methods};
use crate::connection::primary::Primary;
use crate::error::{Error, ErrorKind, Result};
use crate::family::visit;
use crate::scripts::partition::PairResult;
use crate::store::Store;
use crate::store::mysql::MysqlStore;

/// The visitors of scopes and days of one open family, each counted once (PROTOCOL section 5). Cloning is cheap.
#[derive(Debug)]
pub struct Visitors<C = Primary, S = MysqlStore>(Handle<C, S>);

impl<C, S> Clone for Visitors<C, S> {
    fn clone(&self) -> Self {
        Visitors(self.0.clone())
    }
}

impl<C, S> Visitors<C, S>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
    S: Store,
{
    pub(crate) fn new(handle: Handle<C, S>) -> Self {
        Visitors(handle)
    }

    handle_methods!(0);

    /// Whether this is the visitor's first visit to the scope on that day, of however many are made at a time; if so it
    /// counts one for `SCOPE/DAY`, which reaches the database exactly once. Also where a reply was lost the one call that
    /// was the first is told so.
    ///
    /// The day is the caller's to name, such as `2014-09-20`, without a `/`; a visitor is 1 to 255 bytes of any kind. Who has been there
    /// is known to Redis alone: where Redis loses its memory, visitors of the day count again.
    ///
    /// # Errors
    /// [`InvalidInput`](ErrorKind::InvalidInput): scope, day or visitor are not allowed. [`Busy`](ErrorKind::Busy): not
    /// counted, since as many scopes and days are pending as a family may have. [`Range`](ErrorKind::Range): not counted, since
    /// the number would leave the signed 64-bit range. [`Redis`](ErrorKind::Redis): not counted;
    /// may be called again. [`OutcomeUnknown`](ErrorKind::OutcomeUnknown): counted once or not at all, the reply was lost
    /// and could not be asked for again within the [write timeout](Self::write_timeout).
    pub async fn first_visit(&self, scope: &str, day: &str, visitor: impl AsRef<[u8]>) -> Result<bool> {
        let id = self.id(scope, day)?;
        self.family().check_visitor(visitor.as_ref())?;
        match self.0.writer.add(&visit::key(&id, visitor.as_ref()), 1, self.0.timeout, true).await? {
            PairResult::First => Ok(true),
            PairResult::Again => Ok(false),
            PairResult::Full => Err(self.refused(ErrorKind::Busy, "too many ids are pending")),
            PairResult::OutOfRange(_) => Err(self.refused(ErrorKind::Range, "what is pending would leave i64")),
            other => Err(other.corrupt(self.family(), &id)),
        }
    }

    fn refused(&self, kind: ErrorKind, why: &str) -> Error {
        Error::new(kind, format!("{}: not counted: {why}", self.family()))
    }

    /// The exact number of visitors that the scope has had on that day.
    ///
    /// # Errors
    /// As for [`Counters::get`](crate::Counters::get).
    pub async fn get(&self, scope: &str, day: &str) -> Result<i64> {
        Ok(self.get_many(&[(scope, day)]).await?[0])
    }

    /// The exact numbers of many scopes and days, in their order.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub async fn get_many(&self, days: &[(impl AsRef<str>, impl AsRef<str>)]) -> Result<Vec<i64>> {
        let ids = days.iter().map(|(scope, day)| self.id(scope.as_ref(), day.as_ref())).collect::<Result<Vec<_>>>()?;
        let ids: Vec<_> = ids.iter().map(String::as_str).collect();
        self.0.exact(&ids).await
    }

    /// Up to `limit` ids, `SCOPE/DAY`, that begin with `prefix` and come after `after` in byte order, ascending, each with
    /// its exact number; pass the last one as `after` for the next page.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub async fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<(String, i64)>> {
        self.0.list(prefix, after, limit).await
    }

    /// `SCOPE/DAY`, refused where another scope and day would make the same: a scope may hold the separator, a day may not.
    /// In a table's last column the day is alone.
    fn id(&self, scope: &str, day: &str) -> Result<String> {
        let table = self.family().table();
        let separator = table.map_or('/', |table| table.separator);
        let id = format!("{scope}{separator}{day}");
        self.family().check_id(&id)?;
        let last = match table {
            Some(table) if table.keys.len() > 1 => id.splitn(table.keys.len(), separator).last(),
            _ => id.rsplit(separator).next(),
        };
        match last == Some(day) {
            true => Ok(id),
            false => Err(Error::invalid(format!(
                "{}: scope {scope:?} and day {day:?}, parted by {separator:?}, cannot be told from others",
                self.family()
            ))),
        }
    }
}
