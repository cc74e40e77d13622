//! MySQL or MariaDB.

use std::fs;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sqlx::mysql::{MySqlConnection, MySqlPool, MySqlPoolOptions};
use sqlx::{AssertSqlSafe, Connection};
use tokio::io::AsyncWriteExt;
use tokio::net::UnixListener;
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;

use crate::backup::{Copies, copy_all};
use crate::certificates::Certificates;
use crate::disk::Disk;
use crate::port;
use crate::process::{self, Process};

/// The data directory, in the server's own directory.
const DATA: &str = "data";

/// A log size that is fast to copy, as an option of MariaDB and of MySQL.
const SMALL_LOG: [&str; 2] = [
    "--loose-innodb-log-file-size=16M",
    "--loose-innodb-redo-log-capacity=16M",
];

/// A private MySQL or MariaDB server with a `root` without a password. Dropping this handle stops
/// the server and removes its directory.
pub struct MysqlServer {
    process: Process,
    socket: PathBuf,
    /// The TCP port, or 0 if it has none.
    port: u16,
    args: Vec<String>,
    disk: Option<Disk>,
    databases: AtomicU32,
}

impl MysqlServer {
    /// Creates a data directory, starts a server on it and returns when it replies.
    ///
    /// # Panics
    ///
    /// If no server is found or it does not start.
    pub async fn start() -> Self {
        Self::start_with(Process::new(), 0, Vec::new()).await
    }

    /// Starts a server that also listens on a port of 127.0.0.1. With certificates, the port
    /// accepts only TLS.
    ///
    /// # Panics
    ///
    /// See [`start`](Self::start).
    pub async fn start_tcp(certificates: Option<&Certificates>) -> Self {
        let port = port::free();
        // with name resolution, 127.0.0.1 would match the accounts of localhost first
        let mut args = vec![
            format!("--port={port}"),
            "--bind-address=127.0.0.1".to_owned(),
            "--skip-name-resolve".to_owned(),
        ];
        if let Some(certificates) = certificates {
            let files = [
                ("ca", "ca.pem"),
                ("cert", "server.pem"),
                ("key", "server.key"),
            ];
            args.extend(
                files.map(|(name, file)| format!("--ssl-{name}={}", certificates.file(file))),
            );
            args.push("--require-secure-transport=ON".to_owned());
        }
        Self::start_with(Process::new(), port, args).await
    }

    /// Starts a server that can have tables on a small [disk](Self::disk), and also has its binary
    /// log there if `logs`. The error is the reason if this machine does not allow it.
    ///
    /// # Panics
    ///
    /// See [`start`](Self::start).
    pub async fn start_with_disk(logs: bool) -> Result<Self, String> {
        let process = Process::new();
        let disk = Disk::mount(&process, 512)?;
        let dir = disk.dir().display();
        let mut args = vec![format!("--loose-innodb-directories={dir}")];
        if logs {
            args.push("--server-id=1".to_owned());
            args.push(format!("--log-bin={dir}/binlog"));
        }
        let server = Self::start_with(process, 0, args).await;
        Ok(Self {
            disk: Some(disk),
            ..server
        })
    }

