//! rejects list, retry, discard.

use counterfoil::sqlx;
use futures_util::future::join;
use serde_json::json;

use super::terminal::in_terminal;
use crate::support::Site;

const FAMILY: &str = "[[family]]\nname = \"shop/sold\"\nkind = \"buffered\"\n\
                      table = { name = \"item\", write = \"update\", keys = [[\"id\", \"signed\"]], value = \"sold\" }\n";

const OPEN: &str = "SELECT COUNT(*) FROM counterfoil_rejects WHERE applied_at IS NULL";

/// Creates a site with this number of rejects, of 1, 2, ... for the ids 1, 2, ...
async fn site_with(rejects: i64) -> Site {
    let site = Site::new().await;
    site.sql("CREATE TABLE item (id BIGINT PRIMARY KEY, sold BIGINT NOT NULL)")
        .await;
    site.configure(FAMILY);
    for id in 1..=rejects {
        site.printed(&["add", "shop/sold", &id.to_string(), &id.to_string()])
            .await;
    }
    site.printed(&["drain"]).await;
    site
}

#[tokio::test]
async fn rejects_are_listed_retried_and_discarded() {
    let site = site_with(4).await;
    let list = site.json(0, &["rejects", "list"]).await;
    let rejects = list.as_array().expect("rejects");
    assert_eq!(rejects.len(), 4, "{list}");
    assert!(rejects.iter().all(|reject| reject["pair"] == "main"
        && reject["id"].as_str() == Some(&reject["delta"].to_string())));
    let number = |id: &str| {
        let reject = rejects
            .iter()
            .find(|reject| reject["id"] == id)
            .expect("of that id");
        reject["number"].to_string()
    };
    assert!(site.printed(&["rejects", "list"]).await.contains("\"3\""));
    assert_eq!(
        site.json(0, &["rejects", "list", "--family", "shop/none"])
            .await,
        json!([])
    );
    for command in ["list", "retry", "discard"] {
        let family = ["rejects", command, "--family", "sold"];
        let wrong = site.ends_with(3, &family);
        assert!(
            wrong
                .await
                .err
                .contains("'sold' for '--family <FAMILY>': it is not NAMESPACE/FAMILY")
        );
    }
    assert_eq!(
        site.json(0, &["rejects", "list", "--limit", "2"])
            .await
            .as_array()
            .map(Vec::len),
        Some(2)
    );
    assert_eq!(
        site.json(1, &["status"]).await[0]["families"][0]["rejects"],
        4
    );

    let refused = site.ends_with(1, &["rejects", "retry", &number("1")]).await;
    assert!(
        refused.out.contains(&format!(
            "refused again: {} of shop/sold, \"1\"",
            number("1")
        )),
        "{refused:?}"
    );
    site.sql("INSERT INTO item VALUES (1, 100), (2, 100)").await;
    let tried = site.json(0, &["rejects", "retry", &number("1")]).await;
    assert_eq!(tried["applied"].to_string(), format!("[{}]", number("1")));
    assert_eq!(site.number("SELECT sold FROM item WHERE id = 1").await, 101);
    let again = site
        .json(1, &["rejects", "retry", &number("1"), "999999"])
        .await;
    assert_eq!(
        (
            &again["applied"],
            again["not_found"].as_array().map(Vec::len)
        ),
        (&json!([]), Some(2)),
        "{again}"
    );

    let partly = site
        .json(1, &["rejects", "retry", "--family", "shop/sold"])
        .await;
    assert_eq!(
        (
            partly["applied"].as_array().map(Vec::len),
            partly["refused"].as_array().map(Vec::len)
        ),
        (Some(1), Some(2))
    );
    let discarded = site.printed(&["rejects", "discard", &number("3")]).await;
    assert_eq!(discarded, "discarded: 1\n");
    let all = ["rejects", "discard", "--all"];
    let dry_run = site.json(0, &[&all[..], &["--dry-run"]].concat()).await;
    assert_eq!(dry_run[0]["number"].to_string(), number("4"));
    let refused = site.ends_with(3, &all).await;
    assert!(refused.err.contains("--yes confirms it"), "{refused:?}");
    for (answer, code) in [("\n", "1"), ("n\n", "1"), ("y\n", "0")] {
        assert_eq!(site.number(OPEN).await, 1);
        let asked = in_terminal(&site, &all, "[y/N]", answer).await;
        let question = "pair main: discard 1 reject, which are then never applied?";
        assert!(asked.0 == code && asked.1.contains(question), "{asked:?}");
    }
    assert_eq!(site.number(OPEN).await, 0);
    // without rejects there is nothing to confirm
    assert_eq!(site.printed(&all).await, "discarded: 0\n");
    assert_eq!(
        site.json(1, &["rejects", "discard", &number("4")]).await["discarded"],
        json!([])
    );
    assert_eq!(site.printed(&["rejects", "list"]).await, "no rejects\n");
    assert_eq!(
        site.number("SELECT CAST(SUM(sold) AS SIGNED) FROM item")
            .await,
        203
    );
    assert_eq!(
        site.printed(&["rejects", "retry", "--all"]).await,
        "applied: 0\n"
    );
    site.ends_with(3, &["rejects", "retry"]).await;
    site.ends_with(3, &["rejects", "retry", "--all", "1"]).await;
}

