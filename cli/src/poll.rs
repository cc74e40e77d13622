//! Reads a pair, its servers and its families, for a command, without writing anything.

use std::collections::BTreeMap;
use std::time::Duration;

use counterfoil::admin::Overview;
use counterfoil::redis::cmd;
use counterfoil::{Counterfoil, Error, ErrorKind, Family, MysqlStore};
use futures_util::future::{join, join4};

use crate::config::PairConfig;
use crate::latency::Latency;
use crate::limits::{TIMEOUT, with_timeout};
use crate::pair;
use crate::probe::{Probe, measure_latency};
use crate::reason::Reason;
use crate::status::{self, FamilyView, unix_now};
use crate::view::{PairView, ServerView, SetBackView};
use crate::{certificates, families};

/// A pair as a command reads it.
pub struct PairReport {
    /// The servers and families. A command has no reconciler.
    pub view: PairView,
    /// Configured families that are not in MySQL yet.
    pub never_opened: Vec<String>,
    /// Reasons why families are missing here.
    pub missing: Vec<String>,
}

/// Data from MySQL.
struct StoreReport {
    families: Vec<Family>,
    /// Why this version does not understand other families.
    unknown: BTreeMap<String, String>,
    overview: Vec<Overview>,
    set_backs: Vec<SetBackView>,
}

/// Reads a pair. If MySQL does not reply, the families are those of the configuration.
pub async fn poll(config: &PairConfig, late: Duration) -> PairReport {
    let (mysql_reply, mysql_latency, connected, certificates) = join4(
        with_timeout(TIMEOUT, async { read_mysql(pair::store(config)?).await }),
        with_timeout(TIMEOUT, measure_latency(Probe::mysql(config.mysql.clone()))),
        with_timeout(TIMEOUT, pair::connect(config)),
        certificates::read(config),
    )
    .await;
    let mut view = PairView::new(&config.name);
    view.certificates = certificates;
    view.mysql = server(&mysql_reply, mysql_latency);
    let stored = mysql_reply.ok();
    let (redis_reply, redis_latency) = match connected {
        Ok(connected) => {
            join(
                with_timeout(
                    TIMEOUT,
                    read_families(&connected, config, stored.as_ref(), late),
                ),
                with_timeout(
                    TIMEOUT,
                    measure_latency(Probe::Redis(connected.redis().clone())),
                ),
            )
            .await
        }
        Err(why) => (Err(why.clone()), Err(why)),
    };
    view.redis = server(&redis_reply, redis_latency);
    let (families, incomplete) = redis_reply.unwrap_or_default();
    view.families = families;
    let (mut never_opened, mut missing) = (Vec::new(), Vec::new());
    if let Some(stored) = stored {
        view.set_backs = stored.set_backs;
        for configured in &config.families {
            let is_known =
                |family: &Family| configured.describes(family.namespace(), family.name());
            if !stored.families.iter().any(is_known) {
                never_opened.push(configured.name());
            }
        }
        missing.extend(stored.unknown.into_values());
    }
    missing.extend(incomplete);
    PairReport {
        view,
        never_opened,
        missing,
    }
}

/// Returns the state of a server from its reply to a read, and from its latency, which a probe has
/// measured. A server that replies to the probe slowly is up, although the read may have run out of
/// time. If the server refuses the probe, too, the view has the reason of that refusal: it arrived
/// at once, while the read may only report that it ran out of time.
fn server<T>(reply: &Result<T, Reason>, latency: Result<Latency, Reason>) -> ServerView {
    let (latency, refusal) = match latency {
        Ok(latency) => (Some(latency), None),
        Err(why) => (None, Some(why)),
    };
    let is_slow = latency.is_some_and(|latency| latency.is_slow);
    let why = reply.as_ref().err().filter(|_| !is_slow);
    ServerView {
        up: why.is_none(),
        since: unix_now(),
        why: why.map(|why| refusal.unwrap_or_else(|| why.clone())),
        latency: latency.filter(|_| why.is_none()),
        ..ServerView::default()
    }
}

async fn read_mysql(store: MysqlStore) -> counterfoil::Result<StoreReport> {
    let (families, unknown) = families::read_registered(&store).await?;
    Ok(StoreReport {
        families: families
            .into_iter()
            .map(|registered| registered.family)
            .collect(),
        unknown,
        overview: store.overview().await?,
        set_backs: SetBackView::all(store.set_backs().await?),
    })
}

/// Returns the state of the families that MySQL knows. If it did not reply, returns that of the
/// configured ones, and why some may be missing.
async fn read_families(
    counterfoil: &Counterfoil,
    config: &PairConfig,
    stored: Option<&StoreReport>,
    late: Duration,
) -> counterfoil::Result<(Vec<FamilyView>, Option<String>)> {
    // INFO in place of PING, which a Redis with a full disk refuses
    let mut redis = counterfoil.redis().clone();
    // if there are no families to read, only this call detects an unavailable Redis
    cmd("INFO")
        .arg("server")
        .query_async::<()>(&mut redis)
        .await
        .map_err(|error| Error::new(ErrorKind::Redis, "INFO failed").with_source(error))?;
    let (families, incomplete, overview) = match stored {
        Some(stored) => (stored.families.clone(), None, &stored.overview[..]),
        None => {
            let why = "those that only MySQL knows".to_owned();
            (families::configured(config), Some(why), &[][..])
        }
    };
    let backlogs = counterfoil.backlogs_of(families).await?;
    Ok((status::of_families(backlogs, overview, late), incomplete))
}
