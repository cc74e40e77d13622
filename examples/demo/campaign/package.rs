//! A process of a client package, which counts until the supervisor stops or kills it. The supervisor
//! writes its journal.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::host::Host;
use super::journal::{Hit, Ms, Scribe, now};
use super::site::{ACTIVITY, JOBS, SAVES, SERIES, TENANT, VIEWS, VISITORS, VOTES, draw_id};
use crate::Result;
use crate::zipf::Random;

/// phpredis in the workers of php-fpm.
const FPM: &str = "php-fpm";

/// A package, and the library over which it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Client {
    pub package: &'static str,
    pub library: &'static str,
    /// The number of calls in progress at a time.
    lanes: usize,
    /// `true` if it forks a process for each call. Threads beside that would leave their locks in the
    /// child.
    forks: bool,
}

impl Client {
    const fn new(package: &'static str, library: &'static str, lanes: usize) -> Self {
        let forks = false;
        Client {
            package,
            library,
            lanes,
            forks,
        }
    }

    const fn forking(package: &'static str, library: &'static str) -> Self {
        let (lanes, forks) = (1, true);
        Client {
            package,
            library,
            lanes,
            forks,
        }
    }

    /// All packages, over each of their libraries.
    pub const ALL: [Client; 12] = [
        Client::new("python", "redis-py", 4),
        Client::new("node", "ioredis", 8),
        Client::new("php", "phpredis", 1),
        Client::new("go", "go-redis", 8),
        Client::new("ruby", "redis-client", 4),
        Client::new("python", "asyncio", 8),
        Client::new("node", "node-redis", 8),
        Client::new("php", "predis", 1),
        Client::new("php", FPM, 3),
        Client::new("ruby", "redis", 4),
        Client::forking("python", "redis-py"),
        Client::forking("ruby", "redis-client"),
    ];

    /// Returns all, those of one package together.
    pub fn sorted() -> Vec<Client> {
        let mut all = Self::ALL.to_vec();
        all.sort_by_key(|client| client.package);
        all
    }

    /// Returns whether it counts in a Redis Cluster here.
    pub fn takes_clusters(self) -> bool {
        self.library != "redis-client" && !self.is_fpm()
    }

    pub fn is_fpm(self) -> bool {
        self.library == FPM
    }

    /// Returns whether it ends by a segmentation fault when a slot of a cluster gets another node: phpredis
    /// pull request 2552.
    fn may_crash(self) -> bool {
        self.library == "phpredis"
    }

    pub fn name(self) -> String {
        let forks = if self.forks { ", forks" } else { "" };
        format!("{} ({}{forks})", self.package, self.library)
    }
}

/// An action of a fault on a process.
#[derive(Debug)]
pub enum Order {
    Signal(&'static str),
    /// Kills it and starts another one.
    Kill,
    /// Lets it finish, and starts another one.
    Restart,
    Stop,
}

/// A package that counts.
pub struct Counting {
    pub client: Client,
    pub installed: PathBuf,
    orders: mpsc::UnboundedSender<Order>,
    task: JoinHandle<Result<()>>,
}

/// The parameters of the processes of a package.
#[derive(Clone)]
pub struct Setup {
    pub client: Client,
    pub installed: PathBuf,
    pub open: Value,
    /// Counts a tenant's views only.
    pub is_of_tenant: bool,
    pub directory: PathBuf,
    pub number: usize,
}

impl Counting {
    pub async fn start(setup: Setup) -> Result<Self> {
        let (orders, received) = mpsc::unbounded_channel();
        let (client, installed) = (setup.client, setup.installed.clone());
        let process = Process {
            scribe: Scribe::create(&setup.directory, setup.number)?,
            host: setup.start().await?,
            random: Random(now()),
            drawn: 0,
            open: BTreeMap::new(),
            waiting: VecDeque::new(),
            setup,
        };
        let task = tokio::spawn(process.run(received));
        Ok(Counting {
            client,
            installed,
            orders,
            task,
        })
    }

