//! The servers that an example counts on: those it is told, or private ones.

use clap::Args;
use testkit::{MysqlServer, RedisOptions, RedisServer};

/// Where to count. Without these two, private servers are started, which go with the program.
#[derive(Args)]
pub struct Urls {
    /// The Redis to count on
    #[arg(long, value_name = "URL", env = "REDIS_URL", requires = "mysql")]
    redis: Option<String>,
    /// The MySQL behind it
    #[arg(long, value_name = "URL", env = "DATABASE_URL", requires = "redis")]
    mysql: Option<String>,
}

impl Urls {
    pub async fn servers(self) -> Servers {
        match (self.redis, self.mysql) {
            (Some(redis), Some(mysql)) => Servers { redis, mysql, private: None },
            _ => Servers::private().await,
        }
    }
}

/// Where they are; private ones end with this.
pub struct Servers {
    pub redis: String,
    pub mysql: String,
    private: Option<(RedisServer, MysqlServer)>,
}

impl Servers {
    pub async fn private() -> Self {
        let (redis, mysql) = (RedisServer::start(RedisOptions::volatile()).await, MysqlServer::start().await);
        let (database, _) = mysql.database("example").await;
        Servers { redis: redis.url(), mysql: mysql.url(&database), private: Some((redis, mysql)) }
    }

    pub fn are_private(&self) -> bool {
        self.private.is_some()
    }
}
