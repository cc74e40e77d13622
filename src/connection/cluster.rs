//! The connection to a Redis Cluster, which is replaced when it gets no replies.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use redis::aio::ConnectionLike;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo};
use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisFuture, Value};
use tokio::time::{Instant, timeout};

use crate::connection::REPLY;
use crate::connection::primary::unreachable;
use crate::error::Result;

/// The time limit for connecting to all nodes and reading their slots.
const CONNECT: Duration = Duration::from_secs(10);
/// The minimum time between two attempts.
const PAUSE: Duration = Duration::from_secs(1);

/// A connection to a Redis Cluster. Clones are cheap and share the connection.
///
/// Once a second while it is used, it asks all primaries for a reply. If one has none within the
/// time limit of the client's settings, this connects to the cluster anew, and then uses that
/// connection. A `ClusterConnection` of the redis crate refreshes its slots only when a connection
/// breaks or a node replies MOVED: it stays with a silent node that the cluster has replaced. And it
/// can stop for good while it refreshes them, or lose all nodes.
#[derive(Clone)]
pub struct Cluster(Arc<Inner>);

struct Inner {
    client: ClusterClient,
    current: Mutex<ClusterConnection>,
    checked_at: Mutex<Instant>,
    /// When the last attempt to connect ended. It is locked during an attempt.
    attempted: Arc<tokio::sync::Mutex<Instant>>,
}

impl Cluster {
    /// Connects to the cluster of a client, which is best built with
    /// [`cluster_settings`](crate::cluster_settings).
    ///
    /// # Errors
    /// [`Redis`](crate::ErrorKind::Redis) if no node is reachable;
    /// [`AccessDenied`](crate::ErrorKind::AccessDenied) if they do not accept the credentials.
    pub async fn connect(client: ClusterClient) -> Result<Self> {
        let connection = client
            .get_async_connection()
            .await
            .map_err(|error| unreachable("the cluster's URLs", error))?;
        Ok(Cluster(Arc::new(Inner {
            client,
            current: Mutex::new(connection),
            checked_at: Mutex::new(Instant::now()),
            attempted: Arc::new(tokio::sync::Mutex::new(Instant::now())),
        })))
    }

    /// Returns the current connection, for commands to certain nodes.
    pub fn current(&self) -> ClusterConnection {
        self.0.current.lock().clone()
    }

    /// Returns the connection for a call. Begins to check that all primaries reply, once a second.
    /// The calls themselves do not show a silent node if their own limits are shorter than that of
    /// a reply.
    fn checked(&self) -> ClusterConnection {
        let connection = self.current();
        let mut checked_at = self.0.checked_at.lock();
        if checked_at.elapsed() >= PAUSE {
            *checked_at = Instant::now();
            tokio::spawn(self.clone().check(connection.clone()));
        }
        connection
    }

    /// Asks all primaries for a reply, and connects anew if one has none.
    async fn check(self, mut connection: ClusterConnection) {
        let mut ask = redis::cmd("INFO");
        ask.arg("replication");
        let everywhere = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
        let asked = timeout(REPLY, connection.route_command(ask, everywhere)).await;
        if asked.map_or(true, |reply| reply.is_err_and(|error| is_stuck(&error))) {
            self.connect_anew();
        }
    }

    /// Begins to connect anew, unless an attempt is in progress or has just ended. The current
    /// connection serves other nodes meanwhile.
    fn connect_anew(&self) {
        let Ok(mut attempted) = self.0.attempted.clone().try_lock_owned() else {
            return;
        };
        if attempted.elapsed() < PAUSE {
            return;
        }
        tracing::warn!("a node does not reply, or none is left: connecting to the cluster anew");
        let inner = self.0.clone();
        tokio::spawn(async move {
            match timeout(CONNECT, inner.client.get_async_connection()).await {
                Ok(Ok(connection)) => {
                    *inner.current.lock() = connection;
                }
                Ok(Err(error)) => tracing::warn!(%error, "connecting to the cluster failed"),
                Err(_) => tracing::warn!("connecting to the cluster took more than {CONNECT:?}"),
            }
            *attempted = Instant::now();
        });
    }
}

/// Returns whether the connection does not recover from this error by itself. One that has lost all
/// nodes while it refreshes its slots repeats the refresh without nodes for ever.
fn is_stuck(error: &RedisError) -> bool {
    error.is_timeout() || error.kind() == ErrorKind::ClusterConnectionNotFound
}

impl ConnectionLike for Cluster {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        async move { self.checked().req_packed_command(cmd).await }.boxed()
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        async move {
            self.checked()
                .req_packed_commands(pipeline, offset, count)
                .await
        }
        .boxed()
    }

    fn get_db(&self) -> i64 {
        0
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cluster").finish()
    }
}
