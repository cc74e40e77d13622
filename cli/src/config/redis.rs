//! The address of Redis.

use counterfoil::admin::is_loopback;
use counterfoil::redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};
use serde::Deserialize;

use super::secret::SecretText;
use super::tls::Transport;

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
        let infos = urls.into_iter().map(parse).collect::<Result<_, _>>()?;
        Ok(RedisUrls { text, infos })
    }
}

/// The beginnings of a Redis's URL.
const SCHEMES: [&str; 7] = [
    "redis://",
    "rediss://",
    "valkey://",
    "valkeys://",
    "redis+unix://",
    "valkey+unix://",
    "unix://",
];

/// Parses a URL. The error does not show it.
fn parse(url: toml::Value) -> Result<ConnectionInfo, String> {
    let SecretText(text) = SecretText::try_from(url)?;
    // without TLS, the redis crate ignores a fragment, which may be the end of a password
    match text.split_once('#') {
        Some((_, "insecure")) => {
            Err("#insecure is not supported: name the server's authority in redis_ca".to_owned())
        }
        Some(_) => Err("the URL has a #, which is written as %23 in a password".to_owned()),
        None if !SCHEMES.iter().any(|scheme| text.starts_with(scheme)) => Err(
            "expected the URL of a Redis, such as redis://localhost:6379 or \
             redis+unix:///run/redis.sock"
                .to_owned(),
        ),
        None => text
            .into_connection_info()
            .map_err(|error| format!("expected the URL of a Redis: {error:#}")),
    }
}

/// The address of Redis, with the credentials.
#[derive(Clone)]
pub struct RedisPlace {
    /// The server, or some nodes of a cluster. With Sentinel, one URL whose host is the name of the
    /// primary.
    pub servers: Vec<ConnectionInfo>,
    pub sentinels: Vec<ConnectionInfo>,
    pub is_cluster: bool,
}

impl RedisPlace {
    /// Returns the place that the settings `redis`, `sentinel` and `cluster` name together.
    pub fn new(settings: [RedisUrls; 3]) -> Result<Self, String> {
        let [redis, sentinels, cluster] = settings.map(|urls| urls.infos);
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
        self.servers
            .first()
            .map_or(0, |info| info.redis_settings().db())
    }

    /// Returns the user of the servers; "default" is Redis's own name for connections without one.
    pub fn user(&self) -> &str {
        self.servers
            .first()
            .and_then(|info| info.redis_settings().username())
            .unwrap_or("default")
    }

    /// Sets the password of the servers, not that of the sentinels.
    pub fn set_password(&mut self, password: &str) {
        for info in &mut self.servers {
            let settings = info.redis_settings().clone().set_password(password);
            *info = info.clone().set_redis_settings(settings);
        }
    }

    /// Returns a user for whom no password is set. Without one a connection does not log in, and
    /// would be that of the default user.
    pub fn user_without_password(&self) -> Option<&str> {
        self.all()
            .map(ConnectionInfo::redis_settings)
            .filter(|settings| settings.password().is_none())
            .find_map(|settings| settings.username().filter(|user| *user != "default"))
    }

    pub fn has_tls(&self) -> bool {
        self.all().any(is_tls)
    }

    /// Returns the protection of the least protected connection.
    pub fn transport(&self) -> Transport {
        // with Sentinel, the host in the URL is only the name of the primary. It is assumed to be
        // on this machine if all sentinels are
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

/// Returns the protection of a connection to this address.
fn transport(info: &ConnectionInfo) -> Transport {
    match info.addr() {
        ConnectionAddr::TcpTls { .. } => Transport::Verified,
        _ if is_local(info) => Transport::Local,
        _ => Transport::Plain,
    }
}

fn is_local(info: &ConnectionInfo) -> bool {
    match info.addr() {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => is_loopback(host),
        _ => true,
    }
}

pub fn is_tls(info: &ConnectionInfo) -> bool {
    matches!(info.addr(), ConnectionAddr::TcpTls { .. })
}
