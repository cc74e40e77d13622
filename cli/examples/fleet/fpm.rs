//! php-fpm with the PHP package: each request is a process's work for a moment, and workers are killed.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use testkit::Package;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::calls::Call;
use crate::journal::Journal;
use crate::site::Site;
use crate::{BoxError, Result};

const SHOP: u32 = 1;
/// The number of times that a request is sent if it fails.
const ATTEMPTS: usize = 20;

/// A php-fpm, and the visitors that send it requests.
pub struct Fpm {
    server: Arc<testkit::Fpm>,
    stop: watch::Sender<bool>,
    visitors: JoinHandle<Result<Journal>>,
}

impl Fpm {
    /// Starts php-fpm, or returns nothing where it is not installed.
    pub async fn start(site: &Site) -> Result<Option<Self>> {
        let Ok(installed) = Package("php").install() else {
            return Ok(None);
        };
        let (redis, shop) = (
            site.redis_socket().display().to_string(),
            format!("shop-{SHOP}"),
        );
        let environment = [("REDIS", &*redis), ("NAMESPACE", &shop)];
        let server = match testkit::Fpm::start(&installed, &environment).await {
            Ok(server) => Arc::new(server),
            Err(reason) => {
                println!("php-fpm does not take part: {reason}");
                return Ok(None);
            }
        };
        let (stop, stopping) = watch::channel(false);
        let visitors = tokio::spawn(visit(server.clone(), stopping));
        Ok(Some(Fpm {
            server,
            stop,
            visitors,
        }))
    }

    /// Returns the process whose children are the workers.
    pub fn master(&self) -> Option<u32> {
        self.server.master()
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
        if let Some(server) = Arc::into_inner(self.server) {
            server.end().await;
        }
        Ok(journal)
    }
}

/// Sends requests one after the other. Each is a job: one that failed is sent again.
async fn visit(server: Arc<testkit::Fpm>, stopping: watch::Receiver<bool>) -> Result<Journal> {
    let mut journal = Journal::default();
    while !*stopping.borrow() {
        let mut order = Call::order(SHOP);
        let epoch = ask(&server, &order.epoch()).await?;
        order.since(epoch["returns"].clone());
        let reply = ask(&server, &order.line()).await?;
        order.settle(SHOP, &reply, &mut journal);
    }
    Ok(journal)
}

/// Returns the reply of a request, which is sent again if its worker was killed.
async fn ask(server: &testkit::Fpm, call: &Value) -> Result<Value> {
    let mut last = None;
    for _ in 0..ATTEMPTS {
        match server.ask(call).await {
            Some(reply) if reply["error"] != "escaped" && reply["error"] != "not_counted" => {
                return Ok(reply);
            }
            failed => last = failed,
        }
        sleep(Duration::from_millis(50)).await;
    }
    Err(format!("php-fpm does not reply: {last:?}").into())
}
