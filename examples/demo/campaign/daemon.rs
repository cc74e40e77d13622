//! The daemon of a round, and its replies.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::Result;

/// The time within which the daemon replies, or ends.
const PATIENCE: Duration = Duration::from_secs(30);

/// The program `counterfoil run` with a configuration.
pub struct Daemon {
    process: Child,
    program: PathBuf,
    config: PathBuf,
}

/// Returns the program, if it was built beside the folder of this one.
pub fn program() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let program = own.parent()?.parent()?.join("counterfoil");
    program.is_file().then_some(program)
}

impl Daemon {
    pub fn start(program: &Path, config: &Path) -> Result<Self> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(config.with_extension("log"))?;
        let process = Command::new(program)
            .arg("--config")
            .arg(config)
            .arg("run")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .process_group(0) // Ctrl-C is for the demo alone
            .kill_on_drop(true)
            .spawn()?;
        let (program, config) = (program.to_owned(), config.to_owned());
        Ok(Daemon {
            process,
            program,
            config,
        })
    }

    /// Starts it again if it has ended, as a service manager does. It ends by itself if a server is down
    /// while it starts.
    pub fn keep_running(&mut self) -> Result<()> {
        if self.process.try_wait()?.is_some() {
            *self = Daemon::start(&self.program, &self.config)?;
        }
        Ok(())
    }

    /// Kills it with SIGKILL.
    pub async fn kill(&mut self) -> Result<()> {
        Ok(self.process.kill().await?)
    }

    /// Sends a signal, such as STOP or HUP, unless it has ended.
    pub fn signal(&mut self, signal: &str) -> Result<()> {
        if self.process.try_wait()?.is_none() {
            testkit::signal(&self.process, signal);
        }
        Ok(())
    }

    /// Sends SIGTERM and waits for its end.
    pub async fn terminate(mut self) -> Result<()> {
        self.signal("TERM")?;
        match timeout(PATIENCE, self.process.wait()).await {
            Ok(ended) => Ok(ended.map(|_| ())?),
            Err(_) => Err("the daemon does not end".into()),
        }
    }
}

#[derive(Deserialize)]
struct Values {
    values: Vec<i64>,
}

/// Reads exact values by HTTP. There are none if the daemon does not reply with values.
pub async fn values(address: SocketAddr, family: &str, ids: &[u64]) -> Result<Option<Vec<i64>>> {
    let ids: String = ids.iter().map(|id| format!("&id={id}")).collect();
    let request = format!(
        "GET /api/v1/values?family={family}{ids} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    );
    let ask = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await?;
        Ok::<_, std::io::Error>(reply)
    };
    // a daemon that was killed or paused does not reply
    let Ok(Ok(reply)) = timeout(PATIENCE, ask).await else {
        return Ok(None);
    };
    if !reply.starts_with("HTTP/1.1 200") {
        return Ok(None);
    }
    let body = reply.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    let values: Values =
        serde_json::from_str(body).map_err(|error| format!("{body:?}: {error}"))?;
    Ok(Some(values.values))
}
