//! The demo's private servers.

use std::path::Path;

use redis::aio::ConnectionManager;
use sqlx::MySqlPool;
use testkit::{MysqlServer, RedisOptions, RedisServer};

use crate::Result;
use crate::families::Place;

/// A Redis with an append-only file and a MySQL. Both stop when this is dropped.
pub struct Servers {
    pub place: Place,
    /// The supervisor's own connections.
    pub redis: ConnectionManager,
    pub mysql: MySqlPool,
    redis_server: RedisServer,
    _mysql_server: MysqlServer,
}

impl Servers {
    pub async fn start() -> Self {
        let redis_server = RedisServer::start(RedisOptions::aof("everysec")).await;
        let mysql_server = MysqlServer::start().await;
        let (database, mysql) = mysql_server.database("demo").await;
        let place = Place {
            redis: redis_server.url(),
            mysql: mysql_server.url(&database),
        };
        let redis = redis_server.manager().await;
        Servers {
            place,
            redis,
            mysql,
            redis_server,
            _mysql_server: mysql_server,
        }
    }

    /// Returns a directory that is removed with the servers, even if the demo is killed.
    pub fn directory(&self) -> &Path {
        self.redis_server
            .socket()
            .parent()
            .unwrap_or(Path::new("/tmp"))
    }

    /// Returns the directory as a command-line argument.
    pub fn directory_args(&self) -> Result<Vec<String>> {
        let directory = self
            .directory()
            .to_str()
            .ok_or("the directory's path is not UTF-8")?;
        Ok(vec![format!("--directory={directory}")])
    }
}
