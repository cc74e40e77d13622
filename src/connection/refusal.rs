//! What an error of the redis crate means.

use redis::{RedisError, ServerErrorKind};

/// The code of an error that says that a command was not even sent. Redis knows none of that name.
const UNSENT: &str = "UNSENT";

/// The codes of replies after which nothing was done: Redis refuses the command itself with them, or a script's first write,
/// which is a plain call in every script. NOPERM is none of them: in the middle of a script one command may be refused.
const NOTHING_DONE: [&str; 16] = [
    "ASK",
    "BUSY",
    "CLUSTERDOWN",
    "CROSSSLOT",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "MOVED",
    "NOAUTH",
    "NOREPLICAS",
    "NOSCRIPT",
    "OOM",
    "READONLY",
    "TRYAGAIN",
    "WRONGPASS",
    UNSENT,
];

/// Whether it is a reply whose code says that this arrival did nothing. Redis 6.2 puts the code of a command within a script
/// into the text, as in "ERR Error running script ... -OOM ...".
pub fn tells_that_nothing_was_done(error: &RedisError) -> bool {
    let within = |text: &str| {
        text.starts_with("Error running script") && NOTHING_DONE.iter().any(|code| text.contains(&format!("-{code} ")))
    };
    match error.code() {
        Some("ERR") => error.detail().is_some_and(within),
        code => code.is_some_and(|code| NOTHING_DONE.contains(&code)),
    }
}

/// Whether the server does not accept the user, or the user may not do this. A command within a script is refused without a
/// code of its own by most servers.
pub fn is_denied(error: &RedisError) -> bool {
    const WITHIN: [&str; 2] = ["ACL failure in script", "The user executing the script can't"];
    matches!(error.code(), Some("NOAUTH" | "NOPERM" | "WRONGPASS"))
        || error.kind() == redis::ErrorKind::AuthenticationFailed
        || error.detail().is_some_and(|text| WITHIN.iter().any(|within| text.contains(within)))
}

/// The error of a command that was not sent for this reason.
pub fn unsent(error: &RedisError) -> RedisError {
    match error.code() {
        Some("NOAUTH" | "WRONGPASS") => error.clone(),
        _ => redis::make_extension_error(UNSENT.to_owned(), Some(error.to_string())),
    }
}

/// Whether the server says that it is a replica.
pub fn is_demoted(error: &RedisError) -> bool {
    use redis::ErrorKind::Server;
    matches!(error.kind(), Server(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown))
}
