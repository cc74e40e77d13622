//! Exact reads of the families that the daemon serves, for the API and the pages.

use std::ops::Range;
use std::time::SystemTime;

use counterfoil::{AnyCounters, Day, Now, Precision, Slice};

use super::chosen::Chosen;
use super::problem::Problem;

/// Returns exact values in the order of the ids. For visitors, ids are `SCOPE/DAY`.
pub async fn values(chosen: &Chosen, ids: &[&str]) -> Result<Vec<i64>, Problem> {
    let registered = chosen.registered.clone();
    match chosen.pair.open_registered(registered)? {
        AnyCounters::Buffered(counters) => Ok(counters.get_many(ids).await?),
        AnyCounters::Cached(counters) => Ok(counters.get_many(ids).await?),
        AnyCounters::Visitors(visitors) => {
            Ok(visitors.get_many(scopes_and_days(chosen, ids)?).await?)
        }
        _ => Err(chosen.is_no("buffered, cached or visitors")),
    }
}

fn scopes_and_days<'a>(chosen: &Chosen, ids: &[&'a str]) -> Result<Vec<(&'a str, Day)>, Problem> {
    let separator = chosen.registered.family.separator();
    let expected =
        |id: &str| Problem::parameter("id", format!("{id:?} is not SCOPE{separator}YYYY-MM-DD"));
    let parts = |id: &&'a str| {
        let (scope, day) = id.rsplit_once(separator).ok_or_else(|| expected(id))?;
        Ok((scope, day.parse().map_err(|_| expected(id))?))
    };
    ids.iter().map(parts).collect()
}

/// Returns the slices of a series within a range, or within the whole window.
pub async fn slices(
    chosen: &Chosen,
    name: &str,
    precision: Precision,
    range: Option<Range<SystemTime>>,
) -> Result<Vec<Slice>, Problem> {
    let registered = chosen.registered.clone();
    match (chosen.pair.open_registered(registered)?, range) {
        (AnyCounters::Series(series), Some(range)) => {
            Ok(series.get_range(name, precision, range).await?)
        }
        (AnyCounters::Series(series), None) => Ok(series.get(name, precision).await?),
        _ => Err(chosen.is_no("series")),
    }
}

/// Returns the names of a series' counters.
pub async fn names(
    chosen: &Chosen,
    prefix: &str,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<String>, Problem> {
    let registered = chosen.registered.clone();
    match chosen.pair.open_registered(registered)? {
        AnyCounters::Series(series) => Ok(series.names(prefix, after, limit).await?),
        _ => Err(chosen.is_no("series")),
    }
}

/// Returns the views and visitors of a page within its window.
pub async fn activity(chosen: &Chosen, page: &str) -> Result<Now, Problem> {
    let registered = chosen.registered.clone();
    match chosen.pair.open_registered(registered)? {
        AnyCounters::Activity(activity) => Ok(activity.now(page).await?),
        _ => Err(chosen.is_no("activity")),
    }
}
