//! What a user of the servers is for.

/// What a user of Redis and of the database is for, which decides the privileges that it needs:
/// [`acl_rules`](crate::acl_rules) and [`grants`](crate::grants) make them lines to paste.
///
/// An application on this crate is a [`Reconciler`](Role::Reconciler), whatever it does: opening a family tries all
/// that its kind uses. The others are for clients in any language that call the scripts themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// Counts, and reads what counting needs: rows and versions of cached counters, which are seeded with them.
    Writer,
    /// Counts, reads and reconciles.
    Reconciler,
    /// Reads what others counted, and writes nothing: no tickets by `cached_get`, and no incarnation by `buffered_begin`,
    /// so that what is pending in a partition cannot be read exactly before its first sync.
    Reader,
}
