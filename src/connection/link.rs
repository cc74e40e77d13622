//! One command over any connection of the redis crate: what each kind of them is known to do, and what a failure means.

use std::any::TypeId;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use redis::aio::{ConnectionLike, ConnectionManager, MultiplexedConnection};
use redis::{Cmd, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::time::{Instant, timeout};

use crate::connection::primary::Primary;

/// How long an answer is waited for over a connection that would wait longer, or for ever.
const ANSWER: Duration = Duration::from_secs(5);

/// The code of an error that says that a command was not even sent. Redis knows none of that name.
const UNSENT: &str = "UNSENT";

/// Sends the command once. An answer that is an error is an error.
pub async fn send<C: ConnectionLike + Clone + 'static>(redis: &C, command: &Cmd) -> RedisResult<Value> {
    let mut redis = redis.clone();
    let answer = match timeout(ANSWER, redis.req_packed_command(command)).await {
        Ok(answer) => answer.and_then(Value::extract_error),
        Err(elapsed) => Err(std::io::Error::from(elapsed).into()),
    };
    match &answer {
        Err(error) if is::<C, ConnectionManager>() && is_demoted(error) => leave(&mut redis).await,
        Err(error) if is_cluster::<C>() && error.is_timeout() => look_around(&mut redis).await,
        _ => {}
    }
    answer
}

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

/// Whether the command was surely not executed.
///
/// A reply that says so is proof where it is the only one. Where the client may have sent the command before by itself, an
/// earlier arrival may have been executed. Without a reply only those that connect first and then send know that they did
/// not send.
pub fn surely_not_executed<C: 'static>(error: &RedisError) -> bool {
    let crosses_slots = error.kind() == redis::ErrorKind::Server(ServerErrorKind::CrossSlot);
    let is_proof = tells_that_nothing_was_done(error) && (sends_once::<C>() || crosses_slots);
    is_proof || is::<C, ConnectionManager>() && error.is_connection_refusal()
}

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

/// Whether the connection is of a kind that is known to send a command once.
pub fn sends_once<C: 'static>() -> bool {
    is::<C, Primary>() || is::<C, ConnectionManager>() || is::<C, MultiplexedConnection>()
}

/// The error of a command that was not sent for this reason.
pub fn unsent(error: &RedisError) -> RedisError {
    match error.code() {
        Some("NOAUTH" | "WRONGPASS") => error.clone(),
        _ => redis::make_extension_error(UNSENT.to_owned(), Some(error.to_string())),
    }
}

/// Whether it is a cluster connection of the redis crate, which sends a command again by itself unless it is told not to.
pub fn is_cluster<C: 'static>() -> bool {
    #[cfg(feature = "cluster")]
    return is::<C, redis::cluster_async::ClusterConnection>();
    #[cfg(not(feature = "cluster"))]
    false
}

fn is<C: 'static, D: 'static>() -> bool {
    TypeId::of::<C>() == TypeId::of::<D>()
}

/// Whether the server says that it is a replica.
pub fn is_demoted(error: &RedisError) -> bool {
    use redis::ErrorKind::Server;
    matches!(error.kind(), Server(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown))
}

/// After a failover behind a name, a connection manager would stay with the old primary for ever: it connects again
/// only when the connection breaks. So the server is asked to break it, unless somebody was quicker.
async fn leave(redis: &mut (impl ConnectionLike + Clone)) {
    let role: RedisResult<Vec<Value>> = redis::cmd("ROLE").query_async(redis).await;
    if matches!(role.as_deref(), Ok([Value::BulkString(role), ..]) if role == b"master") {
        return;
    }
    tracing::warn!("the connection leads to a replica and is given up");
    // the second one is what notices that the connection is closed
    for command in ["QUIT", "PING"] {
        let _ = timeout(Duration::from_secs(1), redis.req_packed_command(&redis::cmd(command))).await;
    }
}

/// A cluster connection stays with a node that is silent even when the cluster has replaced it: it asks who has which
/// slot only where a connection breaks or a node says MOVED. So a node is made to say so, at most once a second.
async fn look_around(redis: &mut impl ConnectionLike) {
    static LAST: Mutex<Option<Instant>> = Mutex::new(None);
    {
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_some_and(|last| last.elapsed() < Duration::from_secs(1)) {
            return;
        }
        *last = Some(Instant::now());
    }
    tracing::warn!("a node does not answer: the cluster is asked who has its slots");
    let mut command = redis::cmd("EVAL");
    command.arg("return redis.error_reply('MOVED counterfoil asks for the slots')").arg(0);
    let _ = timeout(Duration::from_secs(1), redis.req_packed_command(&command)).await;
}
