//! The reconciler, which brings counts from Redis to the database.

mod cached;
pub mod drain;
pub mod flush;
pub mod flusher;
pub mod lifecycle;
pub mod registry;
mod rejects;
mod schedule;
mod scheduler;
mod server_watch;
pub mod set_back;
pub mod step;
mod sweep;
pub mod upkeep;
