//! The servers of an example: those given on the command line, or private ones.

use clap::Args;
use testkit::{MysqlServer, RedisOptions, RedisServer};

/// The servers to count on. Without these two, the program starts private servers, which stop with
/// it.
#[derive(Args)]
pub struct Urls {
    /// The URL of the Redis to count on
    #[arg(long, value_name = "URL", env = "REDIS_URL", requires = "mysql")]
    redis: Option<String>,
    /// The URL of the MySQL behind it
    #[arg(long, value_name = "URL", env = "DATABASE_URL", requires = "redis")]
    mysql: Option<String>,
}

impl Urls {
    pub async fn servers(self) -> Servers {
        match (self.redis, self.mysql) {
            (Some(redis), Some(mysql)) => Servers {
                redis,
                mysql,
                private: None,
            },
            _ => Servers::private().await,
        }
    }
}

/// The URLs of the servers. Private servers stop when this is dropped.
pub struct Servers {
    pub redis: String,
    pub mysql: String,
    private: Option<(RedisServer, MysqlServer)>,
}

impl Servers {
    pub async fn private() -> Self {
        let (redis, mysql) = (
            RedisServer::start(RedisOptions::volatile()).await,
            MysqlServer::start().await,
        );
        let (database, _) = mysql.database("example").await;
        Servers {
            redis: redis.url(),
            mysql: mysql.url(&database),
            private: Some((redis, mysql)),
        }
    }

    pub fn are_private(&self) -> bool {
        self.private.is_some()
    }
}
