//! The HTTP server, compared with the counts in the servers, and against malicious clients.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use counterfoil::{Counterfoil, Day, Durability, Family, KeyType, MysqlStore, Outcome, Table};
use prometheus_parse::{Scrape, Value};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Handle;
use tokio::task::block_in_place;
use tokio::time::timeout;

use crate::client::{Reply, address, get, post, request, send};
use crate::support::{Daemon, Site, eventually};

/// A family of each kind.
pub const KINDS: &str = "
[[family]]
name = \"shop/views\"
kind = \"buffered\"
sync_time = \"1h\"
sync_hits = 100000

[[family]]
name = \"shop/stock\"
kind = \"cached\"

[[family]]
name = \"shop/downloads\"
kind = \"series\"

[[family]]
name = \"shop/readers\"
kind = \"activity\"

[[family]]
name = \"shop/visitors\"
kind = \"visitors\"
";

/// Returns an application beside the daemon.
pub async fn application(site: &Site) -> Counterfoil {
    Counterfoil::new(
        site.redis.manager().await,
        MysqlStore::new(&site.pool).unwrap(),
    )
}

pub fn views() -> counterfoil::FamilyBuilder<counterfoil::BufferedCounters> {
    let family = Family::buffered("shop", "views").durability(Durability::Immediate);
    family
        .sync_hits(100_000)
        .sync_time(Duration::from_secs(3600))
}

async fn ready(daemon: &Daemon) {
    eventually("the daemon is ready", async || {
        get(daemon, "/readyz").await.status == 200
    })
    .await;
}

/// Starts the daemon of a site with a family of each kind.
pub async fn daemon_of_kinds(site: &Site) -> Daemon {
    site.configure(KINDS);
    let daemon = site.daemon().await;
    ready(&daemon).await;
    eventually("its families", async || {
        get(&daemon, "/api/v1/families").await.json()["total"] == 5
    })
    .await;
    daemon
}

pub async fn scrape(daemon: &Daemon) -> Scrape {
    let reply = get(daemon, "/metrics").await;
    assert!(
        reply
            .header("content-type")
            .unwrap()
            .starts_with("text/plain; version=0.0.4"),
        "{reply:?}"
    );
    Scrape::parse(reply.body.lines().map(|line| Ok(line.to_owned()))).unwrap()
}

pub fn sample(scrape: &Scrape, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let labels: HashMap<_, _> = labels.iter().copied().collect();
    let has_these = |sample: &&prometheus_parse::Sample| {
        sample.metric == name
            && labels
                .iter()
                .all(|(label, value)| sample.labels.get(label) == Some(value))
    };
    match scrape.samples.iter().find(has_these)?.value {
        Value::Counter(value) | Value::Gauge(value) => Some(value),
        _ => None,
    }
}

/// An id is a scope and a day, joined as the table has them.
#[tokio::test]
async fn the_api_refuses_an_id_that_can_have_no_row() {
    let site = Site::new().await;
    let tables = "CREATE TABLE visits (scope VARBINARY(99), day DATE, n INT NOT NULL, PRIMARY KEY (scope, day)); \
         CREATE TABLE texts (scope VARBINARY(99), day VARBINARY(99), n INT NOT NULL, PRIMARY KEY (scope, day))";
    let created = counterfoil::sqlx::raw_sql(tables);
    created.execute(&site.pool).await.unwrap();
    site.configure(
        r#"
[[family]]
name = "shop/visits"
kind = "visitors"
table = { name = "visits", write = "upsert", keys = [["scope", "text"], ["day", "date"]], value = "n", separator = "|" }
[[family]]
name = "shop/texts"
kind = "visitors"
table = { name = "texts", write = "upsert", keys = [["scope", "text"], ["day", "text"]], value = "n" }
"#,
    );
    let daemon = site.daemon().await;
    ready(&daemon).await;
    eventually("its families", async || {
        get(&daemon, "/api/v1/families").await.json()["total"] == 2
    })
    .await;
    for (family, id, status) in [
        ("visits", "/blog/post|2026-11-25", 200),
        ("visits", "/blog/post/2026-11-25", 400),
        ("visits", "a|b|2026-11-25", 400),
        ("texts", "7/2026-11-25", 200),
        ("texts", "7/8/2026-11-25", 400),
    ] {
        let asked = format!(
            "/api/v1/values?family=shop/{family}&id={}",
            id.replace('|', "%7C")
        );
        let reply = get(&daemon, &asked).await;
        assert_eq!(reply.status, status, "{family} {id}: {reply:?}");
    }
}

