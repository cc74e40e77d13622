//! The client in Perl of `examples/another_language`, which was written from lua/README.md alone.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use testkit::{Fate, Proxy};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::sleep;

use crate::support::{Daemon, Site, eventually};

const FAMILIES: &str = "
[[family]]
name = \"*/views\"
kind = \"buffered\"
sync_time = \"50ms\"

[[family]]
name = \"*/stock\"
kind = \"cached\"
table = { name = \"item\", write = \"update\", keys = [[\"id\", \"unsigned\"]], value = \"stock\" }
sync_time = \"50ms\"

[[family]]
name = \"*/hits\"
kind = \"series\"
windows = [[\"60s\", 120], [\"day\", 31]]
keep = [\"60s\", \"day\"]
time_zone = \"Europe/Berlin\"
sync_time = \"50ms\"

[[family]]
name = \"*/readers\"
kind = \"activity\"
stripes = 3
keep_minutes = true
sync_time = \"50ms\"

[[family]]
name = \"*/daily\"
kind = \"visitors\"
sync_time = \"50ms\"
";

/// The client, which reads calls.
struct Client {
    _process: Child,
    calls: ChildStdin,
    results: Lines<BufReader<ChildStdout>>,
}

impl Client {
    fn start(socket: &Path, daemon: &Daemon) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut process = Command::new("perl")
            .arg(root.join("examples/another_language/counterfoil.pl"))
            .args([socket, Path::new("shop"), &root.join("lua/v1")])
            .arg(daemon.url(""))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("Perl, which Debian and macOS have");
        let calls = process.stdin.take().expect("piped");
        let results = BufReader::new(process.stdout.take().expect("piped")).lines();
        Client {
            _process: process,
            calls,
            results,
        }
    }

    async fn call(&mut self, call: &str) -> String {
        let line = format!("{call}\n");
        self.calls
            .write_all(line.as_bytes())
            .await
            .expect("it reads");
        let result = self.results.next_line().await.expect("it writes");
        result.expect("a line for each call")
    }

    async fn expect(&mut self, call: &str, result: &str) {
        let got = self.call(call).await;
        assert!(got.starts_with(result), "{call}: {got}, not {result}");
    }
}

async fn site() -> (Site, Proxy, Daemon) {
    let site = Site::new().await;
    site.sql(
        "CREATE TABLE item (id INT UNSIGNED PRIMARY KEY, stock INT UNSIGNED NOT NULL); \
         INSERT INTO item VALUES (1, 2)",
    )
    .await;
    site.configure(FAMILIES);
    let daemon = site.daemon().await;
    let proxy = Proxy::to(&site.redis);
    (site, proxy, daemon)
}

#[tokio::test]
async fn it_counts_all_kinds() {
    let (site, proxy, daemon) = site().await;
    let mut client = Client::start(proxy.socket(), &daemon);
    for (call, result) in [
        ("add views page 2", ""),
        ("add views page 3", ""),
        ("value views page", "5"),
        ("add views page 1 order-7", ""),
        ("add views page 1 order-7", "BEFORE:"),
        ("add views page 1 order-8 0123456789abcdef", "EXPIRED"),
        ("value views page", "6"),
        ("incr stock 1 -1", "1"),
        ("incr stock 1 -1", "0"),
        ("incr stock 1 -1", "RANGE:0"),
        ("incr stock 2 -1", "NOROW"),
        ("incr stock x 1", "NOTCOUNTED BADID x"),
        ("incr stock 01 1", "NOTCOUNTED BADID 01"),
        ("count_in hits site 3", "1"),
        ("count_in hits site 4 1", "BADTIME"),
        ("touch readers cart v1", "1"),
        ("touch readers cart v2", "1"),
        ("first_visit daily 12345 2014-09-20 v1", "1"),
        ("first_visit daily 12345 2014-09-20 v1", "0"),
        ("value daily 12345/2014-09-20", "1"),
        ("add nowhere page 1", "NOTCOUNTED temporary"),
    ] {
        client.expect(call, result).await;
    }
    let kept =
        "SELECT CAST(COALESCE(SUM(value), 0) AS SIGNED) FROM counterfoil_values WHERE id LIKE";
    for (ids, sum) in [("day/%/site", 3), ("60s/%/site", 3), ("visitors/%/cart", 2)] {
        eventually(ids, async || {
            site.number(&format!("{kept} '{ids}'")).await == sum
        })
        .await;
    }
    eventually("the stock", async || {
        site.number("SELECT CAST(stock AS SIGNED) FROM item").await == 0
    })
    .await;
}

#[tokio::test]
async fn it_counts_once_where_replies_are_lost_and_requests_arrive_twice() {
    let (site, proxy, daemon) = site().await;
    let mut client = Client::start(proxy.socket(), &daemon);
    client.expect("add views page 1", "").await;
    let after = Duration::from_millis(50);
    let fates = [
        Fate::RequestLost { passed: 9 },
        Fate::ReplyLost { passed: 1 },
        Fate::Twice { after },
        Fate::Late { after },
    ];
    for round in 0..20 {
        proxy.disturb(["page"], fates[round % fates.len()]);
        let result = client.call("add views page 1").await;
        assert!(!result.contains("COUNTED"), "{result}");
    }
    sleep(2 * after).await;
    site.redis.run::<()>("SCRIPT FLUSH").await.unwrap();
    client.expect("add views page 1", "").await;
    client.expect("value views page", "22").await;
}
