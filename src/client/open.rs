//! The handle type of each family type.

use crate::client::handle::Handle;
use crate::error::Result;
use crate::family::Sealed;

/// Counters that can be [recounted](crate::Counterfoil::recount):
/// [`BufferedCounters`](crate::BufferedCounters) and [`CachedCounters`](crate::CachedCounters).
pub trait Recountable {
    #[doc(hidden)]
    fn of_recount(&self) -> &Handle;
}

/// A family of any kind, for [`Counterfoil::open`](crate::Counterfoil::open). This crate alone
/// implements it.
pub trait OpenFamily: Sealed {
    /// The handle that counts and reads in it.
    type Handle;

    #[doc(hidden)]
    fn in_use(self, handle: Handle) -> Result<Self::Handle>;
}
