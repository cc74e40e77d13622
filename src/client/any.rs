//! The handle of a family whose kind is known only when the program runs.

use std::sync::Arc;

use redis::aio::ConnectionLike;

use crate::client::activity::Activity;
use crate::client::backlog::Backlog;
use crate::client::buffered::BufferedCounters;
use crate::client::cached::CachedCounters;
use crate::client::counterfoil::Counterfoil;
use crate::client::handle::Handle;
use crate::client::open::OpenFamily;
use crate::client::series::Series;
use crate::client::visitors::Visitors;
use crate::connection::primary::Primary;
use crate::error::Result;
use crate::family::{AnyFamily, Family};
use crate::store::mysql::MysqlStore;
use crate::store::{Registered, Store};

/// A family of whichever kind in use. Cloning is cheap.
#[derive(Debug)]
#[non_exhaustive]
pub enum AnyCounters<C = Primary, S = MysqlStore> {
    /// Of [`AnyFamily::Buffered`].
    Buffered(BufferedCounters<C, S>),
    /// Of [`AnyFamily::Cached`].
    Cached(CachedCounters<C, S>),
    /// Of [`AnyFamily::Series`].
    Series(Series<C, S>),
    /// Of [`AnyFamily::Activity`].
    Activity(Activity<C, S>),
    /// Of [`AnyFamily::Visitors`].
    Visitors(Visitors<C, S>),
}

/// The same for the handle of any kind.
macro_rules! of_any {
    ($counters:expr, $handle:ident => $result:expr) => {
        match $counters {
            AnyCounters::Buffered($handle) => $result,
            AnyCounters::Cached($handle) => $result,
            AnyCounters::Series($handle) => $result,
            AnyCounters::Activity($handle) => $result,
            AnyCounters::Visitors($handle) => $result,
        }
    };
}

impl<C, S> Clone for AnyCounters<C, S> {
    fn clone(&self) -> Self {
        match self {
            AnyCounters::Buffered(counters) => AnyCounters::Buffered(counters.clone()),
            AnyCounters::Cached(counters) => AnyCounters::Cached(counters.clone()),
            AnyCounters::Series(series) => AnyCounters::Series(series.clone()),
            AnyCounters::Activity(activity) => AnyCounters::Activity(activity.clone()),
            AnyCounters::Visitors(visitors) => AnyCounters::Visitors(visitors.clone()),
        }
    }
}

impl<C, S> AnyCounters<C, S>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
    S: Store,
{
    /// The configuration.
    pub fn family(&self) -> &Family {
        of_any!(self, handle => handle.family())
    }

    /// As [`BufferedCounters::backlog`].
    ///
    /// # Errors
    /// [`Redis`](crate::ErrorKind::Redis) where it cannot be asked.
    pub async fn backlog(&self) -> Result<Backlog> {
        of_any!(self, handle => handle.backlog().await)
    }
}

impl OpenFamily for AnyFamily {
    type Handle<C, S> = AnyCounters<C, S>;

    fn in_use<C, S>(self, handle: Handle<C, S>) -> Result<AnyCounters<C, S>>
    where
        C: ConnectionLike + Clone + Send + Sync + 'static,
        S: Store,
    {
        Ok(match self {
            AnyFamily::Buffered(family) => AnyCounters::Buffered(family.in_use(handle)?),
            AnyFamily::Cached(family) => AnyCounters::Cached(family.in_use(handle)?),
            AnyFamily::Series(family) => AnyCounters::Series(family.in_use(handle)?),
            AnyFamily::Activity(family) => AnyCounters::Activity(family.in_use(handle)?),
            AnyFamily::Visitors(family) => AnyCounters::Visitors(family.in_use(handle)?),
        })
    }
}

impl<C, S> Counterfoil<C, S>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
    S: Store,
{
    /// Takes a family in use as the database [has it](Store::families), and writes nothing: neither its settings nor an epoch. For
    /// tools that look at families which other processes open; who knows the configuration calls [`open`](Self::open).
    ///
    /// # Errors
    /// [`Closed`](crate::ErrorKind::Closed) after [`shutdown`](Self::shutdown).
    pub fn open_registered(&self, registered: Registered) -> Result<AnyCounters<C, S>> {
        let handle = Handle::served(self.shared.clone(), Arc::new(registered), self.timeouts)?;
        AnyFamily::from(handle.family().clone()).in_use(handle)
    }
}
