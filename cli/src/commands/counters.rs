//! Reading and changing counters of any kind.

use std::io::{self, Write};
use std::time::SystemTime;

use counterfoil::{AnyCounters, Day, Outcome, Precision, VisitorCount};
use serde::Serialize;

use super::{Context, connect};
use crate::exit::{Exit, Failure};
use crate::output::moment;

use crate::status::unix_seconds;

/// The values of the requested ids, in their order.
#[derive(Serialize)]
struct Values {
    family: String,
    kind: &'static str,
    #[serde(flatten)]
    values: OfKind,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum OfKind {
    Values(Vec<Value>),
    Series(Vec<Window>),
    Pages(Vec<Page>),
}

#[derive(Serialize)]
struct Value {
    id: String,
    value: i64,
}

#[derive(Serialize)]
struct Window {
    name: String,
    precision: String,
    slices: Vec<SliceOf>,
}

#[derive(Serialize)]
struct SliceOf {
    /// The start in Unix seconds.
    start: u64,
    #[serde(skip)]
    at: SystemTime,
    count: i64,
}

#[derive(Serialize)]
struct Page {
    page: String,
    views: u64,
    visitors: u64,
    visitors_are_estimated: bool,
}

/// Prints exact values.
pub async fn get(
    context: &Context,
    family: &str,
    ids: &[String],
    precision: Precision,
) -> Result<Exit, Failure> {
    let pair = context.pair_of(family)?;
    let connected = connect(pair).await?;
    let counters = {
        read(
            context.open_to_read(pair, &connected, family).await?,
            ids,
            precision,
        )
        .await?
    };
    context
        .output
        .print(&counters, |Values { values, .. }| match values {
            OfKind::Values(values) => values
                .iter()
                .map(|Value { id, value }| format!("{id}\t{value}"))
                .collect(),
            OfKind::Series(series) => {
                let lines = series.iter().flat_map(|Window { name, slices, .. }| {
                    slices
                        .iter()
                        .map(move |slice| format!("{name}\t{}\t{}", moment(slice.at), slice.count))
                });
                lines.collect()
            }
            OfKind::Pages(pages) => pages
                .iter()
                .map(
                    |Page {
                         page,
                         views,
                         visitors,
                         ..
                     }| format!("{page}\t{views}\t{visitors}"),
                )
                .collect(),
        })?;
    Ok(Exit::Ok)
}

async fn read(
    counters: AnyCounters,
    ids: &[String],
    precision: Precision,
) -> Result<Values, Failure> {
    let (family, kind) = (counters.family().to_string(), counters.family().kind());
    let of_ids = |values: Vec<i64>| {
        OfKind::Values(
            ids.iter()
                .cloned()
                .zip(values)
                .map(|(id, value)| Value { id, value })
                .collect(),
        )
    };
    let values = match counters {
        AnyCounters::Buffered(counters) => of_ids(counters.get_many(ids).await?),
        AnyCounters::Cached(counters) => of_ids(counters.get_many(ids).await?),
        AnyCounters::Visitors(visitors) => {
            let days = ids
                .iter()
                .map(|id| scope_and_day(&family, id))
                .collect::<Result<Vec<_>, _>>()?;
            of_ids(visitors.get_many(days).await?)
        }
        AnyCounters::Series(series) => {
            let windows = series.get_many(ids, precision).await?.into_iter().zip(ids);
            let windows = windows.map(|(slices, name)| Window {
                name: name.clone(),
                precision: precision.to_string(),
                slices: slices
                    .iter()
                    .map(|slice| SliceOf {
                        start: unix_seconds(slice.start),
                        at: slice.start,
                        count: slice.count,
                    })
                    .collect(),
            });
            OfKind::Series(windows.collect())
        }
        AnyCounters::Activity(activity) => {
            let mut pages = Vec::with_capacity(ids.len());
            for page in ids {
                let now = activity.now(page).await?;
                pages.push(Page {
                    page: page.clone(),
                    views: now.views,
                    visitors: now.visitors.count(),
                    visitors_are_estimated: !matches!(now.visitors, VisitorCount::Exact(_)),
                });
            }
            OfKind::Pages(pages)
        }
        _ => {
            return Err(Failure::usage(format!(
                "{family} is of a kind that this command does not know"
            )));
        }
    };
    Ok(Values {
        family,
        kind,
        values,
    })
}

fn scope_and_day<'i>(family: &str, id: &'i str) -> Result<(&'i str, Day), Failure> {
    let parsed = id
        .rsplit_once('/')
        .and_then(|(scope, day)| Some((scope, day.parse().ok()?)));
    parsed.ok_or_else(|| {
        Failure::usage(format!(
            "{family} counts visitors: {id:?} is not SCOPE/DAY, such as 12345/2026-09-20"
        ))
    })
}

/// A change as it is printed.
#[derive(Serialize)]
struct Change<'a> {
    family: &'a str,
    id: &'a str,
    delta: i64,
    outcome: &'static str,
    /// The counter's current value: a refused change leaves it as it was.
    value: Option<i64>,
}

