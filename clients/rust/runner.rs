//! Makes the calls of a scenario with the crate, as clients/README.md describes them: a line of JSON
//! for each call, and one for each reply.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use counterfoil::AnyCounters::{self, Activity, Buffered, Cached, Series, Visitors};
use counterfoil::{Counterfoil, Error, ErrorKind, Outcome, PrimaryTimeouts, Recorded, Store};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, stdin};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

type Families = HashMap<String, AnyCounters>;
type Made = Result<Value, Value>;

#[tokio::main]
async fn main() -> Result<(), Box<dyn StdError>> {
    let mut lines = BufReader::new(stdin()).lines();
    let first: Value = serde_json::from_str(&lines.next_line().await?.ok_or("no line")?)?;
    let families = Arc::new(open(&first["open"]).await?);
    println!("{}", json!({"ready": true}));
    let (mut tasks, mut ends) = (HashMap::<String, UnboundedSender<Value>>::new(), vec![]);
    while let Some(line) = lines.next_line().await? {
        let call: Value = serde_json::from_str(&line)?;
        let task = tasks
            .entry(text(&call["as"]).to_owned())
            .or_insert_with(|| {
                let (task, mut calls) = unbounded_channel();
                let families = families.clone();
                ends.push(tokio::spawn(async move {
                    while let Some(call) = calls.recv().await {
                        println!("{}", answer(&families, &call).await);
                    }
                }));
                task
            });
        task.send(call)?;
    }
    drop(tasks);
    for end in ends {
        end.await?;
    }
    for family in families.values() {
        if let Buffered(counters) = family {
            let _ = counters.flush().await;
        }
    }
    Ok(())
}

/// Opens the families that the daemon registered in the namespace.
async fn open(open: &Value) -> Result<Families, Box<dyn StdError>> {
    let seconds = |value: &Value| Duration::from_secs_f64(value.as_f64().unwrap_or(10.0));
    let mysql = text(&open["mysql"]);
    let counterfoil = match open["nodes"].as_array() {
        Some(nodes) => {
            let urls = nodes.iter().map(|node| format!("redis://{}", text(node)));
            let urls: Vec<_> = urls.collect();
            Counterfoil::connect_cluster(urls.iter().map(String::as_str), mysql).await?
        }
        None => {
            let redis = format!("redis+unix://{}", text(&open["socket"]));
            let response = seconds(&open["timeout"]);
            let timeouts = PrimaryTimeouts {
                response,
                ..Default::default()
            };
            let builder = Counterfoil::builder().redis(redis).redis_timeouts(timeouts);
            builder.mysql(mysql).connect().await?
        }
    };
    let registered = counterfoil.mysql()?.families().await?;
    let counterfoil = counterfoil.write_timeout(seconds(&open["options"]["retry_for"]));
    let mut families = Families::new();
    for one in registered {
        let one = one?;
        if one.family.namespace() == text(&open["namespace"]) {
            families.insert(
                one.family.name().to_owned(),
                counterfoil.open_registered(one)?,
            );
        }
    }
    Ok(families)
}

async fn answer(families: &Families, call: &Value) -> Value {
    let made = match families.get(text(&call["family"])) {
        _ if text(&call["as"]).starts_with("fork") => {
            Err(json!({"skipped": "tokio does not fork"}))
        }
        Some(family) => make(family, text(&call["call"]), &call["args"]).await,
        None => Err(failure("misconfigured", "nobody registered the family")),
    };
    let mut answer = made.map_or_else(|failure| failure, |returns| json!({"returns": returns}));
    answer["id"] = call["id"].clone();
    answer
}

async fn make(family: &AnyCounters, call: &str, args: &Value) -> Made {
    let (a, b, delta) = (
        text(&args[0]),
        text(&args[1]),
        args[1].as_i64().unwrap_or(1),
    );
    match (family, call) {
        (Buffered(views), "add") => outcome(views.add(a, delta).await),
        (Buffered(views), "add_many") => {
            let pairs = args[0].as_array().into_iter().flatten();
            let pairs = pairs.map(|pair| (text(&pair[0]), pair[1].as_i64().unwrap_or(1)));
            let outcomes = views.add_many(pairs).await.into_iter();
            Ok(outcomes
                .map(|one| outcome(one).unwrap_or_else(|failure| failure))
                .collect())
        }
        (Buffered(views), "add_once") => {
            let delta = args[2].as_i64().unwrap_or(1);
            is_first(match args[3].as_str() {
                Some(epoch) => views.add_once_since(epoch, a, b, delta).await,
                None => views.add_once(a, b, delta).await,
            })
        }
        (Buffered(views), "request_epoch") => told(views.request_epoch(a, b).await),
        (Buffered(views), "later") => told(views.record(a, delta)),
        (Buffered(views), "flush") => match views.flush().await.map_err(failed)? {
            Recorded::Counted => Ok(Value::Null),
            refused => Err(failure("not_counted", &format!("{refused:?}"))),
        },
        (Buffered(views), "value") => told(views.get(a).await),
        (Cached(votes), "incr") => outcome(votes.incr(a, delta).await),
        (Cached(votes), "set") => outcome(votes.set(a, delta).await),
        (Cached(votes), "get" | "value") => told(votes.get(a).await),
        (Series(hits), "add") => outcome(hits.add(a, delta.unsigned_abs()).await),
        (Series(hits), "get") => {
            let slices = hits
                .get(a, b.parse().map_err(failed)?)
                .await
                .map_err(failed)?;
            let start = |slice: &counterfoil::Slice| slice.start.duration_since(UNIX_EPOCH);
            let starts = slices
                .iter()
                .map(|slice| start(slice).unwrap_or_default().as_secs());
            Ok(starts
                .zip(&slices)
                .map(|(start, slice)| json!([start, slice.count]))
                .collect())
        }
        (Activity(here), "touch") => told(here.touch(a, b).await),
        (Activity(here), "now") => told(
            here.now(a)
                .await
                .map(|now| json!([now.views, now.visitors.count()])),
        ),
        (Visitors(daily), "first_visit") => {
            let day = b.parse().map_err(failed)?;
            is_first(daily.first_visit(a, day, text(&args[2])).await)
        }
        _ => Err(failure(
            "misconfigured",
            &format!("the family has no {call}"),
        )),
    }
}

fn told<T: Into<Value>>(result: Result<T, Error>) -> Made {
    result.map(Into::into).map_err(failed)
}

fn is_first(counted: Result<Outcome, Error>) -> Made {
    Ok((!outcome(counted)?.is_null()).into())
}

/// Returns the value, or null if this call did not count.
fn outcome(counted: Result<Outcome, Error>) -> Made {
    match counted.map_err(failed)? {
        Outcome::Counted(value) => Ok(value.into()),
        Outcome::CountedBefore(_) => Ok(Value::Null),
        Outcome::OutOfRange(value) => {
            Err(json!({"error": "not_counted", "reason": "RANGE", "value": value}))
        }
        other => Err(failure("not_counted", &format!("{other:?}").to_uppercase())),
    }
}

fn failed(error: Error) -> Value {
    let kind = match error.kind() {
        ErrorKind::OutcomeUnknown => "outcome_unknown",
        ErrorKind::Mismatch | ErrorKind::AccessDenied => "misconfigured",
        _ => "not_counted",
    };
    failure(kind, &format!("{error:#}"))
}

fn failure(kind: &str, reason: &str) -> Value {
    json!({"error": kind, "reason": reason})
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
