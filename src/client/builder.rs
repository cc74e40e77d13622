//! A pair from its settings.

use std::time::Duration;

use redis::{ConnectionInfo, IntoConnectionInfo, RedisResult};
use sqlx::MySqlPool;

use crate::client::connect::{connect_mysql, connect_mysql_or_later};
use crate::client::counterfoil::Counterfoil;
use crate::client::handle::Timeouts;
use crate::connection::primary::{self, Primary};
use crate::error::{Error, Result};
use crate::store::mysql::MysqlStore;

/// A [`Counterfoil`] being configured; [`connect`](Self::connect) makes it.
#[must_use = "a pair is made by connect()"]
pub struct CounterfoilBuilder {
    redis: Option<Redis>,
    mysql: Option<Mysql>,
    create_tables: bool,
    start_without_mysql: bool,
    timeouts: Timeouts,
}

enum Redis {
    At(Box<RedisResult<ConnectionInfo>>),
    Connected(Primary),
}

enum Mysql {
    At(String),
    Pool(MySqlPool),
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
            mysql: None,
            create_tables: false,
            start_without_mysql: false,
            timeouts: Timeouts::default(),
        }
    }
}

impl CounterfoilBuilder {
    /// The Redis: a URL, or a [`ConnectionInfo`] of the redis crate, which may hold certificates. It or a
    /// [`connection`](Self::connection) has to be given.
    pub fn redis(mut self, redis: impl IntoConnectionInfo) -> Self {
        self.redis = Some(Redis::At(Box::new(redis.into_connection_info())));
        self
    }

    /// A connection that is there, for instance one made by [`Primary::connect`]. Connections of other types, as that to a cluster,
    /// are taken by [`Counterfoil::new`].
    pub fn connection(mut self, redis: Primary) -> Self {
        self.redis = Some(Redis::Connected(redis));
        self
    }

    /// The database's URL, as [sqlx takes it](sqlx::mysql::MySqlConnectOptions), for a pool of ten connections. It or a
    /// [`pool`](Self::pool) has to be given.
    pub fn mysql(mut self, url: impl Into<String>) -> Self {
        self.mysql = Some(Mysql::At(url.into()));
        self
    }

    /// The application's own pool, as for [`MysqlStore::new`].
    pub fn pool(mut self, pool: MySqlPool) -> Self {
        self.mysql = Some(Mysql::Pool(pool));
        self
    }

    /// As [`Counterfoil::write_timeout`].
    pub fn write_timeout(mut self, timeout: Duration) -> Self {
        self.timeouts.write = timeout;
        self
    }

    /// As [`Counterfoil::read_timeout`].
    pub fn read_timeout(mut self, timeout: Duration) -> Self {
        self.timeouts.read = timeout;
        self
    }

    /// Whether those of counterfoil's own tables that are missing are created, as by [`MysqlStore::create_tables`]. Not
    /// unless said so: without its tables no family is opened.
    pub fn create_tables(mut self, create: bool) -> Self {
        self.create_tables = create;
        self
    }

    /// Whether [`connect`](Self::connect) succeeds also while the database cannot be reached; it is waited for 3 s at most. From
    /// then on all is as with [`MysqlStore::connect_lazy`]: families are opened and count, and the database has everything
    /// after it is back. The tables that [`create_tables`](Self::create_tables) asks for are created then, before anything
    /// else. Reads, and cached counters that are not in Redis, need the database. A URL that is none, and a database that
    /// refuses the connection, for instance the password, are errors at once all the same. Not unless said so.
    pub fn start_without_mysql(mut self, start: bool) -> Self {
        self.start_without_mysql = start;
        self
    }

    /// Connects where that is to be done, as [`Counterfoil::connect`] does.
    ///
    /// # Errors
    /// As for [`Counterfoil::connect`] and [`MysqlStore::create_tables`]; [`InvalidInput`](crate::ErrorKind::InvalidInput)
    /// where Redis or database is not given.
    /// A connection and a pool that are given are not tried, except to create tables.
    pub async fn connect(self) -> Result<Counterfoil> {
        let not_given = |what| Error::invalid(format!("Counterfoil::builder(): {what} is not given"));
        let redis = self.redis.ok_or_else(|| not_given("redis"))?;
        let mysql = self.mysql.ok_or_else(|| not_given("mysql"))?;
        let redis = match redis {
            Redis::At(place) => Primary::connect(place.map_err(primary::invalid)?).await?,
            Redis::Connected(connection) => connection,
        };
        let (store, is_there) = match (mysql, self.start_without_mysql) {
            (Mysql::At(url), true) => connect_mysql_or_later(&url).await?,
            (Mysql::At(url), false) => (connect_mysql(&url).await?, true),
            (Mysql::Pool(pool), may_be_away) => (MysqlStore::new(pool), !may_be_away),
        };
        let store = match (self.create_tables, is_there) {
            (true, false) => store.creating_tables(),
            (true, true) => store.create_tables().await.map(|()| store)?,
            (false, _) => store,
        };
        let Timeouts { write, read } = self.timeouts;
        Ok(Counterfoil::new(redis, store).write_timeout(write).read_timeout(read))
    }
}
