//! The state that the daemon on this machine reports over HTTP: what only the daemon sees.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use axum::body::{Body, to_bytes};
use axum::http::header::{AUTHORIZATION, HOST};
use axum::http::{Request, StatusCode};
use counterfoil::admin::{Finding, Severity};
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::TcpStream;

use crate::config::HttpConfig;
use crate::poll::in_time;

/// The path of the state without its families.
const STATE: &str = "/api/v1/state?limit=0";
/// The maximum length of a reply in bytes.
const MAX_LENGTH: usize = 16 << 20;

#[derive(Deserialize)]
pub struct DaemonState {
    pairs: Vec<Pair>,
}

#[derive(Deserialize)]
struct Pair {
    name: String,
    reconciler: Reconciler,
    findings: Vec<Finding>,
}

#[derive(Deserialize)]
struct Reconciler {
    why: Option<String>,
}

impl DaemonState {
    /// Returns the errors of a pair: those of `check`, and the steps that fail.
    pub fn errors(&self, pair: &str) -> Vec<Finding> {
        let Some(pair) = self.pairs.iter().find(|one| one.name == pair) else {
            return Vec::new();
        };
        let advice = "The daemon tries to start it again every few seconds";
        let stopped = |why: &String| {
            let message = format!("does not run: {why}");
            Finding::new(Severity::Error, "reconciler", message, advice)
        };
        let errors = pair.findings.iter().cloned();
        let errors = errors.filter(|finding| finding.severity == Severity::Error);
        pair.reconciler
            .why
            .iter()
            .map(stopped)
            .chain(errors)
            .collect()
    }
}

/// Reads the state of the daemon that listens where the configuration says. `None` if the daemon
/// serves no HTTP, or on a port that the system chose.
pub async fn read(http: Option<&HttpConfig>) -> Option<Result<DaemonState, String>> {
    let http = http.filter(|http| http.listen.port() > 0)?;
    let address = local(http.listen);
    let state = in_time(ask(address, http)).await;
    Some(state.map_err(|why| format!("the daemon at {address} did not tell its state: {why}")))
}

/// Returns the address at which this machine reaches a listener.
fn local(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

async fn ask(address: SocketAddr, http: &HttpConfig) -> Result<DaemonState, String> {
    let stream = TcpStream::connect(address).await.map_err(text)?;
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await.map_err(text)?;
    tokio::spawn(connection);
    let mut request = Request::get(STATE).header(HOST, address.to_string());
    if let Some(token) = &http.token {
        request = request.header(AUTHORIZATION, format!("Bearer {token}"));
    }
    let request = request.body(Body::empty()).map_err(text)?;
    let reply = sender.send_request(request).await.map_err(text)?;
    match reply.status() {
        StatusCode::OK => {}
        StatusCode::UNAUTHORIZED => {
            return Err("it needs its token, which this command lacks".to_owned());
        }
        status => return Err(format!("it replied {status}")),
    }
    let body = to_bytes(Body::new(reply.into_body()), MAX_LENGTH)
        .await
        .map_err(text)?;
    serde_json::from_slice(&body).map_err(|why| format!("its reply is not its state: {why}"))
}

fn text(error: impl std::error::Error) -> String {
    error.to_string()
}
