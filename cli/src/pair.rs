//! The connections of a pair.

use std::time::Duration;

use counterfoil::redis::cluster::ClusterClient;
use counterfoil::redis::{Client, ConnectionInfo, RedisError};
use counterfoil::{
    Cluster, Connection, Counterfoil, Error, ErrorKind, MysqlStore, Primary, Result,
    cluster_settings,
};

use crate::config::{PairConfig, is_tls};

/// The time limit of a command's or request's own calls: an operator waits longer than a page.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Connects to Redis. The first use of MySQL connects to it.
pub async fn connect(config: &PairConfig) -> Result<Counterfoil> {
    let place = &config.redis;
    if let Some(user) = place.user_without_password() {
        let what = format!("the password of Redis's user {user:?} is missing");
        return Err(Error::new(ErrorKind::InvalidInput, what));
    }
    let redis: Connection = if place.is_cluster {
        connect_cluster(config).await?.into()
    } else {
        let primary = certified(config, &place.servers[0])?;
        let sentinels = place
            .sentinels
            .iter()
            .map(|info| certified(config, info))
            .collect::<Result<Vec<_>>>()?;
        if sentinels.is_empty() {
            Primary::connect(primary).await?.into()
        } else {
            Primary::connect_sentinel(sentinels, primary).await?.into()
        }
    };
    Ok(Counterfoil::new(redis, store(config)?)
        .allow_evicting(config.allow_evicting)
        .write_timeout(TIMEOUT)
        .read_timeout(TIMEOUT))
}

/// Returns the store alone. Its first use connects to MySQL.
pub fn store(config: &PairConfig) -> Result<MysqlStore> {
    let store = MysqlStore::new(config.mysql.clone())?.max_connections(config.connections);
    Ok(match config.max_rejects {
        Some(most) => store.max_rejects(most),
        None => store,
    })
}

/// Returns how to connect to one server, with the certificates if that takes TLS.
pub fn certified(config: &PairConfig, info: &ConnectionInfo) -> Result<ConnectionInfo> {
    match &config.certificates {
        Some(certificates) if is_tls(info) => {
            Client::build_with_tls(info.clone(), certificates.clone())
                .map(|client| client.get_connection_info().clone())
                .map_err(|error| invalid_setting(config, "redis", error))
        }
        _ => Ok(info.clone()),
    }
}

async fn connect_cluster(config: &PairConfig) -> Result<Cluster> {
    let nodes = &config.redis.servers;
    let mut builder = cluster_settings(ClusterClient::builder(nodes.iter().cloned()));
    if let Some(certificates) = &config.certificates {
        builder = builder.certs(certificates.clone());
    }
    let client = builder
        .build()
        .map_err(|error| invalid_setting(config, "cluster", error))?;
    Cluster::connect(client).await.map_err(|error| {
        let addresses: Vec<_> = nodes.iter().map(|info| info.addr().to_string()).collect();
        let message = format!(
            "connecting to the cluster at {} failed",
            addresses.join(", ")
        );
        Error::new(error.kind(), message).with_source(error)
    })
}

fn invalid_setting(config: &PairConfig, setting: &str, error: RedisError) -> Error {
    let message = format!("pair {:?}: {setting}: {error:#}", config.name);
    Error::new(ErrorKind::InvalidInput, message)
}