    async fn start_with(process: Process, port: u16, more: Vec<String>) -> Self {
        let socket = process.dir().join("mysql.sock");
        let data = process.dir().join(DATA);
        copy_all(&fresh().await.dir().join(DATA), &data).expect("copy a data directory");

        // Only valid as the first argument: the server ignores this machine's own configuration.
        let mut args = vec!["--no-defaults".to_owned()];
        args.extend(as_user());
        args.push(format!("--datadir={}", data.display()));
        args.push(format!("--socket={}", socket.display()));
        args.push(format!(
            "--pid-file={}",
            process.dir().join("pid").display()
        ));
        args.extend(
            [
                "--loose-mysqlx=OFF",
                "--skip-log-bin",
                "--performance-schema=OFF",
                "--innodb-buffer-pool-size=128M",
                "--max-connections=500",
                // A commit reaches the file system, so a kill of the process loses none. It does
                // not wait for the disk, since no test cuts the power.
                "--innodb-flush-log-at-trx-commit=2",
            ]
            .map(str::to_owned),
        );
        args.extend(SMALL_LOG.map(str::to_owned));
        if port == 0 {
            args.push("--skip-networking".to_owned());
        }
        args.extend(more);
        let server = Self {
            process,
            socket,
            port,
            args,
            disk: None,
            databases: AtomicU32::new(0),
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

    /// Returns the URL of a database for sqlx, `mysql://root@localhost/...?socket=...`. An empty
    /// name selects no database. The URL disables TLS, which some servers offer by default.
    pub fn url(&self, database: &str) -> String {
        format!(
            "mysql://root@localhost/{database}?socket={}&ssl-mode=DISABLED",
            self.socket.display()
        )
    }

    /// Returns the port of the server.
    ///
    /// # Panics
    ///
    /// If the server was not started by [`start_tcp`](Self::start_tcp).
    pub fn port(&self) -> u16 {
        assert!(
            self.port > 0,
            "a server without a port: start it with MysqlServer::start_tcp()"
        );
        self.port
    }

    /// Creates a database with a unique name that starts with `prefix`. Returns the name and a
    /// pool.
    ///
    /// # Panics
    ///
    /// If the server refuses, for example because `prefix` has more than letters, digits and
    /// underscores.
    pub async fn database(&self, prefix: &str) -> (String, MySqlPool) {
        let name = format!(
            "{prefix}_{}",
            self.databases.fetch_add(1, Ordering::Relaxed)
        );
        match self.create_database(&name).await {
            Ok(pool) => (name, pool),
            Err(e) => self
                .process
                .fail(&format!("cannot create the database {name}: {e}")),
        }
    }

    async fn create_database(&self, name: &str) -> Result<MySqlPool, sqlx::Error> {
        let mut connection = MySqlConnection::connect(&self.url("")).await?;
        sqlx::raw_sql(AssertSqlSafe(format!("CREATE DATABASE {name}")))
            .execute(&mut connection)
            .await?;
        connection.close().await?;
        MySqlPoolOptions::new()
            .max_connections(16)
            .acquire_timeout(Duration::from_secs(10))
            .connect(&self.url(name))
            .await
    }

    /// Kills the server with SIGKILL and waits for its end. Does nothing if no server runs.
    pub fn kill(&self) {
        self.process.kill();
    }

    /// Restarts the server on its existing data, after killing a running one. Returns when it has
    /// recovered.
    ///
    /// # Panics
    ///
    /// If the server does not start.
    pub async fn start_again(&self) {
        self.process.kill();
        // MySQL leaves its process id beside the socket, and refuses to start if that id is in use
        // again.
        let _ = fs::remove_file(self.socket.with_extension("sock.lock"));
        self.process
            .start(binary(), &self.args, || greets(&self.socket))
            .await;
    }

    /// Copies the data directory and the tables on the [disk](Self::disk) while the server is
    /// paused. The copy has every commit that was acknowledged before, like the data of a server
    /// that is killed at that moment. Copying blocks this thread for a tenth of a second or two.
    ///
    /// # Panics
    ///
    /// If copying fails.
    pub fn back_up(&self) -> Backup {
        let databases = self.disk.iter().flat_map(Disk::folders);
        let names: Vec<_> = std::iter::once(PathBuf::from(DATA))
            .chain(databases)
            .collect();
        let copies = Copies::of(&self.process, self.process.dir(), &names);
        Backup { copies, names }
    }

    /// Kills the server, replaces its data by a backup and starts it again. Returns when it has
    /// recovered. What was committed since the backup is lost.
    ///
    /// # Panics
    ///
    /// If copying fails, or the server does not start.
    pub async fn restore(&self, backup: &Backup) {
        self.kill();
        backup.copies.put_back(self.process.dir(), &backup.names);
        self.start_again().await;
    }

    /// Lets a program that is not MySQL reply at the socket. Existing connections remain.
    ///
    /// # Panics
    ///
    /// If it cannot take the socket.
    pub fn replaced(&self) -> Stranger {
        Stranger::at(&self.socket).expect("the socket of the server")
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
}

/// A copy of a server's data, in that server's directory. Dropping this handle removes the copy.
pub struct Backup {
    copies: Copies,
    names: Vec<PathBuf>,
}

/// A program that is not MySQL, at the socket of a server. Dropping it gives the socket back.
pub struct Stranger {
    greets: JoinHandle<()>,
    socket: PathBuf,
    moved: PathBuf,
}

impl Stranger {
    /// Replies to new connections with a greeting that is too short, on which sqlx panics.
    fn at(socket: &Path) -> std::io::Result<Self> {
        let moved = socket.with_extension("moved");
        fs::rename(socket, &moved)?;
        let listener = UnixListener::bind(socket)?;
        let greets = tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let _ = client.write_all(b"\x03\0\0\0\x0ax\0").await;
            }
        });
        Ok(Stranger {
            greets,
            socket: socket.to_owned(),
            moved,
        })
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.greets.abort();
        let _ = fs::rename(&self.moved, &self.socket);
    }
}