/// Adds to a counter.
pub async fn add(
    context: &Context,
    family: &str,
    id: &str,
    delta: i64,
    request: Option<&str>,
) -> Result<Exit, Failure> {
    let pair = context.pair_of(family)?;
    let connected = connect(pair).await?;
    let counters = context.open(pair, &connected, family).await?;
    let outcome = count(&counters, family, id, delta, request).await?;
    let value = match (&counters, outcome) {
        // others may have counted since: the exact value is more useful than what is pending
        (AnyCounters::Buffered(counters), Outcome::Counted(_) | Outcome::CountedBefore(_)) => {
            Some(counters.get(id).await?)
        }
        (AnyCounters::Cached(_), Outcome::Counted(value) | Outcome::CountedBefore(value)) => {
            Some(value)
        }
        (_, Outcome::OutOfRange(value)) => value,
        _ => None,
    };
    let (word, refusal) = match outcome {
        Outcome::Counted(_) => ("counted", None),
        Outcome::CountedBefore(_) => ("counted_before", None),
        Outcome::OutOfRange(_) => (
            "out_of_range",
            Some("the result would leave the family's bounds or the 64-bit range"),
        ),
        Outcome::Full => (
            "full",
            Some(
                "the family has the maximum of pending ids: is a daemon running, and is MySQL reachable?",
            ),
        ),
        _ => (
            "no_row",
            Some("it has no row, and only the application inserts rows"),
        ),
    };
    let change = Change {
        family,
        id,
        delta,
        outcome: word,
        value,
    };
    let Some(refusal) = refusal else {
        let done = word.replace("counted_before", "was counted before");
        context.output.print(&change, |_| {
            vec![value.map_or_else(|| done.clone(), |value| format!("{done}: {id} is {value}"))]
        })?;
        return Ok(Exit::Ok);
    };
    if context.output.json {
        context.output.print(&change, |_| Vec::new())?;
    }
    let is = value
        .map(|value| format!("; it is {value}"))
        .unwrap_or_default();
    Err(Failure::warning(format!(
        "{family}: {id:?} was not counted: {refusal}{is}"
    )))
}

async fn count(
    counters: &AnyCounters,
    family: &str,
    id: &str,
    delta: i64,
    request: Option<&str>,
) -> Result<Outcome, Failure> {
    let refused = |what: &str| Err(Failure::usage(format!("{family}: {what}")));
    Ok(match (counters, request) {
        (AnyCounters::Buffered(counters), None) => counters.add(id, delta).await?,
        (AnyCounters::Buffered(counters), Some(request)) => {
            counters.add_once(request, id, delta).await?
        }
        (AnyCounters::Cached(counters), None) => counters.incr(id, delta).await?,
        (AnyCounters::Cached(counters), Some(request)) => {
            counters.incr_once(request, id, delta).await?
        }
        (AnyCounters::Series(_), Some(_)) => return refused("a series takes no --request"),
        (AnyCounters::Series(series), None) => match u64::try_from(delta) {
            Ok(number) if number > 0 => series.add(id, number).await?,
            _ => return refused("a series only goes up: the delta has to be more than 0"),
        },
        _ => return refused("it counts visitors, which only the application can do"),
    })
}

/// The number of counters in a read.
const PAGE: usize = 1000;

/// Prints the counters of a family, page by page.
pub async fn list(
    context: &Context,
    family: &str,
    prefix: &str,
    after: Option<String>,
    limit: usize,
) -> Result<Exit, Failure> {
    let pair = context.pair_of(family)?;
    let connected = connect(pair).await?;
    let listed = {
        let counters = context.open_to_read(pair, &connected, family).await?;
        write_list(&counters, prefix, after, limit, context.output.json).await
    };
    match listed {
        Err(ListError::Failure(failure)) => Err(failure),
        // the reader closed the pipe, which is not an error
        Err(ListError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Exit::Ok),
        Err(ListError::Output(error)) => Err(error.into()),
        Ok(()) => Ok(Exit::Ok),
    }
}

enum ListError {
    Output(io::Error),
    Failure(Failure),
}

impl From<io::Error> for ListError {
    fn from(error: io::Error) -> Self {
        ListError::Output(error)
    }
}

impl From<Failure> for ListError {
    fn from(failure: Failure) -> Self {
        ListError::Failure(failure)
    }
}

async fn write_list(
    counters: &AnyCounters,
    prefix: &str,
    mut after: Option<String>,
    limit: usize,
    json: bool,
) -> Result<(), ListError> {
    let mut left = limit;
    let mut is_first = true;
    loop {
        let asked = left.min(PAGE);
        let page = page(counters, prefix, after.as_deref(), asked).await?;
        let mut out = io::BufWriter::new(io::stdout().lock());
        for (id, value) in &page {
            if json {
                let item = serde_json::to_string(&Listed { id, value: *value })
                    .map_err(io::Error::from)?;
                write!(out, "{}\n  {item}", if is_first { "[" } else { "," })?;
                is_first = false;
            } else {
                match value {
                    Some(value) => writeln!(out, "{id}\t{value}")?,
                    None => writeln!(out, "{id}")?,
                }
            }
        }
        left -= page.len();
        let is_last = page.len() < asked || left == 0;
        if is_last && json {
            writeln!(out, "{}", if is_first { "[]" } else { "\n]" })?;
        }
        out.flush()?;
        if is_last {
            return Ok(());
        }
        after = page.into_iter().next_back().map(|(id, _)| id);
    }
}

#[derive(Serialize)]
struct Listed<'l> {
    id: &'l str,
    /// `None` for a series.
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<i64>,
}

async fn page(
    counters: &AnyCounters,
    prefix: &str,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<(String, Option<i64>)>, Failure> {
    let valued = |page: Vec<(String, i64)>| {
        page.into_iter()
            .map(|(id, value)| (id, Some(value)))
            .collect()
    };
    Ok(match counters {
        AnyCounters::Buffered(counters) => valued(counters.list(prefix, after, limit).await?),
        AnyCounters::Visitors(visitors) => valued(visitors.list(prefix, after, limit).await?),
        AnyCounters::Series(series) => series
            .names(prefix, after, limit)
            .await?
            .into_iter()
            .map(|name| (name, None))
            .collect(),
        other => {
            let family = other.family();
            let what = format!(
                "{family}: {} counters are not listed: `get` takes their ids",
                family.kind()
            );
            return Err(Failure::usage(what));
        }
    })
}
