//! The connection to the one Redis that accepts writes, which it searches for again whenever the
//! connection is lost.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{
    AsyncConnectionConfig, Client, Cmd, IntoConnectionInfo, Pipeline, RedisError, RedisFuture,
    RedisResult, ServerErrorKind, Value,
};
#[cfg(feature = "sentinel")]
use redis::{
    ConnectionAddr, ConnectionInfo, TlsMode,
    sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType},
};
use tokio::time::timeout;

use crate::connection::refusal;
use crate::error::{Error, ErrorKind, Result};

/// The time limits of a [`Primary`].
#[derive(Clone, Copy, Debug)]
pub struct PrimaryTimeouts {
    /// The time limit for connecting to a server, including TLS and the login; defaults to 3 s. A
    /// shorter one notices sooner that an address leads nowhere, a longer one suits busy servers.
    pub connect: Duration,
    /// The time limit for the reply to a command; defaults to 2 s. The server is then taken for
    /// lost, and is connected to again.
    pub response: Duration,
}

impl Default for PrimaryTimeouts {
    fn default() -> Self {
        PrimaryTimeouts {
            connect: Duration::from_secs(3),
            response: Duration::from_secs(2),
        }
    }
}

impl PrimaryTimeouts {
    /// Returns the time limit for finding the primary and connecting to it, in all.
    fn search(self) -> Duration {
        self.connect + self.response
    }
}

/// A connection to a single Redis, to the primary behind a name that moves with a failover, or to
/// the primary that Sentinel names. Clones are cheap and share the connection.
///
/// It never sends a command twice. The next command searches for the primary again when
///
/// - the connection breaks, or is silent: TCP keepalive and `TCP_USER_TIMEOUT` detect a dead
///   machine,
/// - a command has no reply within the [limit](PrimaryTimeouts::response), by default 2 s,
/// - the server replies that it is a replica (`READONLY`, `MASTERDOWN`), as it does after a
///   failover.
///
/// It does not connect to a replica, whose data may be stale. A [`ConnectionManager`] does not
/// detect the last two cases and accepts replicas.
/// [`Counterfoil::connect`](crate::Counterfoil::connect) therefore creates a `Primary`.
///
/// [`ConnectionManager`]: redis::aio::ConnectionManager
#[derive(Clone)]
pub struct Primary(Arc<Inner>);

struct Inner {
    address: String,
    source: Source,
    timeouts: PrimaryTimeouts,
    /// The connection, or the search for it, shared by all callers.
    current: Mutex<Search>,
}

type Search = Shared<BoxFuture<'static, RedisResult<MultiplexedConnection>>>;

#[derive(Clone)]
enum Source {
    Address(Box<Client>),
    #[cfg(feature = "sentinel")]
    Sentinel(Arc<tokio::sync::Mutex<SentinelClient>>),
}

impl Primary {
    /// Connects to the Redis at a URL, e.g. `redis://localhost` or `redis+unix:///run/redis.sock`,
    /// or at a [`ConnectionInfo`](redis::ConnectionInfo), which may hold certificates. Each new
    /// connection resolves the host name again.
    ///
    /// # Errors
    /// [`InvalidInput`](ErrorKind::InvalidInput) if the URL is not valid;
    /// [`Redis`](ErrorKind::Redis) if no primary is found;
    /// [`AccessDenied`](ErrorKind::AccessDenied) if the server does not accept the credentials.
    pub async fn connect(redis: impl IntoConnectionInfo) -> Result<Self> {
        Self::connect_with(redis, PrimaryTimeouts::default()).await
    }

    /// Connects like [`connect`](Self::connect), with other time limits.
    ///
    /// # Errors
    /// Returns the errors of [`connect`](Self::connect).
    pub async fn connect_with(
        redis: impl IntoConnectionInfo,
        timeouts: PrimaryTimeouts,
    ) -> Result<Self> {
        let info = redis
            .into_connection_info()
            .map_err(invalid)?
            .set_tcp_settings(tcp_settings());
        let address = info.addr().to_string();
        let client = Client::open(info).map_err(invalid)?;
        Self::found(address, Source::Address(Box::new(client)), timeouts).await
    }

