//! The handle of a family whose kind is known only when the program runs.

use crate::admin::backlog::Backlog;
use crate::client::activity::Activity;
use crate::client::buffered::BufferedCounters;
use crate::client::cached::CachedCounters;
use crate::client::handle::Handle;
use crate::client::open::FamilyHandle;
use crate::client::series::Series;
use crate::client::visitors::Visitors;
use crate::error::Result;
use crate::family::Family;
use crate::family::kind::Kind;

/// The handle of a family of any kind. Cloning is cheap.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AnyCounters {
    /// The handle of a family of [`Family::buffered`].
    Buffered(BufferedCounters),
    /// The handle of a family of [`Family::cached`].
    Cached(CachedCounters),
    /// The handle of a family of [`Family::series`].
    Series(Series),
    /// The handle of a family of [`Family::activity`].
    Activity(Activity),
    /// The handle of a family of [`Family::visitors`].
    Visitors(Visitors),
}

impl AnyCounters {
    fn handle(&self) -> &Handle {
        match self {
            AnyCounters::Buffered(counters) => &counters.0,
            AnyCounters::Cached(counters) => &counters.handle,
            AnyCounters::Series(series) => &series.handle,
            AnyCounters::Activity(activity) => &activity.handle,
            AnyCounters::Visitors(visitors) => &visitors.0,
        }
    }

    /// Returns the configuration.
    pub fn family(&self) -> &Family {
        self.handle().family()
    }

    /// Returns the family's backlog, like [`BufferedCounters::backlog`].
    ///
    /// # Errors
    /// [`Redis`](crate::ErrorKind::Redis) if Redis is unreachable.
    pub async fn backlog(&self) -> Result<Backlog> {
        self.handle().backlog().await
    }
}

impl FamilyHandle for AnyCounters {
    fn of(handle: Handle) -> Result<Self> {
        Ok(match handle.family().kind {
            Kind::Buffered => AnyCounters::Buffered(FamilyHandle::of(handle)?),
            Kind::Cached(_) => AnyCounters::Cached(FamilyHandle::of(handle)?),
            Kind::Series(_) => AnyCounters::Series(FamilyHandle::of(handle)?),
            Kind::Activity(_) => AnyCounters::Activity(FamilyHandle::of(handle)?),
            Kind::Visitors(_) => AnyCounters::Visitors(FamilyHandle::of(handle)?),
        })
    }
}