#[tokio::test]
async fn the_api_has_the_exact_values_of_every_kind() {
    let site = Site::new().await;
    let daemon = daemon_of_kinds(&site).await;
    let (counting, now) = (application(&site).await, Durability::Immediate);
    let views = counting.open(views()).await.unwrap();
    let stock = counting
        .open(Family::cached("shop", "stock").durability(now))
        .await
        .unwrap();
    let downloads = counting
        .open(Family::series("shop", "downloads").durability(now))
        .await
        .unwrap();
    let readers = counting
        .open(Family::activity("shop", "readers").durability(now))
        .await
        .unwrap();
    let visitors = counting
        .open(Family::visitors("shop", "visitors").durability(now))
        .await
        .unwrap();
    let day: Day = "2026-01-31".parse().unwrap();
    // cached counters stay below 2^53
    let most = [("views", i64::MAX - 1), ("stock", (1 << 53) - 1)];
    let _ = views.add("a/b", most[0].1).await.unwrap();
    let _ = stock.incr("a/b", most[1].1).await.unwrap();
    let _ = views.add("ä &?=+", -7).await.unwrap();
    let _ = stock.incr("ä &?=+", -7).await.unwrap();
    for name in ["x", "y", "y z"] {
        let _ = downloads.add(name, 5).await.unwrap();
        readers.touch("front", name).await.unwrap();
        let _ = visitors.first_visit("7", day, name).await.unwrap();
    }
    for (family, most) in most {
        let asked =
            format!("/api/v1/values?family=shop/{family}&id=a%2Fb&id=%C3%A4+%26%3F%3D%2B&id=none");
        let family = format!("shop/{family}");
        let values = json!({"family": family, "values": [most, -7, 0]});
        let reply = get(&daemon, &asked).await;
        assert_eq!((reply.status, reply.json()), (200, values));
        // as many as a request may have, of up to 255 bytes, each value in its place
        let ids: Vec<_> = (0..998).map(|n| format!("{n:\u{1}>255}")).collect();
        let ids = [&["a/b".to_owned()], &ids[..], &["ä &?=+".to_owned()]].concat();
        let reply = post(&daemon, &json!({"family": family, "ids": ids})).await;
        let values = [&[most], &[0; 998][..], &[-7]].concat();
        assert_eq!(
            (reply.status, &reply.json()["values"]),
            (200, &json!(values))
        );
    }
    let reply = get(
        &daemon,
        "/api/v1/values?family=shop/visitors&id=7/2026-01-31&id=7/2026-02-01",
    )
    .await
    .json();
    assert_eq!(reply["values"], json!([3, 0]));

    let reply = get(
        &daemon,
        "/api/v1/series?family=shop/downloads&name=y+z&precision=60s",
    )
    .await
    .json();
    let slices = reply["slices"].as_array().unwrap();
    assert_eq!(
        (
            slices.len(),
            slices
                .iter()
                .map(|slice| slice["count"].as_i64().unwrap())
                .sum::<i64>()
        ),
        (120, 5)
    );
    let from = slices[110]["start"].as_u64().unwrap();
    let range = format!(
        "/api/v1/series?family=shop/downloads&name=y+z&precision=60s&from={from}&to={}",
        from + 120
    );
    assert_eq!(
        get(&daemon, &range).await.json()["slices"],
        json!(slices[110..112])
    );
    let names = async |more: &str| {
        get(
            &daemon,
            &format!("/api/v1/series-names?family=shop/downloads{more}"),
        )
        .await
        .json()
    };
    assert_eq!(
        names("&limit=2").await,
        json!({"names": ["x", "y"], "next": "y"})
    );
    assert_eq!(
        names("&prefix=y&after=y").await,
        json!({"names": ["y z"], "next": null})
    );

    let reply = get(&daemon, "/api/v1/activity?family=shop/readers&page=front")
        .await
        .json();
    assert_eq!(
        (&reply["views"], &reply["visitors"]),
        (&json!(3), &json!(3))
    );

    eventually("what waits", async || {
        let reply = get(&daemon, "/api/v1/families?family=views").await.json();
        reply["total"] == 1 && reply["families"][0]["pending"] == 2
    })
    .await;
    let state = get(&daemon, "/api/v1/state?limit=2&offset=4").await.json();
    let pair = &state["pairs"][0];
    assert_eq!(
        (&pair["name"], &pair["redis"]["up"], &pair["mysql"]["up"]),
        (&json!("main"), &json!(true), &json!(true))
    );
    assert_eq!(
        (
            &pair["families_total"],
            pair["families"].as_array().unwrap().len()
        ),
        (&json!(5), 1)
    );
}

#[tokio::test]
async fn metrics_have_what_was_counted() {
    let site = Site::new().await;
    let daemon = daemon_of_kinds(&site).await;
    let views = application(&site).await.open(views()).await.unwrap();
    let labels = [("pair", "main"), ("family", "views")];
    for (round, hits) in [(1, 30), (2, 12)] {
        for id in 0..hits {
            let _ = views.add(&format!("{round}/{id}"), 1).await.unwrap();
        }
        let sum = if round == 1 { 30.0 } else { 42.0 };
        eventually("the hits", async || {
            let scrape = scrape(&daemon).await;
            sample(&scrape, "counterfoil_counted_hits_total", &labels) == Some(sum)
                && sample(&scrape, "counterfoil_unsaved_ids", &labels) == Some(sum)
                && sample(&scrape, "counterfoil_backlog_ids", &[("family", "views")]) == Some(sum)
        })
        .await;
    }
    let families = scrape(&daemon).await;
    assert_eq!(
        sample(&families, "counterfoil_families", &[("pair", "main")]),
        Some(5.0)
    );
    for server in ["redis", "mysql"] {
        assert_eq!(
            sample(
                &families,
                "counterfoil_server_up",
                &[("pair", "main"), ("server", server)]
            ),
            Some(1.0)
        );
    }
    site.redis.kill();
    eventually("the missing Redis", async || {
        sample(
            &scrape(&daemon).await,
            "counterfoil_server_up",
            &[("server", "redis")],
        ) == Some(0.0)
    })
    .await;
    assert_eq!(
        sample(
            &scrape(&daemon).await,
            "counterfoil_counted_hits_total",
            &labels
        ),
        Some(42.0)
    );
    site.redis.start_again().await;
    eventually("Redis again", async || {
        sample(
            &scrape(&daemon).await,
            "counterfoil_server_up",
            &[("server", "redis")],
        ) == Some(1.0)
    })
    .await;
    // a hit before the first sample of the empty Redis would count as one that was lost
    eventually("a sample of the empty Redis", async || {
        sample(&scrape(&daemon).await, "counterfoil_unsaved_ids", &labels) == Some(0.0)
    })
    .await;
    // after Redis lost its data, the caller's next call fails once with an unknown outcome
    eventually("a further hit", async || {
        views.add("after", 1).await.is_ok()
    })
    .await;
    eventually("a hit more than before", async || {
        sample(
            &scrape(&daemon).await,
            "counterfoil_counted_hits_total",
            &labels,
        ) == Some(43.0)
    })
    .await;
}

