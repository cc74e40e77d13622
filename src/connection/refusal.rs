//! The meaning of the redis crate's errors.

use std::fmt;

use redis::{RedisError, ServerErrorKind};

/// The code of the error of a command that was not sent. Redis has no code of that name.
const UNSENT: &str = "UNSENT";

/// The codes of replies after which nothing was done. Redis refused the command, or the first write
/// of a script: every script makes it by `redis.call`, so that the refusal ends the script. NOPERM
/// is not among the codes, because Redis may refuse one command in the middle of a script.
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

/// Returns whether the error is a reply whose code proves that this arrival did nothing. Redis 6.2
/// puts the code of a command within a script into the text, as in "ERR Error running script ...
/// -OOM ...".
pub fn proves_not_executed(error: &RedisError) -> bool {
    let within = |text: &str| {
        text.starts_with("Error running script")
            && NOTHING_DONE
                .iter()
                .any(|code| text.contains(&format!("-{code} ")))
    };
    match error.code() {
        Some("ERR") => error.detail().is_some_and(within),
        code => code.is_some_and(|code| NOTHING_DONE.contains(&code)),
    }
}

/// Returns whether the server rejects the user, or the user lacks a permission. Most servers have
/// no code of its own for the refusal of a command within a script, and a cluster's client has none
/// for the refusal of a login: their texts show them.
pub fn is_denied(error: &RedisError) -> bool {
    const WITHIN: [&str; 3] = [
        "ACL failure in script",
        "The user executing the script can't",
        "Password authentication failed",
    ];
    matches!(error.code(), Some("NOAUTH" | "NOPERM" | "WRONGPASS"))
        || error.kind() == redis::ErrorKind::AuthenticationFailed
        || error
            .detail()
            .is_some_and(|text| WITHIN.iter().any(|within| text.contains(within)))
}

/// Returns the error of a command that was not sent for this reason.
pub fn unsent(error: &RedisError) -> RedisError {
    match error.code() {
        Some("NOAUTH" | "WRONGPASS") => error.clone(),
        _ => unsent_because(error),
    }
}

/// Returns the error of a command that was not sent.
pub fn unsent_because(reason: impl fmt::Display) -> RedisError {
    redis::make_extension_error(UNSENT.to_owned(), Some(reason.to_string()))
}

/// Returns the reason why the command was not sent, if it was not.
pub fn unsent_reason(error: &RedisError) -> Option<&str> {
    error.detail().filter(|_| error.code() == Some(UNSENT))
}

/// Returns whether the server replied that it is a replica.
pub fn is_demoted(error: &RedisError) -> bool {
    use redis::ErrorKind::Server;
    matches!(
        error.kind(),
        Server(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown)
    )
}
