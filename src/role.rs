//! The purposes of users of Redis and of the database.

/// The purpose of a user of Redis and of the database. It determines the privileges of the user,
/// which [`acl_rules`](crate::acl_rules) and [`grants`](crate::grants) return as statements.
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
