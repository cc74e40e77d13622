#![doc = include_str!("../README.md")]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod ablation;
mod access;
mod activity;
mod activity_counters;
mod backlog;
mod backoff;
mod buffered;
mod builder;
mod cached;
mod cached_counters;
mod calendar;
mod check;
mod connect;
mod counterfoil;
mod counters;
mod error;
mod exact;
mod family;
mod fence;
mod flush;
mod handle;
mod keys;
mod link;
mod memory;
pub mod metrics;
mod mysql;
mod partition;
mod primary;
mod read;
mod reconciler;
mod reconfigure;
mod registry;
mod save;
mod script;
mod seeding;
mod series;
mod series_counters;
mod server_clock;
mod shared;
mod shutdown;
mod simulated;
mod store;
mod table;
mod topology;
mod upkeep;
mod visit;
mod visitor_counters;
mod visitors;
mod writer;

pub use activity_counters::{Activity, Minute, Now, VisitorCount};
pub use backlog::Backlog;
pub use buffered::{Added, AddedOnce};
pub use builder::CounterfoilBuilder;
pub use cached_counters::{CachedCounters, Changed};
pub use calendar::Precision;
pub use check::{Finding, Severity};
#[cfg(feature = "cluster")]
pub use connect::cluster_settings;
pub use counterfoil::Counterfoil;
pub use counters::Counters;
pub use error::{Error, ErrorKind, Result};
pub use exact::Shown;
pub use family::{
    ActivityFamily, ActivityFamilyBuilder, CachedFamily, CachedFamilyBuilder, Counting, Durability, Family,
    FamilyBuilder, SeriesFamily, SeriesFamilyBuilder, VisitorsFamily, VisitorsFamilyBuilder,
};
pub use memory::MemoryStore;
pub use mysql::{MysqlStore, Reject, Retried};
pub use primary::Primary;
pub use reconciler::{Reconciler, ReconcilerBuilder};
pub use script::Script;
pub use series_counters::{Series, Slice};
pub use shutdown::Remaining;
pub use store::{Applied, Batch, Incarnation, ReadFrom, Registered, Row, Save, Saved, Snapshot, Store, Version};
pub use table::{KeyType, Table};
pub use visitor_counters::Visitors;

/// The version of the redis crate whose connections [`Counterfoil::new`] takes.
pub use ::redis;
/// The version of sqlx whose pools [`MysqlStore::new`] takes.
pub use ::sqlx;

/// Opened for the project's own tests: nothing here is part of the crate's interface.
#[cfg(feature = "test-hooks")]
pub mod test_hooks {
    pub use crate::ablation::{Guard, take_out};
    pub use crate::buffered::{Cut, CutBatch, FetchReply, Lease, Pending, RotateReply};
    pub use crate::cached::{Claim, Deleted, Marked, Rebased, Seed, Ticket};
    pub use crate::family::{Stay, Windows};
    pub use crate::fence::Fence;
    pub use crate::partition::{Change, Counted, PairResult, Part, Partition};
    pub use crate::server_clock::ServerClock;
    pub use crate::simulated::{set_clock_error, set_time};
}
