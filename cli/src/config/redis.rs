//! The address of Redis.

use counterfoil::redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};
use serde::Deserialize;

use super::secret::Hidden;
use super::tls::{Transport, is_loopback};

/// One URL or a list of them. No error shows a URL, which may have a password.
#[derive(Default, Deserialize)]
#[serde(try_from = "toml::Value")]
pub struct RedisUrls(pub Vec<ConnectionInfo>);

impl TryFrom<toml::Value> for RedisUrls {
    type Error = String;

    fn try_from(value: toml::Value) -> Result<Self, String> {
        let urls = match value {
            toml::Value::Array(urls) => urls,
            url => vec![url],
        };
        let parse = |url: toml::Value| {
            let Hidden(url) = Hidden::try_from(url)?;
            let info = url.into_connection_info();
            info.map_err(|error| format!("expected the URL of a Redis: {error:#}"))
        };
        urls.into_iter()
            .map(parse)
            .collect::<Result<_, _>>()
            .map(RedisUrls)
    }
}

/// The address of Redis, with the credentials.
#[derive(Clone)]
pub enum RedisPlace {
    At(ConnectionInfo),
    /// The sentinels, and the primary with its name as the host.
    Sentinel(Vec<ConnectionInfo>, ConnectionInfo),
    /// Some nodes.
    Cluster(Vec<ConnectionInfo>),
}

impl RedisPlace {
    /// Returns the place that the settings `redis`, `sentinel` and `cluster` name together.
    pub fn new([redis, sentinel, cluster]: [RedisUrls; 3]) -> Result<Self, String> {
        match (&redis.0[..], &sentinel.0[..], &cluster.0[..]) {
            ([server], [], []) => Ok(RedisPlace::At(server.clone())),
            ([primary], sentinels, []) => {
                Ok(RedisPlace::Sentinel(sentinels.to_vec(), primary.clone()))
            }
            ([], [], nodes @ [_, ..]) => Ok(RedisPlace::Cluster(nodes.to_vec())),
            _ => Err(
                "expected redis = URL, or the URLs of `sentinel` with redis = \"redis://NAME\", \
                      the name that Sentinel knows, or the URLs of `cluster` alone"
                    .to_owned(),
            ),
        }
    }

    fn all(&self) -> impl Iterator<Item = &ConnectionInfo> {
        let (many, one): (&[_], _) = match self {
            RedisPlace::At(one) => (&[], Some(one)),
            RedisPlace::Sentinel(sentinels, primary) => (sentinels, Some(primary)),
            RedisPlace::Cluster(nodes) => (nodes, None),
        };
        many.iter().chain(one)
    }

    /// Returns what connections need, to compare it.
    pub fn parts(&self) -> Vec<(String, i64, Option<&str>, Option<&str>)> {
        let parts = self.all().map(|info| {
            let settings = info.redis_settings();
            let address = format!("{:?}", info.addr());
            let (user, password) = (settings.username(), settings.password());
            (address, settings.db(), user, password)
        });
        parts.collect()
    }

    /// Returns the number of the database.
    pub fn database(&self) -> i64 {
        let last = self.all().last();
        last.map_or(0, |info| info.redis_settings().db())
    }

    /// Sets the password of the servers, not that of the sentinels.
    pub fn set_password(&mut self, password: &str) {
        let set = |info: &mut ConnectionInfo| {
            let settings = info.redis_settings().clone().set_password(password);
            *info = info.clone().set_redis_settings(settings);
        };
        match self {
            RedisPlace::At(info) | RedisPlace::Sentinel(_, info) => set(info),
            RedisPlace::Cluster(nodes) => nodes.iter_mut().for_each(set),
        }
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
        match self {
            // its host is a name; the primary is taken to be where the sentinels are
            RedisPlace::Sentinel(sentinels, primary) if !is_tls(primary) => {
                match sentinels.iter().all(is_local) {
                    true => Transport::Local,
                    false => Transport::Plain,
                }
            }
            _ => self.all().map(transport).min().unwrap_or(Transport::Plain),
        }
    }
}

pub fn is_tls(info: &ConnectionInfo) -> bool {
    matches!(info.addr(), ConnectionAddr::TcpTls { .. })
}
