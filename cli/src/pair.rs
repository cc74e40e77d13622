//! The connections of a pair.

use std::fmt::Display;
use std::time::Duration;

use counterfoil::redis::cluster::ClusterClient;
use counterfoil::redis::{Client, ClientTlsConfig, ConnectionInfo, TlsCertificates};
use counterfoil::sqlx::MySqlPool;
use counterfoil::sqlx::mysql::MySqlPoolOptions;
use counterfoil::{
    Cluster, Connection, Counterfoil, Error, ErrorKind, MysqlStore, Primary, Result,
    cluster_settings,
};

use crate::config::{PairConfig, RedisPlace, is_tls};

/// The time limit for acquiring a connection to MySQL.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);

/// Connects to Redis. The first use of MySQL connects to it.
pub async fn connect(config: &PairConfig) -> Result<Counterfoil> {
    let redis: Connection = match &config.redis {
        RedisPlace::Cluster(nodes) => cluster(config, nodes).await?.into(),
        RedisPlace::Sentinel(sentinels, primary) => {
            let sentinels = sentinels.iter().map(|info| certified(config, info));
            let sentinels: Vec<_> = sentinels.collect::<Result<_>>()?;
            let primary = certified(config, primary)?;
            Primary::connect_sentinel(sentinels, primary).await?.into()
        }
        RedisPlace::At(info) => Primary::connect(certified(config, info)?).await?.into(),
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
        .connect_lazy_with(config.mysql.options.clone())
}

/// Returns how to connect to one server, with the certificates if that takes TLS.
fn certified(config: &PairConfig, info: &ConnectionInfo) -> Result<ConnectionInfo> {
    match certificates(config) {
        Some(certificates) if is_tls(info) => {
            let client = Client::build_with_tls(info.clone(), certificates);
            let client = client.map_err(|error| invalid_setting(config, "redis", error))?;
            Ok(client.get_connection_info().clone())
        }
        _ => Ok(info.clone()),
    }
}

async fn cluster(config: &PairConfig, nodes: &[ConnectionInfo]) -> Result<Cluster> {
    let mut builder = cluster_settings(ClusterClient::builder(nodes.iter().cloned()));
    if let Some(certificates) = certificates(config) {
        builder = builder.certs(certificates);
    }
    let client = builder
        .build()
        .map_err(|error| invalid_setting(config, "cluster", error))?;
    Cluster::connect(client).await.map_err(|error| {
        let nodes: Vec<_> = nodes.iter().map(|info| info.addr().to_string()).collect();
        let message = format!("connecting to the cluster at {} failed", nodes.join(", "));
        Error::new(error.kind(), message).with_source(error)
    })
}

/// Returns the certificates of the configuration. An authority replaces those of the system.
fn certificates(config: &PairConfig) -> Option<TlsCertificates> {
    let tls = &config.redis_tls;
    let client = tls.client.as_ref().map(|(cert, key)| ClientTlsConfig {
        client_cert: cert.clone(),
        client_key: key.clone(),
    });
    (!tls.is_empty()).then(|| TlsCertificates {
        root_cert: tls.authority.clone(),
        client_tls: client,
    })
}

fn invalid_setting(config: &PairConfig, setting: impl Display, error: impl Display) -> Error {
    Error::new(
        ErrorKind::InvalidInput,
        format!("pair {:?}: {setting}: {error:#}", config.name),
    )
}
