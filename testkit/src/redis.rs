//! Redis or Valkey.

mod data;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use redis::aio::ConnectionManager;
use redis::{Client, Cmd, FromRedisValue, RedisResult};

pub use self::data::Dump;
use crate::certificates::Certificates;
use crate::client;
use crate::clock::{self, Clock};
use crate::disk::Disk;
use crate::port;
use crate::process::{self, Process};

/// The configuration of a [`RedisServer`].
#[derive(Clone, Debug)]
pub struct RedisOptions {
    settings: Vec<(String, String)>,
    tcp: bool,
    tls: bool,
    clock: Option<&'static Path>,
}

impl RedisOptions {
    /// Returns options without persistence: a kill loses everything.
    pub fn volatile() -> Self {
        Self {
            settings: Vec::new(),
            tcp: false,
            tls: false,
            clock: None,
        }
        .arg("appendonly", "no")
    }

    /// Returns options with an append-only file. `fsync` is Redis's `appendfsync`: `"always"`,
    /// `"everysec"` or `"no"`.
    ///
    /// Killing the process loses nothing that was written to the file, synced or not.
    /// [`RedisServer::cut_aof`] simulates a crash of the whole machine. With `"always"` and `"no"`,
    /// Redis writes to the file before it replies. With `"everysec"`, Redis may postpone the write
    /// for up to two seconds during a sync, so a reply may be ahead of the file.
    pub fn aof(fsync: &str) -> Self {
        Self {
            settings: Vec::new(),
            tcp: false,
            tls: false,
            clock: None,
        }
        .arg("appendonly", "yes")
        .arg("appendfsync", fsync)
    }

    /// Adds lines of redis.conf that all others override.
    pub(crate) fn defaults(mut self, settings: &[(&str, &str)]) -> Self {
        let owned = settings
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        self.settings.splice(0..0, owned);
        self
    }

    /// Adds a port of 127.0.0.1 beside the Unix socket. It never changes. Replicas, sentinels and
    /// clusters need it.
    pub fn tcp(mut self) -> Self {
        self.tcp = true;
        self
    }

    /// Adds a [port](Self::tcp) that accepts only TLS, from clients with a certificate of the same
    /// authority.
    pub fn tls(mut self, certificates: &Certificates) -> Self {
        self.tls = true;
        files("server")
            .into_iter()
            .fold(self.tcp(), |options, (name, file)| {
                options.arg(name, certificates.file(&file))
            })
    }

    /// Adds a TLS port for a replica or a cluster node. Such a server is known by its address and
    /// also speaks TLS to the other servers.
    pub fn tls_node(mut self, certificates: &Certificates) -> Self {
        self.tls = true;
        let options = self.tcp().arg("tls-replication", "yes");
        files("node")
            .into_iter()
            .fold(options, |options, (name, file)| {
                options.arg(name, certificates.file(&file))
            })
    }

    pub(crate) fn takes_tls(&self) -> bool {
        self.tls
    }

    /// Gives the server a clock that [steps](RedisServer::step_clock_forward). The error is the
    /// reason if this machine does not allow it, which takes Linux and a C compiler.
    pub fn clock(mut self) -> Result<Self, String> {
        self.clock = Some(clock::library()?);
        // jemalloc's thread sleeps until a time of the clock: after a step back it would not sleep
        Ok(self.arg("jemalloc-bg-thread", "no"))
    }

    /// Adds a line of redis.conf, which overrides earlier ones.
    pub fn arg(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }
}

