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
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, IntoConnectionInfo, Pipeline, RedisError,
    RedisFuture, RedisResult, ServerErrorKind, Value,
};
use tokio::time::{Instant, sleep, timeout};

use crate::connection::refusal;
use crate::connection::sentinel::Sentinels;
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
    fn config(self) -> AsyncConnectionConfig {
        AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.connect))
            .set_response_timeout(Some(self.response))
    }
}

/// A connection to a single Redis, to the primary behind a name that moves with a failover, or to
/// the primary that Sentinel names. Clones are cheap and share the connection.
///
/// It never sends a command twice. The next command searches for the primary again when
///
/// - the connection breaks, or is silent: TCP keepalive and `TCP_USER_TIMEOUT` detect a dead
///   machine,
/// - a command has no reply within the [limit](PrimaryTimeouts::response), by default 2 s; also the
///   question that it is asked once a second while the connection is used,
/// - the server is a replica, as it is after a failover: it refuses a write (`READONLY`), or says
///   so in reply to that question,
/// - Sentinel names another primary. It is asked as often, because a former primary accepts writes
///   until Sentinel reaches it, and these are lost.
///
/// It does not connect to a replica, whose data may be stale. A [`ConnectionManager`] detects a
/// broken connection only, and accepts replicas.
/// [`Counterfoil::connect`](crate::Counterfoil::connect) therefore creates a `Primary`.
///
/// [`ConnectionManager`]: redis::aio::ConnectionManager
#[derive(Clone)]
pub struct Primary(Arc<Inner>);

struct Inner {
    address: String,
    source: Source,
    timeouts: PrimaryTimeouts,
    current: Mutex<SharedSearch>,
}

/// The connection, or the search for it, shared by all callers.
struct SharedSearch {
    search: Search,
    /// Its number among the searches.
    number: u64,
    checked_at: Instant,
}

/// The time between two checks that the connection leads to the primary.
const CHECK: Duration = Duration::from_secs(1);

type Search = Shared<BoxFuture<'static, RedisResult<FoundPrimary>>>;

/// A connection, and the address at which the server was found.
#[derive(Clone)]
struct FoundPrimary {
    connection: MultiplexedConnection,
    at: ConnectionInfo,
}

