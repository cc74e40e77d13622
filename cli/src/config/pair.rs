//! A pair of Redis and MySQL.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use counterfoil::Durability;
use counterfoil::redis::IntoConnectionInfo;
use counterfoil::sqlx::mysql::MySqlConnectOptions;
use serde::Deserialize;
use toml::Spanned;

use super::Wrong;
use super::secret::Secrets;
use super::value::Time;

/// A pair of Redis and MySQL.
#[derive(Clone, Debug)]
pub struct PairConfig {
    pub name: String,
    pub redis: RedisPlace,
    pub redis_password: Option<String>,
    pub redis_tls: TlsFiles,
    pub mysql: String,
    pub mysql_password: Option<String>,
    /// The maximum number of connections to MySQL.
    pub connections: u32,
    /// The durability of families that set none.
    pub durability: Durability,
    pub serve: Serve,
    pub create_tables: bool,
    pub allow_evicting: bool,
    /// The interval at which the daemon searches Redis for namespaces.
    pub discover: Duration,
}

/// The address of Redis.
#[derive(Clone, Debug)]
pub enum RedisPlace {
    At(String),
    /// The URLs of sentinels, and the URL of the primary with its name as the host.
    Sentinel(Vec<String>, String),
    /// The URLs of some nodes.
    Cluster(Vec<String>),
}

/// Certificates in PEM, in addition to those that the system trusts.
#[derive(Clone, Debug, Default)]
pub struct TlsFiles {
    pub authority: Option<PathBuf>,
    /// The client's certificate and its key.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// The families to bring to MySQL, in addition to those of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Serve {
    #[default]
    All,
    Declared,
    Namespaces(Vec<String>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairEntry {
    redis: Option<Spanned<String>>,
    sentinel: Option<Vec<String>>,
    cluster: Option<Vec<String>>,
    redis_password: Option<String>,
    redis_password_file: Option<PathBuf>,
    redis_ca: Option<PathBuf>,
    redis_cert: Option<PathBuf>,
    redis_key: Option<PathBuf>,
    mysql: Spanned<String>,
    mysql_password: Option<String>,
    mysql_password_file: Option<PathBuf>,
    connections: Option<Spanned<u32>>,
    #[serde(default)]
    durability: Durability,
    serve: Option<Spanned<ServeEntry>>,
    #[serde(default)]
    create_tables: bool,
    #[serde(default)]
    allow_evicting: bool,
    discover: Option<Time>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ServeEntry {
    Word(String),
    Namespaces(Vec<String>),
}

impl PairEntry {
    pub(super) fn check(
        self,
        name: &Spanned<String>,
        at: &Range<usize>,
        secrets: &Secrets,
    ) -> Result<PairConfig, Wrong> {
        let (name_at, name) = (name.span(), name.get_ref());
        let wrong_at =
            |at: &Range<usize>, what: &str| Wrong::new(at, format!("pair {name:?}: {what}"));
        let wrong = |what: &str| wrong_at(at, what);
        if name.is_empty()
            || !name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
        {
            return Err(wrong_at(&name_at, "a name has letters, digits, _ and -"));
        }
        let secret = |which: &str, written, file| {
            let variable = format!("{}_{which}", name.to_uppercase().replace('-', "_"));
            let found = secrets.find(&variable, written, file);
            found.map_err(|what| wrong(&what))
        };
        let redis_at = self.redis.as_ref().map_or(at.clone(), Spanned::span);
        let redis = self.redis.map(Spanned::into_inner);
        let redis = match (redis, self.sentinel, self.cluster) {
            (Some(url), None, None) => RedisPlace::At(url),
            (Some(primary), Some(sentinels), None) => RedisPlace::Sentinel(sentinels, primary),
            (None, None, Some(nodes)) => RedisPlace::Cluster(nodes),
            (None, Some(_), _) => {
                return Err(wrong(
                    "sentinel needs redis = \"redis://NAME\", the name that Sentinel knows",
                ));
            }
            (_, _, Some(_)) => return Err(wrong("cluster goes without redis and sentinel")),
            (None, None, None) => return Err(wrong("redis, or cluster, is missing")),
        };
        if let RedisPlace::At(url) | RedisPlace::Sentinel(_, url) = &redis
            && let Err(error) = url.as_str().into_connection_info()
        {
            let what = format!("redis is no URL of a Redis: {error:#}");
            return Err(wrong_at(&redis_at, &what));
        }
        let mysql_at = self.mysql.span();
        let mysql = self.mysql.into_inner();
        if let Err(error) = mysql.parse::<MySqlConnectOptions>() {
            let what = format!("mysql is no URL of a database: {error:#}");
            return Err(wrong_at(&mysql_at, &what));
        }
        let connections = match self.connections.map(|it| (it.span(), it.into_inner())) {
            Some((at, 0..2)) => {
                return Err(wrong_at(&at, "connections: at least 2 are needed"));
            }
            Some((_, number)) => number,
            None => 10,
        };
        let serve = match self.serve.map(|serve| (serve.span(), serve.into_inner())) {
            None => Serve::All,
            Some((_, ServeEntry::Namespaces(namespaces))) => Serve::Namespaces(namespaces),
            Some((at, ServeEntry::Word(word))) => match word.as_str() {
                "all" => Serve::All,
                "declared" => Serve::Declared,
                _ => {
                    let what = format!(
                        "serve = {word:?} is neither \"all\", \"declared\" nor [\"NAMESPACE\", ...]"
                    );
                    return Err(wrong_at(&at, &what));
                }
            },
        };
        let path = |file: PathBuf| secrets.path(&file);
        let client = match (self.redis_cert, self.redis_key) {
            (Some(cert), Some(key)) => Some((path(cert), path(key))),
            (None, None) => None,
            _ => return Err(wrong("redis_cert and redis_key go together")),
        };
        Ok(PairConfig {
            redis,
            redis_password: secret(
                "REDIS_PASSWORD",
                self.redis_password,
                self.redis_password_file,
            )?,
            redis_tls: TlsFiles {
                authority: self.redis_ca.map(path),
                client,
            },
            mysql,
            mysql_password: secret(
                "MYSQL_PASSWORD",
                self.mysql_password,
                self.mysql_password_file,
            )?,
            connections,
            durability: self.durability,
            serve,
            create_tables: self.create_tables,
            allow_evicting: self.allow_evicting,
            discover: self
                .discover
                .map_or(Duration::from_secs(30), |Time(time)| time),
            name: name.clone(),
        })
    }
}
