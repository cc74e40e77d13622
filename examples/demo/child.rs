//! This program again in another role: a process that takes orders and gives reports, a line each.

use std::process::{ExitStatus, Stdio};

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;

use crate::Result;
use crate::work::Tally;

/// What a process tells its supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub enum Report {
    /// It takes orders from now on.
    Ready,
    /// A writer, in the middle of a round: so much more was counted.
    Counted(Tally),
    /// A writer finished its round, in so many seconds.
    Finished { seconds: f64 },
    /// A reconciler: the ages of the batches that reached MySQL, in seconds.
    Lags(Vec<f64>),
}

/// Tells the supervisor.
pub fn report(report: &Report) -> Result<()> {
    println!("{}", serde_json::to_string(report)?);
    Ok(())
}

/// The supervisor's orders. When there can be no more of them, because it is done or dead, this process ends.
pub fn orders() -> mpsc::UnboundedReceiver<String> {
    let (sender, orders) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for order in std::io::stdin().lines().map_while(std::io::Result::ok) {
            // an error means that nobody takes orders
            let _ = sender.send(order);
        }
        std::process::exit(0);
    });
    orders
}

/// A running process, which is killed where it is dropped.
pub struct Worker {
    process: Child,
    orders: ChildStdin,
}

/// What it reports.
pub struct Reports(Lines<BufReader<ChildStdout>>);

impl Worker {
    /// Starts this program with these arguments, and returns when it is ready.
    pub async fn start(args: &[String]) -> Result<(Self, Reports)> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0) // Ctrl-C is for the supervisor alone
            .kill_on_drop(true)
            .spawn()?;
        let (Some(orders), Some(reports)) = (process.stdin.take(), process.stdout.take()) else {
            return Err("a process was started without its pipes".into());
        };
        let mut reports = Reports(BufReader::new(reports).lines());
        match reports.next().await? {
            Some(Report::Ready) => Ok((Worker { process, orders }, reports)),
            _ => Err("a process did not start".into()),
        }
    }

    pub async fn order(&mut self, order: &str) -> Result<()> {
        let written = self.orders.write_all(format!("{order}\n").as_bytes()).await;
        written.map_err(|error| format!("a process takes no orders: {error}").into())
    }

    /// SIGKILL.
    pub async fn kill(mut self) -> Result<()> {
        if let Some(status) = self.process.try_wait()? {
            return Err(format!("a process ended by itself: {status}").into());
        }
        Ok(self.process.kill().await?)
    }

    /// SIGTERM, and waits for the end.
    pub async fn terminate(mut self) -> Result<ExitStatus> {
        let id = self.process.id().ok_or("a process ended by itself")?;
        // The shell's own kill: the standard library knows no signal but SIGKILL.
        Command::new("/bin/sh").args(["-c", "kill -s TERM $0", &id.to_string()]).status().await?;
        Ok(self.process.wait().await?)
    }
}

impl Reports {
    /// The next one; `None` when the process is gone.
    pub async fn next(&mut self) -> Result<Option<Report>> {
        match self.0.next_line().await? {
            Some(line) => Ok(Some(serde_json::from_str(&line)?)),
            None => Ok(None),
        }
    }
}