#[tokio::test]
async fn only_a_family_that_is_still_recounted_has_the_time_since() {
    let site = Site::new().await;
    site.sql("CREATE TABLE likes (item VARBINARY(64) NOT NULL, KEY (item))")
        .await;
    let family = "[[family]]\nname = \"shop/likes\"\nkind = \"buffered\"\n";
    let recount = "[family.recount]\nrows = \"added\"\ntable = \"likes\"\nkeys = [\"item\"]\nwithin = \"100ms\"\nevery = \"1h\"\n";
    for recount in [recount, ""] {
        site.configure(&format!("{family}{recount}"));
        let daemon = site.daemon().await;
        let labels = [("pair", "main"), ("family", "likes")];
        let drifted = "counterfoil_last_recount_drifted";
        eventually("the last recount", async || {
            sample(&scrape(&daemon).await, drifted, &labels) == Some(0.0)
        })
        .await;
        let since = "counterfoil_since_recount_seconds";
        let since = sample(&scrape(&daemon).await, since, &labels);
        assert_eq!(since.is_some(), !recount.is_empty());
    }
}

#[tokio::test]
async fn hits_that_redis_refuses_to_any_client_are_counted_apart() {
    let site = Site::new().await;
    site.configure(
        "[[family]]\nname = \"shop/small\"\nkind = \"buffered\"\npartitions = 1\nmax_pending = 10\n\
         sync_time = \"1h\"\nsync_hits = 100000\n",
    );
    let small = Family::buffered("shop", "small")
        .durability(Durability::Immediate)
        .partitions(1)
        .max_pending(10);
    let small = site.writer().await.open(small).await.unwrap();
    // the first sync is due at once, the next one after an hour
    let _ = small.add("first", 1).await.unwrap();
    let daemon = site.daemon().await;
    let stored = "SELECT COUNT(*) FROM counterfoil_values WHERE id = 'first'";
    eventually("the first sync", async || site.number(stored).await == 1).await;
    for id in 0..30 {
        let outcome = small.add(&id.to_string(), 1).await.unwrap();
        assert_eq!(outcome == Outcome::Full, id >= 10, "{id}");
    }
    let labels = [("pair", "main"), ("family", "small")];
    for (name, value) in [
        ("counterfoil_counted_hits_total", 11.0),
        ("counterfoil_refused_hits_total", 20.0),
        ("counterfoil_pending_share", 1.0),
    ] {
        eventually(name, async || {
            sample(&scrape(&daemon).await, name, &labels) == Some(value)
        })
        .await;
    }
}

#[tokio::test]
async fn rejects_are_listed_by_pages_and_flushes_are_a_histogram() {
    let site = Site::new().await;
    site.sql("CREATE TABLE item (id INT UNSIGNED PRIMARY KEY, n BIGINT NOT NULL)")
        .await;
    site.configure(
        "[[family]]\nname = \"shop/votes\"\nkind = \"buffered\"\nsync_hits = 1\nsync_time = \"50ms\"\n\
         table = { name = \"item\", write = \"update\", keys = [[\"id\", \"unsigned\"]], value = \"n\" }",
    );
    let daemon = site.daemon().await;
    ready(&daemon).await;
    let table = Table::update("item")
        .key("id", KeyType::Unsigned)
        .value("n");
    let votes = Family::buffered("shop", "votes")
        .durability(Durability::Immediate)
        .table(table);
    let votes = application(&site).await.open(votes).await.unwrap();
    for id in 1..=3 {
        let _ = votes.add(&id.to_string(), 10 * id).await.unwrap();
    }
    eventually("the rejects", async || {
        site.number("SELECT COUNT(*) FROM counterfoil_rejects")
            .await
            == 3
    })
    .await;
    let (mut found, mut after) = (Vec::new(), Some(String::new()));
    while let Some(cursor) = after {
        let page = get(&daemon, &format!("/api/v1/rejects?limit=2{cursor}"))
            .await
            .json();
        let rejects = page["rejects"].as_array().unwrap();
        found.extend(
            rejects
                .iter()
                .map(|reject| (reject["id"].to_string(), reject["delta"].as_i64().unwrap())),
        );
        after = page["next"].as_str().map(|next| format!("&after={next}"));
    }
    let wrong = get(&daemon, "/api/v1/rejects?after=1").await;
    assert_eq!(wrong.status, 400, "{}", wrong.body);
    let other = get(&daemon, "/api/v1/rejects?family=shop/other")
        .await
        .json();
    assert_eq!(other["rejects"], json!([]));
    assert_eq!(
        found,
        [
            ("\"1\"".to_owned(), 10),
            ("\"2\"".to_owned(), 20),
            ("\"3\"".to_owned(), 30)
        ]
    );
    eventually("the view of them", async || {
        let families = get(&daemon, "/api/v1/families").await.json();
        families["families"][0]["rejects"] == 3 && families["families"][0]["state"] == "rejects"
    })
    .await;
    let scrape = scrape(&daemon).await;
    let labels = [("pair", "main"), ("family", "votes")];
    assert_eq!(
        sample(&scrape, "counterfoil_open_rejects", &labels),
        Some(3.0)
    );
    let flush = scrape
        .samples
        .iter()
        .find(|sample| sample.metric == "counterfoil_flush_seconds")
        .unwrap();
    assert!(matches!(flush.value, Value::Histogram(_)), "{flush:?}");
    assert_eq!(
        get(&daemon, "/api/v1/drift?family=shop/votes").await.status,
        404
    );
    assert_eq!(
        get(&daemon, "/api/v1/drift?family=shop/votes&run=1")
            .await
            .json()["drift"],
        json!([])
    );
}

