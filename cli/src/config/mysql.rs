//! The address of MySQL.

use std::fmt;
use std::path::{Path, PathBuf};

use counterfoil::mysql_options;
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

impl MysqlPlace {
    /// Parses the URL of a database. No error contains the URL, which may have a password.
    pub fn parse(
        text: &str,
        password: Option<&str>,
        rule: TlsRule,
        secrets: &Secrets,
    ) -> Result<Self, String> {
        let parsed = mysql_options(text).map_err(|error| format!("mysql: {error:#}"))?;
        let url = Url::parse(text).map_err(|error| format!("mysql: {error}"))?;
        let database = parsed.get_database().map(str::to_owned);
        let database =
            database.ok_or("mysql names no database: expected mysql://USER@HOST/DATABASE")?;
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

/// Returns whether the URL has a parameter, of which there are two spellings.
fn has(url: &Url, name: &str) -> bool {
    url.query_pairs().any(|(found, _)| is_name(&found, name))
}

fn is_name(found: &str, name: &str) -> bool {
    found == name || found == name.replace('-', "")
}

/// Resolves the paths of certificates.
fn with_files(
    url: &Url,
    mut options: MySqlConnectOptions,
    secrets: &Secrets,
) -> Result<MySqlConnectOptions, String> {
    type Set = fn(MySqlConnectOptions, PathBuf) -> MySqlConnectOptions;
    let settings: [(&str, Set); 3] = [
        ("ssl-ca", MySqlConnectOptions::ssl_ca),
        ("ssl-cert", MySqlConnectOptions::ssl_client_cert),
        ("ssl-key", MySqlConnectOptions::ssl_client_key),
    ];
    for (found, value) in url.query_pairs() {
        if let Some((name, set)) = settings.iter().find(|(name, _)| is_name(&found, name)) {
            let file = secrets.existing(&format!("mysql: {name}"), Path::new(&*value))?;
            options = set(options, file);
        }
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
