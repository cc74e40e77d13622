//! The families of a pair, in the configuration and in the database.

use std::collections::BTreeMap;
use std::time::Duration;

use counterfoil::recount::{Mode, RecountBuilder};
use counterfoil::redis::cmd;
use counterfoil::store::Registered;
use counterfoil::{
    AnyCounters, Connection, Counterfoil, Day, Error, ErrorKind, Family, Result, Store,
};

use crate::config::{FamilyConfig, PairConfig, Recount};
use crate::limits::with_timeout;
use crate::search;

/// The time limit of a search for families, within that of a server's reply.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum number of partitions in which to search for a family's settings.
const MAX_PARTITIONS: u32 = 4;

/// Opens NAMESPACE/FAMILY as configured.
pub async fn open(
    counterfoil: &Counterfoil,
    configured: &FamilyConfig,
    name: &str,
) -> Result<AnyCounters> {
    counterfoil.open_any(family(configured, name)?).await
}

/// Returns NAMESPACE/FAMILY as configured.
fn family(configured: &FamilyConfig, name: &str) -> Result<Family> {
    let namespace = name.split('/').next().unwrap_or_default();
    configured.in_namespace(namespace)
}

/// Tells clients why a family was not opened.
pub async fn refuse(
    counterfoil: &Counterfoil,
    configured: &FamilyConfig,
    name: &str,
    error: &Error,
) {
    if let Ok(family) = family(configured, name)
        && let Err(error) = counterfoil.refuse(&family, &format!("{error:#}")).await
    {
        tracing::debug!(family = name, error = %format_args!("{error:#}"), "clients do not learn why");
    }
}

/// Returns the families in the database, and why this version does not understand others, by name.
pub async fn registered(store: &dyn Store) -> Result<(Vec<Registered>, BTreeMap<String, String>)> {
    let (mut known, mut unknown) = (Vec::new(), BTreeMap::new());
    for (name, family) in store.families().await? {
        match family {
            Ok(registered) => known.push(registered),
            Err(error) => drop(unknown.insert(name, format!("{error:#}"))),
        }
    }
    Ok((known, unknown))
}

/// Returns the families that Redis knows, for a reader that cannot ask the database, and why some may
/// be missing: those of the configuration, and others with the settings that Redis has of them.
pub async fn in_redis(redis: &Connection, pair: &PairConfig) -> (Vec<Family>, Option<String>) {
    let mut names = pair.family_names();
    let why = match with_timeout(SEARCH_TIMEOUT, search::families(redis)).await {
        Ok(found) => {
            names.extend(found);
            None
        }
        Err(why) => Some(format!(
            "other families may be missing, Redis was not searched: {why}"
        )),
    };
    let mut families = Vec::new();
    for name in names {
        let Some((namespace, family)) = name.split_once('/') else {
            continue;
        };
        let found = match pair.family(&name) {
            Some(configured) => configured.in_namespace(namespace).ok(),
            None => settings_in_redis(redis, namespace, family).await,
        };
        families.extend(found);
    }
    (families, why)
}

/// Returns a family by the kind and number of partitions that Redis knows.
pub async fn settings_in_redis(
    redis: &Connection,
    namespace: &str,
    family: &str,
) -> Option<Family> {
    for home in 0..MAX_PARTITIONS {
        let mut get = cmd("HMGET");
        get.arg(format!("cf1:{{{namespace}/{family}/{home}}}:calls"));
        get.arg("=kind").arg("=partitions");
        let known: (Option<String>, Option<u32>) =
            get.query_async(&mut redis.clone()).await.ok()?;
        if let (Some(kind), Some(partitions)) = known {
            let settings = serde_json::json!({"kind": kind, "partitions": partitions});
            return Family::from_settings(namespace, family, &settings.to_string()).ok();
        }
    }
    None
}

/// Returns the exact values of some ids in their order, or `None` for a kind without values. Ids of
/// visitors are `SCOPE/DAY`. A cached counter whose row only the application makes has no value
/// without it. It writes nothing.
pub async fn values(counters: &AnyCounters, ids: &[String]) -> Result<Option<Vec<Option<i64>>>> {
    let values = match counters {
        AnyCounters::Buffered(counters) => counters.get_many(ids).await?,
        AnyCounters::Cached(counters) => return counters.find_many(ids).await.map(Some),
        AnyCounters::Visitors(visitors) => {
            let separator = counters.family().separator();
            let days = ids.iter().map(|id| scope_and_day(id, separator));
            let days = days.collect::<Result<Vec<_>>>()?;
            visitors.get_many(days).await?
        }
        _ => return Ok(None),
    };
    Ok(Some(values.into_iter().map(Some).collect()))
}

fn scope_and_day(id: &str, separator: char) -> Result<(&str, Day)> {
    let parsed = id
        .rsplit_once(separator)
        .and_then(|(scope, day)| Some((scope, day.parse().ok()?)));
    parsed.ok_or_else(|| {
        let message = format!("{id:?} is not SCOPE{separator}YYYY-MM-DD");
        Error::new(ErrorKind::InvalidInput, message)
    })
}

/// Returns the settings in which the database differs from the configuration.
pub fn differences(configured: &FamilyConfig, registered: &Family) -> Result<Vec<String>> {
    let configured = configured.in_namespace(registered.namespace())?;
    let differs = configured.differences(registered);
    Ok(differs
        .map(|(name, here, there)| format!("{name} is {here} here, and {there} in the database"))
        .collect())
}

/// Returns the recount as configured, or `None` for kinds without recounts.
pub fn recount(
    counterfoil: &Counterfoil,
    counters: &AnyCounters,
    Recount {
        source,
        rows,
        settings,
    }: &Recount,
) -> Option<RecountBuilder> {
    let mode = if settings.only_report {
        Mode::Report
    } else {
        Mode::Correct
    };
    let mut builder = match counters {
        AnyCounters::Buffered(counters) => counterfoil.recount(counters, *rows),
        AnyCounters::Cached(counters) => counterfoil.recount(counters, *rows),
        _ => return None,
    }
    .source(source.clone())
    .within(settings.within.0)
    .mode(mode)
    .ids(settings.ids);
    if let Some(difference) = settings.at_most {
        builder = builder.at_most(difference);
    }
    if let Some(ids) = settings.ids_per_second {
        builder = builder.ids_per_second(ids.get());
    }
    Some(builder)
}