#[tokio::test]
async fn rejects_of_cached_counters_are_applied_like_others() {
    let site = Site::new().await;
    site.sql("CREATE TABLE item (id BIGINT PRIMARY KEY, sold BIGINT NOT NULL); INSERT INTO item VALUES (7, 40)").await;
    site.configure(&FAMILY.replace("buffered", "cached"));
    assert_eq!(
        site.printed(&["add", "shop/sold", "7", "2"]).await,
        "counted: 7 is 42\n"
    );
    site.sql("DELETE FROM item").await;
    site.printed(&["drain"]).await;
    let list = site.json(0, &["rejects", "list"]).await;
    assert_eq!(
        (
            &list[0]["id"],
            &list[0]["delta"],
            list.as_array().map(Vec::len)
        ),
        (&json!("7"), &json!(2), Some(1))
    );
    site.sql("INSERT INTO item VALUES (7, 100)").await;
    assert_eq!(
        site.printed(&["rejects", "retry", "--all"]).await,
        "applied: 1\n"
    );
    assert_eq!(site.number("SELECT sold FROM item").await, 102);
    assert_eq!(site.printed(&["get", "shop/sold", "7"]).await, "7\t102\n");
}

#[tokio::test]
async fn a_retry_that_fails_tells_what_it_applied_before() {
    let site = site_with(2).await;
    site.sql("INSERT INTO item VALUES (1, 0), (2, 0)").await;
    let mut holder = site.pool.begin().await.expect("begun");
    let hold = sqlx::raw_sql("SELECT * FROM item WHERE id = 2 FOR UPDATE");
    hold.execute(&mut *holder).await.expect("locked");
    let tried = site.json(1, &["rejects", "retry", "--all"]).await;
    let number = |numbers: &serde_json::Value| numbers.as_array().map(Vec::len);
    assert_eq!(number(&tried["applied"]), Some(1), "{tried}");
    assert_eq!(number(&tried["left"][0]["numbers"]), Some(1), "{tried}");
    assert_eq!(site.number("SELECT sold FROM item WHERE id = 1").await, 1);
    holder.rollback().await.expect("unlocked");
    let again = site.printed(&["rejects", "retry", "--all"]).await;
    assert_eq!(again, "applied: 1\n");
}

#[tokio::test]
async fn two_processes_that_retry_at_once_apply_each_reject_once() {
    let site = site_with(12).await;
    site.sql("INSERT INTO item SELECT CAST(id AS SIGNED), 0 FROM counterfoil_rejects")
        .await;
    let retry = ["rejects", "retry", "--all", "--json"];
    let (one, other) = join(site.run(&retry), site.run(&retry)).await;
    let applied = |out: &str| {
        let tried: serde_json::Value = serde_json::from_str(out).expect("JSON");
        tried["applied"].as_array().expect("numbers").len()
    };
    assert_eq!(
        applied(&one.out) + applied(&other.out),
        12,
        "{one:?} {other:?}"
    );
    assert_eq!(
        site.number("SELECT CAST(SUM(sold = id) AS SIGNED) FROM item")
            .await,
        12
    );
}
