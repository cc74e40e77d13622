//! The state of a session that counterfoil depends on: its current database, and whether its server
//! accepts writes.

use std::sync::OnceLock;

use super::json;
use crate::error::{Error, ErrorKind, Result};

/// The expression that returns the state as text: `read_only`, and the database in hexadecimal
/// digits, which no character set changes. A prepared statement keeps the database in which it was
/// prepared, for its tables and for DATABASE().
pub const STATE: &str =
    "CAST(CONCAT_WS(' ', @@GLOBAL.read_only, HEX(CONVERT(DATABASE() USING utf8mb4))) AS CHAR)";

/// Checks the text of [`STATE`]. The first database becomes the store's. A session that does not
/// fit is [`Store`](ErrorKind::Store), or [`Unsafe`](ErrorKind::Unsafe) if its server accepts no
/// writes: it may be a replica, whose rows may be older than batches applied before.
pub fn check(state: &str, store: &OnceLock<String>, writes: bool) -> Result<()> {
    let Some((read_only, database)) = state.split_once(' ') else {
        let why = "no database is selected; name one in the pool's URL";
        return Err(Error::store(why));
    };
    let store = store.get_or_init(|| database.to_owned());
    if database != store {
        let (session, store) = (name(database), name(store));
        return Err(Error::store(format!(
            "a session is in database `{session}`, and the store began in `{store}`; \
             give MysqlStore::new a pool whose sessions stay in one database"
        )));
    }
    // a number on most servers, a word on others; MySQL's super_read_only sets read_only too
    if writes && !matches!(read_only, "0" | "OFF") {
        let why = format!(
            "the server accepts no writes (read_only is {read_only}), as a replica does; connect to the primary"
        );
        return Err(Error::new(ErrorKind::Unsafe, why));
    }
    Ok(())
}

/// Returns the name with these hexadecimal digits.
fn name(digits: &str) -> String {
    String::from_utf8_lossy(&json::unhex(digits).unwrap_or_default()).into_owned()
}
