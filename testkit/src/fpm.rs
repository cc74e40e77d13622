//! php-fpm, in which the PHP package makes calls.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

const START_LIMIT: Duration = Duration::from_secs(10);
/// The time limit of a request.
const REQUEST: Duration = Duration::from_secs(20);
/// Makes the call of a request.
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/request.php");

/// A php-fpm with three workers, each of which ends after 40 requests. Dropping it kills all.
pub struct Fpm {
    master: Child,
    dir: TempDir,
}

impl Fpm {
    /// Starts php-fpm with the installed PHP package. Its calls get `environment`: `REDIS` is the
    /// socket of Redis, `NAMESPACE` that of the families, and `DAEMON` the address of a daemon.
    /// The error is the reason if php-fpm or cgi-fcgi is not installed.
    ///
    /// # Panics
    ///
    /// If php-fpm is installed and does not start.
    pub async fn start(installed: &Path, environment: &[(&str, &str)]) -> Result<Self, String> {
        let program = program().ok_or("php-fpm is not installed")?;
        if !runs("cgi-fcgi", "-version") {
            return Err("cgi-fcgi is not installed".into());
        }
        let dir = TempDir::with_prefix("fpm-").expect("create a directory");
        let (config, log) = (dir.path().join("php-fpm.conf"), dir.path().join("log"));
        let mut text = format!(
            "[global]\nerror_log = {}\n[www]\nlisten = {}\nuser = root\ngroup = root\npm = static\n\
             pm.max_children = 3\npm.max_requests = 40\nenv[INSTALLED] = {}\n",
            log.display(),
            dir.path().join("sock").display(),
            installed.display(),
        );
        for (name, value) in environment {
            text += &format!("env[{name}] = {value}\n");
        }
        fs::write(&config, text).expect("write the configuration");
        let master = Command::new(program)
            .args(["--nodaemonize", "--allow-to-run-as-root", "--fpm-config"])
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0) // Ctrl-C is for the supervisor alone
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| error.to_string())?;
        let (fpm, started) = (Fpm { master, dir }, Instant::now());
        while !fpm.dir.path().join("sock").exists() {
            let log = || fs::read_to_string(&log).unwrap_or_default();
            assert!(started.elapsed() < START_LIMIT, "php-fpm: {}", log());
            sleep(Duration::from_millis(10)).await;
        }
        Ok(fpm)
    }

    /// Returns the process whose children are the workers.
    pub fn master(&self) -> Option<u32> {
        self.master.id()
    }

    /// Makes a call, and returns its reply, as a runner's: `clients/README.md`. There is none if its
    /// worker was killed.
    pub async fn ask(&self, call: &Value) -> Option<Value> {
        let mut request = Command::new("cgi-fcgi");
        request
            .args(["-bind", "-connect"])
            .arg(self.dir.path().join("sock"));
        request
            .env("REQUEST_METHOD", "GET")
            .env("SCRIPT_FILENAME", SCRIPT)
            .env("HTTP_CALL", call.to_string())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let replied = timeout(REQUEST, request.output()).await.ok()?.ok()?;
        let reply = String::from_utf8_lossy(&replied.stdout).into_owned();
        serde_json::from_str(reply.split_once("\r\n\r\n")?.1).ok()
    }

    /// Sends a signal to the workers. php-fpm replaces those that end.
    pub async fn signal(&self, signal: &str) {
        if let Some(master) = self.master() {
            signal_workers(master, signal).await;
        }
    }

    /// Ends php-fpm and its workers.
    pub async fn end(mut self) {
        // by SIGKILL it would leave its workers
        crate::signal(&self.master, "TERM");
        let _ = self.master.wait().await;
    }
}

/// Sends a signal to the workers of the php-fpm with this process id.
pub async fn signal_workers(master: u32, signal: &str) {
    let mut pkill = Command::new("pkill");
    let pkill = pkill.args([&format!("-{signal}"), "-P", &master.to_string()]);
    let _ = pkill.status().await;
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

/// Returns whether a program is installed, whatever it says.
fn runs(program: &str, argument: &str) -> bool {
    let mut command = std::process::Command::new(program);
    let quiet = command
        .arg(argument)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    quiet.stdin(Stdio::null()).status().is_ok()
}
