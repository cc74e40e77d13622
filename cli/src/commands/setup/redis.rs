//! Redis as an administrator: the user of the daemon and of applications.

use std::io;

use counterfoil::redis::aio::MultiplexedConnection;
use counterfoil::redis::{Client, ErrorKind, FromRedisValue, RedisError, Value, cmd};
use tokio::time::timeout;

use crate::config::PairConfig;
use crate::exit::Failure;
use crate::limits::TIMEOUT;
use crate::pair;

/// Returns the failure of a connection: a refused login and a server that is not there need
/// different actions.
fn unusable(place: &str, user: &str, error: &RedisError) -> Failure {
    let is_refused = error.kind() == ErrorKind::AuthenticationFailed;
    Failure::critical(match error.code() {
        Some("NOAUTH") => format!(
            "Redis at {place} wants a password, and its URL has none. Add the user {user:?} and the \
             password, or another user's"
        ),
        code if is_refused || code == Some("WRONGPASS") => format!(
            "Redis at {place} refuses the user {user:?} with this password. Correct the user or the \
             password in its URL"
        ),
        _ if matches!(
            error.kind(),
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType
        ) =>
        {
            format!("{place} does not reply as Redis does. Correct the address in its URL")
        }
        _ => format!("Redis at {place}: {error}. Check that it runs, and its address"),
    })
}

/// A connection to a server.
pub struct Redis {
    connection: MultiplexedConnection,
    place: String,
}

impl Redis {
    /// Connects to the first server of a pair.
    pub async fn connect(pair: &PairConfig) -> Result<Self, Failure> {
        let info = pair::certified(pair, &pair.redis.servers[0])?;
        let place = info.addr().to_string();
        let user = pair.redis.user();
        let connect = async {
            let client = Client::open(info)?;
            let mut connection = client.get_multiplexed_async_connection().await?;
            // without a password that it needs, a server takes the connection and refuses commands
            let pong: Result<Value, RedisError> = cmd("PING").query_async(&mut connection).await;
            match pong {
                Err(error) if error.code() != Some("NOPERM") => Err(error),
                _ => Ok(connection),
            }
        };
        let connected = timeout(TIMEOUT, connect).await;
        let connection = connected
            .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
            .map_err(|error| unusable(&place, user, &error))?;
        Ok(Redis { connection, place })
    }

    async fn run<T: FromRedisValue>(&mut self, words: &[&str]) -> Result<T, RedisError> {
        cmd(words[0])
            .arg(&words[1..])
            .query_async(&mut self.connection)
            .await
    }

    async fn has_user(&mut self, user: &str) -> Result<bool, RedisError> {
        let found: Value = self.run(&["ACL", "GETUSER", user]).await?;
        Ok(found != Value::Nil)
    }

    /// Returns why no user can be created here, or `None` if one can, which outlasts a restart.
    pub async fn refuses_users(&mut self) -> Option<String> {
        if let Err(error) = self.has_user("default").await {
            return Some(error.to_string());
        }
        if self.has_acl_file().await {
            return None;
        }
        let info: Result<String, _> = self.run(&["INFO", "server"]).await;
        let file = info.unwrap_or_default();
        let file = file
            .lines()
            .find_map(|line| line.strip_prefix("config_file:"));
        match file.map(str::trim) {
            Some(file) if !file.is_empty() => None,
            _ => Some("it runs without a configuration file, and would forget it".to_owned()),
        }
    }

    async fn has_acl_file(&mut self) -> bool {
        let setting: Result<Vec<String>, _> = self.run(&["CONFIG", "GET", "aclfile"]).await;
        setting.is_ok_and(|setting| setting.get(1).is_some_and(|file| !file.is_empty()))
    }

    /// Creates the user of the daemon and of applications, or gives these rules to an existing one,
    /// and stores it. Returns whether it was created.
    pub async fn create_user(
        &mut self,
        daemon: &PairConfig,
        rules: &[String],
    ) -> Result<bool, Failure> {
        let failed = |place: &str, what: &str, error: RedisError| {
            Failure::critical(format!("Redis at {place} refused {what}: {error}"))
        };
        let user = daemon.redis.user();
        let settings = daemon.redis.servers[0].redis_settings();
        let Some(password) = settings.password() else {
            return Err(Failure::usage(format!(
                "the password of Redis's user {user:?} is missing"
            )));
        };
        let exists = self.has_user(user).await;
        let exists = exists.map_err(|error| failed(&self.place, "ACL GETUSER", error))?;
        if exists && Redis::connect(daemon).await.is_err() {
            return Err(Failure::critical(format!(
                "Redis at {} has a user {user:?} with another password than the configuration: correct \
                 that, or name another user with --user and --overwrite",
                self.place
            )));
        }
        // without `reset`, which would take from a user what other families need
        let password = format!(">{password}");
        let mut words = vec!["ACL", "SETUSER", user, "on", &password];
        words.extend(rules.iter().map(String::as_str));
        let set = self.run::<()>(&words).await;
        set.map_err(|error| failed(&self.place, "ACL SETUSER", error))?;
        let store: &[&str] = if self.has_acl_file().await {
            &["ACL", "SAVE"]
        } else {
            &["CONFIG", "REWRITE"]
        };
        let stored = self.run::<()>(store).await;
        stored.map_err(|error| {
            let failure = failed(&self.place, &store.join(" "), error).message;
            Failure::critical(format!(
                "{failure}. The user {user:?} exists until Redis restarts: let it write the file, and \
                 run `counterfoil setup` again"
            ))
        })?;
        Ok(!exists)
    }

    /// Returns whether it has replicas, which do not receive its users.
    pub async fn has_replicas(&mut self) -> bool {
        let info: Result<String, _> = self.run(&["INFO", "replication"]).await;
        info.is_ok_and(|info| {
            info.contains("connected_slaves:") && !info.contains("connected_slaves:0")
        })
    }
}
