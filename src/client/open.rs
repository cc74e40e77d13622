//! From the type of a family to the type of its handle.

use crate::client::handle::Handle;
use crate::error::Result;
use crate::family::Sealed;

/// Counters that can be [recounted](crate::Counterfoil::recount): [`BufferedCounters`](crate::BufferedCounters) and
/// [`CachedCounters`](crate::CachedCounters).
pub trait Recountable {
    #[doc(hidden)]
    fn of_recount(&self) -> &Handle;
}

/// A family of some kind, as [`Counterfoil::open`](crate::Counterfoil::open) takes it. The kinds are those of this crate.
pub trait OpenFamily: Sealed {
    /// The handle that counts and reads in it.
    type Handle;

    #[doc(hidden)]
    fn in_use(self, handle: Handle) -> Result<Self::Handle>;
}
