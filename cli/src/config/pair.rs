//! A pair of Redis and MySQL.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use counterfoil::redis::{ClientTlsConfig, TlsCertificates};
use counterfoil::sqlx::mysql::MySqlConnectOptions;
use counterfoil::{Durability, Family};
use serde::Deserialize;

use super::mysql;
use super::redis::{RedisPlace, RedisUrls};
use super::secret::{SecretText, Secrets};
use super::tls::{NO_TLS, TlsRule, Transport};
use super::{FamilyConfig, Time};

/// The default of `keep_history`.
const KEEP_HISTORY: Duration = Duration::from_hours(90 * 24);

/// A pair of Redis and MySQL.
#[derive(Clone)]
pub struct PairConfig {
    pub name: String,
    pub redis: RedisPlace,
    /// The certificates for Redis. An authority among them replaces those of the system.
    pub certificates: Option<TlsCertificates>,
    pub mysql: MySqlConnectOptions,
    /// All settings by which it connects, secrets included. If a reload changes this text, the
    /// daemon connects again.
    pub connects_by: String,
    /// The maximum number of connections to MySQL.
    pub connections: u32,
    /// The durability of families that set none.
    pub durability: Durability,
    pub serve: Serve,
    pub create_tables: bool,
    pub allow_evicting: bool,
    /// The time for which records of what happened are kept.
    pub keep_history: Duration,
    /// The maximum number of rejects, if it is set.
    pub max_rejects: Option<u64>,
    pub families: Vec<FamilyConfig>,
}

/// The families to bring to MySQL, in addition to those of the file.
#[derive(Clone, Default, Deserialize)]
#[serde(try_from = "ServeEntry")]
pub enum Serve {
    #[default]
    All,
    Declared,
    Namespaces(Vec<String>),
}

