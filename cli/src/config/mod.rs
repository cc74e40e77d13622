//! `counterfoil.toml`: its settings, all checked before anything is done.
//!
//! Each value has a type that checks it while the file is parsed, so that an error names the line
//! of the value. An error about several values, or about a name, names the line of its pair or
//! family.

mod family;
mod mysql;
mod pair;
mod redis;
mod secret;
mod tls;
mod unknown;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use indexmap::IndexMap;
use jiff::SignedDuration;
use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

pub use self::family::{FamilyConfig, Recount};
pub use self::mysql::transport as mysql_transport;
use self::pair::PairEntry;
pub use self::pair::{PairConfig, Serve};
pub use self::redis::is_tls;
pub use self::secret::forbid_core_dumps;
use self::secret::{SecretText, Secrets};

/// The advice for a file that cannot be read.
const ADVICE: &str =
    "--config names another one, and `counterfoil example-config` prints one to begin with";

/// The commented example with every setting.
pub const EXAMPLE: &str = include_str!("../../counterfoil.toml");

/// The configuration that a file contains.
pub struct Config {
    pub http: Option<HttpConfig>,
    pub shutdown: Duration,
    pub log: LogFormat,
    pub pairs: Vec<PairConfig>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

/// The HTTP settings of the daemon.
#[derive(Clone)]
pub struct HttpConfig {
    pub listen: SocketAddr,
    /// The token that all requests need, except those for the state of health.
    pub token: Option<String>,
    /// The names by which clients reach the daemon, in lower case.
    pub hosts: Vec<String>,
    /// The proxies whose X-Forwarded-For counts.
    pub proxies: Vec<IpAddr>,
    /// Allows other machines without a token.
    allow_anonymous: bool,
}

impl HttpConfig {
    /// Refuses to serve other machines by this address without a token. Only the daemon calls this:
    /// other commands may lack access to the credential that has the token.
    pub fn check(&self, listen: SocketAddr) -> Result<(), String> {
        if self.token.is_some() || self.allow_anonymous || listen.ip().is_loopback() {
            return Ok(());
        }
        Err(format!(
            "listen = \"{listen}\" is reachable from other machines, and there is no token: set `token`, or allow_anonymous = true"
        ))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    listen: Listen,
    token: Option<SecretText>,
    token_file: Option<PathBuf>,
    #[serde(default)]
    hosts: Vec<Host>,
    #[serde(default)]
    proxies: Vec<IpAddr>,
    #[serde(default)]
    allow_anonymous: bool,
    shutdown: Option<Time>,
    #[serde(default)]
    log: LogFormat,
    #[serde(default)]
    pair: IndexMap<String, Spanned<PairEntry>>,
}

/// The address of the HTTP server, `None` for `off`.
#[derive(Deserialize)]
#[serde(try_from = "String")]
struct Listen(Option<SocketAddr>);

impl Default for Listen {
    fn default() -> Self {
        Listen(Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9292)))
    }
}

impl TryFrom<String> for Listen {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if text == "off" {
            return Ok(Listen(None));
        }
        let address = text.parse().map_err(|_| {
            format!(
                "listen = {text:?} is neither ADDRESS:PORT, such as \"127.0.0.1:9292\", nor \"off\""
            )
        })?;
        Ok(Listen(Some(address)))
    }
}

/// The name of a host in lower case.
#[derive(Deserialize)]
#[serde(try_from = "String")]
struct Host(String);

impl TryFrom<String> for Host {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let is_allowed =
            |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if text.is_empty() || !text.bytes().all(is_allowed) {
            return Err(format!("hosts: {text:?} is not a host name without a port"));
        }
        Ok(Host(text.to_lowercase()))
    }
}

/// A time such as `2.5s`, `10m`, `6h` or `90d`.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "String")]
pub struct Time(pub Duration);

impl TryFrom<String> for Time {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        time(&text).map(Time)
    }
}

/// The longest time that is used. A clock can still add it to the present time without an overflow.
const LONGEST: Duration = Duration::from_hours(24 * 36_500);

