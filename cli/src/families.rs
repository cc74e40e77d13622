//! The families of a pair, in the configuration and in the database.

use std::collections::BTreeMap;

use counterfoil::recount::{Mode, RecountBuilder};
use counterfoil::redis::cmd;
use counterfoil::store::Registration;
use counterfoil::{
    AnyCounters, Connection, Counterfoil, Day, Error, ErrorKind, Family, Result, Store,
};

use crate::config::{FamilyConfig, PairConfig, Recount};

/// The number of partitions in which to search for a family's settings. On a standalone server
/// partition 0 has them, in a cluster every partition.
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
pub async fn read_registered(
    store: &dyn Store,
) -> Result<(Vec<Registration>, BTreeMap<String, String>)> {
    let (mut known, mut unknown) = (Vec::new(), BTreeMap::new());
    for (name, family) in store.families().await? {
        match family {
            Ok(registered) => known.push(registered),
            Err(error) => drop(unknown.insert(name, format!("{error:#}"))),
        }
    }
    Ok((known, unknown))
}

/// Returns the families of the configuration but those of patterns, whose names only the database
/// knows.
pub fn configured(pair: &PairConfig) -> Vec<Family> {
    pair.families
        .iter()
        .filter(|family| !family.is_pattern())
        .filter_map(|family| family.sample().ok())
        .collect()
}

/// Returns a family by the kind and number of partitions that Redis knows.
pub async fn find_in_redis(redis: &Connection, namespace: &str, family: &str) -> Option<Family> {
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
/// visitors are `SCOPE/DAY`. A cached counter has no value if its row is missing and only the
/// application inserts rows. This writes nothing.
pub async fn read_values(
    counters: &AnyCounters,
    ids: &[String],
) -> Result<Option<Vec<Option<i64>>>> {
    let values = match counters {
        AnyCounters::Buffered(counters) => counters.get_many(ids).await?,
        AnyCounters::Cached(counters) => return counters.find_many(ids).await.map(Some),
        AnyCounters::Visitors(visitors) => {
            let separator = counters.family().separator();
            let days = ids
                .iter()
                .map(|id| scope_and_day(id, separator))
                .collect::<Result<Vec<_>>>()?;
            visitors.get_many(days).await?
        }
        _ => return Ok(None),
    };
    Ok(Some(values.into_iter().map(Some).collect()))
}

fn scope_and_day(id: &str, separator: char) -> Result<(&str, Day)> {
    id.rsplit_once(separator)
        .and_then(|(scope, day)| Some((scope, day.parse().ok()?)))
        .ok_or_else(|| {
            let message = format!("{id:?} is not SCOPE{separator}YYYY-MM-DD");
            Error::new(ErrorKind::InvalidInput, message)
        })
}

/// Returns the settings in which the database differs from the configuration.
pub fn differences(configured: &FamilyConfig, registered: &Family) -> Result<Vec<String>> {
    let family = configured.in_namespace(registered.namespace())?;
    Ok(family
        .differences(registered)
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
