//! A family whose kind is known only at run time: from a configuration file, or from the database.

use super::{
    ActivityFamily, BufferedFamily, CachedFamily, Family, Kind, Sealed, SeriesFamily,
    VisitorsFamily,
};

/// A family of any kind. [`From`] converts the [`Family`] that [`Registered`](crate::store::Registered)
/// holds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AnyFamily {
    /// [`Family::buffered`].
    Buffered(BufferedFamily),
    /// [`Family::cached`].
    Cached(CachedFamily),
    /// [`Family::series`].
    Series(SeriesFamily),
    /// [`Family::activity`].
    Activity(ActivityFamily),
    /// [`Family::visitors`].
    Visitors(VisitorsFamily),
}

impl From<Family> for AnyFamily {
    fn from(family: Family) -> Self {
        match family.kind {
            Kind::Buffered(_) => AnyFamily::Buffered(BufferedFamily { family }),
            Kind::Cached(_) => AnyFamily::Cached(CachedFamily { family }),
            Kind::Series(_) => AnyFamily::Series(SeriesFamily { family }),
            Kind::Activity(_) => AnyFamily::Activity(ActivityFamily::new(family)),
            Kind::Visitors(_) => AnyFamily::Visitors(VisitorsFamily { family }),
        }
    }
}

impl AnyFamily {
    /// Returns the part that all kinds of families have.
    pub fn family(&self) -> &Family {
        match self {
            AnyFamily::Buffered(family) => family.family(),
            AnyFamily::Cached(family) => family.family(),
            AnyFamily::Series(family) => family.family(),
            AnyFamily::Activity(family) => family.family(),
            AnyFamily::Visitors(family) => family.family(),
        }
    }
}

impl Sealed for AnyFamily {
    fn common(&self) -> &Family {
        self.family()
    }
}
