//! The faults of the demo: servers, clients and daemons are killed, connections cut, scripts
//! flushed.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use counterfoil::redis::Value;
use tokio::time::sleep;

use crate::Result;
use crate::daemons::Daemons;
use crate::site::Site;
use crate::workers::Kills;

/// The first pause between faults. Pauses grow up to `LAST`: a short run sees every fault, a long
/// one leaves time to view the page.
const FIRST: Duration = Duration::from_millis(300);
const LAST: Duration = Duration::from_secs(10);
/// The pause before a killed server is started again.
const AWAY: Duration = Duration::from_millis(300);

/// The faults, in the order in which they are injected.
const FAULTS: [Fault; 9] = [
    Fault::Client,
    Fault::Connections,
    Fault::Daemon,
    Fault::Redis,
    Fault::Php,
    Fault::SecondDaemon,
    Fault::Mysql,
    Fault::Scripts,
    Fault::EndOfSecondDaemon,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Client,
    Connections,
    Daemon,
    Redis,
    Php,
    SecondDaemon,
    Mysql,
    Scripts,
    EndOfSecondDaemon,
}

impl Fault {
    fn name(self) -> &'static str {
        match self {
            Fault::Client => "a client was killed among its calls, and its successor repeated them",
            Fault::Connections => "all connections to Redis were cut",
            Fault::Daemon => "the daemon was killed and started again",
            Fault::Redis => "Redis was killed and started again",
            Fault::Php => "the workers of php-fpm were killed",
            Fault::SecondDaemon => "a second daemon was started",
            Fault::Mysql => "MySQL was killed and started again",
            Fault::Scripts => "scripts were flushed",
            Fault::EndOfSecondDaemon => "the second daemon was killed",
        }
    }
}

pub struct Trouble {
    site: Arc<Site>,
    pub daemons: Daemons,
    clients: Kills,
    /// The process whose children are the workers of php-fpm.
    php: Option<u32>,
    done: BTreeMap<Fault, u64>,
}

impl Trouble {
    pub fn new(site: Arc<Site>, daemons: Daemons, clients: Kills, php: Option<u32>) -> Self {
        let done = BTreeMap::new();
        Trouble {
            site,
            daemons,
            clients,
            php,
            done,
        }
    }

    /// Injects faults of each kind in turn until it is over, each to its end.
    pub async fn go_on(&mut self, over: impl Future<Output = ()>) -> Result<()> {
        let (started, mut pause, mut over) = (Instant::now(), FIRST, pin!(over));
        for fault in FAULTS.iter().cycle() {
            tokio::select! {
                () = sleep(pause) => {}
                () = &mut over => break,
            }
            pause = (pause * 9 / 8).min(LAST);
            self.strike(*fault).await?;
            *self.done.entry(*fault).or_default() += 1;
            println!(
                "{:6.1} s  {}",
                started.elapsed().as_secs_f64(),
                fault.name()
            );
        }
        Ok(())
    }

    /// Prints how often each fault was injected.
    pub fn print(&self) {
        for (fault, times) in &self.done {
            println!("{times:>4} x  {}", fault.name());
        }
    }

    async fn strike(&mut self, fault: Fault) -> Result<()> {
        let site = self.site.clone();
        let redis = async |command| site.redis_server.run::<Value>(command).await;
        match fault {
            Fault::Client => self.clients.next(),
            Fault::Connections => drop(redis("CLIENT KILL TYPE normal").await?),
            Fault::Daemon => self.daemons.replace_first().await?,
            Fault::Redis => {
                site.redis_server.kill();
                sleep(AWAY).await;
                site.redis_server.start_again().await;
            }
            Fault::Php => {
                if let Some(master) = self.php {
                    testkit::signal_workers(master, "KILL").await;
                }
            }
            Fault::SecondDaemon => self.daemons.start_second()?,
            Fault::Mysql => {
                site.mysql_server.kill();
                sleep(AWAY).await;
                site.mysql_server.start_again().await;
            }
            Fault::Scripts => drop(redis("SCRIPT FLUSH").await?),
            Fault::EndOfSecondDaemon => self.daemons.kill_second().await?,
        }
        Ok(())
    }
}
