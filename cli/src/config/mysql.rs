//! The address of MySQL.

use std::path::PathBuf;

use counterfoil::IntoMysqlOptions;
use counterfoil::admin::is_loopback;
use counterfoil::sqlx::mysql::{MySqlConnectOptions, MySqlSslMode};
use url::Url;

use super::secret::Secrets;
use super::tls::{NO_TLS, TlsRule, Transport};

/// The beginnings of a database's URL.
const SCHEMES: [&str; 2] = ["mysql://", "mariadb://"];

/// Parses the URL of the database of a pair, whose credentials begin with `prefix`. No error
/// contains the URL, which may have a password.
pub fn options(
    text: &str,
    rule: TlsRule,
    secrets: &Secrets<'_>,
    prefix: &str,
) -> Result<MySqlConnectOptions, String> {
    if !SCHEMES.iter().any(|scheme| text.starts_with(scheme)) {
        return Err("mysql: expected a URL such as mysql://USER@HOST/DATABASE".to_owned());
    }
    let mut options = text
        .into_mysql_options()
        .map_err(|error| format!("mysql: {error:#}"))?;
    let Some(database) = options.get_database() else {
        return Err("mysql names no database: expected mysql://USER@HOST/DATABASE".to_owned());
    };
    if is_system_schema(database) {
        return Err(format!(
            "mysql names the database {database}, which is the server's own: create another one"
        ));
    }
    let url = Url::parse(text).map_err(|error| format!("mysql: {error}"))?;
    if url.fragment().is_some() {
        return Err("mysql: the URL has a #, which is written as %23 in a password".to_owned());
    }
    if let Some(cert) = find_file(&url, "ssl-cert", secrets, prefix)? {
        options = options.ssl_client_cert(cert);
    }
    if let Some(key) = find_file(&url, "ssl-key", secrets, prefix)? {
        options = options.ssl_client_key(key);
    }
    let authority = find_file(&url, "ssl-ca", secrets, prefix)?;
    let has_authority = authority.is_some();
    if let Some(authority) = authority {
        options = options.ssl_ca(authority);
    }
    let needs_tls = is_remote(&options) && rule == TlsRule::Required;
    if parameter(&url, "ssl-mode").is_none() {
        options = match (has_authority, needs_tls) {
            (true, _) => options.ssl_mode(MySqlSslMode::VerifyIdentity),
            (false, true) => options.ssl_mode(MySqlSslMode::Required),
            (false, false) => options.ssl_mode(MySqlSslMode::Preferred),
        };
    }
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

/// Returns whether a schema is one of the server's own. Their names have any case.
pub fn is_system_schema(name: &str) -> bool {
    ["information_schema", "mysql", "performance_schema", "sys"]
        .iter()
        .any(|own| name.eq_ignore_ascii_case(own))
}

/// Returns the file of a parameter, such as `ssl-ca`: as written in the URL, or a credential.
fn find_file(
    url: &Url,
    name: &str,
    secrets: &Secrets<'_>,
    prefix: &str,
) -> Result<Option<PathBuf>, String> {
    let written = parameter(url, name).map(PathBuf::from);
    let credential = format!("{prefix}_{}", name.replace("ssl-", "mysql_"));
    let Some(file) = secrets.file(&credential, written) else {
        return Ok(None);
    };
    match file.metadata() {
        Ok(found) if found.is_file() => Ok(Some(file)),
        Ok(_) => Err(format!("mysql: {name}: {} is not a file", file.display())),
        Err(error) => Err(format!("mysql: {name}: {}: {error:#}", file.display())),
    }
}

/// Returns the protection of a connection that has TLS or not.
pub fn transport(options: &MySqlConnectOptions, has_tls: bool) -> Transport {
    match options.get_ssl_mode() {
        MySqlSslMode::VerifyCa | MySqlSslMode::VerifyIdentity => Transport::Verified,
        _ if has_tls => Transport::Unverified,
        _ if is_remote(options) => Transport::Plain,
        _ => Transport::Local,
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