/// Parses a time, also from the command line. Longer ones count as the longest.
pub fn time(text: &str) -> Result<Duration, String> {
    let time = match text.strip_suffix('d').map(str::parse::<u32>) {
        Some(Ok(days)) => Some(Duration::from_hours(24 * u64::from(days))),
        _ => text
            .parse::<SignedDuration>()
            .ok()
            .and_then(|signed| Duration::try_from(signed).ok()),
    };
    time.map(|time| time.min(LONGEST))
        .ok_or_else(|| format!("{text:?} is no time such as \"2.5s\", \"10m\", \"6h\" or \"90d\""))
}

/// An error, and the part of the text that it is about.
struct Wrong {
    message: String,
    at: Range<usize>,
}

impl From<toml::de::Error> for Wrong {
    fn from(error: toml::de::Error) -> Self {
        Wrong {
            message: unknown::with_nearest(error.message()),
            at: error.span().unwrap_or_default(),
        }
    }
}

impl From<String> for Wrong {
    fn from(message: String) -> Self {
        Wrong { message, at: 0..0 }
    }
}

impl Config {
    /// Reads the file, then other files and the environment for secrets that it lacks.
    pub fn read(path: &Path) -> Result<Config, String> {
        let file = path.display();
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("{file}: not read: {error:#}. {ADVICE}"))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        Config::parse(&text, &Secrets(folder)).map_err(|Wrong { message, at }| {
            let before = text.get(..at.start).unwrap_or_default();
            let line = before.matches('\n').count() + 1;
            format!("{file}:{line}: {message}")
        })
    }

    /// Returns the configuration that a text would be as a file of this folder.
    pub fn of_text(text: &str, folder: &Path) -> Result<Config, String> {
        Config::parse(text, &Secrets(folder)).map_err(|wrong| wrong.message)
    }

    /// Returns the configuration of the [`EXAMPLE`].
    pub fn example() -> Option<Config> {
        Config::of_text(EXAMPLE, Path::new("")).ok()
    }

    fn parse(text: &str, secrets: &Secrets<'_>) -> Result<Config, Wrong> {
        let mut document = DeTable::parse(text)?;
        let described = document.get_mut().remove("family");
        let file = File::deserialize(toml::Deserializer::from(document))?;
        let token = secrets.find("token", file.token, file.token_file)?;
        if let Some(token) = &token {
            check_token(token)?;
            if file.allow_anonymous {
                return Err("allow_anonymous = true goes without a token"
                    .to_owned()
                    .into());
            }
        }
        let http = file.listen.0.map(|listen| HttpConfig {
            listen,
            token,
            hosts: file.hosts.into_iter().map(|Host(host)| host).collect(),
            proxies: file.proxies,
            allow_anonymous: file.allow_anonymous,
        });
        let mut pairs = Vec::new();
        for (name, entry) in file.pair {
            let at = entry.span();
            let pair = entry
                .into_inner()
                .check(&name, secrets)
                .map_err(|what| Wrong {
                    message: format!("pair {name:?}: {what}"),
                    at,
                })?;
            pairs.push(pair);
        }
        if pairs.is_empty() {
            let none = "there is no [pair.NAME]: which Redis and MySQL?";
            return Err(none.to_owned().into());
        }
        match described.map(Spanned::into_inner) {
            None => {}
            Some(DeValue::Array(entries)) => {
                for entry in entries {
                    FamilyConfig::read(entry, &mut pairs)?;
                }
            }
            Some(_) => return Err("family: expected [[family]]".to_owned().into()),
        }
        Ok(Config {
            http,
            shutdown: file.shutdown.map_or(Duration::from_secs(20), |it| it.0),
            log: file.log,
            pairs,
        })
    }

    pub fn pair(&self, name: &str) -> Option<&PairConfig> {
        self.pairs.iter().find(|pair| pair.name == name)
    }
}

/// Refuses a token that a client cannot send in a header.
fn check_token(token: &str) -> Result<(), String> {
    let is_printable = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
    if token.trim().is_empty() {
        Err("the token is empty".to_owned())
    } else if token.trim() != token || !token.bytes().all(is_printable) {
        Err("the token has other than printable ASCII characters, or spaces around it".to_owned())
    } else {
        Ok(())
    }
}