/// Returns the settings that name certificate files: for a server, and for a server as a client of
/// others.
pub(crate) fn files(name: &str) -> [(&'static str, String); 5] {
    [
        ("tls-ca-cert-file", "ca.pem".to_owned()),
        ("tls-cert-file", format!("{name}.pem")),
        ("tls-key-file", format!("{name}.key")),
        ("tls-client-cert-file", "client.pem".to_owned()),
        ("tls-client-key-file", "client.key".to_owned()),
    ]
}

/// A private Redis or Valkey server. Dropping this handle stops the server and removes its
/// directory.
pub struct RedisServer {
    process: Process,
    socket: PathBuf,
    /// The TCP port, or 0 if it has none.
    port: u16,
    /// The folder of the append-only file and of dumps.
    folder: PathBuf,
    settings: Vec<(String, String)>,
    disk: Option<Disk>,
    clock: Option<Clock>,
}

impl RedisServer {
    /// Starts a server and returns when it replies.
    ///
    /// # Panics
    ///
    /// If no server is found or it does not start.
    pub async fn start(options: RedisOptions) -> Self {
        Self::start_on(Process::new(), None, options).await
    }

    /// Starts a server that has its append-only file and dumps on a [disk](Self::disk) of 256 MB.
    /// The error is the reason if this machine does not allow it.
    ///
    /// While the disk is full, Redis replies to reads and refuses writes with MISCONF. Tried on
    /// Redis 7 and 8 and Valkey 9:
    ///
    /// - An append-only file with `"everysec"` or `"no"`: Redis executes and acknowledges the writes
    ///   that do not fit, and refuses from then on. They are only in memory until the disk is free,
    ///   so a kill loses them. Redis tries again at the next write and each second.
    /// - One with `"always"`: Redis ends when a write does not fit, before it replies.
    /// - Snapshots (`save`): Redis refuses from the first snapshot that fails, until one succeeds. It
    ///   tries again five seconds after a failure.
    /// - None: Redis writes nothing and refuses nothing.
    ///
    /// # Panics
    ///
    /// See [`start`](Self::start).
    pub async fn start_with_disk(options: RedisOptions) -> Result<Self, String> {
        let process = Process::new();
        let disk = Disk::mount(&process, 256)?;
        Ok(Self::start_on(process, Some(disk), options).await)
    }

    async fn start_on(process: Process, disk: Option<Disk>, options: RedisOptions) -> Self {
        let socket = process.dir().join("redis.sock");
        let folder = disk.as_ref().map_or(process.dir(), Disk::dir).to_owned();
        let port = if options.tcp { port::free() } else { 0 };
        let (plain, secure) = if options.tls { (0, port) } else { (port, 0) };
        let mut settings = vec![
            ("port", plain.to_string()),
            ("bind", "127.0.0.1".to_owned()),
            ("unixsocket", socket.display().to_string()),
            ("dir", folder.display().to_string()),
            ("protected-mode", "no".to_owned()),
            // No snapshots and no rewrites by default: a test requests the persistence that it
            // needs.
            ("save", String::new()),
            ("auto-aof-rewrite-percentage", "0".to_owned()),
            // In a diskless sync, Redis 7 waits for further replicas first, and may leave a linked
            // replica without the writes of a second.
            ("repl-diskless-sync", "no".to_owned()),
        ];
        if secure > 0 {
            settings.push(("tls-port", secure.to_string()));
        }
        let fixed = settings
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value));
        let settings = fixed.chain(options.settings).collect();
        let clock = options.clock.map(|library| Clock::new(&process, library));
        let server = Self {
            process,
            socket,
            port,
            folder,
            settings,
            disk,
            clock,
        };
        server.start_again().await;
        server
    }

    /// Returns the socket that the server listens on.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns the disk of a server that was started with one.
    pub fn disk(&self) -> Option<&Disk> {
        self.disk.as_ref()
    }

    /// Returns the URL for the redis crate, `redis+unix:///...`.
    pub fn url(&self) -> String {
        client::unix_url(&self.socket)
    }

    /// Returns the port of the server.
    ///
    /// # Panics
    ///
    /// If the server was started without [`tcp`](RedisOptions::tcp).
    pub fn port(&self) -> u16 {
        assert!(
            self.port > 0,
            "a server without a port: start it with RedisOptions::tcp()"
        );
        self.port
    }

    /// Returns the URL of its [port](Self::port) for the redis crate, `redis://127.0.0.1:...`.
    pub fn tcp_url(&self) -> String {
        client::tcp_url(self.port())
    }

    /// Runs a command over a new connection. Single spaces separate its words.
    pub async fn run<T: FromRedisValue>(&self, words: &str) -> RedisResult<T> {
        self.ask(&client::command(words)).await
    }

    pub(crate) async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> RedisResult<T> {
        client::run(&self.url(), command).await
    }

    /// Returns a client for this server.
    pub fn client(&self) -> Client {
        client::client(&self.url())
    }

    /// Opens a connection that reconnects after a restart of the server. The first command
    /// afterwards still fails, because the connection manager does not resend it.
    pub async fn manager(&self) -> ConnectionManager {
        match client::manager(self.client()).await {
            Ok(manager) => manager,
            Err(e) => self.process.fail(&format!("cannot connect to Redis: {e}")),
        }
    }

    /// Returns whether the server was started and has neither been killed nor ended.
    pub fn is_up(&self) -> bool {
        self.process.is_up()
    }

    /// Panics with `what` and the end of the log.
    pub(crate) fn fail(&self, what: &str) -> ! {
        self.process.fail(what)
    }

    /// Kills the server with SIGKILL and waits for its end. Does nothing if no server runs.
    pub fn kill(&self) {
        self.process.kill();
    }

    /// Restarts the server on its existing data, after killing a running one. Returns when it has
    /// loaded the data.
    ///
    /// # Panics
    ///
    /// If the server does not start.
    pub async fn start_again(&self) {
        let torn = self.torn_files();
        let (program, args) = self.command();
        self.process
            .start(&program, &args, || replies(&self.socket))
            .await;
        if self.torn_files() > torn {
            self.rewrite_aof().await;
        }
    }

    /// Returns the program and its arguments.
    fn command(&self) -> (PathBuf, Vec<String>) {
        let settings = self.settings.iter();
        let settings = settings.flat_map(|(name, value)| [format!("--{name}"), value.clone()]);
        let Some(clock) = &self.clock else {
            return (binary().to_owned(), settings.collect());
        };
        let [env, library, offset] = clock.words();
        let words = [library, offset, binary().display().to_string()];
        (env.into(), words.into_iter().chain(settings).collect())
    }

    /// Pauses the server with SIGSTOP: connections stay open but get no reply. Returns when the
    /// server is paused.
    pub fn pause(&self) {
        self.process.pause();
    }

    /// Ends a [`pause`](Self::pause).
    pub fn resume(&self) {
        self.process.resume();
    }

    /// Returns whether the clock of the server can step.
    pub fn has_clock(&self) -> bool {
        self.clock.is_some()
    }

    /// Steps the clock of the server forward. TIME and the expiry of keys follow it, monotonic clocks
    /// do not. Valkey notices it a millisecond later. A restart keeps the difference.
    ///
    /// # Panics
    ///
    /// If the server was started without [`clock`](RedisOptions::clock).
    pub fn step_clock_forward(&self, by: Duration) {
        self.step_clock(clock::nanoseconds(by));
    }

    /// Steps the clock of the server back.
    ///
    /// # Panics
    ///
    /// See [`step_clock_forward`](Self::step_clock_forward).
    pub fn step_clock_back(&self, by: Duration) {
        self.step_clock(-clock::nanoseconds(by));
    }

    fn step_clock(&self, by: i64) {
        let clock = self
            .clock
            .as_ref()
            .expect("a server with a clock: start it with RedisOptions::clock()");
        self.process.while_paused(|| clock.step(by));
    }
}