#[derive(Clone)]
enum Source {
    Address(Box<ConnectionInfo>),
    Sentinel(Arc<Sentinels>),
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
        let info = connection_info(redis)?;
        let address = info.addr().to_string();
        Self::found(address, Source::Address(Box::new(info)), timeouts).await
    }

    /// Connects to the primary that Sentinel names. `sentinels` are the Sentinels' URLs,
    /// `redis://host:26379`. `primary` is the primary's URL with its Sentinel name in place of the
    /// host: `redis://mymaster`, or `redis://user:password@mymaster/0`. Each scheme decides whether
    /// that connection uses TLS, and each URL has its own credentials. For certificates pass
    /// [`ConnectionInfo`]s, as to [`connect`](Self::connect).
    ///
    /// The Sentinels are asked at the same time. Of the replies of more than half of them, that of
    /// the latest failover counts, so a Sentinel that has not heard of it does no harm.
    ///
    /// # Errors
    /// [`InvalidInput`](ErrorKind::InvalidInput) if a URL is not valid or there are no Sentinels;
    /// [`Redis`](ErrorKind::Redis) if no Sentinel replies or none knows a primary by that name.
    pub async fn connect_sentinel<S: IntoConnectionInfo>(
        sentinels: impl IntoIterator<Item = S>,
        primary: impl IntoConnectionInfo,
    ) -> Result<Self> {
        Self::connect_sentinel_with(sentinels, primary, PrimaryTimeouts::default()).await
    }

    /// Connects like [`connect_sentinel`](Self::connect_sentinel), with other time limits for the
    /// primary.
    ///
    /// # Errors
    /// Returns the errors of [`connect_sentinel`](Self::connect_sentinel).
    pub async fn connect_sentinel_with<S: IntoConnectionInfo>(
        sentinels: impl IntoIterator<Item = S>,
        primary: impl IntoConnectionInfo,
        timeouts: PrimaryTimeouts,
    ) -> Result<Self> {
        let urls = sentinels
            .into_iter()
            .map(connection_info)
            .collect::<Result<_>>()?;
        let of_primary = Sentinels::new(urls, connection_info(primary)?)?;
        let address = format!("sentinel's {}", of_primary.name());
        Self::found(address, Source::Sentinel(Arc::new(of_primary)), timeouts).await
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
            current: Mutex::new(SharedSearch {
                search,
                number: 0,
                checked_at: Instant::now(),
            }),
        })))
    }

    /// Returns the time limit for a command that first connects.
    pub(crate) fn limit(&self) -> Duration {
        let Inner {
            source, timeouts, ..
        } = &*self.0;
        source.limit(*timeouts).saturating_add(timeouts.response)
    }

    /// Returns the number of the current connection, if there is one.
    pub(crate) fn connection_number(&self) -> Option<u64> {
        let current = self.0.current.lock();
        let is_there = current.search.peek().is_some_and(Result::is_ok);
        is_there.then_some(current.number)
    }

    /// Waits until the primary is found.
    pub(crate) async fn ready(&self) -> RedisResult<()> {
        match self.connection_number() {
            Some(_) => Ok(()),
            None => self.connection().await.map(drop),
        }
    }

    /// Returns the connection for a command, with the search that found it.
    async fn connection(&self) -> RedisResult<(Search, MultiplexedConnection)> {
        let search = self.0.current.lock().search.clone();
        match search.clone().await {
            Ok(found) => {
                self.check(&search, &found);
                Ok((search, found.connection))
            }
            Err(error) => {
                self.search_again(&search);
                Err(refusal::unsent(&error))
            }
        }
    }

    /// Begins to check that the connection leads to the primary, once a second.
    fn check(&self, search: &Search, found: &FoundPrimary) {
        let mut current = self.0.current.lock();
        if current.checked_at.elapsed() < CHECK {
            return;
        }
        current.checked_at = Instant::now();
        let (primary, search, found) = (self.clone(), search.clone(), found.clone());
        tokio::spawn(async move {
            if primary.0.source.has_left(found).await {
                primary.search_again(&search);
            }
        });
    }

    /// Starts a new search, unless another caller already has.
    fn search_again(&self, failed: &Search) {
        let mut current = self.0.current.lock();
        if current.search.ptr_eq(failed) {
            tracing::debug!(redis = self.0.address, "reconnecting");
            current.search = self.0.source.clone().search(self.0.timeouts);
            current.number += 1;
        }
    }
}

impl Source {
    /// Returns the time limit for finding the primary and connecting to it, in all.
    fn limit(&self, timeouts: PrimaryTimeouts) -> Duration {
        let limit = timeouts.connect.saturating_add(timeouts.response);
        match self {
            Source::Address(_) => limit,
            Source::Sentinel(_) => limit.saturating_add(Sentinels::LIMIT),
        }
    }

    fn search(self, timeouts: PrimaryTimeouts) -> Search {
        async move {
            // The search runs in a task, because its timers end with the runtime that begins it. If
            // that ends, callers on other runtimes get an error instead of waiting for ever.
            let limit = self.limit(timeouts);
            match tokio::spawn(timeout(limit, self.connect(timeouts))).await {
                Ok(Ok(found)) => found,
                Ok(Err(elapsed)) => Err(std::io::Error::from(elapsed).into()),
                Err(ended) => Err(std::io::Error::from(ended).into()),
            }
        }
        .boxed()
        .shared()
    }

    async fn connect(self, timeouts: PrimaryTimeouts) -> RedisResult<FoundPrimary> {
        let mut at = self.address().await?;
        loop {
            // Sentinel names a silent server until it has noticed the silence, so it is asked again
            // meanwhile
            tokio::select! {
                found = connect(&at, timeouts) => return found,
                other = self.moved(&at) => at = other,
            }
        }
    }

