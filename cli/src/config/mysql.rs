//! The address of MySQL.

use std::fmt;
use std::path::PathBuf;

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
    /// Parses the URL of the database of a pair, whose secrets begin with `prefix`. No error
    /// contains the URL, which may have a password.
    pub fn parse(
        text: &str,
        password: Option<&str>,
        rule: TlsRule,
        (secrets, prefix): (&Secrets, &str),
    ) -> Result<Self, String> {
        let parsed = mysql_options(text).map_err(|error| format!("mysql: {error:#}"))?;
        let url = Url::parse(text).map_err(|error| format!("mysql: {error}"))?;
        let database = parsed.get_database().map(str::to_owned);
        let database =
            database.ok_or("mysql names no database: expected mysql://USER@HOST/DATABASE")?;
        let file = |name: &str| {
            let written = parameter(&url, name).map(PathBuf::from);
            let credential = name.replace("ssl-", "mysql_").to_uppercase();
            let file = written.or_else(|| secrets.credential(&format!("{prefix}_{credential}")));
            let file = file.map(|file| secrets.existing(&format!("mysql: {name}"), &file));
            file.transpose()
        };
        let authority = file("ssl-ca")?;
        let has_authority = authority.is_some();
        let mut options = parsed;
        if let Some(authority) = authority {
            options = options.ssl_ca(authority);
        }
        if let Some(cert) = file("ssl-cert")? {
            options = options.ssl_client_cert(cert);
        }
        if let Some(key) = file("ssl-key")? {
            options = options.ssl_client_key(key);
        }
        if let Some(password) = password {
            options = options.password(password);
        }
        let has_mode = parameter(&url, "ssl-mode").is_some();
        Ok(MysqlPlace {
            options: with_tls(options, has_mode, has_authority, rule)?,
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

/// Returns a parameter of the URL, which has two spellings: ssl-ca and sslca.
fn parameter(url: &Url, name: &str) -> Option<String> {
    let other = name.replace('-', "");
    let mut all = url.query_pairs();
    let (_, value) = all.find(|(found, _)| *found == name || *found == *other)?;
    Some(value.into_owned())
}

/// Chooses the TLS mode without one in the URL, and refuses one without the required protection.
fn with_tls(
    options: MySqlConnectOptions,
    has_mode: bool,
    has_authority: bool,
    rule: TlsRule,
) -> Result<MySqlConnectOptions, String> {
    let needs_tls = is_remote(&options) && rule == TlsRule::Required;
    let options = match (has_mode, has_authority, needs_tls) {
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
