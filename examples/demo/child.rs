//! Worker processes: this program in another role, which takes orders and sends reports, one per
//! line.

use std::cell::Cell;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Instant;

use futures_util::future::try_join_all;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc;
use tokio::try_join;

use crate::Result;
use crate::campaign::{WITHOUT, removed};
use crate::work::Tally;

/// A message from a process to its supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub enum Report {
    /// The process is ready to take orders.
    Ready,
    /// A writer counted this much more in the current round.
    Counted(Tally),
    /// A writer finished its round in this many seconds.
    Finished { seconds: f64 },
    /// The ages of the batches that a reconciler brought to MySQL, in seconds.
    Lags(Vec<f64>),
}

/// Sends a report to the supervisor.
pub fn report(report: &Report) -> Result<()> {
    println!("{}", serde_json::to_string(report)?);
    Ok(())
}

/// Returns the supervisor's orders. This process exits when the supervisor has finished or died.
pub fn orders() -> mpsc::UnboundedReceiver<String> {
    let (sender, orders) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for order in std::io::stdin().lines().map_while(std::io::Result::ok) {
            // an error means that the receiver was dropped
            let _ = sender.send(order);
        }
        std::process::exit(0);
    });
    orders
}

/// Repeats `work`, so many times concurrently, until the supervisor sends an order.
pub async fn repeat_until_ordered(
    mut orders: mpsc::UnboundedReceiver<String>,
    concurrent: usize,
    work: impl AsyncFn() -> Result<()>,
) -> Result<()> {
    report(&Report::Ready)?;
    let started = Instant::now();
    let is_over = Cell::new(false);
    let one_after_the_other = async || {
        while !is_over.get() {
            work().await?;
        }
        Ok::<_, crate::BoxError>(())
    };
    let stop = async {
        orders.recv().await;
        is_over.set(true);
        Ok(())
    };
    try_join!(
        try_join_all((0..concurrent).map(|_| one_after_the_other())),
        stop
    )?;
    report(&Report::Finished {
        seconds: started.elapsed().as_secs_f64(),
    })
}

/// A running process that is killed when this is dropped.
pub struct Worker {
    process: Child,
    orders: ChildStdin,
}

/// The reports of a process.
pub struct Reports(Lines<BufReader<ChildStdout>>);

impl Worker {
    /// Starts this program with these arguments, and returns when it is ready.
    pub async fn start(args: &[String]) -> Result<(Self, Reports)> {
        Worker::start_with(args, None).await
    }

    /// Starts it with an environment variable.
    pub async fn start_with(
        args: &[String],
        variable: Option<(&str, &Path)>,
    ) -> Result<(Self, Reports)> {
        let mut command = Command::new(std::env::current_exe()?);
        command.envs(variable);
        command.envs(removed().map(|guard| (WITHOUT, guard)));
        let mut process = command
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

    /// Kills the process with SIGKILL.
    pub async fn kill(mut self) -> Result<()> {
        if let Some(status) = self.process.try_wait()? {
            return Err(format!("a process ended by itself: {status}").into());
        }
        Ok(self.process.kill().await?)
    }

    /// Sends a signal, such as STOP or CONT.
    pub fn signal(&self, signal: &str) {
        testkit::signal(&self.process, signal);
    }

    /// Sends SIGTERM and waits for the process to exit.
    pub async fn terminate(mut self) -> Result<ExitStatus> {
        self.signal("TERM");
        Ok(self.process.wait().await?)
    }
}

impl Reports {
    /// Returns the next report, or `None` when the process has exited.
    pub async fn next(&mut self) -> Result<Option<Report>> {
        match self.0.next_line().await? {
            Some(line) => Ok(Some(serde_json::from_str(&line)?)),
            None => Ok(None),
        }
    }
}