    /// Waits until the primary is elsewhere.
    async fn moved(&self, from: &ConnectionInfo) -> ConnectionInfo {
        loop {
            sleep(CHECK).await;
            match self.address().await {
                Ok(at) if at.addr() != from.addr() => return at,
                _ => {}
            }
        }
    }

    /// Returns the address of the primary.
    async fn address(&self) -> RedisResult<ConnectionInfo> {
        match self {
            Source::Address(info) => Ok((**info).clone()),
            Source::Sentinel(sentinels) => sentinels.primary().await,
        }
    }

    /// Returns whether the server is no longer the primary, as far as can be found out. This also
    /// detects a silent server, which calls do not detect if their own limits are shorter than that
    /// of a reply.
    async fn has_left(&self, mut found: FoundPrimary) -> bool {
        let is_elsewhere = |at: ConnectionInfo| at.addr() != found.at.addr();
        self.address().await.is_ok_and(is_elsewhere)
            || match is_primary(&mut found.connection).await {
                Ok(is_primary) => !is_primary,
                Err(error) => is_lost(&error),
            }
    }
}

async fn connect(at: &ConnectionInfo, timeouts: PrimaryTimeouts) -> RedisResult<FoundPrimary> {
    let mut connection = Client::open(at.clone())?
        .get_multiplexed_async_connection_with_config(&timeouts.config())
        .await?;
    // A missing login fails here. If INFO is refused for another reason, the connection is used,
    // and the first write detects a replica.
    match is_primary(&mut connection).await {
        Ok(false) => Err((ServerErrorKind::ReadOnly.into(), "the server is a replica").into()),
        Err(error) if matches!(error.code(), None | Some("NOAUTH")) => Err(error),
        _ => Ok(FoundPrimary {
            connection,
            at: at.clone(),
        }),
    }
}

/// Returns whether the server says that it is no replica. ROLE would need a permission of its own.
pub(crate) async fn is_primary(connection: &mut impl ConnectionLike) -> RedisResult<bool> {
    let mut ask = redis::cmd("INFO");
    let info: String = ask.arg("replication").query_async(connection).await?;
    Ok(!info.lines().any(|line| line == "role:slave"))
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
            let must_search = match &reply {
                Ok(Value::ServerError(error)) => refusal::is_demoted(&error.clone().into()),
                Ok(_) => false,
                Err(error) => is_lost(error),
            };
            if must_search {
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
            let replies = connection
                .req_packed_commands(pipeline, offset, count)
                .await;
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
    let keepalive = redis::io::tcp::socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(5))
        .with_interval(Duration::from_secs(1));
    let settings = redis::io::tcp::TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(keepalive);
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(Duration::from_secs(5));
    settings
}

fn connection_info(redis: impl IntoConnectionInfo) -> Result<ConnectionInfo> {
    let info = redis.into_connection_info().map_err(invalid)?;
    Ok(info.set_tcp_settings(tcp_settings()))
}

/// Returns the error for a Redis that cannot be used.
pub(crate) fn unreachable(address: &str, error: RedisError) -> Error {
    let failure = if refusal::is_denied(&error) {
        Error::new(
            ErrorKind::AccessDenied,
            format!("Redis at {address} rejected the credentials"),
        )
    } else if error.is_connection_dropped()
        && !error.is_connection_refusal()
        // a cluster's error has the cause in its text
        && error.detail().is_none()
    {
        Error::redis(format!(
            "Redis at {address} closed the new connection, as it does when `maxclients` is reached"
        ))
    } else {
        Error::redis(format!("Redis at {address} is unreachable"))
    };
    failure.with_source(error)
}

pub(crate) fn invalid(error: RedisError) -> Error {
    Error::invalid("invalid Redis URL").with_source(error)
}