    /// Connects to the primary that Sentinel names. `sentinels` are the Sentinels' URLs,
    /// `redis://host:26379`. `url` is the primary's URL with its Sentinel name in place of the
    /// host: `redis://mymaster`, or `redis://user:password@mymaster/0`.
    ///
    /// # Errors
    /// [`InvalidInput`](ErrorKind::InvalidInput) if a URL is not valid or there are no Sentinels;
    /// [`Redis`](ErrorKind::Redis) if no Sentinel replies or none knows a primary by that name.
    #[cfg(feature = "sentinel")]
    pub async fn connect_sentinel<'a>(
        sentinels: impl IntoIterator<Item = &'a str>,
        url: &str,
    ) -> Result<Self> {
        let primary = url.into_connection_info().map_err(invalid)?;
        let name = service(&primary)?;
        let client = sentinel_builder(sentinels, primary)?.build();
        Self::found_by(client.map_err(invalid)?, &name, PrimaryTimeouts::default()).await
    }

    /// Connects to the primary that Sentinel names, by a client of the redis crate, with these time
    /// limits. [`sentinel_builder`](crate::sentinel_builder) builds such a client from URLs.
    ///
    /// # Errors
    /// Returns the errors of [`connect_sentinel`](Self::connect_sentinel).
    #[cfg(feature = "sentinel")]
    pub async fn connect_sentinel_client(
        client: SentinelClient,
        timeouts: PrimaryTimeouts,
    ) -> Result<Self> {
        Self::found_by(client, "primary", timeouts).await
    }

    #[cfg(feature = "sentinel")]
    async fn found_by(
        client: SentinelClient,
        name: &str,
        timeouts: PrimaryTimeouts,
    ) -> Result<Self> {
        let client = Arc::new(tokio::sync::Mutex::new(client));
        let (address, source) = (format!("sentinel's {name}"), Source::Sentinel(client));
        Self::found(address, source, timeouts).await
    }

    async fn found(address: String, source: Source, timeouts: PrimaryTimeouts) -> Result<Self> {
        let search = source.clone().search(timeouts);
        if let Err(error) = search.clone().await {
            return Err(unreachable(&address, error));
        }
        Ok(Primary(Arc::new(Inner {
            address,
            source,
            timeouts,
            current: Mutex::new(search),
        })))
    }

    /// Returns the time limit for a command that first connects.
    pub(crate) fn limit(&self) -> Duration {
        self.0.timeouts.search() + self.0.timeouts.response
    }

    /// Returns the connection for a command, with the search that found it.
    async fn connection(&self) -> RedisResult<(Search, MultiplexedConnection)> {
        let search = self.0.current.lock().clone();
        match search.clone().await {
            Ok(connection) => Ok((search, connection)),
            Err(error) => {
                self.search_again(&search);
                Err(refusal::unsent(&error))
            }
        }
    }

    /// Starts a new search, unless another caller already has.
    fn search_again(&self, failed: &Search) {
        let mut current = self.0.current.lock();
        if current.ptr_eq(failed) {
            tracing::debug!(redis = self.0.address, "reconnecting");
            *current = self.0.source.clone().search(self.0.timeouts);
        }
    }
}

impl Source {
    fn search(self, timeouts: PrimaryTimeouts) -> Search {
        async move {
            // in a task: its timers end with the runtime that begins it, and other callers may be
            // in another runtime
            match tokio::spawn(timeout(timeouts.search(), self.connect(timeouts))).await {
                Ok(Ok(found)) => found,
                Ok(Err(elapsed)) => Err(std::io::Error::from(elapsed).into()),
                Err(ended) => Err(std::io::Error::from(ended).into()),
            }
        }
        .boxed()
        .shared()
    }

    async fn connect(self, timeouts: PrimaryTimeouts) -> RedisResult<MultiplexedConnection> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(timeouts.connect))
            .set_response_timeout(Some(timeouts.response));
        let client = match self {
            Source::Address(client) => *client,
            #[cfg(feature = "sentinel")]
            Source::Sentinel(client) => client.lock().await.async_get_client().await?,
        };
        let connection = client.get_multiplexed_async_connection_with_config(&config);
        let mut connection = connection.await?;
        // if the user may not run ROLE, the first write detects a replica; a missing login fails
        // here
        let role = redis::cmd("ROLE");
        match role.query_async::<Vec<Value>>(&mut connection).await {
            Ok(role) if matches!(role.first(), Some(Value::BulkString(role)) if role != b"master") => {
                Err((ServerErrorKind::ReadOnly.into(), "the server is a replica").into())
            }
            Err(error) if matches!(error.code(), None | Some("NOAUTH")) => Err(error),
            _ => Ok(connection),
        }
    }
}

/// Returns whether the reply means that the primary must be searched for again.
fn is_lost(error: &RedisError) -> bool {
    error.is_unrecoverable_error() || error.is_timeout() || refusal::is_demoted(error)
}

impl ConnectionLike for Primary {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        async move {
            let (search, mut connection) = self.connection().await?;
            let reply = connection.req_packed_command(cmd).await;
            let is_lost = match &reply {
                Ok(Value::ServerError(error)) => refusal::is_demoted(&error.clone().into()),
                reply => reply.as_ref().is_err_and(is_lost),
            };
            if is_lost {
                self.search_again(&search);
            }
            reply
        }
        .boxed()
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        async move {
            let (search, mut connection) = self.connection().await?;
            let replies = connection.req_packed_commands(pipeline, offset, count);
            let replies = replies.await;
            if replies.as_ref().is_err_and(is_lost) {
                self.search_again(&search);
            }
            replies
        }
        .boxed()
    }

    fn get_db(&self) -> i64 {
        0
    }
}

