//! From the type of a family to the type of its handle.

use redis::aio::ConnectionLike;

use crate::client::handle::Handle;
use crate::error::Result;
use crate::family::Sealed;
use crate::store::Store;
use crate::store::mysql::MysqlStore;

/// Counters that can be [recounted](crate::Counterfoil::recount): [`BufferedCounters`](crate::BufferedCounters) and
/// [`CachedCounters`](crate::CachedCounters).
pub trait Recountable<C> {
    #[doc(hidden)]
    fn of_recount(&self) -> &Handle<C, MysqlStore>;
}

/// A family of some kind, as [`Counterfoil::open`](crate::Counterfoil::open) takes it. The kinds are those of this crate.
pub trait OpenFamily: Sealed {
    /// What counts and reads in it, over the connection `C` to Redis and the store `S`.
    type Handle<C, S>;

    #[doc(hidden)]
    fn in_use<C, S>(self, handle: Handle<C, S>) -> Result<Self::Handle<C, S>>
    where
        C: ConnectionLike + Clone + Send + Sync + 'static,
        S: Store;
}
