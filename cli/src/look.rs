//! The state of a pair from outside: its servers and its families. This module writes nothing.

use std::time::{Duration, Instant};

use counterfoil::admin::Overview;
use counterfoil::redis::cmd;
use counterfoil::{Counterfoil, Error, ErrorKind, MysqlStore, Registered, Store};
use futures_util::future::join;
use serde::Serialize;
use tokio::time::timeout;

use crate::config::{FamilyConfig, PairConfig};
use crate::families::described;
use crate::pair;
use crate::status::{self, FamilyStatus};

/// The time limit of a server's reply.
const REPLY: Duration = Duration::from_secs(5);

/// A reader of a pair's state, once or periodically.
pub struct Look {
    config: PairConfig,
    described: Vec<FamilyConfig>,
    store: MysqlStore,
    /// `None` until the first connection to Redis.
    pair: Option<Counterfoil>,
    known: Option<Known>,
}

/// The last data from MySQL.
struct Known {
    at: Instant,
    families: Vec<Registered>,
    overview: Vec<Overview>,
}

/// The state of a pair.
#[derive(Clone, Debug, Serialize)]
pub struct PairStatus {
    pub pair: String,
    pub redis: ServerStatus,
    pub mysql: ServerStatus,
    pub families: Vec<FamilyStatus>,
    /// Configured families that MySQL does not know yet.
    pub never_opened: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct ServerStatus {
    pub up: bool,
    /// The reason, if it is unavailable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl<T> From<&Result<T, String>> for ServerStatus {
    fn from(asked: &Result<T, String>) -> Self {
        ServerStatus {
            up: asked.is_ok(),
            why: asked.as_ref().err().cloned(),
        }
    }
}

impl Look {
    /// Creates a reader of a pair, with its own of the `families`.
    pub fn new(config: &PairConfig, families: &[FamilyConfig]) -> counterfoil::Result<Self> {
        let described = described(families, &config.name).cloned().collect();
        Ok(Look {
            config: config.clone(),
            described,
            store: pair::store(config)?,
            pair: None,
            known: None,
        })
    }

    /// Returns the current state. Data from MySQL is read again once it is older than `mysql_age`.
    pub async fn now(&mut self, late: Duration, mysql_age: Duration) -> PairStatus {
        let is_known = self
            .known
            .as_ref()
            .is_some_and(|known| known.at.elapsed() < mysql_age);
        let asked = async {
            if is_known {
                Ok(None)
            } else {
                in_time(read(&self.store)).await.map(Some)
            }
        };
        let connected = async {
            match &self.pair {
                Some(pair) => Ok(pair.clone()),
                None => in_time(pair::connect(&self.config)).await,
            }
        };
        let (asked, connected) = join(asked, connected).await;
        let mysql = ServerStatus::from(&asked);
        if let Ok(Some(known)) = asked {
            self.known = Some(known);
        }
        let families = match connected {
            Ok(pair) => {
                let families = self.families(&pair, late).await;
                self.pair = Some(pair);
                families
            }
            Err(why) => Err(why),
        };
        PairStatus {
            pair: self.config.name.clone(),
            redis: ServerStatus::from(&families),
            mysql,
            families: families.unwrap_or_default(),
            never_opened: self.never_opened(),
        }
    }

    async fn families(
        &self,
        pair: &Counterfoil,
        late: Duration,
    ) -> Result<Vec<FamilyStatus>, String> {
        let (families, overview) = self.known.as_ref().map_or((&[][..], &[][..]), |known| {
            (&known.families, &known.overview)
        });
        in_time(async { of(pair, families, overview, late).await }).await
    }

    fn never_opened(&self) -> Vec<String> {
        let Some(known) = &self.known else {
            return Vec::new();
        };
        let is_known = |described: &&FamilyConfig| {
            known
                .families
                .iter()
                .any(|known| described.describes(known.family.namespace(), known.family.name()))
        };
        self.described
            .iter()
            .filter(|described| !is_known(described))
            .map(FamilyConfig::name)
            .collect()
    }
}

async fn read(store: &MysqlStore) -> counterfoil::Result<Known> {
    let at = Instant::now();
    let families = store
        .families()
        .await?
        .into_iter()
        .filter_map(Result::ok)
        .collect();
    Ok(Known {
        at,
        families,
        overview: store.overview().await?,
    })
}

async fn of(
    counterfoil: &Counterfoil,
    families: &[Registered],
    overview: &[Overview],
    late: Duration,
) -> counterfoil::Result<Vec<FamilyStatus>> {
    for registered in families {
        counterfoil.open_registered(registered.clone())?;
    }
    if families.is_empty() {
        // without families, only this detects an unavailable Redis
        let pinged = cmd("PING")
            .query_async::<()>(&mut counterfoil.redis().clone())
            .await;
        pinged.map_err(|error| {
            Error::new(ErrorKind::Redis, "Redis did not reply").with_source(error)
        })?;
    }
    status::of_families(counterfoil, overview, late).await
}

/// Returns a server's reply, or the reason why there is none.
pub async fn in_time<T>(reply: impl Future<Output = counterfoil::Result<T>>) -> Result<T, String> {
    match timeout(REPLY, reply).await {
        Ok(reply) => reply.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no reply within {} s", REPLY.as_secs())),
    }
}
