//! Private Redis and MySQL servers for counterfoil's tests, benches and demo.
//!
//! Each server is a separate process that listens on a Unix socket in a temporary directory with a
//! short path. Nothing has to run beforehand, servers use no ports by default, and any number of
//! them run side by side. You can kill them, restart them on the same data, and pause them:
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
//! A [`Proxy`] is the network in front of a server. It cuts connections after any byte of a request
//! or a reply, holds everything back for a while, delays replies, and loses or repeats single
//! requests. A [`Sentinel`] promotes a
//! replica ([`RedisServer::replica_of`]) when the primary fails. A [`RedisCluster`] is six servers
//! whose slots can move and whose primaries can fail over. Sentinels and clusters use free ports of
//! 127.0.0.1.
//!
//! A [`Runner`] is a process in which a client [`Package`] in another language makes calls. A
//! [`Sample`] is an application of a framework.
//!
//! With [`Certificates`], servers accept only TLS. A [`Disk`] of a server can be full. A server can
//! be restored to a [`Backup`] or a [`Dump`], and the clock of a Redis
//! [steps](RedisServer::step_clock_forward).
//!
//! A server lives as long as its handle, and never longer than the process that owns the handle. A
//! SIGKILL, Ctrl-C, or a `static` that is never dropped leaves neither a server nor a directory
//! behind.
//!
//! This is test code: every failure panics with its cause and the end of the server's log.
//!
//! # Environment
//!
//! - `COUNTERFOIL_REDIS_SERVER`: the `redis-server` or `valkey-server` to run, 6.2 or later.
//! - `COUNTERFOIL_MYSQLD`: the `mysqld` or `mariadbd` to run. MariaDB's data directory is created
//!   by a script `mariadbd-init DATADIR` beside the server, or else by `mariadb-install-db`;
//!   MySQL's by `--initialize-insecure`.
//! - `COUNTERFOIL_SEED`: the seed of random tests, which print the one that they begin at.
//! - `COUNTERFOIL_KEEP=1`: keeps the servers' directories, with data and logs, and prints their
//!   paths.
//! - `TMPDIR`: the folder of the directories. If it is too long for a socket's path or needs
//!   quoting, `/tmp` is used.
//!
//! Without the first two, the testkit searches `PATH` and the usual places of Debian and Homebrew.
//! After a panic, or [`keep`], the directory is kept as if `COUNTERFOIL_KEEP` were set.

mod backup;
mod certificates;
mod client;
mod clock;
mod cluster;
mod disk;
mod fate;
mod fpm;
mod mysql;
mod package;
mod port;
mod process;
mod proxy;
mod redis;
mod replica;
mod runner;
mod sentinel;

pub use self::certificates::Certificates;
pub use self::cluster::{RedisCluster, SLOTS};
pub use self::disk::Disk;
pub use self::fate::{Fate, contains};
pub use self::fpm::{Fpm, signal_workers};
pub use self::mysql::{Backup, MysqlServer, Stranger};
pub use self::package::{Package, Sample};
pub use self::port::free as free_port;
pub use self::process::{keep, signal};
pub use self::proxy::{Held, Proxy};
pub use self::redis::{Dump, RedisOptions, RedisServer};
pub use self::runner::Runner;
pub use self::sentinel::Sentinel;

use std::hash::{BuildHasher, Hasher, RandomState};

/// Returns `COUNTERFOIL_SEED`, by default a new seed, and prints it: the output of a failed test
/// shows how to replay it.
///
/// # Panics
///
/// If the variable is not a number.
pub fn seed() -> u64 {
    let seed = match std::env::var("COUNTERFOIL_SEED") {
        Ok(seed) => seed.parse().expect("COUNTERFOIL_SEED is a number"),
        Err(_) => RandomState::new().build_hasher().finish(),
    };
    println!("COUNTERFOIL_SEED={seed} replays this run");
    seed
}

/// Returns the versions of the servers under test: one line for Redis and one for MySQL, as the
/// binaries report them.
///
/// # Panics
///
/// If one of the two cannot be found or run.
pub fn versions() -> String {
    format!("redis: {}\nmysql: {}", redis::version(), mysql::version())
}