/// Returns a process whose directory holds fresh data. All servers of this program copy that data,
/// because creating it takes longer.
async fn fresh() -> &'static Process {
    static FRESH: OnceCell<Process> = OnceCell::const_new();
    FRESH
        .get_or_init(async || {
            let process = Process::new();
            initialise(&process, &process.dir().join(DATA)).await;
            process
        })
        .await
}

/// Creates a data directory with a `root` without a password, in one of three ways.
async fn initialise(process: &Process, data: &Path) {
    let at = format!("--datadir={}", data.display());
    let own = binary().with_file_name("mariadbd-init");
    if !version().contains("MariaDB") {
        let mut args = vec![
            "--no-defaults".to_owned(),
            "--initialize-insecure".to_owned(),
            at,
        ];
        args.extend(as_user());
        args.extend(SMALL_LOG.map(str::to_owned));
        process.run(binary(), &args).await;
    } else if own.is_file() {
        process.run(&own, &[data.display().to_string()]).await;
    } else {
        let mut args = vec![
            "--no-defaults".to_owned(),
            "--auth-root-authentication-method=normal".to_owned(),
            "--skip-test-db".to_owned(),
            at,
        ];
        args.extend(as_user());
        args.extend(SMALL_LOG.map(str::to_owned));
        process.run(&install_script(), &args).await;
    }
}

/// Finds MariaDB's script that creates data directories. It looks beside the server first: with
/// Homebrew there may be several scripts.
fn install_script() -> PathBuf {
    let dir = binary().parent().unwrap_or(Path::new("/"));
    let beside = [dir.to_owned(), dir.join("../bin"), dir.join("../scripts")];
    let names = ["mariadb-install-db", "mysql_install_db"];
    beside
        .iter()
        .flat_map(|dir| names.map(|name| dir.join(name)))
        .find(|path| path.is_file())
        .or_else(|| process::find(None, &names, &[]))
        .expect("no mariadb-install-db found for the MariaDB server")
}

/// Returns the option without which a server refuses to run as root, if this process is root.
fn as_user() -> Option<String> {
    rustix::process::geteuid()
        .is_root()
        .then(|| "--user=root".to_owned())
}

/// Returns the version that the binary reports.
pub(crate) fn version() -> &'static str {
    static VERSION: OnceLock<String> = OnceLock::new();
    VERSION.get_or_init(|| process::version(binary()))
}

fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let places = [
            "/usr/sbin",
            "/usr/local/sbin",
            "/usr/local/bin",
            "/opt/homebrew/bin",
            "/opt/homebrew/opt/mariadb/bin",
            "/usr/local/opt/mariadb/bin",
            "/opt/homebrew/opt/mysql/bin",
            "/usr/local/opt/mysql/bin",
        ]
        .map(Path::new);
        process::find(Some("COUNTERFOIL_MYSQLD"), &["mariadbd", "mysqld"], &places).expect(
            "no mysqld and no mariadbd found: install one, or name one in COUNTERFOIL_MYSQLD",
        )
    })
}

/// Returns whether the server sends its greeting, a packet that starts with the protocol's version,
/// 10. It does so only after recovery.
fn greets(socket: &Path) -> bool {
    read_greeting(socket).is_ok_and(|start| start[4] == 10)
}

/// Returns the first bytes of the greeting.
fn read_greeting(socket: &Path) -> std::io::Result<[u8; 5]> {
    let mut stream = UnixStream::connect(socket)?;
    // The socket may exist before the server accepts connections.
    stream.set_read_timeout(Some(Duration::from_millis(50)))?;
    let mut start = [0; 5];
    stream.read_exact(&mut start)?;
    Ok(start)
}
