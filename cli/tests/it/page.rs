//! The pages in a browser, compared with the counts in the servers.
//!
//! `COUNTERFOIL_CHROMIUM` names a Chromium or Chrome, `COUNTERFOIL_NODE_MODULES` a folder that
//! contains puppeteer-core. Pictures of the pages are in `target/tmp/pages` afterwards.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use std::{env, fs};

use counterfoil::{Durability, Family, MysqlStore};
use serde_json::{Value, json};
use testkit::{MysqlServer, RedisOptions, RedisServer};
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

    async fn goes(&mut self, path: &str) {
        self.tell(json!({"do": "goto", "path": path})).await;
    }

    /// Checks contrast and width on wide and narrow screens, light and dark, and takes pictures.
    async fn is_good(&mut self, name: &str) {
        for (width, height) in [(1280, 900), (390, 844)] {
            self.tell(json!({"do": "size", "width": width, "height": height}))
                .await;
            self.tell(json!({"do": "fits"})).await;
            self.tell(json!({"do": "plain"})).await;
            for scheme in ["light", "dark"] {
                self.tell(json!({"do": "scheme", "scheme": scheme})).await;
                self.tell(json!({"do": "readable"})).await;
                let file = format!("{name}-{width}-{scheme}.png");
                self.tell(json!({"do": "picture", "file": file})).await;
            }
        }
        self.tell(json!({"do": "size", "width": 1280, "height": 900}))
            .await;
    }

    async fn ends(mut self) {
        drop(self.orders);
        assert!(self.process.wait().await.expect("it ends").success());
    }

    /// Waits until an expression has this value in the page.
    async fn evaluates(&mut self, expression: &str, value: &str) {
        self.tell(json!({"do": "evaluates", "expression": expression, "value": value}))
            .await;
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
    let pictures = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pages");
    fs::create_dir_all(&pictures).expect("a folder");
    command.args([program.as_os_str(), &chromium, pictures.as_os_str()]);
    command.env("NODE_PATH", modules);
    Ok(command)
}

const PENDING: &str = "tr:has(#family-main-shop\\/views) .pending data";
const HEALTH: &str = "#part-health strong";

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
    browser.goes("/").await;
    browser.shows("#connection", "Live.").await;
    browser.shows(PENDING, "7").await;
    hit(7..1234).await;
    browser.shows(PENDING, "1,234").await;
    browser.shows("#figure-pending .value", "1,234").await;
    // without persistence, Redis would count known visitors again
    browser.shows(HEALTH, "degraded").await;
    let family = "#family-main-shop\\/views";
    browser
        .tell(json!({"do": "focus", "selector": family}))
        .await;
    hit(1234..1235).await;
    browser.shows(PENDING, "1,235").await;
    browser
        .tell(json!({"do": "focused", "selector": family}))
        .await;
    let findings = "#recommendations";
    browser
        .tell(json!({"do": "open", "selector": findings}))
        .await;
    hit(1235..1236).await;
    browser.shows(PENDING, "1,236").await;
    browser
        .tell(json!({"do": "is open", "selector": findings}))
        .await;
    browser.tell(json!({"do": "loads", "times": 1})).await;

    let stored = views.get("page 3").await.unwrap();
    assert_eq!(stored, 1003);
    for path in [
        "/family?family=shop%2Fviews&id=page+3",
        "/family?pair=main&family=shop/views&id=page%203",
    ] {
        browser.goes(path).await;
        browser.shows("#value data", "1,003").await;
        browser.shows("#figure-pending .value", "1,236").await;
    }
    hit(1236..1237).await;
    browser.shows("#figure-pending .value", "1,237").await;

    let _ = downloads.add("file", 40).await.unwrap();
    browser.goes("/family?family=shop/downloads").await;
    browser.shows("#slices summary", "As a table").await;
    browser
        .tell(json!({"do": "finest", "precision": "1s"}))
        .await;
    browser
        .goes("/family?family=shop/downloads&id=file&precision=3600s")
        .await;
    browser.tell(json!({"do": "chart", "sum": 40})).await;
    let _ = downloads.add("file", 2).await.unwrap();
    browser.tell(json!({"do": "chart", "sum": 42})).await;
    browser.is_good("series").await;

    browser.tell(json!({"do": "without scripts"})).await;
    browser.goes("/?family=views").await;
    browser.shows(PENDING, "1,237").await;
    browser.shows("#part-families h2", "Families: 1").await;
    browser.shows("#servers tbody .state", "up").await;
    browser
        .goes("/family?family=shop/downloads&id=file&precision=day")
        .await;
    browser
        .shows("#slices tbody tr:first-child data", "42")
        .await;
    browser.tell(json!({"do": "nothing is wrong"})).await;

    browser.tell(json!({"do": "with scripts"})).await;
    browser.goes("/").await;
    browser.shows("#connection", "Live.").await;
    let banner = "document.querySelector('.health').className";
    browser.evaluates(banner, "health degraded").await;
    daemon.signal("STOP");
    browser
        .shows("#connection", "The daemon does not respond.")
        .await;
    browser.shows(HEALTH, "unknown").await;
    browser.evaluates(banner, "health unknown").await;
    let title = "document.title";
    browser.evaluates(title, "unknown – Counterfoil").await;
    browser.shows("#figure-pending .value", "–").await;
    let colour = "getComputedStyle(document.querySelector('main')).filter";
    browser.evaluates(colour, "grayscale(1)").await;
    daemon.signal("CONT");
    browser.shows("#connection", "Live.").await;
    browser.shows(HEALTH, "degraded").await;
    browser.evaluates(title, "degraded – Counterfoil").await;
    browser.evaluates(colour, "none").await;
    browser.shows("#figure-pending .value", "1,237").await;
    browser.ends().await;
}

