//! The primary that Sentinel names.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, RedisError, RedisResult,
};

use crate::error::{Error, Result};

/// The time limit for connecting to a Sentinel, and for its reply.
const LIMIT: Duration = Duration::from_secs(1);

/// The Sentinels of a primary.
pub struct Sentinels {
    sentinels: Vec<Sentinel>,
    /// The primary, with its name in place of the host.
    primary: ConnectionInfo,
    name: String,
}

struct Sentinel {
    at: ConnectionInfo,
    connection: Mutex<Option<MultiplexedConnection>>,
}

/// A Sentinel's reply: the number of the failover that it heard of last, and the primary since.
struct PrimaryAddress {
    epoch: u64,
    host: String,
    port: u16,
}

impl Sentinels {
    /// The longest time until all Sentinels have replied, or are known to be silent.
    pub const LIMIT: Duration = Duration::from_secs(2 * LIMIT.as_secs());

    pub fn new(sentinels: Vec<ConnectionInfo>, primary: ConnectionInfo) -> Result<Self> {
        if sentinels.is_empty() {
            return Err(Error::invalid("there are no Sentinels"));
        }
        let (ConnectionAddr::Tcp(name, _) | ConnectionAddr::TcpTls { host: name, .. }) =
            primary.addr()
        else {
            let message = "the primary's URL has no service name for Sentinel";
            return Err(Error::invalid(message));
        };
        Ok(Sentinels {
            sentinels: sentinels
                .into_iter()
                .map(|at| Sentinel {
                    at,
                    connection: Mutex::default(),
                })
                .collect(),
            name: name.clone(),
            primary,
        })
    }

    /// Returns the primary's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the primary's address. Waits for more than half of the Sentinels, if so many reply.
    /// More than half agreed on the last failover, so one of the replies knows of it.
    pub async fn primary(&self) -> RedisResult<ConnectionInfo> {
        let mut asks: FuturesUnordered<_> = self
            .sentinels
            .iter()
            .map(|one| one.ask(&self.name))
            .collect();
        let (mut latest, mut replies, mut failure) =
            (None::<PrimaryAddress>, 0, None::<RedisError>);
        while let Some(reply) = asks.next().await {
            match reply {
                Ok(named) => {
                    replies += 1;
                    latest = latest
                        .into_iter()
                        .chain([named])
                        .max_by_key(|one| one.epoch);
                }
                Err(error) => failure = Some(error),
            }
            if 2 * replies > self.sentinels.len() {
                break;
            }
        }
        match (latest, failure) {
            (Some(named), _) => Ok(self.at(named)),
            (None, Some(error)) => Err(error),
            (None, None) => Err(std::io::Error::other("there are no Sentinels").into()),
        }
    }

    /// Returns how to connect to a primary that was named.
    fn at(&self, named: PrimaryAddress) -> ConnectionInfo {
        let mut address = self.primary.addr().clone();
        if let ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } =
            &mut address
        {
            (*host, *port) = (named.host, named.port);
        }
        self.primary.clone().set_addr(address)
    }
}

impl Sentinel {
    async fn ask(&self, name: &str) -> RedisResult<PrimaryAddress> {
        let named = self.ask_connected(name).await;
        if named.is_err() {
            *self.connection.lock() = None;
        }
        named
    }

    async fn ask_connected(&self, name: &str) -> RedisResult<PrimaryAddress> {
        let mut connection = self.connected().await?;
        let mut ask = redis::pipe();
        // the first has the epoch; the second has the new primary before all replicas follow it
        ask.cmd("SENTINEL").arg("MASTER").arg(name);
        ask.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(name);
        let (state, (host, port)): (HashMap<String, String>, _) =
            ask.query_async(&mut connection).await?;
        let epoch = state
            .get("config-epoch")
            .and_then(|epoch| epoch.parse().ok());
        Ok(PrimaryAddress {
            epoch: epoch.unwrap_or(0),
            host,
            port,
        })
    }

    async fn connected(&self) -> RedisResult<MultiplexedConnection> {
        let kept = self.connection.lock().clone();
        if let Some(connection) = kept {
            return Ok(connection);
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(LIMIT))
            .set_response_timeout(Some(LIMIT));
        let connection = Client::open(self.at.clone())?
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        *self.connection.lock() = Some(connection.clone());
        Ok(connection)
    }
}
