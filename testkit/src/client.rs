//! The kit's own connections to Redis.

use std::path::Path;
use std::time::Duration;

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{AsyncConnectionConfig, Client, Cmd, FromRedisValue, RedisResult};

/// Returns the URL of a Unix socket for the redis crate.
pub(crate) fn unix_url(socket: &Path) -> String {
    format!("redis+unix://{}", socket.display())
}

/// Returns the URL of a port of this machine for the redis crate.
pub(crate) fn tcp_url(port: u16) -> String {
    format!("redis://127.0.0.1:{port}")
}

/// Returns a client for a URL that the kit made.
pub(crate) fn client(url: &str) -> Client {
    Client::open(url)
        .unwrap_or_else(|e| panic!("the redis crate does not accept the address {url}: {e}"))
}

/// Opens a connection that reconnects automatically and quickly.
pub(crate) async fn manager(client: Client) -> RedisResult<ConnectionManager> {
    let config = ConnectionManagerConfig::new()
        .set_connection_timeout(Some(Duration::from_secs(1)))
        .set_response_timeout(Some(Duration::from_secs(2)))
        .set_number_of_retries(4)
        .set_min_delay(Duration::from_millis(2))
        .set_max_delay(Duration::from_millis(50));
    ConnectionManager::new_with_config(client, config).await
}

/// Returns a command of these words, which single spaces separate.
pub(crate) fn command(words: &str) -> Cmd {
    let mut cmd = Cmd::new();
    for word in words.split(' ') {
        cmd.arg(word);
    }
    cmd
}

/// Runs one command over a new connection.
pub(crate) async fn run<T: FromRedisValue>(url: &str, command: &Cmd) -> RedisResult<T> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(Duration::from_secs(5)))
        .set_response_timeout(Some(Duration::from_secs(20)));
    let mut connection = client(url)
        .get_multiplexed_async_connection_with_config(&config)
        .await?;
    command.query_async(&mut connection).await
}
