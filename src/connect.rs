//! From two URLs to a pair, with the settings that the protocol wants.

use std::time::Duration;

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use sqlx::{Connection, MySqlConnection};

use crate::counterfoil::Counterfoil;
use crate::error::{Error, ErrorKind, Result};
use crate::mysql::MysqlStore;

impl Counterfoil<ConnectionManager, MysqlStore> {
    /// Connects to a Redis, e.g. `redis://localhost` or `redis+unix:///run/redis.sock`, and a database, e.g.
    /// `mysql://user:password@localhost/shop`. The connection to Redis comes back by itself after it was lost.
    ///
    /// # Errors
    /// [`InvalidInput`](ErrorKind::InvalidInput) for a URL that is none; [`Redis`](ErrorKind::Redis) or
    /// [`Store`](ErrorKind::Store) where a server cannot be reached, naming where it was looked for.
    pub async fn connect(redis_url: &str, mysql_url: &str) -> Result<Self> {
        let redis = connect_redis(redis_url).await?;
        let options: MySqlConnectOptions =
            mysql_url.parse().map_err(|error: sqlx::Error| Error::invalid("the database's URL").with_source(error))?;
        let place = match options.get_socket() {
            Some(socket) => socket.display().to_string(),
            None => format!("{}:{}", options.get_host(), options.get_port()),
        };
        // by itself first: a pool that cannot connect says only that it timed out
        let connection = MySqlConnection::connect_with(&options).await;
        connection
            .map_err(|error| Error::new(ErrorKind::Store, format!("no database at {place}")).with_source(error))?;
        let pool = MySqlPoolOptions::new().max_connections(10).acquire_timeout(Duration::from_secs(5));
        let pool = pool.connect_lazy_with(options);
        Ok(Counterfoil::new(redis, MysqlStore::new(pool)))
    }
}

async fn connect_redis(url: &str) -> Result<ConnectionManager> {
    let invalid = |error: redis::RedisError| Error::invalid("the URL of Redis").with_source(error);
    let client = redis::Client::open(url).map_err(invalid)?;
    let place = client.get_connection_info().addr().to_string();
    // a failed call is repeated above the connection, where the producer fence is
    let config = ConnectionManagerConfig::new()
        .set_connection_timeout(Some(Duration::from_secs(1)))
        .set_response_timeout(Some(Duration::from_secs(2)))
        .set_number_of_retries(2)
        .set_min_delay(Duration::from_millis(5))
        .set_max_delay(Duration::from_millis(200));
    ConnectionManager::new_with_config(client, config)
        .await
        .map_err(|error| Error::new(ErrorKind::Redis, format!("no Redis at {place}")).with_source(error))
}
