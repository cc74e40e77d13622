//! A private Redis and a private MySQL or MariaDB, on Unix sockets in a folder.

use std::ffi::OsString;
use std::fs::{self, File, Permissions};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;
use std::{env, io};

use counterfoil::IntoMysqlOptions;
use counterfoil::sqlx::ConnectOptions;
use rustix::process::geteuid;
use tempfile::TempDir;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};
use url::Url;

use super::files;
use crate::exit::Failure;

/// Folders of servers that are often missing in PATH.
const FOLDERS: [&str; 3] = ["/usr/sbin", "/usr/local/sbin", "/usr/libexec"];
const STARTING: Duration = Duration::from_secs(60);
const STOPPING: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(20);
/// The number of ports that are tried, from the usual one on.
const PORTS: u16 = 100;
/// The maximum length of a socket's path on macOS, with its final zero. Linux allows 4 more.
const SOCKET_LIMIT: usize = 104;
/// The number of lines of a log that a failure shows.
const LOG_LINES: usize = 8;

/// Runs a server until standard input ends, which it does with this process, however that ends. The
/// server then gets SIGTERM. It is in a process group of its own, since Ctrl-C is for this process,
/// which still needs it.
const GUARD: &str = r#"
exec 3<&0 </dev/null
"$@" 3<&- &
server=$!
(read -r _ <&3; kill "$server") 2>/dev/null &
exec 3<&-
wait "$server"
"#;

/// The folder of MySQL's data in it, which other users cannot enter.
const MYSQL: &str = "mysql";
const SOCKET: &str = "mysql.sock";

/// The folder of the servers: the given one, which is kept, or a temporary one.
pub enum Folder {
    Kept(PathBuf),
    Temporary(TempDir),
}

impl Folder {
    pub fn new(given: Option<&Path>) -> Result<Self, Failure> {
        let folder = match given {
            Some(folder) => {
                files::create_private_folder(folder)?;
                let path = fs::canonicalize(folder)
                    .map_err(|error| Failure::warning(format!("{}: {error}", folder.display())))?;
                Folder::Kept(path)
            }
            None => Folder::Temporary(
                tempfile::Builder::new()
                    .prefix("counterfoil-")
                    .permissions(Permissions::from_mode(0o700))
                    .tempdir()
                    .map_err(|error| Failure::warning(format!("no temporary folder: {error}")))?,
            ),
        };
        let longest = folder.path().join(MYSQL).join(SOCKET);
        if longest.as_os_str().len() >= SOCKET_LIMIT {
            return Err(Failure::usage(format!(
                "the path of the socket {} is too long: name a shorter folder with --dir",
                longest.display()
            )));
        }
        Ok(folder)
    }

    pub fn path(&self) -> &Path {
        match self {
            Folder::Kept(path) => path,
            Folder::Temporary(folder) => folder.path(),
        }
    }

    pub fn config(&self) -> PathBuf {
        self.path().join("counterfoil.toml")
    }

    /// Removes a temporary folder. Returns a line about the data.
    pub fn end(self) -> String {
        match self {
            Folder::Kept(path) => format!(
                "the data is in {0}, and `counterfoil setup --private --dir {0}` continues",
                path.display()
            ),
            Folder::Temporary(folder) => {
                let path = folder.path().display().to_string();
                match folder.close() {
                    Ok(()) => format!("the data was in {path}, which is removed; --dir keeps it"),
                    Err(error) => format!("the data is still in {path}: {error}"),
                }
            }
        }
    }
}

/// The running servers. If this handle is dropped, they end a little later.
#[derive(Default)]
pub struct Servers(Vec<Child>);

