//! A pair of Redis and MySQL.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use counterfoil::sqlx::ConnectOptions;
use counterfoil::{Durability, Family, MysqlStore};
use serde::Deserialize;
use toml::Spanned;

use super::Wrong;
use super::mysql::MysqlPlace;
use super::redis::{self, RedisPlace};
use super::secret::{Hidden, HiddenList, Secrets};
use super::tls::{Certificates, TlsRule};
use super::value::Time;

/// A pair of Redis and MySQL.
#[derive(Clone, Debug)]
pub struct PairConfig {
    pub name: String,
    pub redis: RedisPlace,
    pub redis_tls: Certificates,
    pub mysql: MysqlPlace,
    /// The maximum number of connections to MySQL.
    pub connections: u32,
    /// The durability of families that set none.
    pub durability: Durability,
    pub serve: Serve,
    pub create_tables: bool,
    pub allow_evicting: bool,
    /// The interval at which the daemon searches Redis for namespaces.
    pub discover: Duration,
    /// The time for which records of what happened are kept.
    pub keep_history: Duration,
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
    redis: Option<Spanned<Hidden>>,
    sentinel: Option<Spanned<HiddenList>>,
    cluster: Option<Spanned<HiddenList>>,
    redis_password: Option<Hidden>,
    redis_password_file: Option<PathBuf>,
    redis_ca: Option<Spanned<PathBuf>>,
    redis_cert: Option<Spanned<PathBuf>>,
    redis_key: Option<Spanned<PathBuf>>,
    mysql: Spanned<Hidden>,
    mysql_password: Option<Hidden>,
    mysql_password_file: Option<PathBuf>,
    #[serde(default)]
    tls: TlsRule,
    connections: Option<Spanned<u32>>,
    #[serde(default)]
    durability: Durability,
    serve: Option<Spanned<ServeEntry>>,
    #[serde(default)]
    create_tables: bool,
    #[serde(default)]
    allow_evicting: bool,
    discover: Option<Time>,
    keep_history: Option<Time>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ServeEntry {
    Word(String),
    Namespaces(Vec<String>),
}

impl PairConfig {
    /// Returns whether both connect to the same servers in the same way.
    pub fn connects_like(&self, other: &PairConfig) -> bool {
        let mysql = |pair: &PairConfig| pair.mysql.options.to_url_lossy();
        self.redis.parts() == other.redis.parts()
            && self.redis_tls == other.redis_tls
            && mysql(self) == mysql(other)
    }
}

/// Where an error is, and what is wrong.
type Fault = (Range<usize>, String);

impl PairEntry {
    pub(super) fn check(
        self,
        name: &Spanned<String>,
        at: &Range<usize>,
        secrets: &Secrets,
    ) -> Result<PairConfig, Wrong> {
        let named = name.get_ref();
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        let checked = if named.is_empty() || !named.bytes().all(is_allowed) {
            Err((
                name.span(),
                "a name has letters, digits, _ and -".to_owned(),
            ))
        } else {
            self.read(named, at, secrets)
        };
        checked.map_err(|(at, what)| Wrong::new(&at, format!("pair {named:?}: {what}")))
    }

