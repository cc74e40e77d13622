//! Reads a pair, its servers and its families, for a command, without writing anything.

use std::collections::BTreeMap;
use std::time::Duration;

use counterfoil::admin::Overview;
use counterfoil::redis::cmd;
use counterfoil::{Counterfoil, Error, ErrorKind, Family, MysqlStore};
use futures_util::future::join;

use crate::config::{FamilyConfig, PairConfig};
use crate::families;
use crate::limits::in_time;
use crate::pair;
use crate::status::{self, FamilyView, unix_now};
use crate::view::{PairView, ServerView};

/// A pair as a command reads it.
pub struct Polled {
    /// The servers and families. A command has no reconciler.
    pub view: PairView,
    /// Configured families that are not in MySQL yet.
    pub never_opened: Vec<String>,
    /// Reasons why families are missing here.
    pub missing: Vec<String>,
}

/// Data from MySQL.
struct Stored {
    families: Vec<Family>,
    /// Why this version does not understand other families.
    unknown: BTreeMap<String, String>,
    overview: Vec<Overview>,
}

/// Reads a pair. If MySQL does not reply, the families are those that Redis knows.
pub async fn poll(config: &PairConfig, late: Duration) -> Polled {
    let (stored, connected) = join(
        in_time(async { read_mysql(pair::store(config)?).await }),
        in_time(pair::connect(config)),
    )
    .await;
    let mut view = PairView::new(&config.name);
    view.mysql = server(&stored);
    let stored = stored.ok();
    let families = match connected {
        Ok(connected) => in_time(read_families(&connected, config, stored.as_ref(), late)).await,
        Err(why) => Err(why),
    };
    view.redis = server(&families);
    let (families, incomplete) = families.unwrap_or_default();
    view.families = families;
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
    Polled {
        view,
        never_opened,
        missing,
    }
}

/// Returns the state of a server that was asked just now.
fn server<T>(reply: &Result<T, String>) -> ServerView {
    ServerView {
        up: reply.is_ok(),
        since: unix_now(),
        why: reply.as_ref().err().cloned(),
        ..ServerView::default()
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
