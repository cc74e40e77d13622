//! The meaning of an error of the database for its transaction.

use std::borrow::Cow;

use sqlx::mysql::MySqlDatabaseError;

use crate::error::{Error, ErrorKind};

/// Wraps an error of the database; `what` names the failure. Returns an error of this crate as it
/// is.
pub fn store(what: impl Into<Cow<'static, str>>) -> impl FnOnce(sqlx::Error) -> Error {
    move |source| {
        if let Some(own) = own(&source) {
            return own.clone();
        }
        let kind = if blames_table(&source) {
            ErrorKind::Mismatch
        } else if source.as_database_error().is_none() || concerns_server(&source) {
            ErrorKind::Store
        } else {
            // a conflict, or one of the countless errors of a table
            ErrorKind::Busy
        };
        Error::new(kind, what).with_source(source)
    }
}

/// Returns `true` if no row of the table can be written until an operator changes something:
/// SQLSTATE class 42 (a table, column or privilege is missing), an invalid view (1356), a column
/// without a default (1364), a missing definer (1449).
fn blames_table(error: &sqlx::Error) -> bool {
    let is_missing = class(error).as_deref() == Some("42") && !is_full(error);
    is_missing || matches!(number(error), Some(1356 | 1364 | 1449))
}

/// Returns `true` if a limit of the server or of its user is reached, which also has SQLSTATE class
/// 42: 1203 and 1226 (connections, or statements in an hour), 1461 (prepared statements).
fn is_full(error: &sqlx::Error) -> bool {
    matches!(number(error), Some(1203 | 1226 | 1461))
}

/// Returns the class of the SQLSTATE, its first two letters.
pub fn class(error: &sqlx::Error) -> Option<String> {
    Some(error.as_database_error()?.code()?.chars().take(2).collect())
}

/// Returns `true` if a bulk statement failed because of the data of one of its rows, so that the
/// others can succeed: then InnoDB has undone the statement and kept the transaction, and the rows
/// can be tried in smaller groups.
///
/// By SQLSTATE class: 22 (out of range, too long, not a date), 23 (foreign key, unique key, NOT
/// NULL, and MariaDB's CHECK), 44 (CHECK OPTION of a view), 45 (SIGNAL of a trigger), 01 (a warning
/// that strict mode made an error). MySQL reports some others of this sort as HY000, which are
/// recognized by number. Everything else, such as a missing table or privilege, a lock, a full disk
/// or table, or a lost connection, is not the fault of a row and fails the transaction. So does a
/// column without a default (1364): it refuses every row, and holding the batches back until it is
/// fixed loses none.
pub fn blames_row(error: &sqlx::Error) -> bool {
    const BY_NUMBER: [u16; 9] = [
        1300, // invalid character string
        1366, // incorrect value for column
        1411, // incorrect value for function
        1525, // incorrect value of a type
        1526, // no partition of the table for the value
        1643, 1644, // SIGNAL with a SQLSTATE of the trigger author's own
        1748, // row outside the given partitions
        3819, // CHECK constraint (MySQL)
    ];
    match (class(error).as_deref(), number(error)) {
        (Some("01" | "22" | "23" | "44" | "45"), _) => true,
        (_, Some(number)) => BY_NUMBER.contains(&number),
        _ => false,
    }
}

/// Returns `true` if a row that a foreign key refers to does not exist: 1216 and 1452.
pub fn is_orphan(error: &sqlx::Error) -> bool {
    number(error).is_some_and(is_orphan_number)
}

/// Returns `true` for the number of such an error, or of such a warning.
pub fn is_orphan_number(number: u16) -> bool {
    matches!(number, 1216 | 1452)
}

/// Returns `true` if the transaction conflicted with another one and may succeed when it is tried
/// again from its start: 1213 (deadlock, also a failed certification of a cluster; already rolled
/// back by the server) and 3101 (the same of group replication), 1205 (lock wait timeout; still
/// open), 1020 (MariaDB with `innodb_snapshot_isolation`), and 1062 for a ledger row that another
/// transaction inserted first.
pub fn is_conflict(error: &sqlx::Error) -> bool {
    matches!(number(error), Some(1020 | 1062 | 1205 | 1213 | 3101))
}

