//! The operators' part: checks of both servers, the privileges of their users, and the state of the
//! families in the database.

pub(crate) mod access;
pub(crate) mod backlog;
mod clock;
mod finding;
mod grants;
mod mysql;
pub(crate) mod redis;

pub use self::access::acl_rules;
pub use self::backlog::Backlog;
pub use self::finding::{Finding, Severity};
pub use self::grants::{grant, grants};
pub use self::redis::RedisState;
pub use crate::scripts::bundle::Script;
#[doc(hidden)]
pub use crate::store::mysql::statement::table_name;
pub use crate::store::mysql::{Drift, Overview, Purged, RecountRun, Reject, Retried};

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
