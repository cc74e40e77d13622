//! `counterfoil.toml`: its settings, all checked before anything is done.

mod family;
mod pair;
mod secret;
mod value;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use indexmap::IndexMap;
use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

pub use self::family::{FamilyConfig, Recount};
use self::pair::PairEntry;
pub use self::pair::{PairConfig, RedisPlace, Serve};
use self::secret::Secrets;
use self::value::Time;
pub use self::value::time;

/// The advice for a file that cannot be read.
const ADVICE: &str =
    "--config names another one, and `counterfoil example-config` prints one to begin with";

/// The commented example with every setting.
pub const EXAMPLE: &str = include_str!("../../counterfoil.toml");

/// The address on which the daemon listens by default.
const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9292);

/// The configuration that a file contains.
#[derive(Debug)]
pub struct Config {
    pub http: Option<HttpConfig>,
    pub shutdown: Duration,
    pub log: LogFormat,
    pub pairs: Vec<PairConfig>,
    pub families: Vec<FamilyConfig>,
}

/// The HTTP settings of the daemon.
#[derive(Clone, Debug)]
pub struct HttpConfig {
    pub listen: SocketAddr,
    /// The token that all requests need, except those for the state of health.
    pub token: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    listen: Option<Spanned<String>>,
    token: Option<String>,
    token_file: Option<PathBuf>,
    shutdown: Option<Time>,
    log: Option<LogFormat>,
    #[serde(default)]
    pair: IndexMap<Spanned<String>, Spanned<PairEntry>>,
}

/// An error, and the part of the text that it is about.
struct Wrong {
    message: String,
    at: Range<usize>,
}

impl Wrong {
    fn new(at: &Range<usize>, message: impl fmt::Display) -> Self {
        Wrong {
            message: message.to_string(),
            at: at.clone(),
        }
    }
}

impl From<toml::de::Error> for Wrong {
    fn from(error: toml::de::Error) -> Self {
        Wrong {
            message: error.message().to_owned(),
            at: error.span().unwrap_or(0..0),
        }
    }
}

impl Config {
    /// Reads the file, then other files and the environment for secrets that it lacks.
    pub fn read(path: &Path) -> Result<Config, String> {
        let file = path.display();
        let text = std::fs::read_to_string(path)
            .map_err(|error| format!("{file}: not read: {error:#}. {ADVICE}"))?;
        let parsed = Config::parse(&text, &Secrets::of_process(path));
        parsed.map_err(|Wrong { message, at }| {
            let before = text.get(..at.start).unwrap_or_default();
            let line = before.matches('\n').count() + 1;
            format!("{file}:{line}: {message}")
        })
    }

    fn parse(text: &str, secrets: &Secrets) -> Result<Config, Wrong> {
        let mut document = DeTable::parse(text)?;
        let described = document.get_mut().remove("family");
        let file = File::deserialize(toml::Deserializer::from(document))?;
        let whole = 0..0;
        let token = secrets
            .find("TOKEN", file.token, file.token_file)
            .map_err(|wrong| Wrong::new(&whole, wrong))?;
        let listen = file
            .listen
            .as_ref()
            .map_or(Ok(Some(DEFAULT_LISTEN)), address)?;
        let mut pairs = Vec::new();
        for (name, entry) in file.pair {
            let at = entry.span();
            pairs.push(entry.into_inner().check(&name, &at, secrets)?);
        }
        if pairs.is_empty() {
            return Err(Wrong::new(
                &whole,
                "there is no [pair.NAME]: which Redis and MySQL?",
            ));
        }
        let mut families: Vec<FamilyConfig> = Vec::new();
        for entry in family_entries(described)? {
            let at = entry.span();
            let family = FamilyConfig::read(entry, &pairs)?;
            let (name, pair) = (family.name(), &family.pair);
            if families
                .iter()
                .any(|other| other.name() == name && other.pair == *pair)
            {
                let twice = format!("family {name:?} of pair {pair:?} is described twice");
                return Err(Wrong::new(&at, twice));
            }
            families.push(family);
        }
        Ok(Config {
            http: listen.map(|listen| HttpConfig { listen, token }),
            shutdown: file
                .shutdown
                .map_or(Duration::from_secs(20), |Time(time)| time),
            log: file.log.unwrap_or_default(),
            pairs,
            families,
        })
    }
}

fn family_entries(value: Option<Spanned<DeValue<'_>>>) -> Result<DeArray<'_>, Wrong> {
    match value.map(|value| (value.span(), value.into_inner())) {
        None => Ok(DeArray::new()),
        Some((_, DeValue::Array(entries))) => Ok(entries),
        Some((at, _)) => Err(Wrong::new(&at, "family: expected [[family]]")),
    }
}

/// Parses an address; `off` yields `None`.
fn address(listen: &Spanned<String>) -> Result<Option<SocketAddr>, Wrong> {
    let text = listen.get_ref();
    if text == "off" {
        return Ok(None);
    }
    let wrong = |_| {
        let what = format!(
            "listen = {text:?} is neither ADDRESS:PORT, such as \"127.0.0.1:9292\", nor \"off\""
        );
        Wrong::new(&listen.span(), what)
    };
    text.parse().map(Some).map_err(wrong)
}

#[cfg(test)]
mod tests;
