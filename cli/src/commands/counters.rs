//! Reading and changing counters of any kind.

use counterfoil::{AnyCounters, Outcome, Precision};
use serde::Serialize;
use serde_json::{Value, json};

use super::{Context, connect, open};
use crate::exit::{Exit, Failure};
use crate::families;
use crate::output::{isolated, moment};
use crate::status::unix_seconds;

/// Prints exact values.
pub async fn get(
    context: &Context,
    family: &str,
    ids: &[String],
    precision: Precision,
) -> Result<Exit, Failure> {
    let counters = open_to_read(context, family).await?;
    let kind = counters.family().kind();
    let (name, json, lines) = read(counters, ids, precision).await?;
    let values = json!({"family": family, "kind": kind, name: json});
    context.output.print(&values, |_| lines)
}

/// Opens a family with its settings in the database, or as configured if it is not there.
async fn open_to_read(context: &Context, family: &str) -> Result<AnyCounters, Failure> {
    let pair = context.pair_of(family)?;
    let counterfoil = connect(pair).await?;
    if let Some(registered) = counterfoil.store().find(family).await? {
        return Ok(counterfoil.open_registered(registered)?);
    }
    match pair.family(family) {
        // opening a family registers it in the database. A pattern describes any name, so a
        // misspelt one would be registered, too
        Some(pattern) if pattern.is_pattern() => Err(Failure::usage(format!(
            "family {family} is not in the database: {} describes it, but nothing has opened it",
            pattern.name()
        ))),
        _ => open(pair, &counterfoil, family).await,
    }
}

/// Reads the counters of these ids. Returns the name of their list in the JSON output, and the
/// counters in the order of the ids, as JSON and as lines of text.
async fn read(
    counters: AnyCounters,
    ids: &[String],
    precision: Precision,
) -> Result<(&'static str, Vec<Value>, Vec<String>), Failure> {
    let (mut json, mut lines) = (Vec::with_capacity(ids.len()), Vec::new());
    let values = families::read_values(&counters, ids).await?;
    let name = match (counters, values) {
        (_, Some(values)) => {
            for (id, value) in ids.iter().zip(values) {
                json.push(json!({"id": id, "value": value}));
                let shown = value.map_or("no row".to_owned(), |value| value.to_string());
                lines.push(format!("{}\t{shown}", isolated(id)));
            }
            "values"
        }
        (AnyCounters::Series(series), None) => {
            for (name, slices) in ids.iter().zip(series.get_many(ids, precision).await?) {
                let mut list = Vec::with_capacity(slices.len());
                for slice in slices {
                    let (start, count) = (unix_seconds(slice.start), slice.count);
                    list.push(json!({"start": start, "count": count}));
                    lines.push(format!("{}\t{}\t{count}", isolated(name), moment(start)));
                }
                json.push(json!({
                    "name": name,
                    "precision": precision.to_string(),
                    "slices": list,
                }));
            }
            "series"
        }
        (AnyCounters::Activity(activity), None) => {
            for page in ids {
                let now = activity.now(page).await?;
                let (views, visitors) = (now.views, now.visitors);
                json.push(json!({
                    "page": page,
                    "views": views,
                    "visitors": visitors,
                }));
                lines.push(format!("{}\t{views}\t{visitors}", isolated(page)));
            }
            "pages"
        }
        (other, None) => {
            let family = other.family();
            return Err(Failure::usage(format!(
                "{family}: kind {} is not supported by this command",
                family.kind()
            )));
        }
    };
    Ok((name, json, lines))
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
    let counters = open(pair, &connect(pair).await?, family).await?;
    let outcome = count(&counters, id, delta, request).await?;
    let value = match (&counters, outcome) {
        // the reply to a buffered call has only the pending part, so the value is read. Without
        // MySQL the hit has counted all the same, and its value stays unknown
        (AnyCounters::Buffered(counters), Outcome::Counted(_) | Outcome::CountedBefore(_)) => {
            counters.get(id).await.ok()
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
        Outcome::BadTime => (
            "bad_time",
            Some("its time is ahead, or nothing takes it any more"),
        ),
        _ => (
            "no_row",
            Some("it has no row, and only the application inserts rows"),
        ),
    };
    // after a refusal, `value` is the unchanged value of the counter
    let change = json!({
        "family": family,
        "id": id,
        "delta": delta,
        "outcome": word,
        "value": value,
    });
    let Some(refusal) = refusal else {
        let done = word.replace("counted_before", "was counted before");
        return context.output.print(&change, |_| {
            vec![match value {
                Some(value) => format!("{done}: {} is {value}", isolated(id)),
                None => done,
            }]
        });
    };
    if context.output.json {
        context.output.print(&change, |_| Vec::new())?;
    }
    let unchanged = value.map_or_else(String::new, |value| format!("; it is {value}"));
    Err(Failure::warning(format!(
        "{family}: {id:?} was not counted: {refusal}{unchanged}"
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

/// Prints the counters of a family.
pub async fn list(
    context: &Context,
    family: &str,
    prefix: &str,
    after: Option<String>,
    limit: usize,
) -> Result<Exit, Failure> {
    let counters = open_to_read(context, family).await?;
    let mut all: Vec<Counter> = Vec::new();
    loop {
        let last = all.last().map(|counter| &counter.id).or(after.as_ref());
        let asked = PAGE.min(limit - all.len());
        let page = read_page(&counters, prefix, last.map(String::as_str), asked).await?;
        let is_last = page.len() < asked;
        all.extend(page);
        if is_last || all.len() == limit {
            break;
        }
    }
    context.output.print(&all, |all| {
        all.iter()
            .map(|Counter { id, value }| match value {
                Some(value) => format!("{}\t{value}", isolated(id)),
                None => isolated(id),
            })
            .collect()
    })
}

/// A counter, or the name of a series.
#[derive(Serialize)]
struct Counter {
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<i64>,
}

async fn read_page(
    counters: &AnyCounters,
    prefix: &str,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<Counter>, Failure> {
    let valued = match counters {
        AnyCounters::Buffered(counters) => counters.list(prefix, after, limit).await?,
        AnyCounters::Visitors(visitors) => visitors.list(prefix, after, limit).await?,
        AnyCounters::Series(series) => {
            let names = series.names(prefix, after, limit).await?;
            return Ok(names
                .into_iter()
                .map(|id| Counter { id, value: None })
                .collect());
        }
        other => {
            let family = other.family();
            let what = format!(
                "{family}: {} counters cannot be listed, use `get` with ids",
                family.kind()
            );
            return Err(Failure::usage(what));
        }
    };
    Ok(valued
        .into_iter()
        .map(|(id, value)| Counter {
            id,
            value: Some(value),
        })
        .collect())
}
