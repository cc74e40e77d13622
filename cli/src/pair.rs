//! The connections of a pair.

use std::fmt::Display;
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
    Connection, Counterfoil, Error, ErrorKind, MysqlStore, Primary, PrimaryTimeouts, Result,
    cluster_settings, sentinel_settings,
};

use crate::config::{PairConfig, RedisPlace};

/// The time limit for acquiring a connection to MySQL.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);

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
    Ok(MysqlStore::new(pool(config, config.connections)?))
}

/// Returns a separate connection, to check that MySQL is up.
pub fn probe(config: &PairConfig) -> Result<MySqlPool> {
    pool(config, 1)
}

fn pool(config: &PairConfig, max_connections: u32) -> Result<MySqlPool> {
    let mut options: MySqlConnectOptions = config
        .mysql
        .parse()
        .map_err(|error| invalid_setting(config, "mysql", error))?;
    if let Some(password) = &config.mysql_password {
        options = options.password(password);
    }
    Ok(MySqlPoolOptions::new()
        .max_connections(max_connections)
        .acquire_timeout(ACQUIRE_TIMEOUT)
        .connect_lazy_with(options))
}

fn single(config: &PairConfig, url: &str) -> Result<ConnectionInfo> {
    let invalid = |error| invalid_setting(config, "redis", error);
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
    let invalid = |error: RedisError| invalid_setting(config, "sentinel", error);
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
        return Err(invalid_setting(
            config,
            "redis",
            "expected the name of a primary",
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
    let client = builder.build().map_err(invalid)?;
    Primary::connect_sentinel_client(client, PrimaryTimeouts::default()).await
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
        .map_err(|error| invalid_setting(config, "cluster", error))?;
    client.get_async_connection().await.map_err(|error| {
        let message = format!("connecting to the cluster at {} failed", nodes.join(", "));
        Error::new(ErrorKind::Redis, message).with_source(error)
    })
}

/// Reads the certificates of the configuration, which add to the system's.
fn certificates(config: &PairConfig) -> Result<Option<TlsCertificates>> {
    let read = |file: &PathBuf| {
        fs::read(file).map_err(|error| invalid_setting(config, file.display(), error))
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

fn invalid_setting(config: &PairConfig, setting: impl Display, error: impl Display) -> Error {
    Error::new(
        ErrorKind::InvalidInput,
        format!("pair {:?}: {setting}: {error:#}", config.name),
    )
}
