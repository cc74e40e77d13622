//! MySQL as an administrator: the database, the daemon's user, and its privileges.

use std::io;

use counterfoil::sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlDatabaseError};
use counterfoil::sqlx::{self, AssertSqlSafe, ConnectOptions, Error};
use percent_encoding::percent_decode_str;
use tokio::time::timeout;

use crate::exit::Failure;
use crate::limits::{TIMEOUT, in_time};

/// A schema that every user may select: the pair's may not exist, or not be granted yet.
const ANY_SCHEMA: &str = "information_schema";

/// The numbers of errors about a missing privilege: on a schema, a table, a server.
const DENIED: [u16; 3] = [1044, 1142, 1227];
/// The number of the error about an account that exists.
const EXISTS: u16 = 1396;

/// Returns why a connection failed: a refused login and a server that is not there need different
/// actions.
fn reason(error: Error) -> String {
    match error {
        Error::Database(refused) => format!(
            "{}. Correct the user or the password in its URL",
            refused.message()
        ),
        Error::Io(error) => format!("{error}. Check that it runs, and its address"),
        error => format!("{error:#}. Check its URL"),
    }
}

/// A connection to a server, and an account on it.
pub struct Mysql {
    connection: MySqlConnection,
    /// The user and the host of the account that the server has chosen.
    account: [String; 2],
}

impl Mysql {
    pub async fn connect(options: &MySqlConnectOptions) -> Result<Self, Failure> {
        let failed = |why| Failure::critical(format!("MySQL at {}: {why}", place(options)));
        let options = options.clone().database(ANY_SCHEMA);
        let connected = timeout(TIMEOUT, options.connect()).await;
        let mut connection = connected
            .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
            .map_err(|error| failed(reason(error)))?;
        let account: String =
            in_time(sqlx::query_scalar("SELECT CURRENT_USER()").fetch_one(&mut connection))
                .await
                .map_err(failed)?;
        let (name, host) = account.rsplit_once('@').unwrap_or((&account, "%"));
        let account = [name.to_owned(), host.to_owned()];
        Ok(Mysql {
            connection,
            account,
        })
    }

    /// Returns the account as `grants` takes it: NAME@HOST.
    pub fn account(&self) -> String {
        self.account.join("@")
    }

    async fn run(&mut self, statement: &str) -> Result<(), Error> {
        let statement = AssertSqlSafe(statement.to_owned());
        sqlx::raw_sql(statement)
            .execute(&mut self.connection)
            .await?;
        Ok(())
    }

    /// Runs a statement, which an error names.
    pub async fn execute(&mut self, statement: &str) -> Result<(), Failure> {
        self.run(statement)
            .await
            .map_err(|error| Failure::critical(format!("MySQL refused `{statement}`: {error}")))
    }

    /// Returns whether the user may create others. Creating itself again changes nothing.
    pub async fn may_create_users(&mut self) -> Result<bool, Failure> {
        let [name, host] = self.account.clone();
        let statement = format!("CREATE USER IF NOT EXISTS {}", account(&name, &host));
        match self.run(&statement).await {
            Ok(()) => Ok(true),
            Err(error) if number(&error).is_some_and(|number| DENIED.contains(&number)) => {
                Ok(false)
            }
            Err(error) => Err(Failure::critical(format!("MySQL: {error}"))),
        }
    }

    /// Creates a database if it is missing. Returns whether it was.
    pub async fn create_database(&mut self, name: &str) -> Result<bool, Failure> {
        let query = "SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = ?";
        let found: i64 = sqlx::query_scalar(query)
            .bind(name)
            .fetch_one(&mut self.connection)
            .await
            .map_err(|error| Failure::critical(format!("MySQL: {error}")))?;
        if found == 0 {
            self.execute(&create_database(name)).await?;
        }
        Ok(found == 0)
    }

    /// Creates the daemon's user unless it can log in already. Returns its account, and whether it
    /// was created.
    pub async fn create_user(
        &mut self,
        daemon: &MySqlConnectOptions,
    ) -> Result<(String, bool), Failure> {
        if let Ok(existing) = Mysql::connect(daemon).await {
            return Ok((existing.account(), false));
        }
        let user = daemon.get_username();
        let url = daemon.to_url_lossy();
        let password = url
            .password()
            .map(|password| {
                percent_decode_str(password)
                    .decode_utf8_lossy()
                    .into_owned()
            })
            .ok_or_else(|| {
                Failure::usage(format!("the password of MySQL's user {user:?} is missing"))
            })?;
        // the daemon connects from where this program does, but the address of a machine or a
        // container may change
        let from: String = sqlx::query_scalar("SELECT USER()")
            .fetch_one(&mut self.connection)
            .await
            .map_err(|error| Failure::critical(format!("MySQL: {error}")))?;
        let host = if from.ends_with("@localhost") {
            "localhost"
        } else {
            "%"
        };
        let account = account(user, host);
        let literal = password.replace('\\', "\\\\").replace('\'', "''");
        // an error shows no password
        let statement = format!("CREATE USER {account} IDENTIFIED BY '{literal}'");
        if let Err(error) = self.run(&statement).await {
            return Err(Failure::critical(if number(&error) == Some(EXISTS) {
                format!(
                    "MySQL has a user {account} with another password than the configuration: correct \
                     that, or name another user with --user and --overwrite"
                )
            } else {
                format!("MySQL did not create the user {account}: {error}")
            }));
        }
        Ok((Mysql::connect(daemon).await?.account(), true))
    }
}

pub fn create_database(name: &str) -> String {
    format!("CREATE DATABASE IF NOT EXISTS {}", quoted(name))
}

fn account(name: &str, host: &str) -> String {
    format!("{}@{}", quoted(name), quoted(host))
}

pub fn quoted(name: &str) -> String {
    format!("`{}`", name.replace('`', "``"))
}

fn number(error: &Error) -> Option<u16> {
    let error = error.as_database_error()?;
    Some(error.try_downcast_ref::<MySqlDatabaseError>()?.number())
}

/// Returns the address of a server.
pub fn place(options: &MySqlConnectOptions) -> String {
    match options.get_socket() {
        Some(socket) => socket.display().to_string(),
        None => format!("{}:{}", options.get_host(), options.get_port()),
    }
}