#[tokio::test]
async fn what_is_wrong_is_told_with_its_name() {
    let site = Site::new().await;
    let daemon = daemon_of_kinds(&site).await;
    let ids = |number: usize| "&id=1".repeat(number);
    for (path, status, words) in [
        (
            "/api/v1/values?id=1".to_owned(),
            400,
            "missing field `family`",
        ),
        (
            "/api/v1/values?family=shop/views".to_owned(),
            400,
            "parameter id: expected 1 to 1000 ids, not 0",
        ),
        (
            format!("/api/v1/values?family=shop/views{}", ids(1001)),
            400,
            "parameter id: expected 1 to 1000 ids, not 1001",
        ),
        (
            "/api/v1/values?family=shop/views&id=".to_owned() + &"x".repeat(300),
            400,
            "id",
        ),
        (
            "/api/v1/values?family=shop/nothing&id=1".to_owned(),
            404,
            "shop/nothing",
        ),
        (
            "/api/v1/values?family=shop/downloads&id=1".to_owned(),
            400,
            "kind series",
        ),
        (
            "/api/v1/values?family=shop/views&id=%FF".to_owned(),
            400,
            "parameter id: the value is not UTF-8",
        ),
        (
            "/api/v1/values?family=shop/views&id=1&pair=other".to_owned(),
            404,
            "other",
        ),
        (
            "/api/v1/values?family=shop/visitors&id=7".to_owned(),
            400,
            "SCOPE/YYYY-MM-DD",
        ),
        (
            "/api/v1/series?family=shop/downloads&name=x&precision=7s".to_owned(),
            400,
            "7s",
        ),
        (
            "/api/v1/series?family=shop/downloads&name=x&precision=soon".to_owned(),
            400,
            "parameter precision",
        ),
        (
            "/api/v1/series?family=shop/downloads&name=x&precision=60s&to=5".to_owned(),
            400,
            "parameter from",
        ),
        (
            "/api/v1/series?family=shop/downloads&name=x&precision=1s&from=5&to=4000000000"
                .to_owned(),
            400,
            "5..4000000000",
        ),
        (
            "/api/v1/families?limit=1001".to_owned(),
            400,
            "limit: 1001 is more than 1000",
        ),
        (
            "/api/v1/families?famly=x".to_owned(),
            400,
            "unknown field `famly`",
        ),
        (
            "/api/v1/families?limit=-1".to_owned(),
            400,
            "limit: invalid digit",
        ),
        ("/api/v1/nothing".to_owned(), 404, "nothing"),
    ] {
        let reply = get(&daemon, &path).await;
        assert_eq!(reply.status, status, "{path}: {reply:?}");
        let error = reply.json()["error"].as_str().unwrap().to_owned();
        assert!(error.contains(words), "{path}: {error}");
    }
    for (list, status, words) in [
        (json!({"family": "shop/views"}), 422, "missing field `ids`"),
        (
            json!({"family": "shop/views", "ids": []}),
            400,
            "parameter ids: expected 1 to 1000 ids, not 0",
        ),
        (
            json!({"family": "shop/views", "ids": ["1"], "id": "1"}),
            422,
            "unknown field `id`",
        ),
        (
            json!({"family": "shop/views", "ids": ["1", "x".repeat(256)]}),
            400,
            "parameter id",
        ),
        (
            json!({"family": "shop/views", "ids": ["x".repeat(3 << 20)]}),
            413,
            "length limit",
        ),
    ] {
        let reply = post(&daemon, &list).await;
        assert_eq!(reply.status, status, "{reply:?}");
        assert!(
            reply.json()["error"].as_str().unwrap().contains(words),
            "{reply:?}"
        );
    }
    site.redis.kill();
    eventually("Redis is missed", async || {
        let reply = get(&daemon, "/readyz").await;
        (reply.status, reply.body.as_str()) == (503, "not ready: redis\n")
    })
    .await;
    assert_eq!(get(&daemon, "/healthz").await.status, 200);
    let reply = get(&daemon, "/api/v1/values?family=shop/views&id=1").await;
    assert!(
        reply.status == 503 && reply.json()["what_to_do"].is_string(),
        "{reply:?}"
    );
    let state = get(&daemon, "/api/v1/state").await;
    assert_eq!(state.json()["pairs"][0]["redis"]["up"], false);
    site.redis.start_again().await;
    ready(&daemon).await;
}

#[tokio::test]
async fn a_family_that_is_not_served_is_not_opened_either() {
    let site = Site::new().await;
    site.configure_pair("serve = \"declared\"", "");
    let views = application(&site).await.open(views()).await.unwrap();
    let _ = views.add("page", 1).await.unwrap();
    let daemon = site.daemon().await;
    eventually("the refusal", async || {
        let reply = get(&daemon, "/api/v1/values?family=shop/views&id=page").await;
        assert_ne!(reply.status, 200, "{reply:?}");
        reply.status == 404 && reply.body.contains("does not serve")
    })
    .await;
    ready(&daemon).await;
    eventually("its name", async || {
        let state = get(&daemon, "/api/v1/state").await.json();
        state["pairs"][0]["not_served"] == json!(["shop/views"])
    })
    .await;
    eventually("its state", async || {
        let families = get(&daemon, "/api/v1/families").await.json();
        let family = &families["families"][0];
        family["served"] == false && family["pending"] == 1
    })
    .await;
    let scrape = scrape(&daemon).await;
    assert_eq!(sample(&scrape, "counterfoil_families", &[]), Some(0.0));
}

/// An application changes settings of a family soon after the daemon has read them.
#[tokio::test]
async fn reads_do_not_bring_old_settings_back() {
    let site = Site::new().await;
    site.configure("");
    application(&site).await.open(views()).await.unwrap();
    let daemon = site.daemon().await;
    let values = "/api/v1/values?family=shop/views&id=page";
    eventually("its values", async || {
        get(&daemon, values).await.status == 200
    })
    .await;

    let quick = views().sync_hits(1).sync_time(Duration::from_millis(50));
    let views = application(&site).await.open(quick).await.unwrap();
    let settings = "SELECT CRC32(settings) FROM counterfoil_families";
    let settings = async || {
        site.number(&format!("SELECT CAST(({settings}) AS SIGNED)"))
            .await
    };
    let changed = settings().await;
    let saved = async || site.number("SELECT value FROM counterfoil_values").await;
    let _ = views.add("page", 1).await.unwrap();
    eventually("the new settings", async || saved().await == 1).await;
    assert_eq!(get(&daemon, values).await.status, 200);
    let _ = views.add("page", 1).await.unwrap();
    eventually("another hit", async || saved().await == 2).await;
    let drift = get(&daemon, "/api/v1/drift?family=shop/views&run=1").await;
    assert_eq!((drift.status, settings().await), (200, changed));
}

