//! One daemon as a process.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::{Instant, sleep, timeout};

use crate::Result;

const START_LIMIT: Duration = Duration::from_secs(20);
const END_LIMIT: Duration = Duration::from_secs(40);
const POLL: Duration = Duration::from_millis(10);
const LOG_TAIL: usize = 20;
/// The text that a daemon logs once it listens.
const LISTENING: &str = "listening address=";
/// The exit status that a shell reports for a child that SIGKILL ended.
const KILLED: i32 = 128 + 9;

/// A shell script that sends the daemon the signal read from standard input, or SIGKILL when the
/// pipe closes.
const SHELL: &str = r#""$@" & read -r signal; kill -s "${signal:-KILL}" $!; wait $!"#;

/// Returns the path of the program `counterfoil`, next to the `examples` folder.
pub fn program() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let beside = own
        .parent()
        .and_then(Path::parent)
        .ok_or("the demo lies in no folder of examples")?;
    let program = beside.join("counterfoil");
    if program.is_file() {
        return Ok(program);
    }
    let advice = "build it with `cargo build -p counterfoil-cli`, with --release for this demo in its folder release";
    Err(format!("there is no {}: {advice}", program.display()).into())
}

pub struct Daemon {
    shell: Child,
    signals: ChildStdin,
    log: PathBuf,
}

impl Daemon {
    pub fn start(program: &Path, config: &Path) -> Result<Self> {
        let log = config.with_extension("log");
        let mut shell = Command::new("/bin/sh")
            .args(["-c", SHELL, "daemon"])
            .arg(program)
            .arg("--config")
            .arg(config)
            .arg("run")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(File::create(&log)?)
            .process_group(0) // Ctrl-C is for the demo alone
            .spawn()?;
        let signals = shell
            .stdin
            .take()
            .ok_or("a daemon was started without its pipe")?;
        Ok(Daemon {
            shell,
            signals,
            log,
        })
    }

    /// Returns when the log shows that the daemon listens.
    pub async fn listens(&self) -> Result<()> {
        let started = Instant::now();
        while !fs::read_to_string(&self.log)?.contains(LISTENING) {
            if started.elapsed() > START_LIMIT {
                return Err(self.failed("the daemon does not listen"));
            }
            sleep(POLL).await;
        }
        Ok(())
    }

    /// Sends SIGKILL and waits for the daemon to end.
    pub async fn kill(self) -> Result<()> {
        let (log, status) = self.end("KILL").await?;
        if status.code() == Some(KILLED) {
            Ok(())
        } else {
            Err(failed(
                &log,
                &format!("the daemon ended by itself: {status}"),
            ))
        }
    }

    /// Sends SIGTERM and waits for the daemon to exit successfully.
    pub async fn terminate(self) -> Result<()> {
        let (log, status) = self.end("TERM").await?;
        if status.success() {
            Ok(())
        } else {
            Err(failed(
                &log,
                &format!("the daemon did not end well: {status}"),
            ))
        }
    }

    async fn end(mut self, signal: &str) -> Result<(PathBuf, ExitStatus)> {
        self.signals
            .write_all(format!("{signal}\n").as_bytes())
            .await?;
        match timeout(END_LIMIT, self.shell.wait()).await {
            Ok(status) => Ok((self.log, status?)),
            Err(_) => Err(self.failed("the daemon does not end")),
        }
    }

    fn failed(&self, what: &str) -> crate::BoxError {
        failed(&self.log, what)
    }
}

/// Returns an error with `what` and the end of the log.
fn failed(log: &Path, what: &str) -> crate::BoxError {
    let log = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<_> = log.lines().collect();
    let tail = &lines[lines.len().saturating_sub(LOG_TAIL)..];
    format!("{what}; the end of its log:\n    {}", tail.join("\n    ")).into()
}
