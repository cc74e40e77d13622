//! Redis or Valkey.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use redis::aio::ConnectionManager;
use redis::{Client, Cmd, FromRedisValue, RedisResult};

use crate::certificates::Certificates;
use crate::client;
use crate::port;
use crate::process::{self, Process};

/// How a [`RedisServer`] is configured.
#[derive(Clone, Debug)]
pub struct RedisOptions {
    settings: Vec<(String, String)>,
    tcp: bool,
    tls: bool,
}

impl RedisOptions {
    /// No persistence: everything is gone after a kill.
    pub fn volatile() -> Self {
        Self { settings: Vec::new(), tcp: false, tls: false }.arg("appendonly", "no")
    }

    /// An append-only file; `fsync` is Redis's `appendfsync`: `"always"`, `"everysec"` or `"no"`.
    ///
    /// Killing the process loses nothing that was written to the file, synced or not; [`RedisServer::cut_aof`] stands
    /// for the crash of the whole machine. With `"always"` and `"no"` a write is in the file before its reply is sent.
    /// With `"everysec"` Redis itself may put the file's write off for up to two seconds while a sync is going on, so
    /// that a reply may be ahead of the file.
    pub fn aof(fsync: &str) -> Self {
        Self { settings: Vec::new(), tcp: false, tls: false }.arg("appendonly", "yes").arg("appendfsync", fsync)
    }

    /// Lines of redis.conf over which all others win.
    pub(crate) fn defaults(mut self, settings: &[(&str, &str)]) -> Self {
        let settings = settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        self.settings.splice(0..0, settings);
        self
    }

    /// A port of 127.0.0.1 beside the Unix socket, always the same one: replicas, sentinels and clusters need it.
    pub fn tcp(mut self) -> Self {
        self.tcp = true;
        self
    }

    /// A [port](Self::tcp) that takes TLS alone, from clients with a certificate of the same authority.
    pub fn tls(mut self, certificates: &Certificates) -> Self {
        self.tls = true;
        files("server")
            .into_iter()
            .fold(self.tcp(), |options, (name, file)| options.arg(name, certificates.file(&file)))
    }

    /// The same for a replica, or a node of a cluster, which goes by its address and speaks TLS to the others as well.
    pub fn tls_node(mut self, certificates: &Certificates) -> Self {
        self.tls = true;
        let options = self.tcp().arg("tls-replication", "yes");
        files("node").into_iter().fold(options, |options, (name, file)| options.arg(name, certificates.file(&file)))
    }

    pub(crate) fn takes_tls(&self) -> bool {
        self.tls
    }

    /// One more line of redis.conf, which wins over what is set already.
    pub fn arg(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((name.into(), value.into()));
        self
    }
}

