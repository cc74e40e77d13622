//! The handle of a family whose kind is known only when the program runs.

use std::sync::Arc;

use crate::admin::backlog::Backlog;
use crate::client::activity::Activity;
use crate::client::buffered::BufferedCounters;
use crate::client::cached::CachedCounters;
use crate::client::counterfoil::Counterfoil;
use crate::client::handle::Handle;
use crate::client::open::OpenFamily;
use crate::client::series::Series;
use crate::client::visitors::Visitors;
use crate::error::Result;
use crate::family::{AnyFamily, Family};
use crate::store::Registered;

/// The handle of a family of any kind. Cloning is cheap.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AnyCounters {
    /// The handle of an [`AnyFamily::Buffered`].
    Buffered(BufferedCounters),
    /// The handle of an [`AnyFamily::Cached`].
    Cached(CachedCounters),
    /// The handle of an [`AnyFamily::Series`].
    Series(Series),
    /// The handle of an [`AnyFamily::Activity`].
    Activity(Activity),
    /// The handle of an [`AnyFamily::Visitors`].
    Visitors(Visitors),
}

/// Evaluates one expression for the handle of any kind.
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

impl AnyCounters {
    /// Returns the configuration.
    pub fn family(&self) -> &Family {
        of_any!(self, handle => handle.family())
    }

    /// Returns the family's backlog, like [`BufferedCounters::backlog`].
    ///
    /// # Errors
    /// [`Redis`](crate::ErrorKind::Redis) if Redis is unreachable.
    pub async fn backlog(&self) -> Result<Backlog> {
        of_any!(self, handle => handle.backlog().await)
    }
}

impl OpenFamily for AnyFamily {
    type Handle = AnyCounters;

    fn in_use(self, handle: Handle) -> Result<AnyCounters> {
        Ok(match self {
            AnyFamily::Buffered(family) => AnyCounters::Buffered(family.in_use(handle)?),
            AnyFamily::Cached(family) => AnyCounters::Cached(family.in_use(handle)?),
            AnyFamily::Series(family) => AnyCounters::Series(family.in_use(handle)?),
            AnyFamily::Activity(family) => AnyCounters::Activity(family.in_use(handle)?),
            AnyFamily::Visitors(family) => AnyCounters::Visitors(family.in_use(handle)?),
        })
    }
}

impl Counterfoil {
    /// Opens a family as [registered](crate::Store::families) in the database, and writes nothing:
    /// neither its settings nor an epoch. It is for tools that inspect families of other processes.
    /// A program that knows the configuration calls [`open`](Self::open).
    ///
    /// # Errors
    /// [`Closed`](crate::ErrorKind::Closed) after [`shutdown`](Self::shutdown).
    pub fn open_registered(&self, registered: Registered) -> Result<AnyCounters> {
        let handle = Handle::served(self.shared.clone(), Arc::new(registered), self.timeouts)?;
        AnyFamily::from(handle.family().clone()).in_use(handle)
    }
}
