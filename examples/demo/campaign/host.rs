//! Where a package makes its calls: in a process of its own, or in the workers of php-fpm.

use std::sync::Arc;

use serde_json::{Value, json};
use testkit::{Fpm, Package, Runner};
use tokio::sync::mpsc;

use super::package::Setup;

pub enum Host {
    Process(Box<Runner>),
    Fpm(Pool),
}

/// php-fpm, and the calls in progress.
pub struct Pool {
    server: Arc<Fpm>,
    last: u64,
    send: mpsc::UnboundedSender<Value>,
    replies: mpsc::UnboundedReceiver<Value>,
}

impl Host {
    pub async fn start(setup: &Setup) -> Result<Self, String> {
        if !setup.client.is_fpm() {
            let package = Package(setup.client.package);
            let runner = Runner::start(package, &setup.installed, &[], &setup.open).await?;
            return Ok(Host::Process(Box::new(runner)));
        }
        let open = |name: &str| setup.open[name].as_str().unwrap_or_default();
        let environment = [
            ("REDIS", open("socket")),
            ("NAMESPACE", open("namespace")),
            (
                "DAEMON",
                setup.open["options"]["daemon"].as_str().unwrap_or_default(),
            ),
        ];
        let server = Arc::new(Fpm::start(&setup.installed, &environment).await?);
        let (send, replies) = mpsc::unbounded_channel();
        let last = 0;
        Ok(Host::Fpm(Pool {
            server,
            last,
            send,
            replies,
        }))
    }

    /// Makes a call, and returns its number.
    pub async fn call(&mut self, line: Value) -> Result<u64, String> {
        let pool = match self {
            Host::Process(runner) => return runner.call(line).await,
            Host::Fpm(pool) => pool,
        };
        pool.last += 1;
        let (number, server, send) = (pool.last, pool.server.clone(), pool.send.clone());
        tokio::spawn(async move {
            let killed = || json!({"error": "outcome_unknown", "reason": "KILLED"});
            let mut reply = server.ask(&line).await.unwrap_or_else(killed);
            reply["id"] = number.into();
            // an error means that the round is over
            let _ = send.send(reply);
        });
        Ok(number)
    }

    /// Waits for the next reply of any call.
    pub async fn next_reply(&mut self) -> Result<Value, String> {
        match self {
            Host::Process(runner) => runner.next_reply().await,
            Host::Fpm(pool) => pool.replies.recv().await.ok_or_else(|| "closed".into()),
        }
    }

    /// Sends a signal to the processes that make the calls.
    pub async fn signal(&self, signal: &str) {
        match self {
            Host::Process(runner) => runner.signal(signal),
            Host::Fpm(pool) => pool.server.signal(signal).await,
        }
    }

    /// Returns whether its process ended by a segmentation fault.
    pub async fn has_crashed(&mut self) -> bool {
        match self {
            Host::Process(runner) => runner.has_crashed().await,
            Host::Fpm(_) => false,
        }
    }

    /// Ends it once no call is in progress.
    pub async fn end(self) -> Result<(), String> {
        match self {
            Host::Process(runner) => runner.end().await,
            Host::Fpm(pool) => {
                if let Some(server) = Arc::into_inner(pool.server) {
                    server.end().await;
                }
                Ok(())
            }
        }
    }
}
