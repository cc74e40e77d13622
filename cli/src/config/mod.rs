//! `counterfoil.toml`: its settings, all checked before anything is done.

mod family;
mod http;
mod mysql;
mod pair;
mod redis;
mod secret;
mod tls;
mod value;

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use indexmap::IndexMap;
use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

pub use self::family::{FamilyConfig, Recount};
use self::http::{DEFAULT_LISTEN, address};
pub use self::http::{HttpConfig, Token};
use self::pair::PairEntry;
pub use self::pair::{PairConfig, Serve};
pub use self::redis::{RedisPlace, is_tls};
use self::secret::{Hidden, Secrets};
use self::value::Time;
pub use self::value::time;

/// The advice for a file that cannot be read.
const ADVICE: &str =
    "--config names another one, and `counterfoil example-config` prints one to begin with";

/// The commented example with every setting.
pub const EXAMPLE: &str = include_str!("../../counterfoil.toml");

/// The configuration that a file contains.
#[derive(Debug)]
pub struct Config {
    pub http: Option<HttpConfig>,
    pub shutdown: Duration,
    pub log: LogFormat,
    pub pairs: Vec<PairConfig>,
    pub families: Vec<FamilyConfig>,
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
    token: Option<Hidden>,
    token_file: Option<PathBuf>,
    #[serde(default)]
    hosts: Vec<Spanned<String>>,
    allow_anonymous: Option<Spanned<bool>>,
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
        let token = token.map(Token::new).transpose();
        let token = token.map_err(|wrong| Wrong::new(&whole, wrong))?;
        let anonymous = file.allow_anonymous.filter(|allowed| *allowed.get_ref());
        if let (Some(allowed), Some(_)) = (&anonymous, &token) {
            let both = "allow_anonymous = true goes without a token";
            return Err(Wrong::new(&allowed.span(), both));
        }
        let listen = file
            .listen
            .as_ref()
            .map_or(Ok(Some(DEFAULT_LISTEN)), address)?;
        let hosts = file.hosts.iter().map(http::host);
        let hosts = hosts.collect::<Result<_, _>>()?;
        let http = listen.map(|listen| HttpConfig {
            listen,
            token,
            hosts,
            allow_anonymous: anonymous.is_some(),
        });
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
            http,
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

#[cfg(test)]
mod tests;