    fn read(self, name: &str, at: &Range<usize>, secrets: &Secrets) -> Result<PairConfig, Fault> {
        let here = |what: String| (at.clone(), what);
        let prefix = name.to_uppercase().replace('-', "_");
        let secret = |which: &str, written, file| {
            let found = secrets.find(&format!("{prefix}_{which}"), written, file);
            found.map_err(here)
        };
        let file = |setting: &str, kind: &str, written: Option<Spanned<PathBuf>>| {
            let at = written.as_ref().map_or(at.clone(), Spanned::span);
            let credential = || secrets.credential(&format!("{prefix}_{setting}"));
            let Some(file) = written.map(Spanned::into_inner).or_else(credential) else {
                return Ok(None);
            };
            match secrets.read(setting, &file) {
                Ok(pem) if String::from_utf8_lossy(&pem).contains(&format!("{kind}-----")) => {
                    Ok(Some(pem))
                }
                Ok(_) => {
                    let what = format!("{setting}: {} has no {kind} in PEM", file.display());
                    Err((at, what))
                }
                Err(what) => Err((at, what)),
            }
        };
        let client = match (
            file("redis_cert", "CERTIFICATE", self.redis_cert)?,
            file("redis_key", "PRIVATE KEY", self.redis_key)?,
        ) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => return Err(here("redis_cert and redis_key go together".to_owned())),
        };
        let redis_tls = Certificates {
            authority: file("redis_ca", "CERTIFICATE", self.redis_ca)?,
            client,
        };
        let (redis_at, mut redis) = redis_place(at, self.redis, self.sentinel, self.cluster)?;
        redis
            .check(self.tls, &redis_tls)
            .map_err(|what| (redis_at, what))?;
        let password = secret(
            "REDIS_PASSWORD",
            self.redis_password,
            self.redis_password_file,
        )?;
        if let Some(password) = &password {
            redis.set_password(password);
        }
        let password = secret(
            "MYSQL_PASSWORD",
            self.mysql_password,
            self.mysql_password_file,
        )?;
        let (mysql_at, Hidden(mysql)) = (self.mysql.span(), self.mysql.into_inner());
        let mysql = MysqlPlace::parse(&mysql, password.as_deref(), self.tls, (secrets, &prefix))
            .map_err(|what| (mysql_at, what))?;
        let connections = match self.connections.map(|it| (it.span(), it.into_inner())) {
            Some((at, 0..2)) => {
                return Err((at, "connections: at least 2 are needed".to_owned()));
            }
            Some((_, number)) => number,
            None => 10,
        };
        let discover = self.discover.map(|Time(time)| time);
        let keep_history = self.keep_history.map(|Time(time)| time);
        Ok(PairConfig {
            name: name.to_owned(),
            redis,
            redis_tls,
            mysql,
            connections,
            durability: self.durability,
            serve: serve(self.serve)?,
            create_tables: self.create_tables,
            allow_evicting: self.allow_evicting,
            discover: discover.unwrap_or(Duration::from_secs(30)),
            keep_history: keep_history.unwrap_or(MysqlStore::REJECTS_KEPT),
        })
    }
}

fn serve(entry: Option<Spanned<ServeEntry>>) -> Result<Serve, Fault> {
    let Some(entry) = entry else {
        return Ok(Serve::All);
    };
    let at = entry.span();
    match entry.into_inner() {
        ServeEntry::Namespaces(namespaces) => {
            for namespace in &namespaces {
                let any = Family::buffered(namespace, "any").build();
                any.map_err(|error| (at.clone(), format!("serve: {error:#}")))?;
            }
            Ok(Serve::Namespaces(namespaces))
        }
        ServeEntry::Word(word) => match word.as_str() {
            "all" => Ok(Serve::All),
            "declared" => Ok(Serve::Declared),
            _ => Err((
                at,
                format!(
                    "serve = {word:?} is neither \"all\", \"declared\" nor [\"NAMESPACE\", ...]"
                ),
            )),
        },
    }
}

type Urls = Option<Spanned<HiddenList>>;

/// Returns the address of Redis, and its part of the file.
fn redis_place(
    pair: &Range<usize>,
    redis: Option<Spanned<Hidden>>,
    sentinel: Urls,
    cluster: Urls,
) -> Result<(Range<usize>, RedisPlace), Fault> {
    let here = |what: &str| Err((pair.clone(), what.to_owned()));
    let one = |url: Spanned<Hidden>| {
        let at = url.span();
        match redis::parse("redis", &url.get_ref().0) {
            Ok(info) => Ok((at, info)),
            Err(what) => Err((at, what)),
        }
    };
    let many = |setting: &str, urls: Spanned<HiddenList>| {
        let (at, HiddenList(urls)) = (urls.span(), urls.into_inner());
        let parsed = urls.iter().map(|Hidden(url)| redis::parse(setting, url));
        match parsed.collect::<Result<Vec<_>, _>>() {
            Ok(infos) if infos.is_empty() => Err((at, format!("{setting} is empty"))),
            Ok(infos) => Ok((at, infos)),
            Err(what) => Err((at, what)),
        }
    };
    match (redis, sentinel, cluster) {
        (Some(url), None, None) => one(url).map(|(at, info)| (at, RedisPlace::At(info))),
        (Some(url), Some(sentinels), None) => {
            let ((at, primary), (_, sentinels)) = (one(url)?, many("sentinel", sentinels)?);
            Ok((at, RedisPlace::Sentinel(sentinels, primary)))
        }
        (None, None, Some(nodes)) => {
            many("cluster", nodes).map(|(at, nodes)| (at, RedisPlace::Cluster(nodes)))
        }
        (None, Some(_), _) => {
            here("sentinel needs redis = \"redis://NAME\", the name that Sentinel knows")
        }
        (_, _, Some(_)) => here("cluster goes without redis and sentinel"),
        (None, None, None) => here("redis, or cluster, is missing"),
    }
}
