//! A pair from its settings.

use redis::{ConnectionInfo, IntoConnectionInfo, RedisResult};

use crate::client::connect::connect_mysql;
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
        CounterfoilBuilder { redis: None, mysql: None, create_tables: false }
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
        let store = connect_mysql(&mysql).await?;
        if self.create_tables {
            store.create_tables().await?;
        }
        Ok(Counterfoil::new(redis, store))
    }
}
