//! The traits that the handles share.

use crate::client::handle::Handle;
use crate::error::Result;

/// Counters that can be [recounted](crate::Counterfoil::recount):
/// [`BufferedCounters`](crate::BufferedCounters) and [`CachedCounters`](crate::CachedCounters).
pub trait Recountable {
    #[doc(hidden)]
    fn of_recount(&self) -> &Handle;
}

/// The handle of an open family, which [`Counterfoil::open`](crate::Counterfoil::open) returns.
/// This crate alone implements it.
pub trait FamilyHandle: Sized {
    #[doc(hidden)]
    fn of(handle: Handle) -> Result<Self>;
}