/// Stored families that no process uses.
const MANY: &str = "INSERT INTO counterfoil_families
    (namespace, name, kind, partitions, wide, durability, target, shape, settings, database_id)
    SELECT namespace, CONCAT('f', a.n, b.n, c.n, d.n), kind, partitions, wide, durability, target, shape, settings, 'other'
    FROM counterfoil_families,
        (SELECT 0 n UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6
         UNION SELECT 7 UNION SELECT 8 UNION SELECT 9) a,
        (SELECT 0 n UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6
         UNION SELECT 7 UNION SELECT 8 UNION SELECT 9) b,
        (SELECT 0 n UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6
         UNION SELECT 7 UNION SELECT 8 UNION SELECT 9) c,
        (SELECT 0 n UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6
         UNION SELECT 7 UNION SELECT 8 UNION SELECT 9) d
    WHERE name = 'views'";

#[tokio::test]
async fn pages_are_readable_in_every_state() {
    let mysql = MysqlServer::start().await;
    let redis = RedisServer::start(RedisOptions::aof("everysec")).await;
    let (database, pool) = mysql.database("page").await;
    let site = Site::of(redis, pool, mysql.url(&database));
    MysqlStore::new(&site.pool)
        .unwrap()
        .create_tables()
        .await
        .unwrap();
    site.sql("CREATE TABLE item (id VARBINARY(200) PRIMARY KEY, n TINYINT NOT NULL)")
        .await;
    let text = std::fs::read_to_string(site.configure_pair("serve = \"declared\"",
        "[[family]]\nname = \"shop/views\"\nkind = \"buffered\"\nsync_hits = 1\n\
         [[family]]\nname = \"shop/votes\"\nkind = \"buffered\"\nsync_hits = 1\n\
         table = { name = \"item\", write = \"upsert\", keys = [[\"id\", \"text\"]], value = \"n\" }\n\
         [[family]]\nname = \"shop/a-family-with-a-name-of-forty-characters-\"\nkind = \"series\"\n")).unwrap();
    site.write(&format!("token = \"a token\"\n{text}"));
    let daemon = site.daemon().await;
    let Some(mut browser) = Browser::start(&daemon.url("")) else {
        return;
    };
    browser.goes("/?family=shop").await;
    browser.is_good("login").await;
    browser
        .tell(json!({"do": "enter", "selector": "input[type=password]", "text": "a token"}))
        .await;
    browser.shows(HEALTH, "healthy").await;
    let latencies = "String([...document.querySelectorAll('#servers td.latency')].filter((cell) => /^[0-9.]+ ms .*[0-9.]+ ms/.test(cell.textContent)).length)";
    browser.evaluates(latencies, "2").await;
    browser
        .tell(json!({"do": "at", "path": "/?family=shop"}))
        .await;
    browser.goes("/").await;
    browser.is_good("healthy").await;

    let long = format!("https://example.com/{}", "a-very-long-path/".repeat(9));
    site.printed(&["add", "shop/votes", &long, "1000"]).await;
    site.printed(&["add", "shop/views", &long, "7"]).await;
    site.printed(&["add", "shop/votes", "another", "1000"])
        .await;
    browser.shows("#figure-open .value", "2, 0").await;
    browser.shows(HEALTH, "degraded").await;
    // both have one reason
    browser.shows("#rejects tbody strong", "2").await;
    let ids = "[...document.querySelectorAll('#rejects bdi[title]')].map((id) => [id.title, id.textContent]).join()";
    let (start, end) = (&long[..24], &long[long.len() - 24..]);
    browser
        .evaluates(ids, &format!("{long},{start}…{end}"))
        .await;
    browser.is_good("rejects").await;
    browser.goes("/family?family=shop/votes").await;
    browser.shows(HEALTH, "rejects").await;
    let title = "document.title";
    browser
        .evaluates(title, "rejects – shop/votes – Counterfoil")
        .await;
    browser.is_good("family").await;

    site.sql(MANY).await;
    daemon.signal("HUP");
    browser.goes("/").await;
    browser.shows("#part-families h2", "Families: 10,003").await;
    browser.shows("#namespace-main-shop", "shop").await;
    browser.goes("/").await;
    browser.is_good("many").await;
    browser.goes("/?family=f77").await;
    browser.shows("#part-families h2", "Families: 100").await;
    browser.is_good("some").await;

    mysql.kill();
    browser.goes("/").await;
    browser.shows(HEALTH, "down").await;
    browser
        .shows("#part-problems li strong", "MySQL is unavailable")
        .await;
    // what fails because of it is folded, and rejects are not
    let folded = "String(document.querySelector('#because-of-main-mysql li') !== null)";
    browser.evaluates(folded, "true").await;
    let problems = "[...document.querySelectorAll('.problems > li > p:first-child > strong')].map((one) => one.textContent).join()";
    browser
        .evaluates(problems, "MySQL is unavailable,shop/votes has rejects")
        .await;
    browser.shows("#figure-open .value", "–").await;
    browser.is_good("without-mysql").await;
    site.redis.kill();
    browser
        .shows("#part-problems li strong", "Redis is unavailable")
        .await;
    browser.shows("#figure-rate .value", "–").await;
    browser.shows("#figure-pending .value", "–").await;
    browser.is_good("without-servers").await;
    browser.goes("/family?family=shop/views").await;
    browser.shows(HEALTH, "no Redis").await;
    browser.shows("#figure-pending .value", "–").await;
    browser.is_good("family-without-servers").await;
    browser
        .tell(json!({"do": "press", "selector": "#log-out"}))
        .await;
    browser.shows("main button", "Log in").await;
    browser.ends().await;
}
