//! The operators' part: checks of both servers, the privileges of their users, and the state of the
//! families in the database.

pub(crate) mod access;
pub(crate) mod backlog;
mod grants;
pub(crate) mod redis;

pub use self::access::acl_rules;
pub use self::backlog::Backlog;
pub use self::grants::{grant, grants};
pub use self::redis::RedisState;
pub use crate::finding::{Finding, Severity};
pub use crate::scripts::bundle::Script;
#[doc(hidden)]
pub use crate::store::mysql::options::is_loopback;
#[doc(hidden)]
pub use crate::store::mysql::statement::table_name;
pub use crate::store::mysql::{
    Drift, Loss, Overview, PurgeSummary, RecountRun, Reject, RetrySummary, SetBack,
};

/// The purpose of a user of Redis and of the database. It determines the privileges of the user,
/// which [`acl_rules`] and [`grants`](grants()) return as statements.
///
/// An application on this crate is always a [`Reconciler`](Role::Reconciler), because opening a
/// family checks every script of its kind. The other roles are for clients in any language that
/// call the scripts themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// Counts, and reads the rows of cached counters to seed them.
    Writer,
    /// Counts, reads and reconciles.
    Reconciler,
    /// Reads counters and writes nothing, so `cached_get` issues no tickets for it.
    Reader,
}