const TOKEN: &str = "s3cret of the test + & %";

/// Sends the login form.
pub async fn login(daemon: &Daemon, form: &str, headers: &str) -> Reply {
    let length = form.len();
    let kind = "application/x-www-form-urlencoded";
    let form = format!(
        "POST /login HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: {kind}\r\n\
         Content-Length: {length}\r\n{headers}\r\n{form}"
    );
    send(daemon, form.as_bytes()).await.expect("a reply")
}

/// Returns the replies to every path, with these headers.
async fn everything(daemon: &Daemon, headers: &str) -> Vec<Reply> {
    let paths = [
        "/",
        "/?family=x",
        "/live",
        "/metrics",
        "/api/v1/state",
        "/api/v1/families",
        "/family?family=shop/views",
        "/api/v1/values?family=shop/views&id=1",
        "/family?family=shop/downloads",
        "/family-live?family=shop/views",
        "/nothing",
    ];
    let mut replies = Vec::new();
    for path in paths {
        replies.push(request(daemon, "GET", path, headers).await);
    }
    replies
}

#[tokio::test]
async fn who_has_not_the_token_sees_the_state_of_health_alone() {
    let site = Site::new().await;
    let with_token = |text: String| format!("token = {TOKEN:?}\n{text}");
    let path = site.configure(KINDS);
    site.write(&with_token(std::fs::read_to_string(path).unwrap()));
    let daemon = site.daemon().await;
    ready(&daemon).await;
    let bearer = format!("Authorization: bearer {TOKEN}\r\n");
    eventually("its families", async || {
        let families = request(&daemon, "GET", "/api/v1/families", &bearer).await;
        families.json()["total"] == 5
    })
    .await;
    let mut replies = vec![
        get(&daemon, "/healthz").await,
        get(&daemon, "/readyz").await,
    ];
    assert!(replies.iter().all(|reply| reply.status == 200));
    let name = format!(
        "counterfoil-{}",
        address(&daemon).split(':').next_back().unwrap()
    );
    let later = 4_000_000_000_u64;
    for headers in [
        String::new(),
        format!("Authorization: Basic {TOKEN}\r\n"),
        "Authorization: Bearer\r\n".to_owned(),
        format!("Cookie: {name}={TOKEN}\r\n"),
        format!("Cookie: {name}={later}.\r\n"),
        format!("Cookie: {name}={later}.{}\r\n", "0".repeat(64)),
    ] {
        for reply in everything(&daemon, &headers).await {
            assert_eq!(reply.status, 401, "{headers}: {reply:?}");
            assert_eq!(
                reply.header("www-authenticate"),
                Some("Bearer realm=\"counterfoil\"")
            );
            replies.push(reply);
        }
    }
    for (path, headers) in [
        ("/metrics", format!("Authorization: Bearer {TOKEN}x\r\n")),
        (
            "/metrics?token=s3cret+of+the+test+%2B+%26+%25",
            String::new(),
        ),
    ] {
        let wrong = request(&daemon, "GET", path, &headers).await;
        assert!(
            wrong.status == 401 && wrong.header("set-cookie").is_none(),
            "{wrong:?}"
        );
    }
    // what a browser loads to log in
    let browser = "Accept: text/html,*/*\r\n";
    let form = request(&daemon, "GET", "/family?family=shop/views", browser).await;
    assert_eq!(form.status, 401);
    let next = "name=\"next\" value=\"family?family=shop/views\"";
    assert!(
        form.body.contains("type=\"password\"") && form.body.contains(next),
        "{form:?}"
    );
    let stylesheet = form
        .body
        .split('"')
        .find(|part| part.contains("page.css"))
        .unwrap();
    assert_eq!(get(&daemon, &format!("/{stylesheet}")).await.status, 200);
    replies.push(form);
    let again = get(&daemon, "/login").await;
    assert_eq!(again.header("location"), Some("./"), "{again:?}");
    let token = "token=s3cret+of+the+test+%2B+%26+%25";
    let wrong = login(&daemon, "token=wrong", "").await;
    assert!(
        wrong.status == 401 && wrong.body.contains("The token is wrong."),
        "{wrong:?}"
    );
    for (next, place) in [
        ("family%3Ffamily%3Dx", "family?family=x"),
        ("./%3Fpage%3D2%26family%3D//x", "./?page=2&family=//x"),
        ("%2F%2Fexample.com", "./"),
        ("https://example.com", "./"),
        ("/%5Cexample.com", "./"),
        ("family.example.com", "./"),
        ("", "./"),
    ] {
        let entered = login(&daemon, &format!("{token}&next={next}"), "").await;
        assert_eq!(
            (entered.status, entered.header("location")),
            (303, Some(place))
        );
    }
    let too_long = login(&daemon, &format!("{token}&next={}", "x".repeat(5000)), "").await;
    assert_eq!(too_long.status, 413);
    let entered = login(&daemon, token, "").await;
    let cookie = entered.header("set-cookie").unwrap().to_owned();
    assert!(
        cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"),
        "{cookie}"
    );
    let cookie = cookie.split(';').next().unwrap().to_owned();
    replies.push(entered);
    for headers in [bearer, format!("Cookie: other=1; {cookie}\r\n")] {
        for reply in everything(&daemon, &headers).await {
            let is_there = !reply.body.contains("nothing at this path");
            assert_eq!(
                reply.status,
                if is_there { 200 } else { 404 },
                "{headers}: {reply:?}"
            );
            replies.push(reply);
        }
    }
    for reply in replies {
        assert!(
            !reply.head.contains("s3cret") && !reply.body.contains("s3cret"),
            "{reply:?}"
        );
    }
    assert!(!daemon.log().contains("s3cret"), "{}", daemon.log());
}

