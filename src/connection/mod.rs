//! A connection to Redis over any connection of the redis crate.

pub mod backoff;
#[cfg(feature = "cluster")]
pub mod cluster;
pub mod failures;
mod manager;
#[cfg(feature = "memory-redis")]
pub mod memory;
pub mod outage;
pub mod primary;
pub mod refusal;
pub mod sentinel;
pub mod topology;

use std::fmt;
use std::time::Duration;

use redis::aio::{ConnectionLike, ConnectionManager, MultiplexedConnection};
use redis::{Cmd, Pipeline, RedisError, RedisFuture, RedisResult, Value};
use tokio::time::timeout;

#[cfg(feature = "cluster")]
use crate::connection::cluster::Cluster;
use crate::connection::manager::ManagedConnection;
use crate::connection::primary::Primary;
use crate::connection::refusal::proves_not_executed;

/// The time limit for a reply, for connections that would wait longer or forever.
const REPLY: Duration = Duration::from_secs(5);

/// A connection to Redis: a [`Primary`], a `Cluster` (feature `cluster`), or a
/// [custom](Self::custom) one, such as those of the redis crate. It is cloned for every call.
///
/// - A [`ConnectionManager`] reconnects when its connection breaks. It stays with a server that is
///   silent, or that became a replica in a failover: a [`Primary`] does not.
/// - A [`MultiplexedConnection`] does not reconnect once it is lost.
#[derive(Clone)]
pub struct Connection(Link);

#[derive(Clone)]
enum Link {
    Primary(Primary),
    #[cfg(feature = "cluster")]
    Cluster(Cluster),
    #[cfg(feature = "memory-redis")]
    Memory(memory::MemoryRedis),
    Custom(Box<dyn DynConnection>, CustomConnection),
}

/// The properties of a [custom](Connection::custom) connection, as the application knows them.
#[derive(Clone, Copy, Debug, Default)]
pub struct CustomConnection {
    /// `true` if it may send a call again by itself. That is harmless, since Redis executes a call
    /// once, however often it arrives. But a refusal proves that nothing was counted only over a
    /// connection that sends once. Over others the outcome is unknown once the time limit is over.
    pub resends: bool,
    /// `true` if it leads to a cluster. An undeclared one is refused when a family is opened.
    pub is_cluster: bool,
}

/// A [`ConnectionLike`] that can be cloned in its box.
trait DynConnection: ConnectionLike + Send + Sync {
    fn boxed(&self) -> Box<dyn DynConnection>;
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> DynConnection for C {
    fn boxed(&self) -> Box<dyn DynConnection> {
        Box::new(self.clone())
    }
}

impl Clone for Box<dyn DynConnection> {
    fn clone(&self) -> Self {
        (**self).boxed()
    }
}

impl From<Primary> for Connection {
    fn from(connection: Primary) -> Self {
        Connection(Link::Primary(connection))
    }
}

impl From<ConnectionManager> for Connection {
    fn from(connection: ConnectionManager) -> Self {
        Connection::custom(ManagedConnection(connection), CustomConnection::default())
    }
}

impl From<MultiplexedConnection> for Connection {
    fn from(connection: MultiplexedConnection) -> Self {
        Connection::custom(connection, CustomConnection::default())
    }
}

#[cfg(feature = "cluster")]
impl From<Cluster> for Connection {
    fn from(connection: Cluster) -> Self {
        Connection(Link::Cluster(connection))
    }
}

#[cfg(feature = "memory-redis")]
impl From<memory::MemoryRedis> for Connection {
    fn from(redis: memory::MemoryRedis) -> Self {
        Connection(Link::Memory(redis))
    }
}

impl Connection {
    /// Wraps a connection of any other type. It reports a command that it did not send as
    /// [`unsent`](Self::unsent).
    pub fn custom(
        connection: impl ConnectionLike + Clone + Send + Sync + 'static,
        is: CustomConnection,
    ) -> Self {
        Connection(Link::Custom(Box::new(connection), is))
    }

