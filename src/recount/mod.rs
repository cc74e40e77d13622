//! The recount: compares counters with the rows that they count, and adds proven differences while
//! counting continues (docs/protocol.md, section 9).

pub(crate) mod builder;
mod movement;
pub(crate) mod page;
pub(crate) mod recounter;
pub(crate) mod recounting;
mod run;
pub(crate) mod verdict;

pub use self::builder::RecountBuilder;
pub use self::recounter::Recounter;
pub use self::recounting::{Mode, RecountIds, RecountProgress};
pub use crate::client::open::Recountable;
pub use crate::store::mysql::{Rows, Source};
