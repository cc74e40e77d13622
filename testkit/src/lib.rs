//! Private Redis and MySQL servers for counterfoil's tests, benches and demo.
//!
//! Each server is a process of its own that listens on a Unix socket in a short temporary directory; nothing has to
//! run beforehand, no port is taken unless it is asked for, and any number of them run side by side. They can be killed, started again over
//! the same data, and paused:
//!
//! ```no_run
//! # async fn example() -> redis::RedisResult<()> {
//! use redis::AsyncCommands;
//! use testkit::{RedisOptions, RedisServer};
//!
//! let server = RedisServer::start(RedisOptions::aof("always")).await;
//! let mut redis = server.manager().await;
//! let _: () = redis.set("kept", 1).await?;
//! let length = server.aof_len();
//! let _: () = redis.set("lost", 1).await?;
//!
//! server.kill();
//! server.cut_aof(length); // as if the power had failed before the last write was synced
//! server.start_again().await;
//! # Ok(())
//! # }
//! ```
//!
//! A [`Proxy`] is the network in front of a server: it cuts connections after any byte of a request or a reply, lets
//! everything vanish for a while, and delays replies. A [`Sentinel`] promotes a replica
//! ([`RedisServer::replica_of`]) when the primary is gone; a [`RedisCluster`] is six servers whose slots are moved and
//! whose primaries fail over. These need ports, which are picked among those of 127.0.0.1 that are free.
//!
//! [`Certificates`] of a test's own make servers that take TLS alone.
//!
//! A server lives as long as its handle and never longer than the process that owns the handle, however that process
//! ends: a SIGKILL, Ctrl-C, or a `static` that is never dropped leave neither a server nor a directory behind.
//!
//! This is test code: whatever goes wrong panics, says what, and shows the end of the server's log.
//!
//! # Environment
//!
//! - `COUNTERFOIL_REDIS_SERVER`: the `redis-server` or `valkey-server` to run, 6.2 or later.
//! - `COUNTERFOIL_MYSQLD`: the `mysqld` or `mariadbd` to run. A script `mariadbd-init DATADIR` beside a MariaDB server
//!   makes its data directory, where there is one; otherwise `mariadb-install-db` does, or MySQL's own
//!   `--initialize-insecure`.
//! - `COUNTERFOIL_KEEP=1`: the servers' directories, with data and logs, stay. Their paths are printed.
//! - `TMPDIR`: where the directories go, unless that is too long for a socket's path or needs quoting: then `/tmp`.
//!
//! Without the first two, the servers are looked up on `PATH` and in the usual places of Debian and Homebrew. After a
//! panic the directory is kept as if `COUNTERFOIL_KEEP` were set.

mod certificates;
mod client;
mod cluster;
mod mysql;
mod port;
mod process;
mod proxy;
mod redis;
mod replica;
mod sentinel;

pub use self::certificates::Certificates;
pub use self::cluster::{RedisCluster, SLOTS};
pub use self::mysql::MysqlServer;
pub use self::proxy::{Held, Proxy};
pub use self::redis::{RedisOptions, RedisServer};
pub use self::sentinel::Sentinel;

/// Which servers are under test: one line for Redis, one for MySQL, each as the binary itself says it.
///
/// # Panics
///
/// Where one of the two cannot be found or run.
pub fn versions() -> String {
    format!("redis: {}\nmysql: {}", redis::version(), mysql::version())
}
