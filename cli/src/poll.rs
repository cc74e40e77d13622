//! Reads the state of a pair, its servers and its families, without writing anything.

use std::fmt::Display;
use std::time::{Duration, Instant};

use counterfoil::admin::Overview;
use counterfoil::redis::cmd;
use counterfoil::store::Registered;
use counterfoil::{Counterfoil, Error, ErrorKind, MysqlStore};
use futures_util::future::join;
use serde::Serialize;
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};

use crate::config::{FamilyConfig, PairConfig};
use crate::families;
use crate::pair;
use crate::status::{self, FamilyStatus};

/// The time limit of a server's reply.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The time limit of `check`, which waits for locks of tables.
pub const CHECK_TIMEOUT: Duration = Duration::from_secs(10);
pub const CHECK_ADVICE: &str = "Is a table locked? SHOW PROCESSLIST in MySQL shows who waits";

/// Reads a pair's state, once or periodically.
pub struct Poller {
    config: PairConfig,
    configured: Vec<FamilyConfig>,
    store: MysqlStore,
    /// `None` until the first connection to Redis.
    connected: Option<Counterfoil>,
    stored: Option<Stored>,
}

/// The last data from MySQL.
struct Stored {
    at: Instant,
    families: Vec<Registered>,
    /// Families that this version does not understand.
    unknown: Vec<String>,
    overview: Vec<Overview>,
}

/// The state of a pair.
#[derive(Clone, Debug, Serialize)]
pub struct PairStatus {
    pub pair: String,
    pub redis: ServerStatus,
    pub mysql: ServerStatus,
    pub families: Vec<FamilyStatus>,
    /// Configured families that are not in MySQL yet.
    pub never_opened: Vec<String>,
    /// Reasons why families are missing here.
    pub missing: Vec<String>,
    /// The age in seconds of the figures from MySQL, `None` if they were never read.
    pub mysql_age_seconds: Option<u64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct ServerStatus {
    pub up: bool,
    /// The reason, if it is unavailable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl<T> From<&Result<T, String>> for ServerStatus {
    fn from(reply: &Result<T, String>) -> Self {
        ServerStatus {
            up: reply.is_ok(),
            why: reply.as_ref().err().cloned(),
        }
    }
}

impl Poller {
    /// Creates the poller of a pair, with its own of the configured `families`.
    pub fn new(config: &PairConfig, families: &[FamilyConfig]) -> counterfoil::Result<Self> {
        Ok(Poller {
            config: config.clone(),
            configured: families::of_pair(families, &config.name).cloned().collect(),
            store: pair::store(config),
            connected: None,
            stored: None,
        })
    }

    pub fn pair(&self) -> &str {
        &self.config.name
    }

    /// Returns the current state. Data from MySQL is read again once it is older than `mysql_age`.
    pub async fn poll(&mut self, late: Duration, mysql_age: Duration) -> PairStatus {
        let stored = self.stored.as_ref();
        let is_fresh = stored.is_some_and(|stored| stored.at.elapsed() < mysql_age);
        let read = async {
            if is_fresh {
                return Ok(None);
            }
            in_time(Stored::read(&self.store)).await.map(Some)
        };
        let connect = async {
            match &self.connected {
                Some(connected) => Ok(connected.clone()),
                None => in_time(pair::connect(&self.config)).await,
            }
        };
        let (read, connected) = join(read, connect).await;
        let mysql = ServerStatus::from(&read);
        if let Ok(Some(stored)) = read {
            self.stored = Some(stored);
        }
        let families = match connected {
            Ok(connected) => {
                let connected = self.connected.insert(connected).clone();
                in_time(self.read_families(&connected, late)).await
            }
            Err(why) => Err(why),
        };
        let redis = ServerStatus::from(&families);
        let (families, incomplete) = families.unwrap_or_default();
        let unknown = self.stored.iter().flat_map(|stored| &stored.unknown);
        let mysql_age = self.stored.as_ref().map(|stored| stored.at.elapsed());
        PairStatus {
            pair: self.config.name.clone(),
            redis,
            mysql,
            families,
            never_opened: self.never_opened(),
            missing: unknown.cloned().chain(incomplete).collect(),
            mysql_age_seconds: mysql_age.map(|age| age.as_secs()),
        }
    }

    /// Returns the state of the families that MySQL knows. If MySQL never replied, returns that of the
    /// families that Redis knows, and why some may be missing.
    async fn read_families(
        &self,
        counterfoil: &Counterfoil,
        late: Duration,
    ) -> counterfoil::Result<(Vec<FamilyStatus>, Option<String>)> {
        let ping = cmd("PING")
            .query_async::<()>(&mut counterfoil.redis().clone())
            .await;
        // without families, only this detects an unavailable Redis
        ping.map_err(|error| {
            Error::new(ErrorKind::Redis, "Redis did not reply").with_source(error)
        })?;
        let (families, incomplete, overview) = match &self.stored {
            Some(stored) => {
                let families = stored.families.iter();
                let families = families.map(|registered| registered.family.clone());
                (families.collect(), None, &stored.overview[..])
            }
            None => {
                let found = families::in_redis(counterfoil.redis(), &self.configured);
                let (families, incomplete) = found.await;
                (families, incomplete, &[][..])
            }
        };
        let backlogs = counterfoil.backlogs_of(families).await?;
        let families = status::of_families(backlogs, overview, late);
        Ok((families, incomplete))
    }

    fn never_opened(&self) -> Vec<String> {
        let Some(Stored { families, .. }) = &self.stored else {
            return Vec::new();
        };
        let is_new = |configured: &&FamilyConfig| {
            let mut families = families.iter().map(|registered| &registered.family);
            !families.any(|family| configured.describes(family.namespace(), family.name()))
        };
        let new = self.configured.iter().filter(is_new);
        new.map(FamilyConfig::name).collect()
    }
}

impl Stored {
    async fn read(store: &MysqlStore) -> counterfoil::Result<Self> {
        let at = Instant::now();
        let (families, unknown) = families::registered(store).await?;
        Ok(Stored {
            at,
            families,
            unknown,
            overview: store.overview().await?,
        })
    }
}

/// Returns the ticks of a repeated task; a late one delays those after it.
pub fn ticks(time: Duration) -> Interval {
    let mut ticks = interval(time);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

/// Returns the reply of a server, or an error if it takes 5 s.
pub async fn in_time<T, E: Display>(
    reply: impl Future<Output = Result<T, E>>,
) -> Result<T, String> {
    with_timeout(TIMEOUT, reply).await
}

pub async fn with_timeout<T, E: Display>(
    limit: Duration,
    reply: impl Future<Output = Result<T, E>>,
) -> Result<T, String> {
    match timeout(limit, reply).await {
        Ok(reply) => reply.map_err(|error| format!("{error:#}")),
        Err(_) => Err(no_reply(limit)),
    }
}

/// Returns the reason for a reply that did not arrive in time.
pub fn no_reply(limit: Duration) -> String {
    format!("no reply within {} s", limit.as_secs())
}
