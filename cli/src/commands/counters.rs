//! Reading and changing counters of any kind.

use std::io::{self, Write};
use std::time::SystemTime;

use counterfoil::{AnyCounters, Outcome, Precision, Slice, VisitorCount};
use serde::Serialize;

use super::{Context, connect};
use crate::exit::{Exit, Failure};
use crate::families;
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

impl OfKind {
    fn lines(&self) -> Vec<String> {
        match self {
            OfKind::Values(values) => {
                let lines = values
                    .iter()
                    .map(|one| format!("{}\t{}", one.id, one.value));
                lines.collect()
            }
            OfKind::Series(series) => {
                let lines = series.iter().flat_map(|Window { name, slices, .. }| {
                    slices
                        .iter()
                        .map(move |slice| format!("{name}\t{}\t{}", moment(slice.at), slice.count))
                });
                lines.collect()
            }
            OfKind::Pages(pages) => {
                let line = |one: &Page| format!("{}\t{}\t{}", one.page, one.views, one.visitors);
                pages.iter().map(line).collect()
            }
        }
    }
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
    let counters = context.open_to_read(pair, &connected, family).await?;
    let values = Values {
        family: family.to_owned(),
        kind: counters.family().kind(),
        values: read(counters, ids, precision).await?,
    };
    context
        .output
        .print(&values, |values| values.values.lines())?;
    Ok(Exit::Ok)
}

async fn read(
    counters: AnyCounters,
    ids: &[String],
    precision: Precision,
) -> Result<OfKind, Failure> {
    if let Some(values) = families::values(&counters, ids).await? {
        let values = ids.iter().cloned().zip(values);
        let values = values.map(|(id, value)| Value { id, value });
        return Ok(OfKind::Values(values.collect()));
    }
    Ok(match counters {
        AnyCounters::Series(series) => {
            let windows = series.get_many(ids, precision).await?.into_iter().zip(ids);
            let slice = |slice: &Slice| SliceOf {
                start: unix_seconds(slice.start),
                at: slice.start,
                count: slice.count,
            };
            let windows = windows.map(|(slices, name)| Window {
                name: name.clone(),
                precision: precision.to_string(),
                slices: slices.iter().map(slice).collect(),
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
        other => {
            let family = other.family();
            let (kind, message) = (family.kind(), "is not supported by this command");
            return Err(Failure::usage(format!("{family}: kind {kind} {message}")));
        }
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
    let outcome = count(&counters, id, delta, request).await?;
    let value = match (&counters, outcome) {
        // the reply to a buffered call has only the pending part
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
            Some("the result is outside the family's bounds or the 64-bit range"),
        ),
        Outcome::Full => (
            "full",
            Some("the maximum number of pending ids is reached. Check the daemon and MySQL"),
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
    let is = value.map_or_else(String::new, |value| format!("; it is {value}"));
    Err(Failure::warning(format!(
        "{family}: {id:?} was not counted: {refusal}{is}"
    )))
}

async fn count(
    counters: &AnyCounters,
    id: &str,
    delta: i64,
    request: Option<&str>,
) -> Result<Outcome, Failure> {
    let refused = |what: &str| Err(Failure::usage(format!("{}: {what}", counters.family())));
    Ok(match (counters, request) {
        (AnyCounters::Buffered(counters), None) => counters.add(id, delta).await?,
        (AnyCounters::Buffered(counters), Some(request)) => {
            counters.add_once(request, id, delta).await?
        }
        (AnyCounters::Cached(counters), None) => counters.incr(id, delta).await?,
        (AnyCounters::Cached(counters), Some(request)) => {
            counters.incr_once(request, id, delta).await?
        }
        (AnyCounters::Series(_), Some(_)) => return refused("a series does not support --request"),
        (AnyCounters::Series(series), None) => match u64::try_from(delta) {
            Ok(number) if number > 0 => series.add(id, number).await?,
            _ => return refused("the delta of a series must be greater than 0"),
        },
        _ => return refused("visits and views cannot be added, only applications count them"),
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
    let counters = context.open_to_read(pair, &connected, family).await?;
    match write_list(&counters, prefix, after, limit, context.output.json).await {
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
                "{family}: {} counters cannot be listed, use `get` with ids",
                family.kind()
            );
            return Err(Failure::usage(what));
        }
    })
}
