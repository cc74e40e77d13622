//! Reads the state of a pair, its servers and its families, without writing anything.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use counterfoil::admin::{Finding, Overview};
use counterfoil::redis::cmd;
use counterfoil::{Counterfoil, Error, ErrorKind, Family, MysqlStore};
use futures_util::future::join;
use serde::Serialize;
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};

use crate::config::{FamilyConfig, PairConfig};
use crate::families;
use crate::pair;
use crate::status::{self, FamilyView};

/// The time limit of a server's reply.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The time limit of `check`, which waits for locks of tables.
pub const CHECK_TIMEOUT: Duration = Duration::from_secs(10);
pub const CHECK_ADVICE: &str = "Is a table locked? SHOW PROCESSLIST in MySQL shows who waits";

/// The state of a pair.
#[derive(Clone, Serialize)]
pub struct PairStatus {
    pub pair: String,
    pub redis: ServerStatus,
    pub mysql: ServerStatus,
    pub families: Vec<FamilyView>,
    /// Configured families that are not in MySQL yet.
    pub never_opened: Vec<String>,
    /// Reasons why families are missing here.
    pub missing: Vec<String>,
    /// The errors that `check` finds.
    pub errors: Vec<Finding>,
    /// The errors that the daemon reports beyond these, `None` if it did not tell its
    /// state, or does not have the pair.
    pub daemon: Option<Vec<Finding>>,
}

#[derive(Clone, Serialize)]
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

/// Data from MySQL.
struct Stored {
    families: Vec<Family>,
    /// Why this version does not understand other families.
    unknown: BTreeMap<String, String>,
    overview: Vec<Overview>,
}

/// Returns the state of a pair. If MySQL does not reply, the families are those that Redis knows.
pub async fn poll(config: &PairConfig, late: Duration) -> PairStatus {
    let (stored, connected) = join(
        in_time(async { read_mysql(pair::store(config)?).await }),
        in_time(pair::connect(config)),
    )
    .await;
    let mysql = ServerStatus::from(&stored);
    let stored = stored.ok();
    let families = match connected {
        Ok(connected) => in_time(read_families(&connected, config, stored.as_ref(), late)).await,
        Err(why) => Err(why),
    };
    let redis = ServerStatus::from(&families);
    let (families, incomplete) = families.unwrap_or_default();
    let (mut never_opened, mut missing) = (Vec::new(), Vec::new());
    if let Some(Stored {
        families, unknown, ..
    }) = stored
    {
        let is_new = |configured: &&FamilyConfig| {
            !families
                .iter()
                .any(|family| configured.describes(family.namespace(), family.name()))
        };
        let new = config.families.iter().filter(is_new);
        never_opened.extend(new.map(FamilyConfig::name));
        missing.extend(unknown.into_values());
    }
    missing.extend(incomplete);
    PairStatus {
        pair: config.name.clone(),
        redis,
        mysql,
        families,
        never_opened,
        missing,
        errors: Vec::new(),
        daemon: None,
    }
}

async fn read_mysql(store: MysqlStore) -> counterfoil::Result<Stored> {
    let (families, unknown) = families::registered(&store).await?;
    Ok(Stored {
        families: families
            .into_iter()
            .map(|registered| registered.family)
            .collect(),
        unknown,
        overview: store.overview().await?,
    })
}

/// Returns the state of the families that MySQL knows. If it did not reply, returns that of the
/// families that Redis knows, and why some may be missing.
async fn read_families(
    counterfoil: &Counterfoil,
    config: &PairConfig,
    stored: Option<&Stored>,
    late: Duration,
) -> counterfoil::Result<(Vec<FamilyView>, Option<String>)> {
    // a Redis whose disk is full refuses PING
    let mut redis = counterfoil.redis().clone();
    let info = cmd("INFO")
        .arg("server")
        .query_async::<()>(&mut redis)
        .await;
    // without families, only this detects an unavailable Redis
    info.map_err(|error| Error::new(ErrorKind::Redis, "INFO failed").with_source(error))?;
    let (families, incomplete, overview) = match stored {
        Some(stored) => (stored.families.clone(), None, &stored.overview[..]),
        None => {
            let (families, why) = families::in_redis(counterfoil.redis(), config).await;
            (families, why, &[][..])
        }
    };
    let backlogs = counterfoil.backlogs_of(families).await?;
    Ok((status::of_families(backlogs, overview, late), incomplete))
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
