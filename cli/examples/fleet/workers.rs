//! A process of each client package in each shop, which counts and is killed at times.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use testkit::{Package, Runner};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::calls::{Call, SHOPS};
use crate::journal::Journal;
use crate::site::Site;
use crate::{BoxError, Result};

/// The packages, and the library of each that counts.
const PACKAGES: [(&str, &str, usize); 6] = [
    ("python", "redis-py", 4),
    ("python", "asyncio", 4),
    ("node", "ioredis", 4),
    ("php", "phpredis", 1),
    ("ruby", "redis-client", 4),
    ("go", "go-redis", 4),
];

/// The clients of the fleet, on their tasks.
pub struct Workers {
    stop: watch::Sender<bool>,
    kills: Kills,
    tasks: JoinSet<Result<Journal>>,
}

impl Workers {
    /// Installs the packages and starts their processes.
    pub async fn start(site: &Site) -> Result<Self> {
        let (stop, stopping) = watch::channel(false);
        let (mut kills, mut tasks) = (vec![], JoinSet::new());
        for (number, (package, library, lanes)) in PACKAGES.into_iter().enumerate() {
            let installed = match Package(package).install() {
                Ok(installed) => installed,
                Err(reason) => {
                    println!("{package} does not take part: {reason}");
                    continue;
                }
            };
            let (kill, killed) = mpsc::channel(1);
            let client = Client {
                package: Package(package),
                library,
                lanes,
                installed,
                shop: number as u32 % SHOPS + 1,
                open: site.open(library),
            };
            kills.push(kill);
            tasks.spawn(client.work(stopping.clone(), killed));
        }
        let kills = Kills(kills);
        Ok(Workers { stop, kills, tasks })
    }

    /// Returns what kills the clients.
    pub fn kills(&self) -> Kills {
        self.kills.clone()
    }

    /// Returns only if a client fails.
    pub async fn failed(&mut self) -> BoxError {
        match self.tasks.join_next().await {
            Some(Ok(Err(error))) => error,
            _ => "a client stopped by itself".into(),
        }
    }

    /// Lets the clients finish their calls, and returns the confirmed counts.
    pub async fn stop(self) -> Result<Journal> {
        self.stop.send_replace(true);
        let mut all = Journal::default();
        for journal in self.tasks.join_all().await {
            all.merge(journal?);
        }
        Ok(all)
    }
}

/// Kills the clients in turn.
#[derive(Clone)]
pub struct Kills(Vec<mpsc::Sender<()>>);

impl Kills {
    /// Kills the next client in the middle of its calls. It is started again, and repeats them.
    pub fn next(&mut self) {
        self.0.rotate_left(1);
        if let Some(kill) = self.0.first() {
            // a client that is being killed is not killed twice
            let _ = kill.try_send(());
        }
    }
}

/// A client, and the parameters of its processes.
struct Client {
    package: Package,
    library: &'static str,
    /// How many calls are under way at a time.
    lanes: usize,
    installed: PathBuf,
    shop: u32,
    open: Value,
}

impl Client {
    async fn work(
        self,
        stopping: watch::Receiver<bool>,
        mut kills: mpsc::Receiver<()>,
    ) -> Result<Journal> {
        let mut journal = Journal::default();
        let mut runner = self.start().await?;
        while !*stopping.borrow() {
            if kills.try_recv().is_ok() {
                runner = self.killed(runner, &mut journal).await?;
            }
            let calls: Vec<_> = (0..self.lanes).map(|_| Call::any(self.shop)).collect();
            for (call, reply) in calls.iter().zip(self.make(&mut runner, &calls).await?) {
                call.settle(self.shop, &reply, &mut journal);
            }
        }
        runner.end().await?;
        Ok(journal)
    }

    async fn start(&self) -> Result<Runner> {
        let mut open = self.open.clone();
        open["namespace"] = json!(format!("shop-{}", self.shop));
        let started = Runner::start(self.package, Path::new(&self.installed), &[], &open).await;
        started.map_err(|error| self.error(&error))
    }

    /// Sends jobs, kills the client while they are under way, and sends them again with the next one.
    async fn killed(&self, mut runner: Runner, journal: &mut Journal) -> Result<Runner> {
        let mut jobs: Vec<_> = (0..self.lanes).map(|_| Call::order(self.shop)).collect();
        for job in &mut jobs {
            let number = self.send(&mut runner, job.epoch(), 0).await?;
            let epoch = runner
                .reply(number)
                .await
                .map_err(|error| self.error(&error))?;
            if epoch["returns"].is_string() {
                job.since(epoch["returns"].clone());
            }
        }
        for (lane, job) in jobs.iter().enumerate() {
            self.send(&mut runner, job.line(), lane).await?;
        }
        runner.signal("KILL");
        let mut runner = self.start().await?;
        for (job, reply) in jobs.iter().zip(self.make(&mut runner, &jobs).await?) {
            job.settle(self.shop, &reply, journal);
        }
        Ok(runner)
    }

    /// Makes calls at a time, and returns their replies.
    async fn make(&self, runner: &mut Runner, calls: &[Call]) -> Result<Vec<Value>> {
        let mut numbers = vec![];
        for (lane, call) in calls.iter().enumerate() {
            numbers.push(self.send(runner, call.line(), lane).await?);
        }
        let mut replies = vec![];
        for number in numbers {
            let reply = runner
                .reply(number)
                .await
                .map_err(|error| self.error(&error))?;
            if reply["error"] == "escaped" || reply["skipped"].is_string() {
                return Err(self.error(&reply.to_string()));
            }
            replies.push(reply);
        }
        Ok(replies)
    }

    async fn send(&self, runner: &mut Runner, mut line: Value, lane: usize) -> Result<u64> {
        line["as"] = if lane == 0 {
            json!("main")
        } else {
            json!(format!("lane-{lane}"))
        };
        runner.call(line).await.map_err(|error| self.error(&error))
    }

    fn error(&self, error: &str) -> BoxError {
        format!("{} ({}): {error}", self.package.0, self.library).into()
    }
}