/// The settings that name files of certificates: those of a server, and those that it has as a client of others.
pub(crate) fn files(name: &str) -> [(&'static str, String); 5] {
    [
        ("tls-ca-cert-file", "ca.pem".to_owned()),
        ("tls-cert-file", format!("{name}.pem")),
        ("tls-key-file", format!("{name}.key")),
        ("tls-client-cert-file", "client.pem".to_owned()),
        ("tls-client-key-file", "client.key".to_owned()),
    ]
}

/// A private Redis or Valkey server. It ends, and its directory goes, with this handle.
pub struct RedisServer {
    process: Process,
    socket: PathBuf,
    /// 0 where it has none.
    port: u16,
    args: Vec<String>,
}

impl RedisServer {
    /// Starts a server and returns when it replies.
    ///
    /// # Panics
    ///
    /// Where no server is found or it does not start.
    pub async fn start(options: RedisOptions) -> Self {
        let process = Process::new();
        let socket = process.dir().join("redis.sock");
        let port = if options.tcp { port::free() } else { 0 };
        let (plain, secure) = if options.tls { (0, port) } else { (port, 0) };
        let mut settings = vec![
            ("port", plain.to_string()),
            ("bind", "127.0.0.1".to_owned()),
            ("unixsocket", socket.display().to_string()),
            ("dir", process.dir().display().to_string()),
            ("protected-mode", "no".to_owned()),
            // The persistence that a test asks for and nothing beside it.
            ("save", String::new()),
            ("auto-aof-rewrite-percentage", "0".to_owned()),
            // Without the file in between, Redis 7 waits for further replicas first, and may leave a replica that is
            // linked without the writes of a second.
            ("repl-diskless-sync", "no".to_owned()),
        ];
        if secure > 0 {
            settings.push(("tls-port", secure.to_string()));
        }
        if major_version() >= 7 {
            settings.push(("enable-debug-command", "yes".to_owned()));
        }
        let fixed = settings.into_iter().map(|(name, value)| (name.to_owned(), value));
        let args = fixed.chain(options.settings).flat_map(|(name, value)| [format!("--{name}"), value]).collect();
        let server = Self { process, socket, port, args };
        server.start_again().await;
        server
    }

    /// The socket that it listens on.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The address for the redis crate, `redis+unix:///...`.
    pub fn url(&self) -> String {
        client::unix_url(&self.socket)
    }

    /// The port that it has.
    ///
    /// # Panics
    ///
    /// Where it was started without [`tcp`](RedisOptions::tcp).
    pub fn port(&self) -> u16 {
        assert!(self.port > 0, "a server without a port: start it with RedisOptions::tcp()");
        self.port
    }

    /// The address of its [port](Self::port) for the redis crate, `redis://127.0.0.1:...`.
    pub fn tcp_url(&self) -> String {
        client::tcp_url(self.port())
    }

    /// Runs the command that these words are, parted by single spaces, over a connection of its own.
    pub async fn run<T: FromRedisValue>(&self, words: &str) -> RedisResult<T> {
        self.ask(&client::command(words)).await
    }

    pub(crate) async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> RedisResult<T> {
        client::run(&self.url(), command).await
    }

    /// A client for this server.
    pub fn client(&self) -> Client {
        client::client(&self.url())
    }

    /// A connection that comes back after the server was started again: the first command afterwards still fails, as
    /// the connection manager does not send it a second time.
    pub async fn manager(&self) -> ConnectionManager {
        match client::manager(self.client()).await {
            Ok(manager) => manager,
            Err(e) => self.process.fail(&format!("cannot connect to Redis: {e}")),
        }
    }

    /// Whether it was started, and neither killed nor seen ending.
    pub fn is_up(&self) -> bool {
        self.process.is_up()
    }

    /// Panics with `what` and the end of the log.
    pub(crate) fn fail(&self, what: &str) -> ! {
        self.process.fail(what)
    }

    /// SIGKILL; returns when the server is gone. Nothing happens where none runs.
    pub fn kill(&self) {
        self.process.kill();
    }

    /// Starts it over the data that is there, killing the running one first, and returns when it has loaded them.
    ///
    /// # Panics
    ///
    /// Where it does not start.
    pub async fn start_again(&self) {
        self.process.start(binary(), &self.args, || replies(&self.socket)).await;
    }

    /// Starts it over the data that is there as a cluster of one node, which serves the slots that hold keys.
    ///
    /// # Panics
    ///
    /// Where it does not start, or has no [port](RedisOptions::tcp).
    pub async fn start_again_as_cluster(&self) {
        let cluster = ["--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"].map(str::to_owned);
        assert!(self.port > 0, "a node of a cluster has a port");
        self.process.start(binary(), &[&self.args[..], &cluster].concat(), || replies(&self.socket)).await;
    }

    /// SIGSTOP: connections stay open and nothing is replied. Returns when the server stands still.
    pub fn pause(&self) {
        self.process.pause();
    }

    /// Ends a [`pause`](Self::pause).
    pub fn resume(&self) {
        self.process.resume();
    }

    /// The length in bytes of the append-only file that is written to at present.
    ///
    /// # Panics
    ///
    /// Where the server runs without one.
    pub fn aof_len(&self) -> u64 {
        let path = self.aof();
        let file = fs::metadata(&path);
        file.unwrap_or_else(|e| self.process.fail(&format!("no append-only file {}: {e}", path.display()))).len()
    }

    /// Cuts the append-only file back to an earlier [`aof_len`](Self::aof_len). What came after it is lost; what lies
    /// across the cut too, which Redis drops when it loads the file.
    ///
    /// # Panics
    ///
    /// While the server is running, or where the file is shorter than that.
    pub fn cut_aof(&self, len: u64) {
        assert!(!self.process.is_up(), "kill the server before its append-only file is cut");
        let present = self.aof_len();
        assert!(len <= present, "the append-only file has {present} bytes, it cannot be cut back to {len}");
        let file = File::options().write(true).open(self.aof());
        file.and_then(|file| file.set_len(len)).expect("cut the append-only file");
    }

    /// Redis 7 has a folder whose manifest names the increment in use; before, it was one file.
    fn aof(&self) -> PathBuf {
        let folder = self.process.dir().join("appendonlydir");
        let Ok(manifest) = fs::read_to_string(folder.join("appendonly.aof.manifest")) else {
            return self.process.dir().join("appendonly.aof");
        };
        // "file appendonly.aof.1.incr.aof seq 1 type i", in Redis 8 with more pairs behind it; the last one is in use.
        let word_after = |line: &str, key: &str| {
            let mut words = line.split_whitespace();
            words.find(|word| *word == key).and_then(|_| words.next()).map(str::to_owned)
        };
        let mut increments = manifest.lines().rev().filter(|line| word_after(line, "type").as_deref() == Some("i"));
        match increments.next().and_then(|line| word_after(line, "file")) {
            Some(name) => folder.join(name),
            None => self.process.fail(&format!("no increment in the append-only file's manifest:\n{manifest}")),
        }
    }
}

/// What the binary says of its version.
pub(crate) fn version() -> &'static str {
    static VERSION: OnceLock<String> = OnceLock::new();
    VERSION.get_or_init(|| process::version(binary()))
}

/// From "Redis server v=7.0.15 sha=..." or "Valkey server v=9.1.2 ...".
pub(crate) fn major_version() -> u32 {
    let number = version().split("v=").nth(1).and_then(|rest| rest.split('.').next());
    number.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("no version number in {:?}", version()))
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

/// Whether commands are served: while Redis loads its data, it replies with an error that says so.
pub(crate) fn replies(socket: &Path) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(1)))?;
        stream.write_all(b"PING\r\n")?;
        let mut reply = [0; 64];
        let length = stream.read(&mut reply)?;
        Ok(length > 0 && !reply.starts_with(b"-LOADING"))
    };
    ask().unwrap_or(false)
}

/// Waits for something that servers come to by themselves.
pub(crate) async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so().await {
        assert!(Instant::now() < deadline, "waited 30 s for {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