/// Returns `true` if the server takes no writes of any table at present: SQLSTATE class 08 (no
/// connection, or a shutdown) or 28 (the user is not accepted), a connection that was killed, a
/// limit that is reached, a server that is read-only or offline, or a proxy without a server.
pub fn concerns_server(error: &sqlx::Error) -> bool {
    const BY_NUMBER: [u16; 14] = [
        1129, 1130, // host not accepted
        1290, // an option of the server, mostly read-only
        1317, // interrupted
        1792, 1836, 1874, // read-only transaction, server or InnoDB
        1927, // connection killed (MariaDB)
        3032, // offline mode
        3168, // server not available
        3169, // session killed
        4031, // idle for too long
        9000, 9001, // ProxySQL: no server, or none in time
    ];
    matches!(class(error).as_deref(), Some("08" | "28"))
        || is_full(error)
        || is_suspended(error)
        || number(error).is_some_and(|number| BY_NUMBER.contains(&number))
}

/// Returns `true` if another session has locked a row or table for as long as the transaction
/// waits: 1205.
pub fn is_locked(error: &sqlx::Error) -> bool {
    number(error) == Some(1205)
}

/// Returns `true` if a privilege is missing: 1142 (table), 1143 (column), 1044 (schema), 1227
/// (global).
pub fn is_denied(error: &sqlx::Error) -> bool {
    matches!(number(error), Some(1044 | 1142 | 1143 | 1227))
}

/// Returns `true` if the server does not accept the user of a new connection: SQLSTATE class 28, no
/// privilege for the database, 3159 (without TLS), or the account is suspended.
pub fn rejects_user(error: &sqlx::Error) -> bool {
    class(error).as_deref() == Some("28")
        || is_denied(error)
        || is_suspended(error)
        || number(error) == Some(3159)
}

/// Returns `true` if the account is locked (3118; MariaDB: 4151), or its password has expired (1820,
/// 1862).
fn is_suspended(error: &sqlx::Error) -> bool {
    matches!(number(error), Some(1820 | 1862 | 3118 | 4151))
}

/// Returns `true` if the connection is lost: mostly an idle one that the server closed, or an
/// earlier server's. Some servers announce it: 1053 (shutdown), 1927 (killed), 4031 (idle for too
/// long).
pub fn is_lost(error: &sqlx::Error) -> bool {
    matches!(error, sqlx::Error::Io(_)) || matches!(number(error), Some(1053 | 1927 | 4031))
}

/// Returns `true` if the server no longer accepts writes, as after a failover, although it still
/// replies: 1290 (mostly read-only), 1836 and 1874 (read-only), 3032 (offline mode), and 1047 (a
/// node that left its Galera cluster).
pub fn is_demoted(error: &sqlx::Error) -> bool {
    matches!(number(error), Some(1047 | 1290 | 1836 | 1874 | 3032))
}

/// Returns `true` if the connection is not used again. After an error of the protocol sqlx waits
/// for a reply that never comes.
pub fn ends_session(error: &sqlx::Error) -> bool {
    is_lost(error) || is_demoted(error) || matches!(error, sqlx::Error::Protocol(_))
}

/// Returns the error with which work ends its transaction, or a session refuses its use.
pub fn from_own(error: Error) -> sqlx::Error {
    sqlx::Error::Configuration(error.into())
}

/// Returns the error of this crate that [`from_own`] wrapped.
pub fn own(error: &sqlx::Error) -> Option<&Error> {
    match error {
        sqlx::Error::Configuration(error) => error.downcast_ref(),
        _ => None,
    }
}

/// Returns the server's own message.
pub fn message(error: &sqlx::Error) -> String {
    error
        .as_database_error()
        .map_or_else(|| error.to_string(), |error| error.message().to_owned())
}

/// Returns `true` if the server does not know the statement.
pub fn is_syntax(error: &sqlx::Error) -> bool {
    number(error) == Some(1064)
}

fn number(error: &sqlx::Error) -> Option<u16> {
    Some(
        error
            .as_database_error()?
            .try_downcast_ref::<MySqlDatabaseError>()?
            .number(),
    )
}
