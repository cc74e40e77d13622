//! A pair from its settings.

use redis::{ConnectionInfo, IntoConnectionInfo, RedisResult};

use crate::client::connect::{connect_mysql, connect_mysql_or_later};
use crate::client::counterfoil::Counterfoil;
use crate::connection::primary::{self, Primary};
use crate::error::{Error, Result};
use crate::store::mysql::MysqlStore;

/// A [`Counterfoil`] being configured; [`connect`](Self::connect) makes it.
#[must_use = "a pair is made by connect()"]
pub struct CounterfoilBuilder {
    redis: Option<RedisResult<ConnectionInfo>>,
    mysql: Option<String>,
    create_tables: bool,
    start_without_mysql: bool,
}

impl Counterfoil<Primary, MysqlStore> {
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
        CounterfoilBuilder { redis: None, mysql: None, create_tables: false, start_without_mysql: false }
    }
}

impl CounterfoilBuilder {
    /// The Redis: a URL, or a [`ConnectionInfo`] of the redis crate, which may hold certificates. Has to be given.
    pub fn redis(mut self, redis: impl IntoConnectionInfo) -> Self {
        self.redis = Some(redis.into_connection_info());
        self
    }

    /// The database's URL, as [sqlx takes it](sqlx::mysql::MySqlConnectOptions). Has to be given.
    pub fn mysql(mut self, url: impl Into<String>) -> Self {
        self.mysql = Some(url.into());
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

    /// Connects, as [`Counterfoil::connect`] does.
    ///
    /// # Errors
    /// As for [`Counterfoil::connect`] and [`MysqlStore::create_tables`]; [`InvalidInput`](crate::ErrorKind::InvalidInput)
    /// where Redis or database is not given.
    pub async fn connect(self) -> Result<Counterfoil> {
        let not_given = |what| Error::invalid(format!("Counterfoil::builder(): {what} is not given"));
        let redis = self.redis.ok_or_else(|| not_given("redis"))?.map_err(primary::invalid)?;
        let mysql = self.mysql.ok_or_else(|| not_given("mysql"))?;
        let redis = Primary::connect_to(redis).await?;
        let (store, is_there) = match self.start_without_mysql {
            true => connect_mysql_or_later(&mysql).await?,
            false => (connect_mysql(&mysql).await?, true),
        };
        match (self.create_tables, is_there) {
            (true, true) => store.create_tables().await?,
            (true, false) => return Ok(Counterfoil::new(redis, store.creating_tables())),
            (false, _) => {}
        }
        Ok(Counterfoil::new(redis, store))
    }
}
