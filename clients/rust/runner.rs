//! Makes the calls of a scenario with the crate, as clients/README.md describes them: a line of JSON
//! for each call, and one for each reply.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use counterfoil::AnyCounters::{self, Activity, Buffered, Cached, Series, Visitors};
use counterfoil::{
    Counterfoil, Day, Error, ErrorKind, Outcome, PrimaryTimeouts, Recorded, Slice, Store,
};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, stdin};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

type Made = Result<Value, Value>;

// one thread, so that calls queue for their turn in the order of their lines
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn StdError>> {
    let mut lines = BufReader::new(stdin()).lines();
    let first: Value = serde_json::from_str(&lines.next_line().await?.ok_or("no line")?)?;
    let families = Arc::new(open(&first["open"]).await?);
    println!("{}", json!({"ready": true}));
    let (mut turns, mut calls) = (HashMap::<_, Arc<Mutex<()>>>::new(), JoinSet::new());
    while let Some(line) = lines.next_line().await? {
        let call: Value = serde_json::from_str(&line)?;
        let turn = turns.entry(call["as"].clone()).or_default().clone();
        let families = families.clone();
        calls.spawn(async move {
            let _turn = turn.lock().await;
            println!("{}", answer(&families, &call).await);
        });
    }
    calls.join_all().await;
    for family in families.values() {
        if let Buffered(counters) = family {
            let _ = counters.flush().await;
        }
    }
    Ok(())
}

/// Opens the families that the daemon registered in the namespace.
async fn open(open: &Value) -> Result<HashMap<String, AnyCounters>, Box<dyn StdError>> {
    let seconds = |value: &Value| Duration::from_secs_f64(value.as_f64().unwrap_or(10.0));
    let mysql = text(&open["mysql"]);
    let counterfoil = if let Some(nodes) = open["nodes"].as_array() {
        let urls = nodes.iter().map(|node| format!("redis://{}", text(node)));
        let urls: Vec<_> = urls.collect();
        Counterfoil::connect_cluster(urls.iter().map(String::as_str), mysql).await?
    } else {
        let redis = format!("redis+unix://{}", text(&open["socket"]));
        let response = seconds(&open["timeout"]);
        let other = PrimaryTimeouts::default();
        let timeouts = PrimaryTimeouts { response, ..other };
        let builder = Counterfoil::builder().redis(redis).redis_timeouts(timeouts);
        builder.mysql(mysql).connect().await?
    };
    let limit = seconds(&open["options"]["retry_for"]);
    let counterfoil = counterfoil.write_timeout(limit).read_timeout(limit / 2);
    let mut families = HashMap::new();
    for (_, one) in counterfoil.mysql()?.families().await? {
        let one = one?;
        if one.family.namespace() == text(&open["namespace"]) {
            let name = one.family.name().to_owned();
            families.insert(name, counterfoil.open_registered(one)?);
        }
    }
    Ok(families)
}

async fn answer(families: &HashMap<String, AnyCounters>, call: &Value) -> Value {
    if text(&call["as"]).starts_with("fork") {
        return json!({"id": call["id"], "skipped": "tokio does not fork"});
    }
    let made = match families.get(text(&call["family"])) {
        Some(family) => make(family, text(&call["call"]), &call["args"]).await,
        None => Err(failure("misconfigured", "the family is not registered")),
    };
    let mut answer = made.map_or_else(|failure| failure, |returns| json!({"returns": returns}));
    answer["id"] = call["id"].clone();
    answer
}

