//! A process in which a client package makes calls.

use std::collections::HashMap;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::package::Package;

/// The time limit of a reply.
const PATIENCE: Duration = Duration::from_secs(40);

/// A process in which a [`Package`] makes calls, as `clients/README.md` describes. It is killed when
/// this handle is dropped, with the processes that it forked.
pub struct Runner {
    process: Child,
    _group: Group,
    calls: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
    replies: HashMap<u64, Value>,
    last: u64,
}

impl Runner {
    /// Starts a client with more variables in its environment, and opens it with these parameters.
    ///
    /// # Errors
    ///
    /// All methods fail if the client ended, did not reply in time, or sent a reply of another
    /// form.
    pub async fn start(
        package: Package,
        installed: &Path,
        environment: &[(String, String)],
        open: &Value,
    ) -> Result<Self, String> {
        let mut command = Command::from(package.dev("runner", installed));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.envs(environment.iter().cloned()).process_group(0);
        let mut process = command.spawn().map_err(|error| error.to_string())?;
        let group = Group(process.id().and_then(|id| Pid::from_raw(id.cast_signed())));
        let (calls, replies) = (process.stdin.take(), process.stdout.take());
        let mut runner = Runner {
            process,
            _group: group,
            calls: calls.expect("piped"),
            lines: BufReader::new(replies.expect("piped")).lines(),
            replies: HashMap::new(),
            last: 0,
        };
        runner.write(&json!({"open": open})).await?;
        let ready = runner.read().await?;
        match ready["ready"].as_bool() {
            Some(true) => Ok(runner),
            _ => Err(format!("the client did not open: {ready}")),
        }
    }

    /// Makes a call, and returns its number.
    pub async fn call(&mut self, mut call: Value) -> Result<u64, String> {
        self.last += 1;
        call["id"] = self.last.into();
        self.write(&call).await?;
        Ok(self.last)
    }

    /// Waits for the reply of a call.
    pub async fn reply(&mut self, number: u64) -> Result<Value, String> {
        loop {
            if let Some(reply) = self.replies.remove(&number) {
                return Ok(reply);
            }
            let reply = self.read().await?;
            let Some(of) = reply["id"].as_u64() else {
                return Err(format!("a reply without id: {reply}"));
            };
            self.replies.insert(of, reply);
        }
    }

    /// Waits for the next reply of any call.
    pub async fn next_reply(&mut self) -> Result<Value, String> {
        self.read().await
    }

    /// Returns whether the client was ended by a segmentation fault.
    pub async fn has_crashed(&mut self) -> bool {
        let ended = timeout(PATIENCE, self.process.wait()).await;
        let status = ended.ok().and_then(Result::ok);
        status.is_some_and(|status| status.signal() == Some(Signal::SEGV.as_raw()))
    }

    /// Ends the client like a program that has nothing left to do.
    pub async fn end(mut self) -> Result<(), String> {
        drop(self.calls);
        let status = timeout(PATIENCE, self.process.wait())
            .await
            .map_err(|_| "the client does not end")?
            .map_err(|error| error.to_string())?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("the client ended with {status}"))
        }
    }

    /// Sends a signal, such as STOP, CONT or KILL.
    ///
    /// # Panics
    ///
    /// If the client has ended.
    pub fn signal(&self, signal: &str) {
        crate::process::signal(&self.process, signal);
    }

    async fn write(&mut self, line: &Value) -> Result<(), String> {
        self.calls
            .write_all(format!("{line}\n").as_bytes())
            .await
            .map_err(|error| format!("the client has ended: {error}"))
    }

    async fn read(&mut self) -> Result<Value, String> {
        let line = timeout(PATIENCE, self.lines.next_line())
            .await
            // calls are numbered from 1, so that 0 means the opening
            .map_err(|_| format!("no reply of the client, last call {}", self.last))?
            .map_err(|error| error.to_string())?
            .ok_or("the client has ended")?;
        serde_json::from_str(&line).map_err(|error| format!("{line}: {error}"))
    }
}

/// The process group of a client.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // an error means that all have ended
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}
