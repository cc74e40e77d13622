//! One command over any connection of the redis crate: what each kind of them is known to do.

use std::any::TypeId;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use redis::aio::{ConnectionLike, ConnectionManager, MultiplexedConnection};
use redis::{Cmd, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::time::{Instant, timeout};

use crate::connection::primary::Primary;
use crate::connection::refusal::{is_demoted, tells_that_nothing_was_done};

/// How long a reply is waited for over a connection that would wait longer, or for ever.
const REPLY: Duration = Duration::from_secs(5);

/// Sends the command once. A reply that is an error is an error.
pub async fn send<C: ConnectionLike + Clone + 'static>(redis: &C, command: &Cmd) -> RedisResult<Value> {
    let mut redis = redis.clone();
    let reply = match timeout(REPLY, redis.req_packed_command(command)).await {
        Ok(reply) => reply.and_then(Value::extract_error),
        Err(elapsed) => Err(std::io::Error::from(elapsed).into()),
    };
    match &reply {
        Err(error) if is::<C, ConnectionManager>() && is_demoted(error) => leave(&mut redis).await,
        Err(error) if is_cluster::<C>() && error.is_timeout() => look_around(&mut redis).await,
        _ => {}
    }
    reply
}

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

/// Whether the connection is of a kind that is known to send a command once.
pub fn sends_once<C: 'static>() -> bool {
    is::<C, Primary>() || is::<C, ConnectionManager>() || is::<C, MultiplexedConnection>()
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
    tracing::warn!("a node does not reply: the cluster is asked who has its slots");
    let mut command = redis::cmd("EVAL");
    command.arg("return redis.error_reply('MOVED counterfoil asks for the slots')").arg(0);
    let _ = timeout(Duration::from_secs(1), redis.req_packed_command(&command)).await;
}