async fn make(family: &AnyCounters, call: &str, args: &Value) -> Made {
    let [a, b, c] = [0, 1, 2].map(|at| text(&args[at]));
    let number = |value: &Value| value.as_i64().unwrap_or(1);
    let delta = number(&args[1]);
    let at = args[2]
        .as_u64()
        .map(|at| UNIX_EPOCH + Duration::from_secs(at));
    match (family, call) {
        (Buffered(views), "add") => outcome(views.add(a, delta).await),
        (Buffered(views), "add_many") => {
            let pairs = args[0].as_array().into_iter().flatten();
            let pairs = pairs.map(|pair| (text(&pair[0]), number(&pair[1])));
            let outcome = |one| outcome(one).unwrap_or_else(|failure| failure);
            let outcomes = views.add_many(pairs).await.into_iter();
            Ok(outcomes.map(outcome).collect())
        }
        (Buffered(views), "add_once") => is_first(match args[3].as_str() {
            Some(epoch) => views.add_once_since(epoch, a, b, number(&args[2])).await,
            None => views.add_once(a, b, number(&args[2])).await,
        }),
        (Buffered(views), "request_epoch") => told(views.request_epoch(a, b).await),
        (Buffered(views), "later") => told(views.record(a, delta)),
        (Buffered(views), "flush") => flushed(views.flush().await),
        (Buffered(views), "value") => told(views.get(a).await),
        (Buffered(views), "values") => told(views.get_many(texts(&args[0])).await),
        (Cached(votes), "incr") => outcome(votes.incr(a, delta).await),
        (Cached(votes), "incr_once") => {
            let delta = number(&args[2]);
            let once = match args[3].as_str() {
                Some(epoch) => votes.incr_once_since(epoch, a, b, delta).await,
                None => votes.incr_once(a, b, delta).await,
            };
            match once {
                Ok(Outcome::CountedBefore(value)) => Ok(value.into()),
                other => outcome(other),
            }
        }
        (Cached(votes), "request_epoch") => told(votes.request_epoch(a, b).await),
        (Cached(votes), "set") => outcome(votes.set(a, delta).await),
        (Cached(votes), "get" | "value") => told(votes.get(a).await),
        (Cached(votes), "values") => told(votes.peek_many(texts(&args[0])).await),
        (Series(hits), "add") => outcome(match at {
            Some(at) => hits.add_at(a, delta.unsigned_abs(), at).await,
            None => hits.add(a, delta.unsigned_abs()).await,
        }),
        (Series(hits), "later") => told(match at {
            Some(at) => hits.record_at(a, delta.unsigned_abs(), at),
            None => hits.record(a, delta.unsigned_abs()),
        }),
        (Series(hits), "flush") => flushed(hits.flush().await),
        (Series(hits), "get") => {
            let slices = hits.get(a, b.parse().map_err(failed)?).await;
            Ok(slices.map_err(failed)?.iter().map(slice).collect())
        }
        (Activity(here), "touch") => told(here.touch(a, b).await),
        (Activity(here), "later") => told(here.record(a, b)),
        (Activity(here), "flush") => flushed(here.flush().await),
        (Activity(here), "now") => {
            let now = here.now(a).await.map_err(failed)?;
            Ok(json!([now.views, now.visitors]))
        }
        (Visitors(daily), "first_visit") => {
            is_first(daily.first_visit(a, b.parse().map_err(failed)?, c).await)
        }
        (Visitors(daily), "later") => told(daily.record(a, b.parse().map_err(failed)?, c)),
        (Visitors(daily), "flush") => flushed(daily.flush().await),
        (Visitors(daily), "values") => {
            let days = args[0].as_array().into_iter().flatten();
            let day = |day: &Value| text(day).parse::<Day>().map_err(failed);
            let days = days.map(|pair| Ok((text(&pair[0]), day(&pair[1])?)));
            told(
                daily
                    .get_many(days.collect::<Result<Vec<_>, Value>>()?)
                    .await,
            )
        }
        _ => Err(failure("misconfigured", format!("it has no {call}"))),
    }
}

fn slice(slice: &Slice) -> Value {
    let start = slice.start.duration_since(UNIX_EPOCH).unwrap_or_default();
    json!([start.as_secs(), slice.count])
}

fn told<T: Into<Value>>(result: Result<T, Error>) -> Made {
    result.map(Into::into).map_err(failed)
}

fn flushed(recorded: Result<Recorded, Error>) -> Made {
    match recorded.map_err(failed)? {
        Recorded::Counted => Ok(Value::Null),
        Recorded::Refused { bad_time, .. } if bad_time > 0 => {
            Err(failure("not_counted", "BADTIME"))
        }
        refused => Err(failure("not_counted", format!("{refused:?}"))),
    }
}

fn is_first(counted: Result<Outcome, Error>) -> Made {
    Ok((!outcome(counted)?.is_null()).into())
}

/// Returns the value, or null if this call did not count.
fn outcome(counted: Result<Outcome, Error>) -> Made {
    match counted.map_err(failed)? {
        Outcome::Counted(value) => Ok(value.into()),
        Outcome::CountedBefore(_) => Ok(Value::Null),
        Outcome::OutOfRange(_) => Err(failure("not_counted", "RANGE")),
        other => Err(failure("not_counted", format!("{other:?}").to_uppercase())),
    }
}

fn failed(error: Error) -> Value {
    let kind = match error.kind() {
        ErrorKind::OutcomeUnknown => "outcome_unknown",
        ErrorKind::Mismatch | ErrorKind::AccessDenied => "misconfigured",
        // the words of the scripts, which the crate does not let invalid input reach
        ErrorKind::InvalidInput => {
            return failure("not_counted", format!("BADID BADARG {error:#}"));
        }
        _ => "not_counted",
    };
    failure(kind, format!("{error:#}"))
}

fn failure(kind: &str, reason: impl Into<Value>) -> Value {
    json!({"error": kind, "reason": reason.into()})
}

fn texts(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().map(text)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