impl Serve {
    /// Returns whether it includes all families of a namespace.
    pub fn includes(&self, namespace: &str) -> bool {
        match self {
            Serve::All => true,
            Serve::Declared => false,
            Serve::Namespaces(namespaces) => namespaces.iter().any(|one| one == namespace),
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum ServeEntry {
    Word(String),
    Namespaces(Vec<String>),
}

impl TryFrom<ServeEntry> for Serve {
    type Error = String;

    fn try_from(entry: ServeEntry) -> Result<Self, String> {
        match entry {
            ServeEntry::Word(word) if word == "all" => Ok(Serve::All),
            ServeEntry::Word(word) if word == "declared" => Ok(Serve::Declared),
            ServeEntry::Word(word) => Err(format!(
                "serve = {word:?} is neither \"all\", \"declared\" nor [\"NAMESPACE\", ...]"
            )),
            ServeEntry::Namespaces(namespaces) => {
                for namespace in &namespaces {
                    Family::buffered(namespace, "any")
                        .build()
                        .map_err(|error| format!("serve: {error:#}"))?;
                }
                Ok(Serve::Namespaces(namespaces))
            }
        }
    }
}

/// The settings of a pair, as written in the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairEntry {
    #[serde(default)]
    redis: RedisUrls,
    #[serde(default)]
    sentinel: RedisUrls,
    #[serde(default)]
    cluster: RedisUrls,
    redis_password: Option<SecretText>,
    redis_password_file: Option<PathBuf>,
    redis_ca: Option<PathBuf>,
    redis_cert: Option<PathBuf>,
    redis_key: Option<PathBuf>,
    mysql: SecretText,
    mysql_password: Option<SecretText>,
    mysql_password_file: Option<PathBuf>,
    #[serde(default)]
    tls: TlsRule,
    connections: Option<u32>,
    #[serde(default)]
    durability: Durability,
    #[serde(default)]
    serve: Serve,
    #[serde(default)]
    create_tables: bool,
    #[serde(default)]
    allow_evicting: bool,
    keep_history: Option<Time>,
    max_rejects: Option<u64>,
}

impl PairConfig {
    /// Returns the configuration of NAMESPACE/FAMILY: that of its name, or the most specific pattern.
    pub fn family(&self, name: &str) -> Option<&FamilyConfig> {
        let (namespace, family) = name.split_once('/')?;
        self.families
            .iter()
            .filter(|configured| configured.describes(namespace, family))
            .max_by_key(|configured| configured.precedence())
    }

    /// Returns the names of the families, except patterns.
    pub fn family_names(&self) -> BTreeSet<String> {
        self.families
            .iter()
            .filter(|family| !family.is_pattern())
            .map(FamilyConfig::name)
            .collect()
    }

    pub fn has_patterns(&self) -> bool {
        self.families.iter().any(FamilyConfig::is_pattern)
    }
}

impl PairEntry {
    pub(super) fn check(self, name: &str, secrets: &Secrets<'_>) -> Result<PairConfig, String> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if name.is_empty() || !name.bytes().all(is_allowed) {
            return Err("a name has letters, digits, _ and -".to_owned());
        }
        let prefix = name.replace('-', "_");
        let pem = |setting: &str, kind: &str, written| {
            let text = secrets.read(&format!("{prefix}_{setting}"), written)?;
            match text {
                Some(text) if !text.contains(&format!("{kind}-----")) => {
                    Err(format!("{setting}: the file has no {kind} in PEM"))
                }
                text => Ok(text),
            }
        };
        let pems = [
            pem("redis_ca", "CERTIFICATE", self.redis_ca)?,
            pem("redis_cert", "CERTIFICATE", self.redis_cert)?,
            pem("redis_key", "PRIVATE KEY", self.redis_key)?,
        ];
        let urls = [&self.redis, &self.sentinel, &self.cluster].map(|urls| &urls.text);
        let mut connects_by = format!("{urls:?} {pems:?}");
        let [root_cert, client_cert, client_key] = pems.map(|pem| pem.map(String::into_bytes));
        let client_tls = match (client_cert, client_key) {
            (Some(client_cert), Some(client_key)) => Some(ClientTlsConfig {
                client_cert,
                client_key,
            }),
            (None, None) => None,
            _ => return Err("redis_cert and redis_key go together".to_owned()),
        };
        let has_certificates = root_cert.is_some() || client_tls.is_some();
        let mut redis = RedisPlace::new([self.redis, self.sentinel, self.cluster])?;
        if redis.transport() == Transport::Plain && self.tls == TlsRule::Required {
            return Err(format!(
                "redis is on another machine, and its URL has no TLS: expected rediss://, {NO_TLS}"
            ));
        }
        if has_certificates && !redis.has_tls() {
            return Err("redis_ca, redis_cert and redis_key need a rediss:// URL".to_owned());
        }
        let secret =
            |which, written, file| secrets.find(&format!("{prefix}_{which}"), written, file);
        if let Some(password) = secret(
            "redis_password",
            self.redis_password,
            self.redis_password_file,
        )? {
            redis.set_password(&password);
            connects_by += &password;
        }
        let mut mysql = mysql::options(&self.mysql.0, self.tls, secrets, &prefix)?;
        if let Some(password) = secret(
            "mysql_password",
            self.mysql_password,
            self.mysql_password_file,
        )? {
            mysql = mysql.password(&password);
        }
        connects_by += &format!("{mysql:?}");
        let connections = self.connections.unwrap_or(10);
        if connections < 2 {
            return Err("connections: at least 2 are needed".to_owned());
        }
        Ok(PairConfig {
            name: name.to_owned(),
            redis,
            certificates: has_certificates.then_some(TlsCertificates {
                client_tls,
                root_cert,
            }),
            mysql,
            connects_by,
            connections,
            durability: self.durability,
            serve: self.serve,
            create_tables: self.create_tables,
            allow_evicting: self.allow_evicting,
            keep_history: self.keep_history.map_or(KEEP_HISTORY, |time| time.0),
            max_rejects: self.max_rejects,
            families: Vec::new(),
        })
    }
}
