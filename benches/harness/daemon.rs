//! The cost of the idle daemon `counterfoil`. `./dev bench` builds its program from the package
//! `cli`.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use counterfoil::{Counterfoil, Family, MysqlStore};
use tempfile::TempDir;
use testkit::{RedisOptions, RedisServer};
use tokio::time::sleep;

use crate::measuring::{Bench, process, redis_cpu};

const LEDGER: &str = "\
    INSERT INTO counterfoil_ledger (family, partition_no, incarnation, seq, nonce) \
    SELECT number, partition_no, 1, 1, 1 FROM counterfoil_families, \
    (SELECT 0 AS partition_no UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3) AS partitions";

pub async fn measure(bench: &mut Bench) {
    if !bench.wants(&["daemon"]) {
        return;
    }
    let Some(program) = program() else {
        return println!(
            "daemon: skipped, the program is not built: cargo build --release -p counterfoil-cli"
        );
    };
    let many = bench.size(10_000, 1_000);
    for (families, name) in [
        (10, "10"),
        (many, if many == 10_000 { "10000" } else { "1000" }),
    ] {
        let redis = RedisServer::start(RedisOptions::volatile()).await;
        let mysql = bench.servers.mysql().await;
        let (database, pool) = mysql.database("bench").await;
        let store = MysqlStore::new(&pool).unwrap();
        store.create_tables().await.unwrap();
        let pair = Counterfoil::new(redis.manager().await, store);
        for number in 0..families {
            let _ = pair
                .open(Family::buffered(format!("shop-{number}"), "views"))
                .await
                .unwrap();
        }
        // the rows that a probe reads: the last batch of each partition, here of an earlier
        // incarnation
        sqlx::raw_sql(LEDGER).execute(&pool).await.unwrap();
        let daemon = Daemon::start(&program, &redis.url(), &mysql.url(&database));
        // long enough for the daemon to check everything more than once
        sleep(Duration::from_secs(35)).await;
        let mut probe = redis
            .client()
            .get_multiplexed_async_connection()
            .await
            .unwrap();
        // the time of two probes or of one, which are 30 s apart
        let seconds = bench.size(60u32, 30);
        let (ours, server) = (process::cpu(daemon.id()), redis_cpu(&mut probe).await);
        sleep(Duration::from_secs(seconds.into())).await;
        let percent = |spent: f64| spent * 100.0 / f64::from(seconds);
        bench.absolute(
            format!("daemon_{name}_families_percent_of_a_core"),
            percent(process::cpu(daemon.id()) - ours),
        );
        bench.absolute(
            format!("daemon_{name}_families_percent_of_redis"),
            percent(redis_cpu(&mut probe).await - server),
        );
        bench.absolute(
            format!("daemon_{name}_families_mb"),
            process::memory(daemon.id()) / 1e6,
        );
    }
}

/// Returns the path of the daemon, in the folder above this program's, or `None` if it is not
/// built.
pub fn program() -> Option<PathBuf> {
    let program = std::env::current_exe()
        .ok()?
        .parent()?
        .parent()?
        .join("counterfoil");
    program.exists().then_some(program)
}

pub struct Daemon {
    child: Child,
    address: SocketAddr,
    _folder: TempDir,
}

impl Daemon {
    /// Starts a daemon that serves all families of the pair.
    pub fn start(program: &Path, redis_url: &str, mysql_url: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("counterfoil.toml");
        let address = free_address();
        let text = format!(
            "listen = \"{address}\"\n[pair.main]\nredis = {redis_url:?}\nmysql = {mysql_url:?}\n"
        );
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new(program);
        command
            .args(["run", "--config"])
            .arg(&file)
            .stderr(Stdio::null());
        Daemon {
            child: command.spawn().unwrap(),
            address,
            _folder: folder,
        }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the address of its HTTP server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Returns an address on which no server listens.
fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
