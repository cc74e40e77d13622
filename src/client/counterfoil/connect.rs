//! Connections from URLs, with the settings that the protocol needs.

use std::time::Duration;

#[cfg(feature = "cluster")]
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use sqlx::mysql::MySqlConnectOptions;
use sqlx::{Connection as _, MySqlConnection};
use tokio::time::timeout;

use crate::client::counterfoil::Counterfoil;
#[cfg(feature = "cluster")]
use crate::connection::cluster::Cluster;
use crate::connection::primary::Primary;
use crate::error::{Error, ErrorKind, Result};
use crate::store::mysql::{MysqlStore, fault};

/// The time limit for the first connection to a database that may be unreachable.
const LATER: Duration = Duration::from_secs(3);
/// The time limit for connecting to the database, including TLS and the login.
const CONNECT: Duration = Duration::from_secs(5);

impl Counterfoil {
    /// Connects to a Redis, e.g. `redis://localhost` or `redis+unix:///run/redis.sock`, and a
    /// database, e.g. `mysql://user:password@localhost/shop`. The connection to Redis reconnects
    /// automatically, and follows a name or address that moves in a failover: see
    /// [`Primary`](crate::Primary). Counterfoil's tables must exist, or be created by the
    /// [`builder`](Self::builder).
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) for an invalid URL, or one that names no
    /// database; [`Redis`](crate::ErrorKind::Redis) or [`Store`](crate::ErrorKind::Store) if that
    /// server is unreachable, naming its address, or if MySQL refuses the connection, for instance
    /// because it is full; [`AccessDenied`](crate::ErrorKind::AccessDenied) if a server does not
    /// accept the credentials.
    pub async fn connect(redis_url: &str, mysql_url: &str) -> Result<Self> {
        let builder = Counterfoil::builder().redis(redis_url);
        builder.mysql(mysql_url).connect().await
    }

    /// Connects to the Redis that Sentinel reports, like [`Primary::connect_sentinel`], and a
    /// database.
    ///
    /// # Errors
    /// See [`connect`](Self::connect).
    pub async fn connect_sentinel<'a>(
        sentinels: impl IntoIterator<Item = &'a str>,
        redis_url: &str,
        mysql_url: &str,
    ) -> Result<Self> {
        let redis = Primary::connect_sentinel(sentinels, redis_url).await?;
        let builder = Counterfoil::builder().connection(redis);
        builder.mysql(mysql_url).connect().await
    }
}

#[cfg(feature = "cluster")]
impl Counterfoil {
    /// Connects to a Redis Cluster, given the URLs of some nodes, and a database.
    ///
    /// # Errors
    /// See [`connect`](Counterfoil::connect).
    pub async fn connect_cluster<'a>(
        nodes: impl IntoIterator<Item = &'a str>,
        mysql_url: &str,
    ) -> Result<Self> {
        let client = cluster_settings(ClusterClient::builder(nodes)).build();
        let client =
            client.map_err(|error| Error::invalid("invalid cluster URLs").with_source(error))?;
        let redis = Cluster::connect(client).await?;
        let builder = Counterfoil::builder().connection(redis);
        builder.mysql(mysql_url).connect().await
    }
}

/// Applies the recommended settings of a cluster connection. Everything else (users, TLS,
/// addresses) is up to the application.
///
/// - No retries. The redis crate retries a call 16 times by default. That is harmless, because
///   Redis executes a call once however often it arrives. But counterfoil retries by itself, within
///   its own time limit, and then reports the outcome.
/// - Time limits of 1 s each for connecting, for each reply and for a whole call. By default a
///   reply has no time limit, and a silent node can block all others while the connection refreshes
///   the slots. Nodes that need longer, for instance for TLS while they are busy, need longer limits:
///   set them on the builder that this function returns.
/// - `TCP_NODELAY`, keepalive and `TCP_USER_TIMEOUT`, so that a dead machine is noticed within
///   seconds.
///
/// ```
/// use redis::cluster::ClusterClient;
///
/// let client = counterfoil::cluster_settings(ClusterClient::builder(["redis://10.0.0.1", "redis://10.0.0.2"]))
///     .password("secret")
///     .build()?;
/// # Ok::<_, redis::RedisError>(())
/// ```
#[cfg(feature = "cluster")]
pub fn cluster_settings(builder: ClusterClientBuilder) -> ClusterClientBuilder {
    const LIMIT: Duration = Duration::from_secs(1);
    builder
        .retries(0)
        .connection_timeout(LIMIT)
        .response_timeout(LIMIT)
        .overall_response_timeout(Some(LIMIT))
        .tcp_settings(crate::connection::primary::tcp_settings())
}

const UNREACHABLE: &str = "is unreachable";

/// Creates a store, and tries one connection beside its pool, because a pool that cannot connect
/// reports only a timeout. Returns also whether the database is reachable. An unreachable one is an
/// error unless `later` allows it.
pub(crate) async fn connect_mysql(
    options: MySqlConnectOptions,
    later: bool,
) -> Result<(MysqlStore, bool)> {
    let store = MysqlStore::new(options.clone())?;
    let limit = if later { LATER } else { CONNECT };
    let (may_recover, error) = match timeout(limit, MySqlConnection::connect_with(&options)).await {
        Ok(Ok(_)) => return Ok((store, true)),
        Ok(Err(error)) => {
            let may_recover = is_unreachable(&error, &options);
            let (kind, what) = match &error {
                error if fault::rejects_user(error) => (ErrorKind::AccessDenied, "denies access"),
                sqlx::Error::Database(_) => (ErrorKind::Store, "refused the connection"),
                sqlx::Error::Tls(_) => (ErrorKind::Store, "cannot be reached by TLS"),
                sqlx::Error::Configuration(_) => (
                    ErrorKind::InvalidInput,
                    "cannot be reached with these settings",
                ),
                _ => (ErrorKind::Store, UNREACHABLE),
            };
            let failed = no_database(&options, what).with_kind(kind);
            (may_recover, failed.with_source(error))
        }
        Err(elapsed) => (
            true,
            no_database(&options, UNREACHABLE).with_source(elapsed),
        ),
    };
    if !later || !may_recover {
        return Err(error);
    }
    tracing::warn!(error = %format_args!("{error:#}"), "started without the database");
    Ok((store, false))
}

/// Returns whether the database is unreachable, or accepts no connections at present: SQLSTATE
/// class 08 means that the server is full, starting or stopping. Missing or invalid certificates
/// are I/O errors as well, but permanent ones.
fn is_unreachable(error: &sqlx::Error, options: &MySqlConnectOptions) -> bool {
    use std::io::ErrorKind::{InvalidData, InvalidInput, NotFound, PermissionDenied};
    match error {
        sqlx::Error::Io(error) if error.kind() == NotFound => options.get_socket().is_some(),
        sqlx::Error::Io(error) => {
            !matches!(error.kind(), InvalidData | InvalidInput | PermissionDenied)
        }
        sqlx::Error::Database(error) => error.code().is_some_and(|state| state.starts_with("08")),
        _ => false,
    }
}

fn no_database(options: &MySqlConnectOptions, what: &str) -> Error {
    let address = match options.get_socket() {
        Some(socket) => socket.display().to_string(),
        None => format!("{}:{}", options.get_host(), options.get_port()),
    };
    Error::store(format!("the database at {address} {what}"))
}
