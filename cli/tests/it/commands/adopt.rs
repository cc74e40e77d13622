//! adopt, and the reason of a refused family in Redis.

use serde_json::json;

use crate::client::{address, get};
use crate::support::{Site, eventually};

const FAMILIES: &str = r#"
[[family]]
name = "shop/views"
kind = "buffered"
sync_time = "1h"

[[family]]
name = "dev-*/hits"
kind = "series"
keep = ["day"]
windows = [["day", 7]]
sync_time = "1h"
"#;

/// Returns the sum of all values in MySQL.
async fn stored(site: &Site) -> i64 {
    site.number("SELECT CAST(COALESCE(SUM(value), 0) AS SIGNED) FROM counterfoil_values")
        .await
}

/// Empties the database as one that is made anew, with its tables.
async fn make_anew(site: &Site) {
    for table in ["families", "values", "ledger", "rejects"] {
        site.sql(&format!("DELETE FROM counterfoil_{table}")).await;
    }
}

/// A development database is made anew, beside a Redis that has hits for the former one.
#[tokio::test]
async fn a_new_database_takes_over_and_what_is_pending_is_dropped() {
    let site = Site::new().await;
    site.configure(FAMILIES);
    for id in ["a", "b"] {
        site.printed(&["add", "shop/views", id, "3"]).await;
    }
    site.printed(&["add", "dev-anna/hits", "site", "1"]).await;
    site.ends_with(0, &["adopt", "shop", "--yes"]).await;
    assert_eq!(
        site.number("SELECT COUNT(*) FROM counterfoil_families")
            .await,
        2
    );

    make_anew(&site).await;
    let registered = "SELECT COUNT(*) FROM counterfoil_families";
    site.json(0, &["adopt", "shop", "--dry-run"]).await;
    assert_eq!(site.number(registered).await, 0);
    let refused = site.run(&["add", "shop/views", "a", "1"]).await;
    assert!(refused.err.contains("go to the database"), "{refused:?}");

    let found = site.json(0, &["adopt", "shop", "--dry-run"]).await;
    assert_eq!(
        found,
        json!({"families": ["shop/views"], "dropped": 2, "adopted": false})
    );
    let again = site.run(&["add", "shop/views", "a", "1"]).await;
    assert!(again.err.contains("go to the database"), "{again:?}");
    // without a terminal there is no question
    assert_ne!(site.run(&["adopt", "shop"]).await.code, 0);

    let printed = site.printed(&["adopt", "shop", "--yes"]).await;
    assert!(
        printed.contains("2 ids dropped: shop/views (2 ids pending)"),
        "{printed}"
    );
    site.printed(&["adopt", "dev-anna", "--yes"]).await;
    site.printed(&["add", "shop/views", "a", "5"]).await;
    site.printed(&["add", "dev-anna/hits", "site", "2"]).await;
    site.printed(&["drain"]).await;
    assert_eq!(stored(&site).await, 7);
    let nothing = site.printed(&["adopt", "shop", "--yes"]).await;
    assert!(nothing.contains("no family of shop"), "{nothing}");
}

/// Before the daemon has run, the database knows no family, but Redis may.
#[tokio::test]
async fn a_redis_of_another_database_is_found_before_the_daemon_runs() {
    let site = Site::new().await;
    site.configure(FAMILIES);
    let other = "its hits in this Redis go to the database of another installation";
    let own = site.run(&["check"]).await;
    assert!(!own.out.contains(other), "{own:?}");
    site.printed(&["add", "shop/views", "a", "3"]).await;
    let own = site.run(&["check"]).await;
    assert!(!own.out.contains(other), "{own:?}");
    make_anew(&site).await;
    for command in ["check", "setup"] {
        let found = site.ends_with(2, &[command]).await;
        let error = format!("error: family shop/views: shop/views: {other}");
        assert!(found.out.contains(&error), "{found:?}");
        assert!(found.out.contains("`counterfoil adopt shop`"), "{found:?}");
        assert!(!found.out.contains("start the daemon"), "{found:?}");
        // who set it up has all rights
        assert!(!found.out.contains("administrator"), "{found:?}");
    }
    // nothing was registered or dropped
    let registered = "SELECT COUNT(*) FROM counterfoil_families";
    assert_eq!(site.number(registered).await, 0);
    let left = site.json(0, &["adopt", "shop", "--dry-run"]).await;
    assert_eq!(left["dropped"], 1);
    site.printed(&["adopt", "shop", "--yes"]).await;
    let taken = site.run(&["check"]).await;
    assert!(!taken.out.contains(other), "{taken:?}");
}

