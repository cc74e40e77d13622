//! rejects list, retry, discard.

use counterfoil::sqlx;
use futures_util::future::join;
use serde_json::json;

use super::terminal::in_terminal;
use crate::support::Site;

const FAMILY: &str = "[[family]]\nname = \"shop/sold\"\nkind = \"buffered\"\n\
                      table = { name = \"item\", write = \"update\", keys = [[\"id\", \"signed\"]], value = \"sold\" }\n";

const REJECTS: &str = "SELECT COUNT(*) FROM counterfoil_rejects";

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

    let retry = |ids: &[&'static str]| {
        let of_family = ["rejects", "retry", "--family", "shop/sold"];
        [&of_family[..], ids].concat()
    };
    let refused = site.ends_with(1, &retry(&["1"])).await;
    let lines = "applied: 0\nrefused again: 1\n  shop/sold \"1\": no such row\n";
    assert!(refused.out.starts_with(lines), "{refused:?}");
    site.sql("INSERT INTO item VALUES (1, 100), (2, 100)").await;
    let tried = site.json(0, &retry(&["1"])).await;
    let expected =
        |applied, refused| json!({"applied": applied, "refused": refused, "left": 0, "failed": []});
    assert_eq!(tried, expected(1, 0));
    assert_eq!(site.number("SELECT sold FROM item WHERE id = 1").await, 101);
    let again = site.json(1, &retry(&["1", "999999"])).await;
    assert_eq!(again, expected(0, 0));
    assert_eq!(site.json(1, &retry(&[])).await, expected(1, 2));

    let discard = |id| ["rejects", "discard", "--family", "shop/sold", id];
    assert_eq!(site.printed(&discard("3")).await, "discarded: 1\n");
    let all = ["rejects", "discard", "--all"];
    let dry_run = site.json(0, &[&all[..], &["--dry-run"]].concat()).await;
    assert_eq!(dry_run[0]["id"], "4");
    let refused = site.ends_with(3, &all).await;
    assert!(refused.err.contains("--yes confirms it"), "{refused:?}");
    for (answer, code) in [("\n", "1"), ("n\n", "1"), ("y\n", "0")] {
        assert_eq!(site.number(REJECTS).await, 1);
        let asked = in_terminal(&site, &all, "[y/N]", answer).await;
        let question = "pair main: discard 1 reject, which are then never applied?";
        assert!(asked.0 == code && asked.1.contains(question), "{asked:?}");
    }
    assert_eq!(site.number(REJECTS).await, 0);
    // without rejects there is nothing to confirm
    assert_eq!(site.printed(&all).await, "discarded: 0\n");
    let discarded = site.json(1, &discard("4")).await;
    assert_eq!(discarded, json!({"discarded": 0}));
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
    site.ends_with(3, &["rejects", "retry", "1"]).await;
    site.ends_with(3, &["rejects", "retry", "--all", "1"]).await;
    site.ends_with(3, &["rejects", "retry", "--all", "--family", "shop/sold"])
        .await;
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
async fn a_retry_leaves_a_locked_row() {
    let site = site_with(2).await;
    site.sql("INSERT INTO item VALUES (1, 0), (2, 0)").await;
    let mut holder = site.pool.begin().await.expect("begun");
    let hold = sqlx::raw_sql("SELECT * FROM item WHERE id = 2 FOR UPDATE");
    hold.execute(&mut *holder).await.expect("locked");
    let tried = site.json(1, &["rejects", "retry", "--all"]).await;
    assert_eq!((&tried["applied"], &tried["left"]), (&json!(1), &json!(1)));
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
        tried["applied"].as_u64().expect("a number")
    };
    // one that the other had locked is left out
    let last = site.run(&retry).await;
    let all = applied(&one.out) + applied(&other.out) + applied(&last.out);
    assert_eq!(all, 12, "{one:?} {other:?}");
    assert_eq!(
        site.number("SELECT CAST(SUM(sold = id) AS SIGNED) FROM item")
            .await,
        12
    );
}
