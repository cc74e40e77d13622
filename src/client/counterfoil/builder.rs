//! The configuration of a pair of one Redis and one database.

use std::time::Duration;

use redis::{ConnectionInfo, IntoConnectionInfo, RedisResult};
use sqlx::mysql::MySqlConnectOptions;

use crate::client::counterfoil::Counterfoil;
use crate::client::counterfoil::connect::connect_mysql;
use crate::client::handle::Timeouts;
use crate::connection::Connection;
use crate::connection::primary::{self, Primary, PrimaryTimeouts};
use crate::error::{Error, Result};
use crate::store::mysql::MysqlStore;
use crate::store::mysql::options::IntoMysqlOptions;

/// A [`Counterfoil`] being configured; [`connect`](Self::connect) creates it.
#[must_use = "a pair is made by connect()"]
pub struct CounterfoilBuilder {
    redis: Option<Redis>,
    redis_timeouts: PrimaryTimeouts,
    mysql: Option<Mysql>,
    create_tables: bool,
    start_without_mysql: bool,
    timeouts: Timeouts,
}

enum Redis {
    At(Box<RedisResult<ConnectionInfo>>),
    Connected(Connection),
}

enum Mysql {
    At(Box<Result<MySqlConnectOptions>>),
    Store(MysqlStore),
}

impl Counterfoil {
    /// Starts the configuration of a pair of one Redis and one database.
    ///
    /// ```no_run
    /// # async fn example() -> counterfoil::Result<()> {
    /// let counterfoil = counterfoil::Counterfoil::builder()
    ///     .redis("redis://localhost")
    ///     .mysql("mysql://user:password@localhost/shop")
    ///     .create_tables(true)
    ///     .connect()
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pub fn builder() -> CounterfoilBuilder {
        CounterfoilBuilder {
            redis: None,
            redis_timeouts: PrimaryTimeouts::default(),
            mysql: None,
            create_tables: false,
            start_without_mysql: false,
            timeouts: Timeouts::default(),
        }
    }
}

impl CounterfoilBuilder {
    /// Sets the Redis: a URL, or a [`ConnectionInfo`] of the redis crate, which may hold
    /// certificates. Either this or a [`connection`](Self::connection) is required.
    pub fn redis(mut self, redis: impl IntoConnectionInfo) -> Self {
        self.redis = Some(Redis::At(Box::new(redis.into_connection_info())));
        self
    }

    /// Sets the time limits of the connection to that Redis.
    pub fn redis_timeouts(mut self, timeouts: PrimaryTimeouts) -> Self {
        self.redis_timeouts = timeouts;
        self
    }

    /// Sets an existing connection, for instance one created by [`Primary::connect`].
    pub fn connection(mut self, redis: impl Into<Connection>) -> Self {
        self.redis = Some(Redis::Connected(redis.into()));
        self
    }

    /// Sets the database, in which the pair gets up to five connections of its own. Either this or a
    /// [`store`](Self::store) is required.
    pub fn mysql(mut self, options: impl IntoMysqlOptions) -> Self {
        self.mysql = Some(Mysql::At(Box::new(options.into_mysql_options())));
        self
    }

    /// Sets an existing store, for instance one with more connections.
    pub fn store(mut self, store: MysqlStore) -> Self {
        self.mysql = Some(Mysql::Store(store));
        self
    }

    /// Sets the write timeout, like [`Counterfoil::write_timeout`].
    pub fn write_timeout(mut self, timeout: Duration) -> Self {
        self.timeouts.write = timeout;
        self
    }

    /// Sets the read timeout, like [`Counterfoil::read_timeout`].
    pub fn read_timeout(mut self, timeout: Duration) -> Self {
        self.timeouts.read = timeout;
        self
    }

    /// Sets whether missing tables of counterfoil are created, like [`MysqlStore::create_tables`];
    /// defaults to `false`. No family can be opened without these tables.
    pub fn create_tables(mut self, create: bool) -> Self {
        self.create_tables = create;
        self
    }

    /// Sets whether [`connect`](Self::connect) succeeds even while the database is unreachable;
    /// defaults to `false`. It waits at most 3 s for the database. The pair then works as with
    /// [`MysqlStore::new`]: families are opened and count, and the database receives
    /// everything after its recovery. If [`create_tables`](Self::create_tables) is set, missing
    /// tables are created at that point, before anything else. Reads need the database, and so do
    /// cached counters that are not in Redis. An invalid URL is still an error at once, and so is a
    /// refused connection, for instance a wrong password.
    pub fn start_without_mysql(mut self, start: bool) -> Self {
        self.start_without_mysql = start;
        self
    }

    /// Connects to what is given by its URL, like [`Counterfoil::connect`].
    ///
    /// # Errors
    /// The errors of [`Counterfoil::connect`] and [`MysqlStore::create_tables`];
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) if Redis or the database is not given. A
    /// given connection or store is not tried, except to create tables.
    pub async fn connect(self) -> Result<Counterfoil> {
        let not_given =
            |what| Error::invalid(format!("Counterfoil::builder(): {what} is required"));
        let redis = self.redis.ok_or_else(|| not_given("redis"))?;
        let mysql = self.mysql.ok_or_else(|| not_given("mysql"))?;
        let redis = match redis {
            Redis::At(address) => {
                let address = address.map_err(primary::invalid)?;
                Primary::connect_with(address, self.redis_timeouts)
                    .await?
                    .into()
            }
            Redis::Connected(connection) => connection,
        };
        let (store, is_there) = match mysql {
            Mysql::At(options) => connect_mysql((*options)?, self.start_without_mysql).await?,
            Mysql::Store(store) => (store, !self.start_without_mysql),
        };
        let store = match (self.create_tables, is_there) {
            (true, false) => store.creating_tables(),
            (true, true) => store.create_tables().await.map(|()| store)?,
            (false, _) => store,
        };
        Ok(Counterfoil {
            timeouts: self.timeouts,
            ..Counterfoil::new(redis, store)
        })
    }
}
