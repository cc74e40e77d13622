//! HTTP as bytes, so that a test can also send what no client would send.

use std::io;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::support::Daemon;

/// A reply of the daemon.
#[derive(Clone, Debug)]
pub struct Reply {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Reply {
    /// Returns the header `name`, which is in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.head.lines().filter_map(|line| line.split_once(": "));
        headers
            .find(|(given, _)| *given == name)
            .map(|(_, value)| value)
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    fn of(bytes: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(bytes);
        let (head, body) = text.split_once("\r\n\r\n")?;
        let status = head.strip_prefix("HTTP/1.")?.get(2..5)?.parse().ok()?;
        Some(Reply {
            status,
            head: head.to_owned(),
            body: body.to_owned(),
        })
    }
}

/// Returns HOST:PORT.
pub fn address(daemon: &Daemon) -> String {
    daemon.url("").replace("http://", "")
}

/// Sends the bytes and returns everything up to the end of the connection, or `None` if it is not
/// HTTP.
pub async fn send(daemon: &Daemon, bytes: &[u8]) -> Option<Reply> {
    let reply = timeout(Duration::from_secs(40), exchange(&address(daemon), bytes)).await;
    reply.expect("the connection ends").expect("it listens")
}

/// Sends the bytes to HOST:PORT as [`send`] does. Fails if there is no connection.
pub async fn exchange(address: &str, bytes: &[u8]) -> io::Result<Option<Reply>> {
    let mut stream = TcpStream::connect(address).await?;
    // a server that refuses a request early may close the connection before it is fully sent
    let _ = stream.write_all(bytes).await;
    let mut came = Vec::new();
    let mut buffer = vec![0; 16_384];
    while let Ok(length @ 1..) = stream.read(&mut buffer).await {
        came.extend_from_slice(&buffer[..length]);
    }
    Ok(Reply::of(&came))
}

pub async fn request(daemon: &Daemon, method: &str, path: &str, headers: &str) -> Reply {
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n"
    );
    send(daemon, request.as_bytes())
        .await
        .unwrap_or_else(|| panic!("no reply to {method} {path}"))
}

/// Asks for the values of a list of ids.
pub async fn post(daemon: &Daemon, list: &Value) -> Reply {
    let list = list.to_string();
    let length = list.len();
    let request = format!(
        "POST /api/v1/values HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{list}"
    );
    let reply = send(daemon, request.as_bytes()).await;
    reply.expect("a reply")
}

pub async fn get(daemon: &Daemon, path: &str) -> Reply {
    request(daemon, "GET", path, "").await
}
