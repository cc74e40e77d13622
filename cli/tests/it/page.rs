//! The pages in a browser, compared with the counts in the servers.
//!
//! `COUNTERFOIL_CHROMIUM` names a Chromium or Chrome, `COUNTERFOIL_NODE_MODULES` a folder that
//! contains puppeteer-core.

use std::env;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use counterfoil::{Durability, Family};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::http::{application, daemon_of_kinds, views};
use crate::support::Site;

/// A headless browser that takes one command a line.
struct Browser {
    process: Child,
    orders: ChildStdin,
    replies: Lines<BufReader<ChildStdout>>,
}

impl Browser {
    /// Starts the browser. If there is none, prints the reason and returns `None`.
    fn start(url: &str) -> Option<Self> {
        let mut command = match command() {
            Ok(command) => command,
            Err(why) => {
                eprintln!("{why}: the test of the status page is skipped");
                return None;
            }
        };
        let piped = command
            .arg(url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true);
        let mut process = piped.spawn().expect("node runs");
        let orders = process.stdin.take().expect("piped");
        let replies = BufReader::new(process.stdout.take().expect("piped")).lines();
        Some(Browser {
            process,
            orders,
            replies,
        })
    }

    /// Waits until the order is done, and panics with the browser's message if it fails.
    async fn tell(&mut self, order: Value) {
        self.orders
            .write_all(format!("{order}\n").as_bytes())
            .await
            .expect("it listens");
        let reply = timeout(Duration::from_secs(90), self.replies.next_line())
            .await
            .expect("a reply")
            .expect("a line");
        assert_eq!(reply.as_deref(), Some("done"), "{order}");
    }

    async fn shows(&mut self, selector: &str, text: &str) {
        self.tell(json!({"do": "shows", "selector": selector, "text": text}))
            .await;
    }
}

fn command() -> Result<Command, &'static str> {
    let chromium = env::var_os("COUNTERFOIL_CHROMIUM").ok_or("COUNTERFOIL_CHROMIUM is not set")?;
    let modules =
        env::var_os("COUNTERFOIL_NODE_MODULES").ok_or("COUNTERFOIL_NODE_MODULES is not set")?;
    if !Path::new(&modules).join("puppeteer-core").exists() {
        return Err("COUNTERFOIL_NODE_MODULES holds no puppeteer-core");
    }
    let mut command = Command::new("node");
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/page.mjs");
    command.arg(program).arg(chromium).env("NODE_PATH", modules);
    Ok(command)
}

const PENDING: &str = "tr[data-family='shop/views'] .pending data";

#[tokio::test]
async fn pages_show_what_was_counted() {
    let site = Site::new().await;
    let daemon = daemon_of_kinds(&site).await;
    let Some(mut browser) = Browser::start(&daemon.url("")) else {
        return;
    };
    let counting = application(&site).await;
    let views = counting.open(views()).await.unwrap();
    let downloads = Family::series("shop", "downloads").durability(Durability::Immediate);
    let downloads = counting.open(downloads).await.unwrap();
    let hit = async |range: std::ops::Range<i64>| {
        for id in range {
            let _ = views.add(&format!("page {id}"), 1000 + id).await.unwrap();
        }
    };

    hit(0..7).await;
    browser.tell(json!({"do": "goto", "path": "/"})).await;
    browser.shows("#connection", "Live.").await;
    browser.shows(PENDING, "7").await;
    hit(7..1234).await;
    browser.shows(PENDING, "1,234").await;
    for scheme in ["light", "dark"] {
        browser
            .tell(json!({"do": "scheme", "scheme": scheme}))
            .await;
        browser.tell(json!({"do": "readable"})).await;
        browser.shows(PENDING, "1,234").await;
    }
    // without persistence, Redis would count known visitors again
    browser
        .shows("#part-summary", "1 finding is an error.")
        .await;
    browser
        .tell(json!({"do": "focus", "selector": "#family-main-shop\\/views"}))
        .await;
    hit(1234..1235).await;
    browser.shows(PENDING, "1,235").await;
    browser
        .tell(json!({"do": "focused", "selector": "#family-main-shop\\/views"}))
        .await;
    browser.tell(json!({"do": "loads", "times": 1})).await;

    let stored = views.get("page 3").await.unwrap();
    assert_eq!(stored, 1003);
    for path in [
        "/counter?family=shop%2Fviews&id=page+3",
        "/counter?pair=main&family=shop/views&id=page%203",
    ] {
        browser.tell(json!({"do": "goto", "path": path})).await;
        browser.shows("#value data", "1,003").await;
    }

    let _ = downloads.add("file", 40).await.unwrap();
    browser.tell(json!({"do": "goto", "path": "/series?family=shop/downloads&name=file&precision=3600s"})).await;
    browser.tell(json!({"do": "chart", "sum": 40})).await;
    let _ = downloads.add("file", 2).await.unwrap();
    browser.tell(json!({"do": "chart", "sum": 42})).await;
    browser.tell(json!({"do": "readable"})).await;

    browser.tell(json!({"do": "without scripts"})).await;
    browser
        .tell(json!({"do": "goto", "path": "/?family=views"}))
        .await;
    browser.shows(PENDING, "1,235").await;
    browser
        .shows(
            "#families caption",
            "Families whose name contains “views”: 1",
        )
        .await;
    browser.shows("#servers tbody .state", "up").await;
    browser
        .tell(
            json!({"do": "goto", "path": "/series?family=shop/downloads&name=file&precision=day"}),
        )
        .await;
    browser.shows("tbody tr:first-child data", "42").await;
    browser.tell(json!({"do": "nothing is wrong"})).await;

    browser.tell(json!({"do": "with scripts"})).await;
    browser.tell(json!({"do": "goto", "path": "/"})).await;
    browser.shows("#connection", "Live.").await;
    daemon.signal("KILL");
    daemon.ended().await;
    browser
        .shows("#connection", "The daemon does not respond.")
        .await;
    drop(browser.orders);
    assert!(browser.process.wait().await.unwrap().success());
}
