#![doc = include_str!("../README.md")]
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

pub mod admin;
mod client;
mod connection;
mod error;
mod family;
mod finding;
pub mod metrics;
mod process;
mod reconciler;
pub mod recount;
mod scripts;
pub mod store;
mod testing;
mod writer;

pub use client::activity::{Activity, Minute, Now};
pub use client::any::AnyCounters;
pub use client::buffered::BufferedCounters;
pub use client::cached::CachedCounters;
pub use client::counterfoil::Counterfoil;
pub use client::counterfoil::builder::CounterfoilBuilder;
#[cfg(feature = "cluster")]
pub use client::counterfoil::connect::cluster_settings;
pub use client::counterfoil::shutdown::Remaining;
pub use client::family::FamilyBuilder;
pub use client::handle::exact::ReadValues;
pub use client::open::FamilyHandle;
pub use client::outcome::Outcome;
pub use client::series::{Series, Slice};
pub use client::visitors::Visitors;
#[cfg(feature = "cluster")]
pub use connection::cluster::Cluster;
#[cfg(feature = "memory-redis")]
pub use connection::memory::MemoryRedis;
pub use connection::primary::{Primary, PrimaryTimeouts};
pub use connection::{Connection, CustomConnection};
pub use error::{Error, ErrorKind, Result};
pub use family::calendar::Precision;
pub use family::day::Day;
pub use family::settings::FamilySettings;
pub use family::table::{KeyType, Table};
pub use family::{Durability, Family};
pub use reconciler::lifecycle::{Failing, Reconciler, ReconcilerBuilder};
pub use store::Store;
pub use store::memory::MemoryStore;
pub use store::mysql::MysqlStore;
pub use store::mysql::options::IntoMysqlOptions;
pub use writer::Recorded;

/// The version of the redis crate whose connections [`Counterfoil::new`] takes.
pub use ::redis;
/// The version of sqlx whose options and pools [`MysqlStore::new`] takes.
pub use ::sqlx;

#[doc = include_str!(concat!(env!("OUT_DIR"), "/guide.md"))]
pub mod guide {}

#[doc = include_str!(concat!(env!("OUT_DIR"), "/operations.md"))]
pub mod operations {}

#[doc = include_str!(concat!(env!("OUT_DIR"), "/protocol.md"))]
pub mod protocol {}

/// Internals for the project's own tests; not part of the crate's interface.
#[cfg(feature = "test-hooks")]
pub mod test_hooks {
    use crate::family::Family;
    pub use crate::family::kind::timed;
    pub use crate::family::row_id::RowIds;
    pub use crate::recount::page::{Difference, InitialValues, Page};
    pub use crate::recount::recounting::Recounting;
    pub use crate::scripts::counting::Ticket;
    pub use crate::scripts::counting::{CallReply, PairResult, PartitionCall, Seed, Update};
    pub use crate::scripts::fence::Fence;
    pub use crate::scripts::partition::Partition;
    pub use crate::scripts::partition::buffered::{
        Cut, CutBatch, FetchReply, LastCut, Lease, ReadReply, ResetReply, RotateReply, Scan,
        last_cuts,
    };
    pub use crate::scripts::partition::cached::DeleteOutcome;
    pub use crate::scripts::partition::settings::Destination;
    pub use crate::store::mysql::Run;
    pub use crate::testing::ablation::{Guard, take_out};
    pub use crate::testing::resumed::resume_from;
    pub use crate::testing::simulated::{set_clock_error, set_time};

    /// Returns the rule for the ids, names or pages that a caller gives.
    pub fn given_ids<'f>(
        family: &'f Family,
        columns: Option<&'f crate::store::Columns>,
    ) -> RowIds<'f> {
        family.given_ids(columns)
    }

    /// Returns what a client in another language must know of the family.
    pub fn description(family: &Family) -> String {
        family.description(None)
    }
}
