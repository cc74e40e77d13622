//! Servers for the tests of an application: a private Redis with the families of the configuration,
//! and exact values by HTTP. MySQL's part is kept in memory.

use std::collections::HashSet;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use axum_extra::extract::Query;
use counterfoil::{AnyCounters, Counterfoil, MemoryStore, Primary};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use super::Context;
use crate::config::PairConfig;
use crate::exit::{Exit, Failure};
use crate::families;
use crate::http::error::ErrorReply;
use crate::output::print_message;
use crate::signals;

/// The time for Redis to start.
const STARTING: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);
/// The interval at which announced families are configured: shorter than the daemon's, since tests
/// wait for it.
const WANTED: Duration = Duration::from_millis(50);

/// The families of a pair, in a Redis of their own.
struct Sandbox {
    pair: PairConfig,
    counterfoil: Counterfoil,
}

/// Runs the command beside private servers, or waits for a signal without one.
pub async fn run(
    context: &Context,
    redis_server: &str,
    command: &[String],
) -> Result<Exit, Failure> {
    let failed = |error: io::Error| Failure::critical(error.to_string());
    let stopped = signals::stop().map_err(failed)?;
    let (_redis, url) = start_redis(redis_server)?;
    let redis = connect(&url).await?;
    let sandbox = Arc::new(Sandbox {
        pair: context.pair()?.clone(),
        counterfoil: Counterfoil::new(redis, MemoryStore::new()),
    });
    for name in sandbox.pair.family_names() {
        sandbox.open(&name).await?;
    }
    let _reconciler = sandbox.counterfoil.reconciler().start().await?;
    let listener = TcpListener::bind(any_port()).await.map_err(failed)?;
    let daemon = format!("http://{}", listener.local_addr().map_err(failed)?);
    let routes = Router::new().route("/api/v1/values", get(values).post(values_of_list));
    tokio::spawn(axum::serve(listener, routes.with_state(sandbox.clone())).into_future());
    tokio::spawn(open_wanted(sandbox));
    let Some((program, args)) = command.split_first() else {
        println!("COUNTERFOIL_REDIS={url}\nCOUNTERFOIL_DAEMON={daemon}");
        stopped.await;
        return Ok(Exit::Ok);
    };
    let mut application = Command::new(program);
    application.args(args).kill_on_drop(true);
    application.env("COUNTERFOIL_REDIS", url);
    application.env("COUNTERFOIL_DAEMON", daemon);
    tokio::select! {
        ended = application.status() => {
            let status = ended.map_err(|error| Failure::usage(format!("{program}: {error}")))?;
            Ok(Exit::warning_if(!status.success()))
        }
        () = stopped => Ok(Exit::Warning),
    }
}

fn any_port() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

/// Starts a Redis that is empty and stores nothing. It ends when the handle is dropped.
fn start_redis(program: &str) -> Result<(Child, String), Failure> {
    let free = std::net::TcpListener::bind(any_port())
        .and_then(|listener| listener.local_addr())
        .map_err(|error| Failure::critical(format!("no free port: {error}")))?;
    let port = free.port().to_string();
    let redis = Command::new(program)
        .args(["--port", &port, "--bind", "127.0.0.1"])
        .args(["--save", "", "--appendonly", "no"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| {
            let advice = "install Redis, or name its program with --redis-server";
            Failure::critical(format!("{program} was not started: {error}; {advice}"))
        })?;
    Ok((redis, format!("redis://127.0.0.1:{port}")))
}

/// Connects as soon as Redis listens.
async fn connect(url: &str) -> Result<Primary, Failure> {
    let end = Instant::now() + STARTING;
    loop {
        match Primary::connect(url).await {
            Err(_) if Instant::now() < end => sleep(PAUSE).await,
            connected => return Ok(connected?),
        }
    }
}

impl Sandbox {
    /// Opens a family if it is configured. The store in memory has no rows of the application, so
    /// the family is opened as one whose missing rows are inserted.
    async fn open(&self, name: &str) -> Result<Option<AnyCounters>, Failure> {
        let Some(configured) = self.pair.family(name) else {
            return Ok(None);
        };
        let upserted = configured.with_any_rows()?;
        let counters = families::open(&self.counterfoil, &upserted, name).await?;
        Ok(Some(counters))
    }

    async fn values(&self, name: &str, ids: &[String]) -> ValuesReply {
        let counters = self
            .open(name)
            .await
            .map_err(|failure| ErrorReply::new(StatusCode::INTERNAL_SERVER_ERROR, failure.message))?
            .ok_or_else(|| ErrorReply::not_found(format!("no family {name:?}")))?;
        let values = families::read_values(&counters, ids)
            .await?
            .ok_or_else(|| ErrorReply::not_found(format!("{name} has no values")))?;
        Ok(Json(json!({"family": name, "values": values})))
    }
}

/// Opens what clients announce, and prints each problem once. Never returns.
async fn open_wanted(sandbox: Arc<Sandbox>) {
    let mut printed = HashSet::new();
    let mut print = |problem: String| {
        if printed.insert(problem.clone()) {
            print_message(&problem);
        }
    };
    loop {
        match sandbox.counterfoil.take_wanted().await {
            Ok(names) => {
                for name in names {
                    match sandbox.open(&name).await {
                        Ok(Some(_)) => {}
                        Ok(None) => print(format!("{name} is not in the configuration")),
                        Err(failure) => print(format!("{name}: {}", failure.message)),
                    }
                }
            }
            Err(error) => print(format!("announced families: {error:#}")),
        }
        sleep(WANTED).await;
    }
}

type ValuesReply = Result<Json<Value>, ErrorReply>;

#[derive(Deserialize)]
struct SandboxParams {
    family: String,
    #[serde(default)]
    id: Vec<String>,
}

async fn values(
    State(sandbox): State<Arc<Sandbox>>,
    Query(params): Query<SandboxParams>,
) -> ValuesReply {
    sandbox.values(&params.family, &params.id).await
}

#[derive(Deserialize)]
struct SandboxList {
    family: String,
    ids: Vec<String>,
}

async fn values_of_list(
    State(sandbox): State<Arc<Sandbox>>,
    Json(list): Json<SandboxList>,
) -> ValuesReply {
    sandbox.values(&list.family, &list.ids).await
}