#[tokio::test]
async fn nothing_can_be_changed_and_no_reply_is_kept() {
    let site = Site::new().await;
    let daemon = daemon_of_kinds(&site).await;
    for method in [
        "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "NONSENSE",
    ] {
        for path in ["/", "/healthz", "/api/v1/state", "/nothing"] {
            let reply = request(&daemon, method, path, "").await;
            assert_eq!(
                (reply.status, reply.header("allow")),
                (405, Some("GET, HEAD")),
                "{method} {path}"
            );
        }
    }
    for path in ["/healthz", "/", "/api/v1/state", "/metrics"] {
        let (reply, head) = (
            get(&daemon, path).await,
            request(&daemon, "HEAD", path, "").await,
        );
        assert_eq!((head.status, head.body.as_str()), (200, ""));
        assert_eq!(reply.header("cache-control"), Some("no-store"), "{path}");
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
        assert!(
            reply
                .header("content-security-policy")
                .unwrap()
                .starts_with("default-src 'none'; script-src 'self'")
        );
    }
    let wrong = get(&daemon, "/family?family=shop/visitors&id=x").await;
    let has_form = wrong.body.contains("Show the exact value");
    assert!(wrong.status == 400 && has_form, "{wrong:?}");
    let page = get(&daemon, "/").await.body;
    let at = page.find("assets/page.js?").unwrap();
    let script = page[at..].split('"').next().unwrap();
    assert!(
        get(&daemon, &format!("/{script}"))
            .await
            .header("cache-control")
            .unwrap()
            .contains("immutable")
    );
    assert!(
        !page.contains("mysql://") && !page.contains("redis://") && !page.contains("http://"),
        "{page}"
    );
    // a proxy may serve the pages under any path
    assert!(!page.contains("=\"/"), "{page}");
    let reply = send(
        &daemon,
        b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello",
    )
    .await
    .unwrap();
    assert_eq!(reply.status, 413);
}

#[tokio::test]
async fn too_much_is_refused_and_the_slow_are_cut() {
    let site = Site::new().await;
    let daemon = daemon_of_kinds(&site).await;
    let ids = format!(
        "/api/v1/values?family=shop/views{}",
        "&id=12345".repeat(1_000_000)
    );
    let started = Instant::now();
    let reply = send(
        &daemon,
        format!("GET {ids} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes(),
    )
    .await;
    assert!(reply.is_none_or(|reply| [400, 414, 431].contains(&reply.status)));
    let headers = "X-Long: 1\r\n".repeat(100);
    assert_eq!(request(&daemon, "GET", "/", &headers).await.status, 431);
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "{:?}",
        started.elapsed()
    );

    // more than are served, and more than the reserve takes beside them
    let mut slow = Vec::new();
    for number in 0..700 {
        let mut stream = TcpStream::connect(address(&daemon)).await.unwrap();
        let begun: &[u8] = if number % 2 == 0 {
            b""
        } else {
            b"GET / HTTP/1.1\r\nX: "
        };
        // the reserve closes its oldest connections
        let _ = stream.write_all(begun).await;
        slow.push(stream);
    }
    assert_eq!(get(&daemon, "/healthz").await.status, 200);
    assert_eq!(get(&daemon, "/readyz").await.status, 200);
    assert_eq!(get(&daemon, "/metrics").await.status, 200);
    // the connection ends, so that a client does not keep one of the reserve
    let keeping = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    assert_eq!(send(&daemon, keeping).await.unwrap().status, 503);
    // all of that while the slow ones are served: they are cut after ten seconds
    let mut end = Vec::new();
    let cut = timeout(Duration::from_millis(1), slow[1].read_to_end(&mut end)).await;
    assert!(cut.is_err(), "{cut:?}");
    let _ = timeout(Duration::from_secs(25), slow[1].read_to_end(&mut end))
        .await
        .expect("it is cut");
    eventually("a free connection", async || {
        get(&daemon, "/metrics").await.status == 200
    })
    .await;
    assert!(!daemon.log().contains("panicked"), "{}", daemon.log());
}

