//! The visitors of a sample.

use std::time::Duration;
use std::{env, io};

use rand::RngExt;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::families::{VIEWS, VISITORS};
use super::journal::{Journal, Outcome, PRODUCTS};
use crate::client::{Reply, exchange};

const CONNECTIONS: usize = 8;
const REQUEST_LIMIT: Duration = Duration::from_secs(30);
/// The pause of a visitor between two requests, so that a short run leaves the cores to other tests. A long one has none.
const PAUSE: Duration = Duration::from_millis(40);
/// The pause of a visitor after a request that could not be sent.
const REFUSED: Duration = Duration::from_millis(50);
const BROWSER: &str = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0";

/// The rows that a sample counts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    None,
    AddedAndDeleted,
    AlsoMoved,
}

/// Visitors that send requests, each one after the other.
pub struct Load {
    stop: watch::Sender<bool>,
    visitors: JoinSet<Journal>,
}

impl Load {
    pub fn start(address: String, rows: Rows) -> Self {
        let (stop, stopping) = watch::channel(false);
        let mut visitors = JoinSet::new();
        for _ in 0..CONNECTIONS {
            let visitor = Visitor {
                address: address.clone(),
                rows,
                saves: vec![],
                journal: Journal::default(),
            };
            visitors.spawn(visitor.visit(stopping.clone()));
        }
        Load { stop, visitors }
    }

    /// Lets the visitors finish their requests.
    pub async fn stop(self) -> Journal {
        self.stop.send_replace(true);
        let mut all = Journal::default();
        for journal in self.visitors.join_all().await {
            all.merge(journal);
        }
        all
    }
}

struct Visitor {
    address: String,
    rows: Rows,
    /// The ids of rows that it has added.
    saves: Vec<i64>,
    journal: Journal,
}

impl Visitor {
    async fn visit(mut self, stopping: watch::Receiver<bool>) -> Journal {
        let pause = if env::var_os("COUNTERFOIL_LONG").is_some() {
            Duration::ZERO
        } else {
            PAUSE
        };
        while !*stopping.borrow() {
            sleep(pause).await;
            let product = any(PRODUCTS);
            match any(if self.rows == Rows::None { 7 } else { 10 }) {
                1..=5 => self.count(VIEWS, "views", product, "").await,
                6 => {
                    let visitor = format!("X-Visitor: visitor-{}\r\n", any(500));
                    self.count(VISITORS, "visits", product, &visitor).await;
                }
                7 => drop(
                    ask(
                        &self.address,
                        "GET",
                        "/products",
                        "Accept: application/json\r\n",
                        "",
                    )
                    .await,
                ),
                _ => self.save(product).await,
            }
        }
        self.journal
    }

    async fn count(&mut self, family: &'static str, path: &str, product: i64, headers: &str) {
        let path = format!("/products/{product}/{path}");
        let outcome = match ask(&self.address, "POST", &path, headers, "").await {
            Ok(reply) => outcome(&reply),
            Err(error) => of_error(&error).await,
        };
        self.journal.note(family, product, &outcome);
    }

    /// Adds a row, moves one to another product, or deletes one.
    async fn save(&mut self, product: i64) {
        let which = any(if self.rows == Rows::AlsoMoved { 3 } else { 2 });
        let id = if which > 1 { self.saves.pop() } else { None };
        let reply = match id {
            None => {
                let row = json!({"user_id": any(1_000_000)}).to_string();
                self.send("POST", &format!("/products/{product}/saves"), &row)
                    .await
            }
            Some(id) if which == 3 => {
                let row = json!({"product_id": product}).to_string();
                self.send("PUT", &format!("/saves/{id}"), &row).await
            }
            Some(id) => self.send("DELETE", &format!("/saves/{id}"), "").await,
        };
        if let Some(reply) = reply {
            self.journal.note_row();
            // a row of unknown outcome is left alone
            let added = serde_json::from_str::<Value>(&reply.body).ok();
            self.saves.extend(added.and_then(|row| row["id"].as_i64()));
        }
    }

    /// Returns the reply to a request that changed a row.
    async fn send(&self, method: &str, path: &str, body: &str) -> Option<Reply> {
        match ask(
            &self.address,
            method,
            path,
            "Content-Type: application/json\r\n",
            body,
        )
        .await
        {
            Ok(reply) if reply.status < 300 => Some(reply),
            Ok(reply) => {
                assert!(reply.status >= 500, "{method} {path}: {reply:?}");
                None
            }
            Err(error) => {
                of_error(&error).await;
                None
            }
        }
    }
}

/// Sends a request of a browser, and returns the reply.
pub async fn ask(
    address: &str,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> io::Result<Reply> {
    // with HTTP/1.0 the reply ends with the connection
    let request = format!(
        "{method} {path} HTTP/1.0\r\nHost: {address}\r\nUser-Agent: {BROWSER}\r\n{headers}Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let reply = timeout(REQUEST_LIMIT, exchange(address, request.as_bytes())).await;
    reply
        .map_err(|_| io::ErrorKind::TimedOut)??
        .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

fn outcome(reply: &Reply) -> Outcome {
    // the server was killed while it sent the reply
    let Ok(body) = serde_json::from_str::<Value>(&reply.body) else {
        return Outcome::Unknown;
    };
    match (reply.status, &body["counted"], body["error"].as_str()) {
        (200, Value::Bool(true), _) => Outcome::Counted,
        (200, Value::Bool(false), _) => Outcome::LeftOut,
        (503, _, Some("not_counted")) => Outcome::NotCounted,
        (500.., ..) => Outcome::Unknown,
        _ => panic!("an unexpected reply: {reply:?}"),
    }
}

async fn of_error(error: &io::Error) -> Outcome {
    sleep(REFUSED).await;
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Outcome::NotCounted,
        _ => Outcome::Unknown,
    }
}

/// Draws a number from 1 on.
fn any(last: i64) -> i64 {
    rand::rng().random_range(1..=last)
}
