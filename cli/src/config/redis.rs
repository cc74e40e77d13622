//! The address of Redis.

use counterfoil::redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};
use serde::Deserialize;

use super::secret::Hidden;
use super::tls::{Transport, is_loopback};

/// One URL or a list of them. No error shows a URL, which may have a password.
#[derive(Default, Deserialize)]
#[serde(try_from = "toml::Value")]
pub struct RedisUrls {
    /// The setting as it is written in the file.
    pub text: String,
    infos: Vec<ConnectionInfo>,
}

impl TryFrom<toml::Value> for RedisUrls {
    type Error = String;

    fn try_from(value: toml::Value) -> Result<Self, String> {
        let text = value.to_string();
        let urls = match value {
            toml::Value::Array(urls) => urls,
            url => vec![url],
        };
        let parse = |url: toml::Value| {
            let Hidden(url) = Hidden::try_from(url)?;
            let info = url.into_connection_info();
            info.map_err(|error| format!("expected the URL of a Redis: {error:#}"))
        };
        let infos = urls.into_iter().map(parse).collect::<Result<_, _>>()?;
        Ok(RedisUrls { text, infos })
    }
}

/// The address of Redis, with the credentials.
#[derive(Clone)]
pub struct RedisPlace {
    /// The server, some nodes of a cluster, or the primary with its name as the host.
    pub servers: Vec<ConnectionInfo>,
    pub sentinels: Vec<ConnectionInfo>,
    pub is_cluster: bool,
}

impl RedisPlace {
    /// Returns the place that the settings `redis`, `sentinel` and `cluster` name together.
    pub fn new([redis, sentinel, cluster]: [RedisUrls; 3]) -> Result<Self, String> {
        let [redis, sentinels, cluster] = [redis, sentinel, cluster].map(|urls| urls.infos);
        let (servers, is_cluster) = match (redis.len(), sentinels.len(), cluster.len()) {
            (1, _, 0) => (redis, false),
            (0, 0, 1..) => (cluster, true),
            _ => {
                let expected = "expected redis = URL, or the URLs of `sentinel` with redis = \"redis://NAME\", \
                     the name that Sentinel knows, or the URLs of `cluster` alone";
                return Err(expected.to_owned());
            }
        };
        Ok(RedisPlace {
            servers,
            sentinels,
            is_cluster,
        })
    }

    fn all(&self) -> impl Iterator<Item = &ConnectionInfo> {
        self.servers.iter().chain(&self.sentinels)
    }

    /// Returns the number of the database.
    pub fn database(&self) -> i64 {
        let server = self.servers.first();
        server.map_or(0, |info| info.redis_settings().db())
    }

    /// Sets the password of the servers, not that of the sentinels.
    pub fn set_password(&mut self, password: &str) {
        for info in &mut self.servers {
            let settings = info.redis_settings().clone().set_password(password);
            *info = info.clone().set_redis_settings(settings);
        }
    }

    /// Returns a user without a password. A connection would be that of the default user.
    pub fn user_without_password(&self) -> Option<&str> {
        let settings = self.all().map(ConnectionInfo::redis_settings);
        let mut without = settings.filter(|settings| settings.password().is_none());
        without.find_map(|settings| settings.username().filter(|user| *user != "default"))
    }

    pub fn has_tls(&self) -> bool {
        self.all().any(is_tls)
    }

    /// Returns the protection of the least protected connection.
    pub fn transport(&self) -> Transport {
        let is_local = |info: &ConnectionInfo| match info.addr() {
            ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => is_loopback(host),
            _ => true,
        };
        let transport = |info: &ConnectionInfo| match info.addr() {
            ConnectionAddr::TcpTls { insecure: true, .. } => Transport::Unverified,
            ConnectionAddr::TcpTls { .. } => Transport::Verified,
            _ if is_local(info) => Transport::Local,
            _ => Transport::Plain,
        };
        // its host is a name; the primary is taken to be where the sentinels are
        if !self.sentinels.is_empty() && !self.servers.iter().any(is_tls) {
            return if self.sentinels.iter().all(is_local) {
                Transport::Local
            } else {
                Transport::Plain
            };
        }
        self.all().map(transport).min().unwrap_or(Transport::Plain)
    }
}

pub fn is_tls(info: &ConnectionInfo) -> bool {
    matches!(info.addr(), ConnectionAddr::TcpTls { .. })
}