#[tokio::test]
async fn viewers_do_not_keep_the_daemon_from_ending() {
    let site = Site::new().await;
    let daemon = daemon_of_kinds(&site).await;
    let mut viewer = TcpStream::connect(address(&daemon)).await.unwrap();
    viewer
        .write_all(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .await
        .unwrap();
    let mut seen = String::new();
    let mut buffer = [0; 4096];
    // the connection stays open for the next update
    while !seen.contains("id=\"part-unserved\"") {
        let length = viewer.read(&mut buffer).await.unwrap();
        seen += &String::from_utf8_lossy(&buffer[..length]);
    }
    let started = Instant::now();
    daemon.signal("TERM");
    let (status, log) = daemon.ended().await;
    assert!(status.success(), "{log}");
    assert!(
        started.elapsed() < Duration::from_secs(8),
        "{:?}: {log}",
        started.elapsed()
    );
    let mut rest = Vec::new();
    let _ = viewer.read_to_end(&mut rest).await;
}

/// Generates requests that a client may send, mostly similar to valid ones.
fn anything() -> impl Strategy<Value = Vec<u8>> {
    let path = prop_oneof![
        4 => prop::sample::select(vec![
            "/", "/live", "/metrics", "/family", "/family-live", "/login", "/readyz", "/assets/page.js", "/api/v1/state",
            "/api/v1/families", "/api/v1/values", "/api/v1/series", "/api/v1/series-names", "/api/v1/activity",
            "/api/v1/rejects", "/api/v1/drift",
        ]).prop_map(str::to_owned),
        1 => "/[!-~]{0,40}",
    ];
    let name = prop::sample::select(vec![
        "family",
        "id",
        "name",
        "precision",
        "from",
        "to",
        "limit",
        "offset",
        "after",
        "prefix",
        "page",
        "run",
        "pair",
        "token",
    ]);
    let value = prop_oneof![
        3 => prop::sample::select(vec![
            "shop/views", "shop/stock", "shop/downloads", "shop/readers", "shop/visitors", "60s", "day", "month", "1s",
            "7/2026-01-31", "0", "1", "-1", "4294967295", "18446744073709551615", "99999999999999999999", "main", "",
        ]).prop_map(str::to_owned),
        1 => "[!-~]{0,20}",
        1 => prop::collection::vec(any::<u8>(), 0..300)
            .prop_map(|bytes| bytes.iter().map(|byte| format!("%{byte:02X}")).collect()),
    ];
    let query = prop::collection::vec((name, value), 0..6).prop_map(|pairs| {
        pairs
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect::<Vec<_>>()
            .join("&")
    });
    let method =
        prop_oneof![8 => Just("GET".to_owned()), 1 => Just("HEAD".to_owned()), 1 => "[A-Z]{1,8}"];
    let headers = prop_oneof![4 => Just(String::new()), 1 => "[ -~]{0,60}\r\n"];
    let request = (method, path, query, headers).prop_map(|(method, path, query, headers)| {
        let path = if query.is_empty() {
            path
        } else {
            format!("{path}?{query}")
        };
        format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n")
            .into_bytes()
    });
    let garbage = prop::collection::vec(any::<u8>(), 1..2000).prop_map(|mut bytes| {
        bytes.extend_from_slice(b"\r\n\r\n");
        bytes
    });
    prop_oneof![9 => request, 1 => garbage]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_sent_does_no_harm() {
    let site = Site::new().await;
    let daemon = daemon_of_kinds(&site).await;
    let cases = std::env::var("COUNTERFOIL_CASES").ok();
    let cases = cases.and_then(|cases| cases.parse().ok()).unwrap_or(1000);
    let mut runner = TestRunner::new(Config {
        cases,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(testkit::seed()),
        ..Config::default()
    });
    let harmless = |bytes: Vec<u8>| {
        let sent = String::from_utf8_lossy(&bytes).into_owned();
        let reply = block_in_place(|| Handle::current().block_on(send(&daemon, &bytes)));
        if let Some(Reply { status, body, .. }) = reply {
            prop_assert!(
                status < 500 || status == 503,
                "{status} to {sent:?}: {body}"
            );
        }
        Ok(())
    };
    runner.run(&anything(), harmless).unwrap();
    assert_eq!(get(&daemon, "/healthz").await.status, 200);
    let garbage = send(&daemon, b"\x16\x03\x01 garbage\r\n\r\n")
        .await
        .unwrap();
    assert_eq!(garbage.status, 400);
    assert!(!daemon.log().contains("panicked"), "{}", daemon.log());
    let reply = get(&daemon, "/api/v1/values?family=shop/views&id=1")
        .await
        .json();
    assert_eq!(reply["values"][0], 0);
}

/// A daemon that has a family open with other partitions does not see the hits of some.
#[tokio::test]
async fn values_of_a_family_that_was_reconfigured_are_refused() {
    let site = Site::new().await;
    let configure = |partitions: u32| {
        let family = "[[family]]\nname = \"shop/views\"\nkind = \"buffered\"\npartitions = ";
        site.configure(&format!("{family}{partitions}\n"))
    };
    configure(1);
    let daemon = site.daemon().await;
    ready(&daemon).await;
    configure(8);
    let changed = site.run(&["reconfigure", "shop/views"]).await;
    assert_eq!(changed.code, 0, "{changed:?}");
    site.run(&["add", "shop/views", "1", "10"]).await;
    eventually("the other settings are noticed", async || {
        let reply = get(&daemon, "/api/v1/values?family=shop/views&id=1").await;
        reply.status == 409 && reply.body.contains("other settings")
    })
    .await;
}

/// An operator changes bounds and durability while processes run.
#[tokio::test]
async fn values_of_a_family_with_other_bounds_are_exact() {
    let site = Site::new().await;
    let configure = |settings: &str| {
        let family = "[[family]]\nname = \"shop/stock\"\nkind = \"cached\"\n";
        site.configure(&format!("{family}{settings}"))
    };
    configure("max = 10");
    let daemon = site.daemon().await;
    ready(&daemon).await;
    configure("max = 20\ndurability = \"100ms\"");
    let changed = site.run(&["reconfigure", "shop/stock"]).await;
    assert_eq!(changed.code, 0, "{changed:?}");
    site.run(&["add", "shop/stock", "1", "15"]).await;
    // the daemon reads the families of the database every five seconds
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(7) {
        let reply = get(&daemon, "/api/v1/values?family=shop/stock&id=1").await;
        assert_eq!(reply.status, 200, "{}", reply.body);
        assert_eq!(reply.json()["values"][0], 15);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// A client takes 404 for a mistake, and does not repeat the request.
#[tokio::test]
async fn a_family_is_found_as_soon_as_it_is_used() {
    let site = Site::new().await;
    site.configure(
        "[[family]]\nname = \"shop-*/views\"\nkind = \"buffered\"\n\
         [[family]]\nname = \"shop-*/stock\"\nkind = \"cached\"\n",
    );
    let daemon = site.daemon().await;
    ready(&daemon).await;
    let values = async |family: &str| {
        let reply = get(&daemon, &format!("/api/v1/values?family={family}&id=page")).await;
        (reply.status, reply.json()["values"][0].as_i64())
    };
    for number in 0..5 {
        // another process registers it, and the next request is for it
        let name = format!("views-{number}");
        let views = application(&site).await;
        let views = views.open(Family::buffered("other", &name)).await.unwrap();
        let _ = views.add("page", 7).await.unwrap();
        assert_eq!(values(&format!("other/{name}")).await, (200, Some(7)));
        // a namespace that nothing has counted in yet, of a pattern
        for family in ["views", "stock"] {
            let name = format!("shop-{number}/{family}");
            assert_eq!(values(&name).await, (200, Some(0)), "{name}");
        }
    }
    assert_eq!(values("other/none").await.0, 404);
    // opened by a process that could not reach MySQL
    let writer = site.writer().await;
    let views = writer
        .open(Family::buffered("other", "late"))
        .await
        .unwrap();
    let _ = views.add("page", 1).await.unwrap();
    assert_eq!(values("other/late").await.0, 503);
}

/// Reads beyond the connections to MySQL are refused soon, so that a client tries another daemon.
#[tokio::test]
async fn too_many_reads_are_refused_for_a_moment() {
    let site = Site::new().await;
    site.configure_pair("connections = 5", KINDS);
    let daemon = site.daemon().await;
    ready(&daemon).await;
    let mut lock = site.pool.acquire().await.unwrap();
    let sql = |sql: &'static str| counterfoil::sqlx::raw_sql(sql);
    let lock_tables = sql("LOCK TABLES counterfoil_values WRITE, counterfoil_ledger WRITE");
    lock_tables.execute(&mut *lock).await.unwrap();
    let values = "/api/v1/values?family=shop/views&id=1";
    let refusals = AtomicU64::new(0);
    let reads = (0..6).map(async |_| {
        let reply = get(&daemon, values).await;
        refusals.fetch_add(u64::from(reply.status != 200), Ordering::Relaxed);
        reply
    });
    let reads = futures_util::future::join_all(reads);
    // the others do not wait for those that have a connection
    let unlock = async {
        eventually("four refusals", async || {
            refusals.load(Ordering::Relaxed) == 4
        })
        .await;
        sql("UNLOCK TABLES").execute(&mut *lock).await.unwrap();
    };
    let (replies, ()) = tokio::join!(reads, unlock);
    let (done, refused): (Vec<_>, Vec<_>) = replies.iter().partition(|reply| reply.status == 200);
    assert_eq!((done.len(), refused.len()), (2, 4), "{replies:?}");
    for reply in refused {
        assert_eq!(
            (reply.status, reply.header("retry-after")),
            (503, Some("1"))
        );
    }
}

/// A connection carries one request after the other.
#[tokio::test]
async fn connections_are_kept_alive() {
    let site = Site::new().await;
    let daemon = daemon_of_kinds(&site).await;
    let mut stream = TcpStream::connect(address(&daemon)).await.unwrap();
    let list = json!({"family": "shop/views", "ids": ["1", "2"]}).to_string();
    let length = list.len();
    let request = format!(
        "POST /api/v1/values HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{list}"
    );
    for _ in 0..3 {
        stream.write_all(request.as_bytes()).await.unwrap();
        let (mut reply, end) = (Vec::new(), b"\"values\":[0,0]}");
        while !reply.ends_with(end) {
            assert_ne!(stream.read_buf(&mut reply).await.unwrap(), 0);
        }
        assert!(reply.starts_with(b"HTTP/1.1 200 OK\r\n"));
    }
}

#[tokio::test]
async fn families_that_the_daemon_has_not_read_yet_are_unavailable() {
    let site = Site::new().await;
    site.configure(KINDS);
    application(&site).await.open(views()).await.unwrap();
    let mut lock = site.pool.acquire().await.unwrap();
    let sql = |sql: &'static str| counterfoil::sqlx::raw_sql(sql);
    sql("LOCK TABLES counterfoil_families WRITE")
        .execute(&mut *lock)
        .await
        .unwrap();
    let daemon = site.daemon().await;
    eventually("both servers are up", async || {
        let state = get(&daemon, "/api/v1/state").await.json();
        let pair = &state["pairs"][0];
        pair["mysql"]["up"] == true && !pair["looks"]["families"]["at"].is_null()
    })
    .await;
    let values = |family: &str| format!("/api/v1/values?family={family}&id=1");
    let reply = get(&daemon, &values("shop/views")).await;
    assert_eq!(reply.status, 503, "{}", reply.body);
    sql("UNLOCK TABLES").execute(&mut *lock).await.unwrap();
    eventually("a value", async || {
        get(&daemon, &values("shop/views")).await.status == 200
    })
    .await;
    eventually("all families are known", async || {
        get(&daemon, &values("shop/other")).await.status == 404
    })
    .await;
}

/// Packages repeat a request after a status from 500 on.
#[tokio::test]
async fn a_value_beyond_the_signed_range_is_an_error_of_the_request() {
    let site = Site::new().await;
    site.sql(
        "CREATE TABLE item (id INT UNSIGNED PRIMARY KEY, n BIGINT UNSIGNED NOT NULL);
         INSERT INTO item VALUES (1, 9223372036854775808), (2, 7)",
    )
    .await;
    let table = "table = { name = \"item\", write = \"update\", keys = [[\"id\", \"unsigned\"]], value = \"n\" }";
    for kind in ["buffered", "cached"] {
        site.configure(&format!(
            "[[family]]\nname = \"shop/{kind}\"\nkind = \"{kind}\"\n{table}"
        ));
        let daemon = site.daemon().await;
        ready(&daemon).await;
        let value = async |id: u8| {
            let path = format!("/api/v1/values?family=shop/{kind}&id={id}");
            get(&daemon, &path).await
        };
        eventually("the family is served", async || {
            value(2).await.status == 200
        })
        .await;
        let beyond = value(1).await;
        assert_eq!(beyond.status, 422, "{}", beyond.body);
        assert!(
            beyond.body.contains("9223372036854775808"),
            "{}",
            beyond.body
        );
        daemon.signal("TERM");
        daemon.ended().await;
    }
}
