//! The daemon on this machine over HTTP: whether it is alive, and what only it sees.

use std::cell::Cell;
use std::error::Error;

use counterfoil::admin::{Finding, Severity};
use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::Context;
use crate::config::HttpConfig;
use crate::exit::{Exit, Failure};
use crate::health::Problem;
use crate::http::ALIVE;
use crate::limits::in_time;
use crate::output::with_commands;

/// The path of the state without its families.
const STATE: &str = "/api/v1/state?limit=0";
/// The maximum length of a reply in bytes.
const MAX_LENGTH: u64 = 16 << 20;

/// Why a daemon did not tell its state.
pub struct Silent {
    /// True if it runs, and keeps its state from this command.
    pub runs: bool,
    pub why: String,
}

#[derive(Deserialize)]
pub struct DaemonState {
    problems: Vec<Problem>,
    pairs: Vec<DaemonPair>,
}

#[derive(Deserialize)]
struct DaemonPair {
    name: String,
}

impl DaemonState {
    /// Returns the problems of a pair, the worst first. `None` if the daemon does not have the pair.
    pub fn problems(&self, pair: &str) -> Option<Vec<Problem>> {
        self.pairs.iter().find(|one| one.name == pair)?;
        Some(
            self.problems
                .iter()
                .filter(|one| one.pair == pair)
                .cloned()
                .collect(),
        )
    }
}

/// Reads the state of the daemon that listens where the configuration says. `None` if the daemon
/// serves no HTTP, or if the system chose its port (`listen` with port 0).
pub async fn read(http: Option<&HttpConfig>) -> Option<Result<DaemonState, Silent>> {
    let http = http.filter(|http| http.listen.port() > 0)?;
    // a daemon may listen on all addresses (0.0.0.0). A connection to that address leads to this
    // machine
    let address = http.listen;
    let is_locked = Cell::new(false);
    let reply = in_time(async {
        let reply = ask(http, STATE).await?;
        is_locked.set(reply.code() == Some("401"));
        reply.state()
    });
    Some(reply.await.map_err(|why| {
        let why = format!("the daemon at {address} did not tell its state: {why}");
        if is_locked.get() {
            Silent { runs: true, why }
        } else {
            let advice = "Start it with `counterfoil run`; set listen = \"off\" where none runs";
            let why = with_commands(&format!("{why}. {advice}"));
            Silent { runs: false, why }
        }
    }))
}

/// Returns who listens where the daemon should, if that is no daemon of counterfoil's.
pub async fn other_listener(http: Option<&HttpConfig>) -> Option<Finding> {
    let http = http.filter(|http| http.listen.port() > 0)?;
    in_time(TcpStream::connect(http.listen)).await.ok()?;
    let reply = in_time(ask(http, "/healthz")).await;
    if reply.is_ok_and(|reply| reply.code() == Some("200") && reply.body == ALIVE) {
        return None;
    }
    let what = format!("another program listens at {}", http.listen);
    let advice = "Give `listen` another port, or \"off\": `counterfoil run` would fail";
    Some(Finding::new(Severity::Warning, "listen", what, advice))
}

/// Asks the daemon, and nothing else, whether it is alive, or with `ready` whether hits reach MySQL.
/// Every failure ends with 1: containers give no other code a meaning.
pub async fn health(context: Result<Context, Failure>, ready: bool) -> Result<Exit, Failure> {
    let unhealthy = |why| Failure::warning(format!("unhealthy: {why}"));
    let Context { config, output } = context.map_err(|failure| unhealthy(failure.message))?;
    let http = config
        .http
        .filter(|http| http.listen.port() > 0)
        .ok_or_else(|| {
            unhealthy("`listen` is \"off\" or has port 0: there is no address to ask".to_owned())
        })?;
    let path = if ready { "/readyz" } else { "/healthz" };
    let reply = in_time(ask(&http, path)).await;
    let reply = reply.map_err(|why| unhealthy(format!("the daemon at {}: {why}", http.listen)))?;
    let line = reply.body.trim().to_owned();
    match reply.code() {
        Some("200") => output.print(&json!({ "healthy": true }), |_| vec![line]),
        Some("503") => Err(unhealthy(line)),
        _ => Err(unhealthy(format!(
            "{} replied {}, which is no daemon's reply",
            http.listen,
            reply.first_line()
        ))),
    }
}

/// A reply over HTTP.
struct Reply {
    head: String,
    body: String,
}

impl Reply {
    fn first_line(&self) -> &str {
        self.head.lines().next().unwrap_or_default()
    }

    fn code(&self) -> Option<&str> {
        self.head.split(' ').nth(1)
    }

    fn state(&self) -> Result<DaemonState, Box<dyn Error>> {
        match self.code() {
            Some("200") => Ok(serde_json::from_str(&self.body)?),
            Some("401") => Err("it needs its token, which this command lacks".into()),
            _ => Err(format!("it replied {}", self.first_line()).into()),
        }
    }
}

async fn ask(http: &HttpConfig, path: &str) -> Result<Reply, Box<dyn Error>> {
    let address = http.listen;
    let mut stream = TcpStream::connect(address).await?;
    let mut request = format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n");
    if let Some(token) = &http.token {
        request += &format!("Authorization: Bearer {token}\r\n");
    }
    stream
        .write_all(format!("{request}\r\n").as_bytes())
        .await?;
    let mut reply = String::new();
    stream.take(MAX_LENGTH).read_to_string(&mut reply).await?;
    let (head, body) = reply
        .split_once("\r\n\r\n")
        .ok_or("the reply is not HTTP")?;
    Ok(Reply {
        head: head.to_owned(),
        body: body.to_owned(),
    })
}