/// The advice is to take over, not to change settings, wherever the error is shown; and the command to
/// copy names the configuration.
#[tokio::test]
async fn the_advice_about_another_database_is_to_adopt() {
    let site = Site::new().await;
    site.configure(FAMILIES);
    site.printed(&["add", "shop/views", "a", "3"]).await;
    make_anew(&site).await;
    let file = site.folder().join("other name.toml");
    std::fs::rename(site.folder().join("counterfoil.toml"), &file).unwrap();
    let file = file.to_str().unwrap();
    let adopt = format!("counterfoil --config '{file}' adopt shop");
    let refused = site
        .ends_with(1, &["add", "shop/views", "a", "--config", file])
        .await;
    assert!(
        refused.err.contains(&format!("`{adopt}`")) && !refused.err.contains("reconfigure"),
        "{refused:?}"
    );

    let daemon = site
        .daemon_with(|command| command.args(["--config", file]))
        .await;
    eventually("the family is refused", async || {
        let state = get(&daemon, "/api/v1/state").await.json();
        let problems = state["problems"].as_array().expect("problems").iter();
        let mut of_family = problems.filter(|one| one["problem"] == "shop/views was refused");
        of_family.any(|one| {
            let what_to_do = one["what_to_do"].as_str().expect("advice");
            one["command"] == format!("{adopt} --dry-run") && what_to_do.contains(&adopt)
        })
    })
    .await;
    let page = get(&daemon, "/").await.body;
    assert!(
        page.contains(&format!("<code>{adopt} --dry-run</code>")),
        "{page}"
    );
    let reply = get(&daemon, "/api/v1/values?family=shop/views&id=a").await;
    let what_to_do = reply.json()["what_to_do"].clone();
    assert!(
        reply.status == 409 && what_to_do.as_str().expect("advice").contains(&adopt),
        "{reply:?}"
    );
    // `status` asks the daemon at the port in the configuration
    let text = std::fs::read_to_string(file).unwrap();
    let address = address(&daemon);
    std::fs::write(file, text.replace("127.0.0.1:0", &address)).unwrap();
    let status = site.run(&["status", "--config", file]).await;
    assert!(
        status.out.contains(&format!("`{adopt}`")) && !status.out.contains("reconfigure"),
        "{status:?}"
    );
    site.printed(&["--config", file, "adopt", "shop", "--yes"])
        .await;
    site.printed(&["--config", file, "add", "shop/views", "a"])
        .await;
}

/// A daemon that runs meanwhile registers the families in the new database.
#[tokio::test]
async fn a_running_daemon_counts_for_the_new_database() {
    let site = Site::new().await;
    site.configure(&FAMILIES.replace("sync_time = \"1h\"", "sync_time = \"300ms\""));
    let _daemon = site.daemon().await;
    site.printed(&["add", "shop/views", "a", "3"]).await;
    site.printed(&["add", "dev-anna/hits", "site", "1"]).await;
    eventually("the first hits are stored", async || {
        stored(&site).await == 4
    })
    .await;

    make_anew(&site).await;
    for namespace in ["shop", "dev-anna"] {
        site.printed(&["adopt", namespace, "--yes"]).await;
    }
    // if a hit came first, the daemon would notice at its next upkeep, a minute later
    for family in ["shop/views", "dev-anna/hits"] {
        let configured = format!("EXISTS cf1:{{{family}/0}}:calls");
        eventually("the daemon configures the families again", async || {
            site.redis
                .run::<bool>(&configured)
                .await
                .expect("Redis replies")
        })
        .await;
    }
    eventually("hits of both count in the new database", async || {
        let added = site.run(&["add", "shop/views", "a", "5"]).await;
        let hits = site.run(&["add", "dev-anna/hits", "site", "7"]).await;
        added.code == 0 && hits.code == 0
    })
    .await;
    eventually("all is stored", async || stored(&site).await >= 12).await;
}

/// A client that asks for the epoch learns what is wrong with the table, and counts once it is right.
#[tokio::test]
async fn clients_learn_why_a_family_is_refused() {
    let site = Site::new().await;
    site.sql("CREATE TABLE page (path VARCHAR(99) COLLATE latin1_swedish_ci PRIMARY KEY, n INT NOT NULL)")
        .await;
    site.configure(
        r#"
[[family]]
name = "shop/pages"
kind = "buffered"
table = { name = "page", write = "upsert", keys = [["path", "text"]], value = "n" }
"#,
    );
    let daemon = site.daemon().await;
    let reason = async || {
        let read = "HGET cf1:{shop/pages/0}:calls =refused";
        let reason = site.redis.run::<Option<String>>(read).await;
        reason.expect("Redis replies").unwrap_or_default()
    };
    eventually("the reason is in Redis", async || {
        reason().await.contains("latin1")
    })
    .await;
    site.sql("ALTER TABLE page MODIFY path VARBINARY(99)").await;
    // it would try again by itself within half a minute
    daemon.signal("HUP");
    eventually("the family is configured", async || {
        let read = "HGET cf1:{shop/pages/0}:calls =kind";
        let kind = site.redis.run::<Option<String>>(read).await;
        kind.expect("Redis replies").as_deref() == Some("buffered")
    })
    .await;
    assert_eq!(reason().await, "");
}
