//! The connections of a pair.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use counterfoil::redis::cluster::ClusterClient;
use counterfoil::redis::cluster_async::ClusterConnection;
use counterfoil::redis::sentinel::{SentinelClientBuilder, SentinelServerType};
use counterfoil::redis::{
    Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError,
    TlsCertificates, TlsMode,
};
use counterfoil::sqlx::MySqlPool;
use counterfoil::sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use counterfoil::{
    Connection, Counterfoil, Error, ErrorKind, MysqlStore, Primary, Result, cluster_settings,
    sentinel_settings,
};

use crate::config::{PairConfig, RedisPlace};

/// The time limit for acquiring a connection to MySQL.
const ACQUIRE: Duration = Duration::from_secs(5);

/// Connects to Redis. The first use of MySQL connects to it.
pub async fn connect(config: &PairConfig) -> Result<Counterfoil> {
    let redis: Connection = match &config.redis {
        RedisPlace::Cluster(nodes) => cluster(config, nodes).await?.into(),
        RedisPlace::Sentinel(sentinels, primary) => {
            sentinel(config, sentinels, primary).await?.into()
        }
        RedisPlace::At(url) => Primary::connect(single(config, url)?).await?.into(),
    };
    Ok(Counterfoil::new(redis, store(config)?).allow_evicting(config.allow_evicting))
}

/// Returns the store alone. Its first use connects to MySQL.
pub fn store(config: &PairConfig) -> Result<MysqlStore> {
    let pool = MySqlPoolOptions::new()
        .max_connections(config.connections)
        .acquire_timeout(ACQUIRE);
    Ok(MysqlStore::new(pool.connect_lazy_with(mysql(config)?)))
}

/// Returns a separate connection, to check that MySQL is up.
pub fn probe(config: &PairConfig) -> Result<MySqlPool> {
    let pool = MySqlPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(ACQUIRE);
    Ok(pool.connect_lazy_with(mysql(config)?))
}

fn mysql(config: &PairConfig) -> Result<MySqlConnectOptions> {
    let options: MySqlConnectOptions = config
        .mysql
        .parse()
        .map_err(|error| wrong(config, "mysql", error))?;
    Ok(match &config.mysql_password {
        Some(password) => options.password(password),
        None => options,
    })
}

fn single(config: &PairConfig, url: &str) -> Result<ConnectionInfo> {
    let invalid = |error| wrong(config, "redis", error);
    let mut info = url.into_connection_info().map_err(invalid)?;
    if let Some(password) = &config.redis_password {
        let settings = info.redis_settings().clone().set_password(password);
        info = info.set_redis_settings(settings);
    }
    Ok(match certificates(config)? {
        Some(tls) => Client::build_with_tls(info, tls)
            .map_err(invalid)?
            .get_connection_info()
            .clone(),
        None => info,
    })
}

async fn sentinel(config: &PairConfig, sentinels: &[String], primary: &str) -> Result<Primary> {
    let invalid = |error: RedisError| wrong(config, "sentinel", error);
    let urls = sentinels
        .iter()
        .map(|url| url.as_str().into_connection_info());
    let addresses = urls
        .map(|info| info.map(|info| info.addr().clone()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(invalid)?;
    let primary = primary.into_connection_info().map_err(invalid)?;
    let (ConnectionAddr::Tcp(name, _) | ConnectionAddr::TcpTls { host: name, .. }) = primary.addr()
    else {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!("pair {:?}: redis names no primary", config.name),
        ));
    };
    let mut builder = sentinel_settings(
        SentinelClientBuilder::new(addresses, name, SentinelServerType::Master).map_err(invalid)?,
    );
    let redis = primary.redis_settings();
    builder = builder.set_client_to_redis_db(redis.db());
    if let Some(user) = redis.username() {
        builder = builder.set_client_to_redis_username(user);
    }
    if let Some(password) = config.redis_password.as_deref().or(redis.password()) {
        builder = builder.set_client_to_redis_password(password);
    }
    if let Some(certificates) = certificates(config)? {
        builder = builder
            .set_client_to_sentinel_certificates(certificates.clone())
            .set_client_to_redis_tls_mode(TlsMode::Secure)
            .set_client_to_redis_certificates(certificates);
    }
    Primary::connect_sentinel_client(builder.build().map_err(invalid)?).await
}

async fn cluster(config: &PairConfig, nodes: &[String]) -> Result<ClusterConnection> {
    let mut builder = cluster_settings(ClusterClient::builder(nodes.iter().map(String::as_str)));
    if let Some(password) = &config.redis_password {
        builder = builder.password(password.clone());
    }
    if let Some(certificates) = certificates(config)? {
        builder = builder.certs(certificates);
    }
    let client = builder
        .build()
        .map_err(|error| wrong(config, "cluster", error))?;
    let connected = client.get_async_connection().await;
    connected.map_err(|error| {
        Error::new(
            ErrorKind::Redis,
            format!("no cluster at {}", nodes.join(", ")),
        )
        .with_source(error)
    })
}

/// Reads the certificates of the configuration, which add to the system's.
fn certificates(config: &PairConfig) -> Result<Option<TlsCertificates>> {
    let read = |file: &PathBuf| {
        fs::read(file).map_err(|error| {
            Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "pair {:?}: {} was not read: {error:#}",
                    config.name,
                    file.display()
                ),
            )
        })
    };
    let tls = &config.redis_tls;
    if tls.authority.is_none() && tls.client.is_none() {
        return Ok(None);
    }
    let client = |(cert, key): &(_, _)| {
        Ok(ClientTlsConfig {
            client_cert: read(cert)?,
            client_key: read(key)?,
        })
    };
    Ok(Some(TlsCertificates {
        root_cert: tls.authority.as_ref().map(read).transpose()?,
        client_tls: tls.client.as_ref().map(client).transpose()?,
    }))
}

fn wrong(config: &PairConfig, setting: &str, error: impl std::error::Error) -> Error {
    Error::new(
        ErrorKind::InvalidInput,
        format!("pair {:?}: {setting}: {error:#}", config.name),
    )
}
