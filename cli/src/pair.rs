//! The connections of a pair.

use std::time::Duration;

use counterfoil::redis::cluster::ClusterClient;
use counterfoil::redis::{Client, ConnectionInfo, RedisError};
use counterfoil::sqlx::MySqlPool;
use counterfoil::sqlx::mysql::MySqlPoolOptions;
use counterfoil::{
    Cluster, Connection, Counterfoil, Error, ErrorKind, MysqlStore, Primary, PrimaryTimeouts,
    Result, cluster_settings, sentinel_builder,
};

use crate::config::{PairConfig, is_tls};

/// The time limit for acquiring a connection to MySQL.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);

/// Connects to Redis. The first use of MySQL connects to it.
pub async fn connect(config: &PairConfig) -> Result<Counterfoil> {
    let redis: Connection = if config.redis.is_cluster {
        cluster(config).await?.into()
    } else if config.redis.sentinels.is_empty() {
        Primary::connect(single(config)?).await?.into()
    } else {
        sentinel(config).await?.into()
    };
    Ok(Counterfoil::new(redis, store(config)).allow_evicting(config.allow_evicting))
}

/// Returns the store alone. Its first use connects to MySQL.
pub fn store(config: &PairConfig) -> MysqlStore {
    MysqlStore::new(pool(config, config.connections)).keep_rejects(config.keep_history)
}

/// Returns a separate connection, to check that MySQL is up.
pub fn probe(config: &PairConfig) -> MySqlPool {
    pool(config, 1)
}

fn pool(config: &PairConfig, max_connections: u32) -> MySqlPool {
    MySqlPoolOptions::new()
        .max_connections(max_connections)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .connect_lazy_with(config.mysql.clone())
}

fn single(config: &PairConfig) -> Result<ConnectionInfo> {
    let info = config.redis.servers[0].clone();
    let Some(certificates) = config.certificates.clone() else {
        return Ok(info);
    };
    let client = Client::build_with_tls(info, certificates);
    let client = client.map_err(|error| invalid_setting(config, "redis", error))?;
    Ok(client.get_connection_info().clone())
}

async fn sentinel(config: &PairConfig) -> Result<Primary> {
    let (sentinels, primary) = (&config.redis.sentinels, &config.redis.servers[0]);
    let mut builder = sentinel_builder(sentinels.iter().cloned(), primary.clone())?;
    if let Some(certificates) = &config.certificates {
        if sentinels.iter().any(is_tls) {
            builder = builder.set_client_to_sentinel_certificates(certificates.clone());
        }
        if is_tls(primary) {
            builder = builder.set_client_to_redis_certificates(certificates.clone());
        }
    }
    let client = builder.build();
    let client = client.map_err(|error| invalid_setting(config, "sentinel", error))?;
    Primary::connect_sentinel_client(client, PrimaryTimeouts::default()).await
}

async fn cluster(config: &PairConfig) -> Result<Cluster> {
    let nodes = &config.redis.servers;
    let mut builder = cluster_settings(ClusterClient::builder(nodes.iter().cloned()));
    if let Some(certificates) = &config.certificates {
        builder = builder.certs(certificates.clone());
    }
    let client = builder.build();
    let client = client.map_err(|error| invalid_setting(config, "cluster", error))?;
    Cluster::connect(client).await.map_err(|error| {
        let nodes: Vec<_> = nodes.iter().map(|info| info.addr().to_string()).collect();
        let message = format!("connecting to the cluster at {} failed", nodes.join(", "));
        Error::new(error.kind(), message).with_source(error)
    })
}

fn invalid_setting(config: &PairConfig, setting: &str, error: RedisError) -> Error {
    let message = format!("pair {:?}: {setting}: {error:#}", config.name);
    Error::new(ErrorKind::InvalidInput, message)
}
