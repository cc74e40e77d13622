//! Private servers, the application's tables, and the daemons' configuration.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use counterfoil::redis::aio::ConnectionManager;
use counterfoil::sqlx::{self, AssertSqlSafe, MySqlPool};
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::{MysqlServer, RedisOptions, RedisServer};

use crate::Result;
use crate::calls::{ITEMS, SHOPS};

const TABLES: [&str; 3] = [
    "CREATE TABLE views (store_id INT UNSIGNED, product VARBINARY(64), count BIGINT NOT NULL, \
     PRIMARY KEY (store_id, product))",
    "CREATE TABLE visitors (store_id INT UNSIGNED, day DATE, count BIGINT NOT NULL, PRIMARY KEY (store_id, day))",
    "CREATE TABLE item (store_id INT UNSIGNED, id INT UNSIGNED, vote_count BIGINT NOT NULL, \
     PRIMARY KEY (store_id, id))",
];

/// The families of the daemon. The packages announce those of each shop by their first calls. Counters
/// of votes leave Redis soon, so that writers read their rows again.
const FAMILIES: &str = r#"
[[family]]
name = "shop-*/views"
kind = "buffered"
table = { name = "views", write = "upsert", keys = [["store_id", "unsigned"], ["product", "text"]], value = "count", separator = "/" }
sync_time = "2s"

[[family]]
name = "shop-*/visitors"
kind = "visitors"
table = { name = "visitors", write = "upsert", keys = [["store_id", "unsigned"], ["day", "date"]], value = "count" }
sync_time = "2s"

[[family]]
name = "shop-*/votes"
kind = "cached"
table = { name = "item", write = "update", keys = [["store_id", "unsigned"], ["id", "unsigned"]], value = "vote_count", separator = "/" }
sync_time = "1s"
retain = "3s"
"#;

/// The servers and the files of the demo. Dropping it stops the servers and deletes the files.
pub struct Site {
    pub redis: ConnectionManager,
    pub mysql: MySqlPool,
    /// The address of the status page during the whole run.
    pub listen: SocketAddr,
    pub redis_server: RedisServer,
    pub mysql_server: MysqlServer,
    mysql_url: String,
    folder: TempDir,
}

impl Site {
    pub async fn start() -> Result<Self> {
        let redis_server = RedisServer::start(RedisOptions::aof("always")).await;
        let mysql_server = MysqlServer::start().await;
        let (database, mysql) = mysql_server.database("demo").await;
        for table in TABLES {
            sqlx::query(table).execute(&mysql).await?;
        }
        let shops = 1..=SHOPS;
        let items = shops.flat_map(|shop| (1..=ITEMS).map(move |item| (shop, item)));
        let rows: Vec<_> = items
            .map(|(shop, item)| format!("({shop}, {item}, {})", 10 * item))
            .collect();
        sqlx::query(AssertSqlSafe(format!(
            "INSERT INTO item VALUES {}",
            rows.join(", ")
        )))
        .execute(&mysql)
        .await?;
        Ok(Site {
            redis: redis_server.manager().await,
            mysql,
            listen: free()?,
            mysql_url: mysql_server.url(&database),
            redis_server,
            mysql_server,
            folder: TempDir::new()?,
        })
    }

    /// Returns what a client is opened with.
    pub fn open(&self, library: &str) -> Value {
        json!({
            "library": library,
            "socket": self.redis_socket(),
            "timeout": 1,
            "options": {"retry_for": 20, "daemon": format!("http://{}", self.listen)},
        })
    }

    pub fn redis_socket(&self) -> &Path {
        self.redis_server.socket()
    }

    /// Returns the path of a file in the demo's temporary folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes the configuration of a daemon with this `listen` setting.
    pub fn configure(&self, name: &str, listen: &str) -> Result<PathBuf> {
        let (redis, mysql) = (self.redis_server.url(), &self.mysql_url);
        let path = self.file(&format!("{name}.toml"));
        let pair = format!(
            "[pair.main]\nredis = {redis:?}\nmysql = {mysql:?}\ncreate_tables = true\ndurability = \"immediate\""
        );
        fs::write(&path, format!("listen = {listen:?}\n{pair}\n{FAMILIES}"))?;
        Ok(path)
    }
}

/// Returns the first free port from the daemon's default on. Clients use higher ports, so that they
/// cannot take this one while the daemon restarts.
fn free() -> Result<SocketAddr> {
    let mut ports = (9292..9392).map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let free = ports.find(|address| TcpListener::bind(address).is_ok());
    free.ok_or_else(|| "no port from 9292 to 9391 is free".into())
}
