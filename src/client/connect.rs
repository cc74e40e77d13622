//! From URLs to a pair, with the settings that the protocol wants.

use std::time::Duration;

#[cfg(feature = "cluster")]
use redis::cluster::{ClusterClient, ClusterClientBuilder};
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use sqlx::{Connection as _, MySqlConnection};
use tokio::time::timeout;

use crate::client::counterfoil::Counterfoil;
#[cfg(feature = "cluster")]
use crate::connection::primary;
use crate::connection::primary::Primary;
use crate::error::{Error, ErrorKind, Result};
use crate::store::mysql::MysqlStore;

/// How long a database is waited for that may come later.
const LATER: Duration = Duration::from_secs(3);

impl Counterfoil {
    /// Connects to a Redis, e.g. `redis://localhost` or `redis+unix:///run/redis.sock`, and a database, e.g.
    /// `mysql://user:password@localhost/shop`. The connection to Redis comes back by itself after it was lost, and
    /// follows a name or address that moves with a failover: see [`Primary`]. Counterfoil's tables have to be there, or are
    /// created by [`builder`](Self::builder).
    ///
    /// # Errors
    /// [`InvalidInput`](ErrorKind::InvalidInput) for a URL that is none; [`Redis`](ErrorKind::Redis) or
    /// [`Store`](ErrorKind::Store) where a server cannot be reached, naming where it was looked for;
    /// [`AccessDenied`](ErrorKind::AccessDenied) where Redis does not accept the credentials.
    pub async fn connect(redis_url: &str, mysql_url: &str) -> Result<Self> {
        let redis = Primary::connect(redis_url).await?;
        Ok(Counterfoil::new(redis, connect_mysql(mysql_url).await?))
    }

    /// Connects to the Redis that Sentinel names, as [`Primary::connect_sentinel`] does, and a database.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    #[cfg(feature = "sentinel")]
    pub async fn connect_sentinel<'a>(
        sentinels: impl IntoIterator<Item = &'a str>,
        redis_url: &str,
        mysql_url: &str,
    ) -> Result<Self> {
        let redis = Primary::connect_sentinel(sentinels, redis_url).await?;
        Ok(Counterfoil::new(redis, connect_mysql(mysql_url).await?))
    }
}

#[cfg(feature = "cluster")]
impl Counterfoil {
    /// Connects to a Redis Cluster, of which some nodes are named, and a database.
    ///
    /// # Errors
    /// As [`connect`](Counterfoil::connect).
    pub async fn connect_cluster<'a>(nodes: impl IntoIterator<Item = &'a str>, mysql_url: &str) -> Result<Self> {
        let client = cluster_settings(ClusterClient::builder(nodes)).build();
        let client = client.map_err(|error| Error::invalid("the URLs of the cluster").with_source(error))?;
        let redis = client.get_async_connection().await;
        let redis = redis.map_err(|error| primary::unreachable("the cluster's URLs", error))?;
        Ok(Counterfoil::new(redis, connect_mysql(mysql_url).await?))
    }
}

/// The settings that suit a cluster connection best; everything else (users, TLS, addresses) is up to the application.
///
/// - No retries. The redis crate repeats a call 16 times by default, which is harmless: Redis executes a call once however
///   often it arrives. But counterfoil repeats by itself, within its own time limit, and reports the outcome when that is over.
/// - Limits for connecting, for each reply and for the whole of a call, of 1 s each. By default a reply is waited for
///   without end, and a node that is silent can hold up all others while the connection asks for the slots again.
/// - `TCP_NODELAY`, keepalive and `TCP_USER_TIMEOUT`, so that a machine that is gone is noticed within seconds.
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

pub(crate) async fn connect_mysql(url: &str) -> Result<MysqlStore> {
    let options = options(url)?;
    // by itself first: a pool that cannot connect says only that it timed out
    let connection = MySqlConnection::connect_with(&options).await;
    connection.map_err(|error| no_database(&options).with_source(error))?;
    Ok(lazy(options))
}

/// The same, also where the database cannot be reached: and whether it was.
pub(crate) async fn connect_mysql_or_later(url: &str) -> Result<(MysqlStore, bool)> {
    let options = options(url)?;
    let missing = match timeout(LATER, MySqlConnection::connect_with(&options)).await {
        Ok(Ok(_)) => return Ok((lazy(options), true)),
        Ok(Err(error)) if is_away(&error, &options) => no_database(&options).with_source(error),
        Ok(Err(error)) => return Err(no_database(&options).with_source(error)),
        Err(elapsed) => no_database(&options).with_source(elapsed),
    };
    tracing::warn!(error = %missing, "started without the database");
    Ok((lazy(options), false))
}

/// Whether nobody is there, or nobody who takes a connection at present: SQLSTATE class 08 is a server that is full, starts or
/// stops. Certificates that are not there or do not fit are errors of input and output as well.
fn is_away(error: &sqlx::Error, options: &MySqlConnectOptions) -> bool {
    use std::io::ErrorKind::{InvalidData, InvalidInput, NotFound, PermissionDenied};
    match error {
        sqlx::Error::Io(error) if error.kind() == NotFound => options.get_socket().is_some(),
        sqlx::Error::Io(error) => !matches!(error.kind(), InvalidData | InvalidInput | PermissionDenied),
        sqlx::Error::Database(error) => error.code().is_some_and(|state| state.starts_with("08")),
        _ => false,
    }
}

fn no_database(options: &MySqlConnectOptions) -> Error {
    let place = match options.get_socket() {
        Some(socket) => socket.display().to_string(),
        None => format!("{}:{}", options.get_host(), options.get_port()),
    };
    Error::new(ErrorKind::Store, format!("no database at {place}"))
}

impl MysqlStore {
    /// A store in the database at the URL, with a pool of its own. Nothing is connected yet: for an application that is to
    /// start also while the database is away.
    ///
    /// # Errors
    /// [`InvalidInput`](ErrorKind::InvalidInput) for a URL that is none.
    ///
    /// ```no_run
    /// # use counterfoil::{Counterfoil, MysqlStore, Primary};
    /// # async fn start() -> counterfoil::Result<()> {
    /// let redis = Primary::connect("redis://localhost").await?;
    /// let counterfoil = Counterfoil::new(redis, MysqlStore::connect_lazy("mysql://shop@localhost/shop")?);
    /// # Ok(()) }
    /// ```
    pub fn connect_lazy(url: &str) -> Result<Self> {
        Ok(lazy(options(url)?))
    }
}

fn options(url: &str) -> Result<MySqlConnectOptions> {
    url.parse().map_err(|error: sqlx::Error| Error::invalid("the database's URL").with_source(error))
}

fn lazy(options: MySqlConnectOptions) -> MysqlStore {
    let pool = MySqlPoolOptions::new().max_connections(10).acquire_timeout(Duration::from_secs(5));
    MysqlStore::new(pool.connect_lazy_with(options))
}
