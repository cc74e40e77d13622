//! The state that the daemon on this machine reports over HTTP: what only the daemon sees.

use std::error::Error;
use std::net::SocketAddr;

use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::config::HttpConfig;
use crate::health::Problem;
use crate::limits::in_time;

/// The path of the state without its families.
const STATE: &str = "/api/v1/state?limit=0";
/// The maximum length of a reply in bytes.
const MAX_LENGTH: u64 = 16 << 20;

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
pub async fn read(http: Option<&HttpConfig>) -> Option<Result<DaemonState, String>> {
    let http = http.filter(|http| http.listen.port() > 0)?;
    // a daemon may listen on all addresses (0.0.0.0). A connection to that address leads to this
    // machine
    let address = http.listen;
    let reply = in_time(ask(address, http)).await;
    Some(reply.map_err(|why| format!("the daemon at {address} did not tell its state: {why}")))
}

async fn ask(address: SocketAddr, http: &HttpConfig) -> Result<DaemonState, Box<dyn Error>> {
    let mut stream = TcpStream::connect(address).await?;
    let mut request = format!("GET {STATE} HTTP/1.0\r\nHost: {address}\r\n");
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
    match head.split(' ').nth(1) {
        Some("200") => Ok(serde_json::from_str(body)?),
        Some("401") => Err("it needs its token, which this command lacks".into()),
        _ => Err(format!("it replied {}", head.lines().next().unwrap_or_default()).into()),
    }
}