/// Returns the version that the binary reports.
pub(crate) fn version() -> &'static str {
    static VERSION: OnceLock<String> = OnceLock::new();
    VERSION.get_or_init(|| process::version(binary()))
}

/// Returns the major version from "Redis server v=7.0.15 sha=..." or "Valkey server v=9.1.2 ...".
pub(crate) fn major_version() -> u32 {
    let number = version()
        .split("v=")
        .nth(1)
        .and_then(|rest| rest.split('.').next());
    number
        .and_then(|n| n.parse().ok())
        .unwrap_or_else(|| panic!("no version number in {:?}", version()))
}

pub(crate) fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let places = [
            "/usr/local/bin",
            "/opt/homebrew/bin",
            "/opt/homebrew/opt/redis/bin",
            "/usr/local/opt/redis/bin",
            "/opt/homebrew/opt/valkey/bin",
            "/usr/local/opt/valkey/bin",
        ]
        .map(Path::new);
        process::find(Some("COUNTERFOIL_REDIS_SERVER"), &["redis-server", "valkey-server"], &places)
            .expect("no redis-server and no valkey-server found: install one, or name one in COUNTERFOIL_REDIS_SERVER")
    })
}

/// Returns whether the server serves commands. While Redis loads its data, it replies with an
/// error.
pub(crate) fn replies(socket: &Path) -> bool {
    ping(socket).is_ok_and(|reply| !reply.is_empty() && !reply.starts_with(b"-LOADING"))
}

fn ping(socket: &Path) -> std::io::Result<Vec<u8>> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    stream.write_all(b"PING\r\n")?;
    let mut reply = [0; 64];
    let length = stream.read(&mut reply)?;
    Ok(reply[..length].to_vec())
}

/// Waits until `is_so` returns true. Panics after 30 s.
pub(crate) async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so().await {
        assert!(Instant::now() < deadline, "waited 30 s for {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
