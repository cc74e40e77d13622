#![doc = include_str!("../README.md")]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod ablation;
mod backoff;
mod buffered;
mod cached;
mod cached_counters;
mod check;
mod connect;
mod counterfoil;
mod counters;
mod error;
mod family;
mod flush;
mod keys;
mod link;
pub mod metrics;
mod mysql;
mod partition;
mod primary;
mod read;
mod reconciler;
mod resend;
mod save;
mod script;
mod seeding;
mod shared;
mod store;
mod table;
mod writer;

pub use buffered::Added;
pub use cached_counters::{CachedCounters, Changed};
pub use check::{Finding, Severity};
#[cfg(feature = "cluster")]
pub use connect::cluster_settings;
pub use counterfoil::Counterfoil;
pub use counters::Counters;
pub use error::{Error, ErrorKind, Result};
pub use family::{CachedFamily, CachedFamilyBuilder, Durability, Family, FamilyBuilder};
pub use mysql::{MysqlStore, Reject};
pub use primary::Primary;
pub use reconciler::{Reconciler, ReconcilerBuilder};
pub use script::Script;
pub use store::{Applied, Batch, Incarnation, ReadFrom, Registered, Row, Save, Saved, Snapshot, Store, Version};
pub use table::{KeyType, Table};

/// Opened for the project's own tests: nothing here is part of the crate's interface.
#[cfg(feature = "test-hooks")]
pub mod test_hooks {
    pub use crate::ablation::{Guard, take_out};
    pub use crate::buffered::{AddReply, Cut, CutBatch, FetchReply, Lease, Pending, RotateReply};
    pub use crate::cached::{Change, Claim, Deleted, IncrReply, Marked, Rebased, Seed, Ticket, Word};
    pub use crate::family::Stay;
    pub use crate::partition::{Fence, Partition};
}