impl fmt::Debug for Primary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Primary").field(&self.0.address).finish()
    }
}

/// Returns TCP settings for counters: no delay before sending, and a dead machine is detected
/// within seconds, even by an idle connection.
pub(crate) fn tcp_settings() -> redis::io::tcp::TcpSettings {
    let keepalive = redis::io::tcp::socket2::TcpKeepalive::new().with_time(Duration::from_secs(5));
    let keepalive = keepalive.with_interval(Duration::from_secs(1));
    let settings = redis::io::tcp::TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(keepalive);
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(Duration::from_secs(5));
    settings
}

/// Creates the builder of a client for Sentinel from URLs, like [`Primary::connect_sentinel`]. What
/// URLs cannot hold is set on the builder: certificates, for instance
/// (`set_client_to_redis_certificates`, `set_client_to_sentinel_certificates`; feature
/// `tls-rustls`).
///
/// Each URL's scheme decides whether that connection uses TLS. The credentials of a Sentinel's URL
/// are for the Sentinels, those of the primary's URL for the primary. The builder sets
/// `TCP_NODELAY`, keepalive and `TCP_USER_TIMEOUT`, so that a dead machine is detected within
/// seconds.
///
/// # Errors
/// [`InvalidInput`](ErrorKind::InvalidInput) if a URL is not valid, if there are no Sentinels, or
/// if their URLs have different credentials.
#[cfg(feature = "sentinel")]
pub fn sentinel_builder<S: IntoConnectionInfo>(
    sentinels: impl IntoIterator<Item = S>,
    primary: impl IntoConnectionInfo,
) -> Result<SentinelClientBuilder> {
    let sentinels = sentinels.into_iter().map(S::into_connection_info);
    let sentinels: Vec<_> = sentinels.collect::<RedisResult<_>>().map_err(invalid)?;
    let primary = primary.into_connection_info().map_err(invalid)?;
    let addresses = sentinels.iter().map(|info| info.addr().clone());
    let server = SentinelServerType::Master;
    let builder = SentinelClientBuilder::new(addresses, service(&primary)?, server);
    let redis = primary.redis_settings();
    let mut builder = builder
        .map_err(invalid)?
        .set_client_to_redis_tcp_settings(tcp_settings())
        .set_client_to_sentinel_tcp_settings(tcp_settings())
        .set_client_to_redis_db(redis.db())
        .set_client_to_redis_protocol(redis.protocol());
    if let ConnectionAddr::TcpTls { insecure, .. } = primary.addr() {
        builder = builder.set_client_to_redis_tls_mode(match insecure {
            true => TlsMode::Insecure,
            false => TlsMode::Secure,
        });
    }
    if let Some(username) = redis.username() {
        builder = builder.set_client_to_redis_username(username);
    }
    if let Some(password) = redis.password() {
        builder = builder.set_client_to_redis_password(password);
    }
    let (username, password) = credentials(&sentinels)?;
    if let Some(username) = username {
        builder = builder.set_client_to_sentinel_username(username);
    }
    if let Some(password) = password {
        builder = builder.set_client_to_sentinel_password(password);
    }
    Ok(builder)
}

#[cfg(feature = "sentinel")]
type Credentials<'a> = (Option<&'a str>, Option<&'a str>);

/// Returns the user and the password of all Sentinels, which the redis crate takes once.
#[cfg(feature = "sentinel")]
fn credentials(sentinels: &[ConnectionInfo]) -> Result<Credentials<'_>> {
    let mut all = sentinels.iter().map(|info| {
        let settings = info.redis_settings();
        (settings.username(), settings.password())
    });
    let first = all
        .next()
        .ok_or_else(|| Error::invalid("there are no Sentinels"))?;
    if all.any(|other| other != first) {
        let message = "the URLs of the Sentinels have different users or passwords";
        return Err(Error::invalid(message));
    }
    Ok(first)
}

/// Returns the primary's name in Sentinel.
#[cfg(feature = "sentinel")]
fn service(primary: &ConnectionInfo) -> Result<String> {
    match primary.addr() {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => Ok(host.clone()),
        _ => Err(Error::invalid(
            "the primary's URL has no service name for Sentinel",
        )),
    }
}

/// Returns the error for a Redis that cannot be used.
pub(crate) fn unreachable(address: &str, error: RedisError) -> Error {
    let failure = if refusal::is_denied(&error) {
        Error::new(
            ErrorKind::AccessDenied,
            format!("Redis at {address} rejected the credentials"),
        )
    } else {
        Error::redis(format!("Redis at {address} is unreachable"))
    };
    failure.with_source(error)
}

pub(crate) fn invalid(error: RedisError) -> Error {
    Error::invalid("invalid Redis URL").with_source(error)
}