impl Servers {
    /// Starts Redis in the folder, and returns its URL.
    pub async fn start_redis(
        &mut self,
        folder: &Path,
        named: Option<&Path>,
    ) -> Result<String, Failure> {
        let advice = "install Redis or Valkey, or name its program with --redis-server";
        let program = find(named, &["redis-server", "valkey-server"], advice)?;
        let _ = version(&program, "server v=", "Redis or Valkey").await?;
        let (data, socket) = (folder.join("redis"), folder.join("redis.sock"));
        if UnixStream::connect(&socket).await.is_ok() {
            return Err(Failure::usage(format!(
                "{} is in use: its Redis runs",
                folder.display()
            )));
        }
        files::create_private_folder(&data)?;
        let args = [
            ("--port", "0".into()),
            ("--unixsocket", socket.clone().into_os_string()),
            ("--unixsocketperm", "700".into()),
            ("--dir", data.into_os_string()),
            ("--appendonly", "yes".into()),
            ("--save", OsString::new()),
            ("--maxmemory-policy", "noeviction".into()),
        ];
        let args = args
            .into_iter()
            .flat_map(|(name, value)| [name.into(), value]);
        let ready = async || UnixStream::connect(&socket).await.is_ok();
        self.start("Redis", program, args.collect(), folder, ready)
            .await?;
        let path = Url::from_file_path(&socket).map_err(|()| Failure::usage("no such path"))?;
        Ok(format!("redis+unix://{}", path.path()))
    }

    /// Starts MySQL or MariaDB in the folder, and returns the URL of a database for its `root`.
    pub async fn start_mysql(
        &mut self,
        folder: &Path,
        database: &str,
        named: Option<&Path>,
    ) -> Result<String, Failure> {
        let advice = "install MariaDB or MySQL, or name its program with --mysql-server";
        let program = find(named, &["mariadbd", "mysqld"], advice)?;
        let data = folder.join(MYSQL);
        let socket = data.join(SOCKET);
        if !data.exists() {
            // under another name until it is complete
            let new = folder.join("mysql.new");
            let _ = fs::remove_dir_all(&new);
            initialise(&program, &new).await?;
            fs::rename(&new, &data)?;
        }
        // it has the socket, by which `root` needs no password
        fs::set_permissions(&data, Permissions::from_mode(0o700))?;
        // --no-defaults must be the first: the server ignores this machine's own configuration
        let mut args: Vec<OsString> = vec!["--no-defaults".into()];
        args.extend(as_user());
        args.push(option("--datadir", &data));
        args.push(option("--socket", &socket));
        args.push(option("--pid-file", &folder.join("mysql.pid")));
        let fixed = [
            "--skip-networking",
            "--skip-log-bin",
            "--loose-mysqlx=OFF",
            "--performance-schema=OFF",
            "--innodb-buffer-pool-size=64M",
        ];
        args.extend(fixed.map(OsString::from));
        let mut url = Url::parse("mysql://root@localhost").map_err(io::Error::other)?;
        url.set_path(database);
        url.query_pairs_mut()
            .append_pair("socket", &socket.display().to_string());
        let any = Url::join(&url, "/information_schema").map_err(io::Error::other)?;
        let any = format!("{any}?{}", url.query().unwrap_or_default());
        let options = any.into_mysql_options()?;
        let ready = async || options.connect().await.is_ok();
        self.start("MySQL", program, args, folder, ready).await?;
        Ok(url.into())
    }

