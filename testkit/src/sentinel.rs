//! Sentinel, which promotes a replica when the primary fails.

use std::fs;
use std::path::PathBuf;

use crate::certificates::Certificates;
use crate::client;
use crate::port;
use crate::process::Process;
use crate::redis::{self, RedisServer, replies, until};

/// The name of the primary.
const NAME: &str = "primary";

/// A single sentinel, which decides alone. It replaces a primary that does not reply for half a
/// second. Dropping this handle stops the sentinel and removes its directory.
pub struct Sentinel {
    process: Process,
    socket: PathBuf,
    port: u16,
}

impl Sentinel {
    /// Starts a sentinel that monitors `primary`, which needs [`tcp`](crate::RedisOptions::tcp),
    /// and its current replicas. Returns when it knows them. It discovers later replicas only after
    /// some seconds.
    ///
    /// # Panics
    ///
    /// If the sentinel does not start, or there is no replica.
    pub async fn start(primary: &RedisServer) -> Self {
        Self::start_with(primary, |port| format!("port {port}")).await
    }

    /// Starts a sentinel for servers with [`tls_node`](crate::RedisOptions::tls_node). The sentinel
    /// accepts only TLS, too.
    ///
    /// # Panics
    ///
    /// See [`start`](Self::start).
    pub async fn start_tls(primary: &RedisServer, certificates: &Certificates) -> Self {
        let files = redis::files("node")
            .map(|(name, file)| format!("{name} {}\n", certificates.file(&file)))
            .concat();
        Self::start_with(primary, |port| {
            format!("port 0\ntls-port {port}\ntls-replication yes\n{files}")
        })
        .await
    }

    async fn start_with(primary: &RedisServer, listens: impl FnOnce(u16) -> String) -> Self {
        let (process, port) = (Process::new(), port::free());
        let socket = process.dir().join("redis.sock");
        // the sentinel also writes its state to this file
        let file = process.dir().join("sentinel.conf");
        let settings = format!(
            "bind 127.0.0.1\n{}\nunixsocket {}\ndir {}\nprotected-mode no\n\
             sentinel monitor {NAME} 127.0.0.1 {} 1\n\
             sentinel down-after-milliseconds {NAME} 500\n\
             sentinel failover-timeout {NAME} 3000\n",
            listens(port),
            socket.display(),
            process.dir().display(),
            primary.port(),
        );
        fs::write(&file, settings)
            .unwrap_or_else(|e| panic!("cannot write {}: {e}", file.display()));
        let args = [file.display().to_string(), "--sentinel".to_owned()];
        process
            .start(redis::binary(), &args, || replies(&socket))
            .await;
        let sentinel = Self {
            process,
            socket,
            port,
        };
        until("a sentinel that knows a replica", async || {
            let replicas: Vec<::redis::Value> =
                sentinel.ask(&format!("SENTINEL REPLICAS {NAME}")).await;
            !replicas.is_empty()
        })
        .await;
        sentinel
    }

    /// Returns the URL for a client that asks sentinels for the primary, whose name is `primary`.
    pub fn url(&self) -> String {
        client::tcp_url(self.port)
    }

    /// Returns the URL of the current primary.
    pub async fn primary_url(&self) -> String {
        let (_, port): (String, u16) = self
            .ask(&format!("SENTINEL GET-MASTER-ADDR-BY-NAME {NAME}"))
            .await;
        client::tcp_url(port)
    }

    /// Waits until both the sentinel and the server report that `replica` was promoted.
    ///
    /// # Panics
    ///
    /// If that does not happen.
    pub async fn wait_promoted(&self, replica: &RedisServer) {
        until("a promoted replica", async || {
            self.primary_url().await == replica.tcp_url() && replica.is_primary().await
        })
        .await;
    }

    /// Makes the sentinel promote a replica although the primary is up. It demotes the primary some
    /// ten seconds later.
    ///
    /// # Panics
    ///
    /// If it finds no replica that it can promote.
    pub async fn fail_over(&self) {
        until("a replica that can be promoted", async || {
            let words = client::command(&format!("SENTINEL FAILOVER {NAME}"));
            let url = client::unix_url(&self.socket);
            client::run::<()>(&url, &words).await.is_ok()
        })
        .await;
    }

    async fn ask<T: ::redis::FromRedisValue>(&self, words: &str) -> T {
        let reply = client::run(&client::unix_url(&self.socket), &client::command(words)).await;
        reply.unwrap_or_else(|e| self.process.fail(&format!("{words}: {e}")))
    }
}