    /// Returns the error with which a [custom](Self::custom) connection reports that it did not send
    /// a command, such as a pool without a free connection. If it never [resends](CustomConnection::resends),
    /// the hits are then known not to be counted, and recorded ones are kept. After any other error
    /// without a reply their outcome is unknown.
    pub fn unsent(reason: impl fmt::Display) -> RedisError {
        refusal::unsent_because(reason)
    }

    /// Sends the command once. Returns an error reply as an error.
    pub(crate) async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        let mut redis = self.clone();
        let limit = match &self.0 {
            Link::Primary(primary) => primary.limit(),
            _ => REPLY,
        };
        match timeout(limit, redis.req_packed_command(command)).await {
            Ok(reply) => reply.and_then(Value::extract_error),
            Err(elapsed) => Err(std::io::Error::from(elapsed).into()),
        }
    }

    /// Waits until a command would be sent at once, as far as that is known. A call that ends while
    /// it waits here was not sent.
    pub(crate) async fn ready(&self) -> RedisResult<()> {
        match &self.0 {
            Link::Primary(primary) => primary.ready().await,
            _ => Ok(()),
        }
    }

    /// Returns whether the command was definitely not executed.
    ///
    /// A reply that says so is proof if it is the only one. If the client may have sent the command
    /// before by itself, an earlier arrival may have been executed.
    pub(crate) fn definitely_not_executed(&self, error: &RedisError) -> bool {
        self.sends_once() && proves_not_executed(error)
    }

    /// Returns whether the connection is known to send a command once.
    pub(crate) fn sends_once(&self) -> bool {
        match &self.0 {
            Link::Primary(_) => true,
            #[cfg(feature = "cluster")]
            Link::Cluster(_) => false,
            #[cfg(feature = "memory-redis")]
            Link::Memory(_) => true,
            Link::Custom(_, is) => !is.resends,
        }
    }

    /// Returns the number of the connection to the server, if it is known and one is there. While the
    /// number stays the same, no call has reached a server that was restarted.
    pub(crate) fn connection_number(&self) -> Option<u64> {
        match &self.0 {
            Link::Primary(primary) => primary.connection_number(),
            _ => None,
        }
    }

    /// Returns whether a crash may revert what was executed.
    pub(crate) fn can_be_reverted(&self) -> bool {
        match &self.0 {
            #[cfg(feature = "memory-redis")]
            Link::Memory(_) => false,
            _ => true,
        }
    }

    /// Returns whether the connection leads to a cluster.
    pub(crate) fn is_cluster(&self) -> bool {
        match &self.0 {
            #[cfg(feature = "cluster")]
            Link::Cluster(_) => true,
            Link::Custom(_, is) => is.is_cluster,
            _ => false,
        }
    }

    /// Returns the connection to a cluster, if this is one.
    #[cfg(feature = "cluster")]
    pub fn as_cluster(&self) -> Option<&Cluster> {
        if let Link::Cluster(connection) = &self.0 {
            Some(connection)
        } else {
            None
        }
    }

    fn link_mut(&mut self) -> &mut dyn ConnectionLike {
        match &mut self.0 {
            Link::Primary(connection) => connection,
            #[cfg(feature = "cluster")]
            Link::Cluster(connection) => connection,
            #[cfg(feature = "memory-redis")]
            Link::Memory(connection) => connection,
            Link::Custom(connection, _) => &mut **connection,
        }
    }
}

impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        self.link_mut().req_packed_command(cmd)
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        cmd: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.link_mut().req_packed_commands(cmd, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.clone().link_mut().get_db()
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match &self.0 {
            Link::Primary(_) => "Primary",
            #[cfg(feature = "cluster")]
            Link::Cluster(_) => "Cluster",
            #[cfg(feature = "memory-redis")]
            Link::Memory(_) => "MemoryRedis",
            Link::Custom(..) => "custom",
        };
        f.debug_tuple("Connection")
            .field(&format_args!("{kind}"))
            .finish()
    }
}
