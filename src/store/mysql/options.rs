//! Descriptions of a connection to a database: a URL, options of sqlx, or those of a pool.

use sqlx::MySqlPool;
use sqlx::mysql::MySqlConnectOptions;

use crate::error::{Error, Result};

/// A description of how to connect to a database:
///
/// - a URL, `mysql://user:password@host/database?ssl-mode=VERIFY_IDENTITY`. sqlx ignores parameters
///   that it does not know, and a misspelled `ssl-mode` would leave a connection without TLS: here
///   they are an error. The error does not contain the URL, which may have a password.
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
        let options = self.parse().map_err(|error: sqlx::Error| {
            Error::invalid("invalid database URL").with_source(error)
        })?;
        if let Some(name) = parameters(self).find(|name| !PARAMETERS.contains(name)) {
            return Err(unknown_parameter(name));
        }
        let options = without_brackets(options);
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
/// their own. Each further one ends another, and over TCP the next one waits 40 ms for that, because
/// sqlx 0.9.0 does not set TCP_NODELAY. A server keeps 16,382 by default, of all sessions.
const STATEMENTS: usize = 500;

/// Removes the brackets of an IPv6 address, with which sqlx would look for a host of that name.
fn without_brackets(options: MySqlConnectOptions) -> MySqlConnectOptions {
    let host = options.get_host().trim_matches(['[', ']']).to_owned();
    options.host(&host)
}

/// Returns the names of the parameters in a URL.
fn parameters(url: &str) -> impl Iterator<Item = &str> {
    let url = url.split('#').next().unwrap_or_default();
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let names = query.split('&').filter_map(|part| part.split('=').next());
    names.filter(|name| !name.is_empty())
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
    let options = options.into_mysql_options()?;
    if options.get_database().is_none() {
        let what =
            "the database's URL or options name no database: mysql://user:password@host/DATABASE";
        return Err(Error::invalid(what));
    }
    Ok(options)
}