    async fn start(
        &mut self,
        name: &str,
        program: PathBuf,
        args: Vec<OsString>,
        folder: &Path,
        ready: impl AsyncFn() -> bool,
    ) -> Result<(), Failure> {
        let log = folder.join(format!("{}.log", name.to_lowercase()));
        let output = File::create(&log)?;
        let mut guard = Command::new("/bin/sh");
        guard.args(["-c", GUARD, "guard"]).arg(&program).args(args);
        let guard = guard
            .current_dir(folder)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()?;
        self.0.push(guard);
        let end = Instant::now() + STARTING;
        while !ready().await {
            let ended = match self.0.last_mut() {
                Some(guard) => guard.try_wait()?,
                None => None,
            };
            if ended.is_some() || Instant::now() > end {
                let text = fs::read_to_string(&log).unwrap_or_default();
                return Err(Failure::critical(format!(
                    "{} {}:\n{}",
                    program.display(),
                    ended.map_or("does not reply".to_owned(), |status| format!(
                        "ended: {status}"
                    )),
                    last_lines(&text)
                )));
            }
            sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Ends the servers, and waits until their data is complete.
    pub async fn stop(mut self) {
        for guard in &mut self.0 {
            // its end is the signal
            drop(guard.stdin.take());
        }
        for guard in &mut self.0 {
            let _ = timeout(STOPPING, guard.wait()).await;
        }
    }
}

/// Creates a data directory with a `root` without a password.
async fn initialise(program: &Path, data: &Path) -> Result<(), Failure> {
    let version = version(program, "Ver ", "MySQL or MariaDB").await?;
    let mut command = if version.contains("MariaDB") {
        let names = ["mariadb-install-db", "mysql_install_db"];
        let beside = program.with_file_name(names[0]);
        let script = match beside.is_file() {
            true => beside,
            false => find(None, &names, "install MariaDB's server completely")?,
        };
        let mut command = Command::new(script);
        command.args([
            "--no-defaults",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        ]);
        command
    } else {
        let mut command = Command::new(program);
        command.args(["--no-defaults", "--initialize-insecure"]);
        command
    };
    run(command.arg(option("--datadir", data)).args(as_user())).await?;
    Ok(())
}

/// Returns the version that a server prints. Refuses a program whose version lacks the `mark` of
/// such servers.
async fn version(program: &Path, mark: &str, server: &str) -> Result<String, Failure> {
    let printed = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await;
    let printed =
        printed.map_err(|error| Failure::critical(format!("{}: {error}", program.display())))?;
    let version = String::from_utf8_lossy(&printed.stdout).into_owned();
    if !version.contains(mark) {
        return Err(Failure::usage(format!(
            "{} is not the server of {server}, by the output of its --version: name another program",
            program.display()
        )));
    }
    Ok(version)
}

/// Runs a program to its end. The error has the end of its output.
async fn run(command: &mut Command) -> Result<Output, Failure> {
    let name = command.as_std().get_program().display().to_string();
    let ended = command.stdin(Stdio::null()).kill_on_drop(true).output();
    let ended = ended
        .await
        .map_err(|error| Failure::critical(format!("{name}: {error}")))?;
    if !ended.status.success() {
        let text = [&*ended.stdout, &*ended.stderr].concat();
        let text = last_lines(&String::from_utf8_lossy(&text));
        return Err(Failure::critical(format!(
            "{name}: {}:\n{text}",
            ended.status
        )));
    }
    Ok(ended)
}

fn last_lines(text: &str) -> String {
    let lines: Vec<_> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
}

fn option(name: &str, path: &Path) -> OsString {
    let mut option = OsString::from(format!("{name}="));
    option.push(path);
    option
}

/// Returns the option without which a server refuses to run as root.
fn as_user() -> Option<OsString> {
    geteuid().is_root().then(|| "--user=root".into())
}

/// Finds a program: the named one, or the first of these names.
fn find(named: Option<&Path>, names: &[&str], advice: &str) -> Result<PathBuf, Failure> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders: Vec<_> = env::split_paths(&path)
        .chain(FOLDERS.map(PathBuf::from))
        .collect();
    let named = named.map(|named| vec![named]);
    let names = named.unwrap_or_else(|| names.iter().map(Path::new).collect());
    names
        .iter()
        // a path with a folder is that of the current folder, since servers run in another one
        .flat_map(|name| match name.components().count() {
            1 => folders.iter().map(|folder| folder.join(name)).collect(),
            _ => Vec::from_iter(std::path::absolute(name)),
        })
        .find(|program| program.is_file())
        .ok_or_else(|| {
            let names: Vec<_> = names
                .iter()
                .map(|name| name.display().to_string())
                .collect();
            Failure::critical(format!("{} was not found: {advice}", names.join(" or ")))
        })
}

/// Returns an address of this machine with the daemon's usual port, or with the first one after it
/// that is free. Of the ports that the system would choose, a connection to another machine may have
/// it when the daemon starts again.
pub fn free_address(usual: u16) -> String {
    let bind = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port))?.local_addr();
    let after = (usual..usual.saturating_add(PORTS)).find_map(|port| bind(port).ok());
    match after.map_or_else(|| bind(0), Ok) {
        Ok(address) => address.to_string(),
        Err(_) => "off".to_owned(),
    }
}
