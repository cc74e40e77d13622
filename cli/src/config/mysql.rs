//! The address of MySQL.

use std::fmt::{self, Display};
use std::path::Path;

use counterfoil::sqlx::mysql::{MySqlConnectOptions, MySqlSslMode};
use url::Url;

use super::secret::Secrets;
use super::tls::{NO_TLS, TlsRule, Transport, is_loopback};

/// The database of a pair, with the credentials.
#[derive(Clone)]
pub struct MysqlPlace {
    pub options: MySqlConnectOptions,
    pub database: String,
}

impl fmt::Debug for MysqlPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MysqlPlace").field(&self.database).finish()
    }
}

/// The parameters of a URL. The first spelling of each is the one of the documentation.
const PARAMETERS: [&[&str]; 9] = [
    &["ssl-mode", "sslmode"],
    &["ssl-ca", "sslca"],
    &["ssl-cert", "sslcert"],
    &["ssl-key", "sslkey"],
    &["charset"],
    &["collation"],
    &["socket"],
    &["statement-cache-capacity"],
    &["time-zone", "timezone"],
];

impl MysqlPlace {
    /// Parses the URL of a database. No error contains the URL, which may have a password.
    pub fn parse(
        text: &str,
        password: Option<&str>,
        rule: TlsRule,
        secrets: &Secrets,
    ) -> Result<Self, String> {
        let url = Url::parse(text).map_err(invalid)?;
        if !["mysql", "mariadb"].contains(&url.scheme()) {
            return Err(invalid("expected mysql://USER@HOST/DATABASE"));
        }
        let parsed: MySqlConnectOptions = text.parse().map_err(invalid)?;
        let database = parsed.get_database().map(str::to_owned);
        let database = database
            .filter(|database| !database.is_empty())
            .ok_or("mysql names no database: expected mysql://USER@HOST/DATABASE")?;
        let mut options = with_files(&url, parsed, secrets)?;
        if let Some(password) = password {
            options = options.password(password);
        }
        Ok(MysqlPlace {
            options: with_tls(&url, options, rule)?,
            database,
        })
    }

    /// Returns the protection of a connection that has TLS or not.
    pub fn transport(&self, has_tls: bool) -> Transport {
        match self.options.get_ssl_mode() {
            MySqlSslMode::VerifyCa | MySqlSslMode::VerifyIdentity => Transport::Verified,
            _ if has_tls => Transport::Unverified,
            _ if is_remote(&self.options) => Transport::Plain,
            _ => Transport::Local,
        }
    }
}

/// Returns whether the connection leaves this machine.
fn is_remote(options: &MySqlConnectOptions) -> bool {
    options.get_socket().is_none() && !is_loopback(options.get_host())
}

fn invalid(error: impl Display) -> String {
    format!("mysql is no URL of a database: {error:#}")
}

/// Returns the parameters of the URL by the first spelling of their names, `None` if it is unknown.
fn parameters(url: &Url) -> impl Iterator<Item = (String, Option<&'static str>, String)> {
    url.query_pairs().map(|(name, value)| {
        let known = PARAMETERS.iter().find(|names| names.contains(&&*name));
        let known = known.and_then(|names| names.first().copied());
        (name.into_owned(), known, value.into_owned())
    })
}

fn has(url: &Url, name: &str) -> bool {
    parameters(url).any(|(_, known, _)| known == Some(name))
}

/// Resolves the paths of certificates, and refuses unknown parameters.
fn with_files(
    url: &Url,
    mut options: MySqlConnectOptions,
    secrets: &Secrets,
) -> Result<MySqlConnectOptions, String> {
    for (name, known, value) in parameters(url) {
        let file = || secrets.existing(&format!("mysql: {name}"), Path::new(&value));
        options = match known {
            Some("ssl-ca") => options.ssl_ca(file()?),
            Some("ssl-cert") => options.ssl_client_cert(file()?),
            Some("ssl-key") => options.ssl_client_key(file()?),
            Some(_) => options,
            None => {
                let known: Vec<_> = PARAMETERS.iter().map(|names| names[0]).collect();
                let known = known.join(", ");
                return Err(format!(
                    "mysql: unknown parameter {name}; known are {known}"
                ));
            }
        };
    }
    Ok(options)
}

/// Chooses the TLS mode if the URL has none, and refuses one without the required protection.
fn with_tls(
    url: &Url,
    options: MySqlConnectOptions,
    rule: TlsRule,
) -> Result<MySqlConnectOptions, String> {
    let needs_tls = is_remote(&options) && rule == TlsRule::Required;
    let has_authority = has(url, "ssl-ca");
    let options = match (has(url, "ssl-mode"), has_authority, needs_tls) {
        (false, true, _) => options.ssl_mode(MySqlSslMode::VerifyIdentity),
        (false, false, true) => options.ssl_mode(MySqlSslMode::Required),
        _ => options,
    };
    match options.get_ssl_mode() {
        MySqlSslMode::VerifyCa | MySqlSslMode::VerifyIdentity => Ok(options),
        _ if has_authority => {
            Err("mysql: ssl-ca needs ssl-mode=VERIFY_CA or VERIFY_IDENTITY".to_owned())
        }
        MySqlSslMode::Disabled | MySqlSslMode::Preferred if needs_tls => Err(format!(
            "mysql is on another machine: expected ssl-mode=REQUIRED, VERIFY_CA or VERIFY_IDENTITY, {NO_TLS}"
        )),
        _ => Ok(options),
    }
}