    /// Sends an order, which a process that has ended does not receive.
    pub fn order(&self, order: Order) {
        let _ = self.orders.send(order);
    }

    /// Returns an error if the process ended by itself.
    pub async fn stop(self) -> Result<()> {
        self.order(Order::Stop);
        self.task.await?
    }
}

impl Setup {
    async fn start(&self) -> Result<Host> {
        Host::start(self).await.map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &str) -> crate::BoxError {
        format!("{}: {error}", self.client.name()).into()
    }
}

/// A call in progress.
struct Open {
    hit: Hit,
    lane: usize,
    begun: Ms,
    /// The generation of a job, once it is known.
    generation: Option<Value>,
    /// Asks for the generation.
    is_question: bool,
}

struct Process {
    setup: Setup,
    scribe: Scribe,
    host: Host,
    random: Random,
    /// The number of hits drawn so far.
    drawn: u64,
    open: BTreeMap<u64, Open>,
    /// The jobs of a process that was killed: hit and generation.
    waiting: VecDeque<(Hit, Option<Value>)>,
}

impl Process {
    async fn run(mut self, mut orders: mpsc::UnboundedReceiver<Order>) -> Result<()> {
        loop {
            self.fill().await?;
            let order = tokio::select! {
                order = orders.recv() => order.unwrap_or(Order::Stop),
                reply = self.host.next_reply() => {
                    self.receive(reply).await?;
                    continue;
                }
            };
            match order {
                Order::Signal(signal) => self.host.signal(signal).await,
                // php-fpm replaces its workers
                Order::Kill if self.setup.client.is_fpm() => self.host.signal("KILL").await,
                Order::Kill => self.replace().await?,
                Order::Restart => {
                    let host = self.setup.start().await?;
                    self.finish().await?;
                    let former = std::mem::replace(&mut self.host, host);
                    former
                        .end()
                        .await
                        .map_err(|error| self.setup.failed(&error))?;
                }
                Order::Stop => {
                    self.finish().await?;
                    return self
                        .host
                        .end()
                        .await
                        .map_err(|error| self.setup.failed(&error));
                }
            }
        }
    }

    /// Starts another process. The former one is killed by its drop.
    async fn replace(&mut self) -> Result<()> {
        self.host = self.setup.start().await?;
        self.leave();
        Ok(())
    }

    async fn receive(&mut self, reply: std::result::Result<Value, String>) -> Result<()> {
        match reply {
            Ok(reply) => self.settle(&reply).await,
            Err(_) if self.setup.client.may_crash() && self.host.has_crashed().await => {
                eprintln!("{} crashed by itself", self.setup.client.name());
                self.replace().await
            }
            Err(error) => Err(self.setup.failed(&error)),
        }
    }

    /// Makes calls until each lane has one in progress.
    async fn fill(&mut self) -> Result<()> {
        for lane in 0..self.setup.client.lanes {
            if self.open.values().any(|open| open.lane == lane) {
                continue;
            }
            if let Some((hit, generation)) = self.waiting.pop_front() {
                self.call(hit, lane, generation).await?;
                continue;
            }
            let hit = self.draw();
            self.scribe.begin(std::slice::from_ref(&hit))?;
            self.call(hit, lane, None).await?;
        }
        Ok(())
    }

    fn draw(&mut self) -> Hit {
        let family = if self.setup.is_of_tenant {
            TENANT
        } else {
            // packages have no rows of their own
            self.random.below(SAVES as u64) as usize
        };
        let (id, name) = (
            draw_id(family, &mut self.random),
            format!("{}-{}", self.setup.number, self.drawn),
        );
        self.drawn += 1;
        Hit { family, id, name }
    }

