//! The state of a session that counterfoil depends on: its current database, and whether its server
//! accepts writes.

use std::fmt;
use std::sync::OnceLock;

use super::json;

/// The expression that returns the state as text: `read_only`, and the database in hexadecimal
/// digits, which no character set changes. A prepared statement keeps the database in which it was
/// prepared, for its tables and for DATABASE().
pub const STATE: &str =
    "CAST(CONCAT_WS(' ', @@GLOBAL.read_only, HEX(CONVERT(DATABASE() USING utf8mb4))) AS CHAR)";

/// The reason why a session is not used.
#[derive(Debug)]
pub struct Unfit {
    why: String,
    /// `true` if the server accepts no writes. It may be a replica, whose rows may be older than
    /// batches applied before.
    pub is_read_only: bool,
}

/// Checks the text of [`STATE`]. The first database becomes the store's.
pub fn check(state: &str, store: &OnceLock<String>, writes: bool) -> Result<(), Unfit> {
    let unfit = |is_read_only, why| Err(Unfit { why, is_read_only });
    let Some((read_only, database)) = state.split_once(' ') else {
        let why = "no database is selected; name one in the pool's URL";
        return unfit(false, why.to_owned());
    };
    let store = store.get_or_init(|| database.to_owned());
    if database != store {
        let (session, store) = (name(database), name(store));
        let why = format!("a session is in database `{session}`, and the store began in `{store}`");
        let advice = "give MysqlStore::new a pool whose sessions stay in one database";
        return unfit(false, format!("{why}; {advice}"));
    }
    // a number on most servers, a word on others; MySQL's super_read_only sets read_only too
    if writes && !matches!(read_only, "0" | "OFF") {
        let why =
            format!("the server accepts no writes (read_only is {read_only}), as a replica does");
        let advice = "connect to the primary";
        return unfit(true, format!("{why}; {advice}"));
    }
    Ok(())
}

/// Returns the name with these hexadecimal digits.
fn name(digits: &str) -> String {
    String::from_utf8_lossy(&json::unhex(digits).unwrap_or_default()).into_owned()
}

impl fmt::Display for Unfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for Unfit {}

impl From<Unfit> for sqlx::Error {
    fn from(unfit: Unfit) -> Self {
        sqlx::Error::Configuration(unfit.into())
    }
}
