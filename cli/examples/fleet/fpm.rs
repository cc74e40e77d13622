//! php-fpm with the PHP package: each request is a process's work for a moment, and workers are killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use testkit::Package;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::calls::Call;
use crate::journal::Journal;
use crate::site::Site;
use crate::{BoxError, Result};

const SHOP: u32 = 1;
const START_LIMIT: Duration = Duration::from_secs(10);
/// The time limit of a request.
const REQUEST: Duration = Duration::from_secs(20);
/// The number of times that a request is sent if it fails.
const ATTEMPTS: usize = 20;

/// A php-fpm, and the visitors that send it requests.
pub struct Fpm {
    process: Child,
    stop: watch::Sender<bool>,
    visitors: JoinHandle<Result<Journal>>,
}

impl Fpm {
    /// Starts php-fpm, or returns nothing where it is not installed.
    pub async fn start(site: &Site) -> Result<Option<Self>> {
        let (Some(program), true) = (program(), has_client()) else {
            println!("php-fpm does not take part: it needs php-fpm and cgi-fcgi");
            return Ok(None);
        };
        let Ok(installed) = Package("php").install() else {
            return Ok(None);
        };
        let (config, socket) = (site.file("php-fpm.conf"), site.file("fpm.sock"));
        fs::write(&config, configuration(site, &socket, &installed))?;
        let process = Command::new(program)
            .args(["--nodaemonize", "--allow-to-run-as-root", "--fpm-config"])
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0) // Ctrl-C is for the demo alone
            .kill_on_drop(true)
            .spawn()?;
        let started = Instant::now();
        while !socket.exists() {
            if started.elapsed() > START_LIMIT {
                let log = fs::read_to_string(site.file("fpm.log")).unwrap_or_default();
                return Err(format!("php-fpm does not start: {log}").into());
            }
            sleep(Duration::from_millis(10)).await;
        }
        let (stop, stopping) = watch::channel(false);
        let visitors = tokio::spawn(visit(socket, stopping));
        Ok(Some(Fpm {
            process,
            stop,
            visitors,
        }))
    }

    /// Returns the process whose children are the workers.
    pub fn master(&self) -> Option<u32> {
        self.process.id()
    }

    /// Returns only if a visitor fails.
    pub async fn failed(&mut self) -> BoxError {
        match (&mut self.visitors).await {
            Ok(Err(error)) => error,
            _ => "a visitor of php-fpm stopped by itself".into(),
        }
    }

    /// Lets the visitors finish, and returns the confirmed counts.
    pub async fn stop(mut self) -> Result<Journal> {
        self.stop.send_replace(true);
        let journal = (&mut self.visitors).await??;
        // by SIGKILL it would leave its workers
        if let Some(master) = self.master() {
            let terminate = ["-TERM", &master.to_string()];
            Command::new("kill").args(terminate).status().await?;
        }
        self.process.wait().await?;
        Ok(journal)
    }
}

/// Kills one of php-fpm's workers, which php-fpm replaces.
pub async fn kill_worker(master: u32) -> Result<()> {
    let master = master.to_string();
    let workers = Command::new("pgrep").args(["-P", &master]).output().await?;
    let workers = String::from_utf8_lossy(&workers.stdout).into_owned();
    if let Some(worker) = workers.split_whitespace().next() {
        Command::new("kill")
            .args(["-KILL", worker])
            .status()
            .await?;
    }
    Ok(())
}

fn program() -> Option<&'static str> {
    let programs = [
        "php-fpm",
        "php-fpm8.4",
        "php-fpm8.3",
        "php-fpm8.2",
        "php-fpm8.1",
    ];
    programs
        .into_iter()
        .find(|program| runs(program, "--version"))
}

fn has_client() -> bool {
    runs("cgi-fcgi", "-version")
}

/// Returns whether a program is installed, whatever it says.
fn runs(program: &str, argument: &str) -> bool {
    let mut command = std::process::Command::new(program);
    let quiet = command
        .arg(argument)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    quiet.stdin(Stdio::null()).status().is_ok()
}

fn configuration(site: &Site, socket: &Path, installed: &Path) -> String {
    let (log, socket) = (site.file("fpm.log").display().to_string(), socket.display());
    let (redis, installed) = (site.redis_socket().display(), installed.display());
    format!(
        "[global]\nerror_log = {log}\n[www]\nlisten = {socket}\nuser = root\ngroup = root\npm = static\n\
         pm.max_children = 3\npm.max_requests = 40\ncatch_workers_output = yes\n\
         env[REDIS] = {redis}\nenv[INSTALLED] = {installed}\n"
    )
}

/// Sends requests one after the other. Each is a job: one that failed is sent again.
async fn visit(socket: PathBuf, stopping: watch::Receiver<bool>) -> Result<Journal> {
    let mut journal = Journal::default();
    while !*stopping.borrow() {
        let mut order = Call::order(SHOP);
        let epoch = ask(&socket, &order.epoch()).await?;
        order.since(epoch["returns"].clone());
        let reply = ask(&socket, &order.line()).await?;
        order.settle(SHOP, &reply, &mut journal);
    }
    Ok(journal)
}

/// Returns the reply of a request, which is sent again if its worker was killed.
async fn ask(socket: &Path, call: &Value) -> Result<Value> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/fleet/request.php");
    let mut last = String::new();
    for _ in 0..ATTEMPTS {
        let mut request = Command::new("cgi-fcgi");
        let request = request.args(["-bind", "-connect"]).arg(socket);
        let request = request
            .env("REQUEST_METHOD", "GET")
            .env("SCRIPT_FILENAME", &script);
        let request = request
            .env("HTTP_CALL", call.to_string())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let replied = timeout(REQUEST, request.output()).await??;
        last = String::from_utf8_lossy(&replied.stdout).into_owned();
        let body = last.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        match serde_json::from_str::<Value>(body) {
            Ok(reply) if reply["error"] != "escaped" && reply["error"] != "not_counted" => {
                return Ok(reply);
            }
            _ => sleep(Duration::from_millis(50)).await,
        }
    }
    Err(format!("php-fpm does not reply: {last}").into())
}
