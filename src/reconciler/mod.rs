//! What brings the numbers to the database.

pub mod flush;
pub mod lifecycle;
pub mod registry;
pub mod save;
mod scheduler;
pub mod upkeep;