    /// Sends a call. A job asks for its generation first.
    async fn call(&mut self, hit: Hit, lane: usize, generation: Option<Value>) -> Result<()> {
        let (id, name) = (hit.id.to_string(), &hit.name);
        let is_question = hit.family == JOBS && generation.is_none();
        let day = counterfoil::Day::today().to_string();
        let (kind, family, call, args) = match hit.family {
            VIEWS | TENANT => ("buffered", "views", "add", json!([id, 1])),
            VOTES => ("cached", "votes", "incr", json!([id, 1])),
            SERIES => ("series", "hits", "add", json!([id, 1])),
            ACTIVITY => ("activity", "active", "touch", json!([id, name])),
            VISITORS => (
                "visitors",
                "visitors",
                "first_visit",
                json!([id, day, name]),
            ),
            _ if is_question => ("buffered", "jobs", "request_epoch", json!([name, id])),
            _ => (
                "buffered",
                "jobs",
                "add_once",
                json!([name, id, 1, generation]),
            ),
        };
        let thread = match lane {
            _ if self.setup.client.forks => "fork:1".to_owned(),
            0 => "main".to_owned(),
            lane => format!("lane-{lane}"),
        };
        let line =
            json!({"kind": kind, "family": family, "call": call, "args": args, "as": thread});
        let begun = now();
        let number = match self.host.call(line).await {
            Ok(number) => number,
            Err(_) if self.setup.client.may_crash() && self.host.has_crashed().await => {
                // its replies end, which replaces it
                self.waiting.push_back((hit, generation));
                return Ok(());
            }
            Err(error) => return Err(self.setup.failed(&error)),
        };
        self.open.insert(
            number,
            Open {
                hit,
                lane,
                begun,
                generation,
                is_question,
            },
        );
        Ok(())
    }

    /// Notes what came of a call, and goes on with a job.
    async fn settle(&mut self, reply: &Value) -> Result<()> {
        let number = reply["id"].as_u64().unwrap_or(0);
        let Some(open) = self.open.remove(&number) else {
            return Err(self.setup.failed(&format!("a reply to no call: {reply}")));
        };
        let Open {
            hit,
            lane,
            begun,
            generation,
            is_question,
        } = open;
        let error = reply["error"].as_str();
        if is_question && error.is_none() {
            let epoch = reply["returns"].clone();
            let text = epoch.as_str().map(str::to_owned);
            let text = text.unwrap_or_else(|| epoch.to_string());
            self.scribe.remember(&hit, &text)?;
            return self.call(hit, lane, Some(epoch)).await;
        }
        let is_repeated = hit.family == JOBS;
        let is_counted = match error {
            None if reply["skipped"].is_string() => {
                return Err(self.setup.failed(&reply.to_string()));
            }
            // a job or visitor that was counted before was counted by an earlier attempt
            None => Some(true),
            Some("not_counted" | "misconfigured") if is_question => Some(false),
            Some("not_counted" | "misconfigured") if !is_repeated => Some(false),
            // Redis has forgotten it
            Some("outcome_unknown") if reply["reason"] == "EXPIRED" && is_repeated => return Ok(()),
            // an earlier call may have counted it
            Some("not_counted" | "misconfigured" | "outcome_unknown") => None,
            Some(_) => return Err(self.setup.failed(&reply.to_string())),
        };
        if let Some(is_counted) = is_counted {
            self.scribe
                .end(std::iter::once((&hit, is_counted)), begun, 1)?;
        } else if is_repeated {
            // Redis is unavailable, or a reply was lost
            tokio::time::sleep(Duration::from_millis(5)).await;
            return self.call(hit, lane, generation).await;
        }
        Ok(())
    }

    /// Leaves the calls of a process that was killed: only jobs are made again.
    fn leave(&mut self) {
        for (_, open) in std::mem::take(&mut self.open) {
            if open.hit.family == JOBS {
                self.waiting.push_back((open.hit, open.generation));
            }
        }
    }

    /// Waits for the replies of all calls in progress.
    async fn finish(&mut self) -> Result<()> {
        while !self.open.is_empty() {
            let reply = self.host.next_reply().await;
            self.receive(reply).await?;
        }
        Ok(())
    }
}
