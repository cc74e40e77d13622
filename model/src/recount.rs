//! Recounting: a counter that differs from its source rows is corrected by a proven delta, never by
//! a value.
//!
//! An application inserts a row and counts it a little later. It may die in between, so that the
//! count never comes; a bug may count a row twice. Values are read exactly here, and a correction
//! is one transaction; [`deltas`](crate::deltas) and [`cached`](crate::cached) show the steps in
//! between.

mod added;
mod deleted;

pub use added::{AddedRows, Mistake as AddedMistake};
pub use deleted::{DeletedRows, Mistake as DeletedMistake};
