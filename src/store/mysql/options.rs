//! Descriptions of a connection to a database: a URL, options of sqlx, or those of a pool.

use std::net::IpAddr;

use sqlx::MySqlPool;
use sqlx::mysql::{MySqlConnectOptions, MySqlSslMode};

use crate::error::{Error, Result};

/// A description of how to connect to a database:
///
/// - a URL, `mysql://user:password@host/database?ssl-mode=VERIFY_IDENTITY`. sqlx ignores parameters
///   that it does not know, and a misspelled `ssl-mode` would leave a connection without TLS: here
///   they are an error. The error does not contain the URL, which may have a password. A server on
///   another machine needs TLS unless the URL has `ssl-mode`: sqlx sends the password in clear if
///   the server asks for that, or an attacker that poses as it.
/// - [`MySqlConnectOptions`] of sqlx
/// - a pool of the application, whose options are used. Its connections and hooks are not.
///
/// ```
/// use counterfoil::IntoMysqlOptions;
/// use counterfoil::sqlx::ConnectOptions;
///
/// let options = "mysql://shop@localhost/shop".into_mysql_options()?;
/// let quiet = options.disable_statement_logging();
/// # Ok::<_, counterfoil::Error>(())
/// ```
pub trait IntoMysqlOptions {
    /// Returns the options of sqlx.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput) for an invalid URL.
    fn into_mysql_options(self) -> Result<MySqlConnectOptions>;
}

impl IntoMysqlOptions for MySqlConnectOptions {
    fn into_mysql_options(self) -> Result<MySqlConnectOptions> {
        Ok(self)
    }
}

impl IntoMysqlOptions for &MySqlPool {
    fn into_mysql_options(self) -> Result<MySqlConnectOptions> {
        let options = (*self.connect_options()).clone();
        Ok(options.statement_cache_capacity(STATEMENTS))
    }
}

impl IntoMysqlOptions for String {
    fn into_mysql_options(self) -> Result<MySqlConnectOptions> {
        self.as_str().into_mysql_options()
    }
}

impl IntoMysqlOptions for &String {
    fn into_mysql_options(self) -> Result<MySqlConnectOptions> {
        self.as_str().into_mysql_options()
    }
}

impl IntoMysqlOptions for &str {
    fn into_mysql_options(self) -> Result<MySqlConnectOptions> {
        if !self.starts_with("mysql://") && !self.starts_with("mariadb://") {
            return Err(Error::invalid("the database's URL is not mysql://"));
        }
        let parsed = self.parse().map_err(|error: sqlx::Error| {
            Error::invalid("invalid database URL").with_source(error)
        })?;
        if let Some(name) = parameters(self).find(|name| !PARAMETERS.contains(name)) {
            return Err(unknown_parameter(name));
        }
        let mut options = without_brackets(parsed);
        let states_tls = parameters(self).any(|name| ["ssl-mode", "sslmode"].contains(&name));
        if !states_tls && options.get_socket().is_none() && !is_loopback(options.get_host()) {
            options = options.ssl_mode(MySqlSslMode::Required);
        }
        if parameters(self).any(|name| name == "statement-cache-capacity") {
            Ok(options)
        } else {
            Ok(options.statement_cache_capacity(STATEMENTS))
        }
    }
}

/// The parameters of a database's URL that sqlx knows, without the time zone: sessions are in UTC.
const PARAMETERS: [&str; 12] = [
    "ssl-mode",
    "sslmode",
    "ssl-ca",
    "sslca",
    "ssl-cert",
    "sslcert",
    "ssl-key",
    "sslkey",
    "charset",
    "collation",
    "socket",
    "statement-cache-capacity",
];

/// The number of statements that stay prepared in a session, enough for 60 families with tables of
/// their own. Each further one closes another. Over TCP the statement after that waits 40 ms,
/// because sqlx 0.9.0 does not set TCP_NODELAY. By default a server keeps 16,382 statements of all
/// sessions together.
const STATEMENTS: usize = 500;

/// Removes the brackets of an IPv6 address, with which sqlx would look for a host of that name.
fn without_brackets(options: MySqlConnectOptions) -> MySqlConnectOptions {
    let host = options.get_host().trim_matches(['[', ']']).to_owned();
    options.host(&host)
}

/// Returns whether connections to the host stay on this machine.
pub fn is_loopback(host: &str) -> bool {
    let name = host.trim_matches(['[', ']']);
    name == "localhost"
        || name.ends_with(".localhost")
        || name
            .parse::<IpAddr>()
            .is_ok_and(|ip| ip.to_canonical().is_loopback())
}

/// Returns the names of the parameters in a URL.
fn parameters(url: &str) -> impl Iterator<Item = &str> {
    let (without_fragment, _) = url.split_once('#').unwrap_or((url, ""));
    let query = without_fragment
        .split_once('?')
        .map_or("", |(_, query)| query);
    query
        .split('&')
        .filter_map(|part| part.split('=').next())
        .filter(|name| !name.is_empty())
}

fn unknown_parameter(name: &str) -> Error {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    // anything else may be the rest of a password that was not percent-encoded
    let shown = if name.bytes().all(is_name) { name } else { "" };
    let known = PARAMETERS.join(", ");
    Error::invalid(format!(
        "unknown parameter {shown:?} of the database's URL; known are {known}"
    ))
}

/// Returns the options, which must name a database.
pub fn with_database(options: impl IntoMysqlOptions) -> Result<MySqlConnectOptions> {
    let parsed = options.into_mysql_options()?;
    if parsed.get_database().is_none() {
        let what =
            "the database's URL or options name no database: mysql://user:password@host/DATABASE";
        return Err(Error::invalid(what));
    }
    Ok(parsed)
}
