//! recount, drift.

use std::process::Stdio;
use std::time::Duration;

use counterfoil::sqlx;
use serde_json::json;
use tokio::time::timeout;

use crate::support::{Site, eventually};

const FAMILY: &str = r#"
[[family]]
name = "shop/likes"
kind = "buffered"

[family.recount]
rows = "added"
table = "likes"
keys = ["item"]
within = "100ms"
every = "1h"
ids = "both"

[[family]]
name = "shop/plain"
kind = "buffered"
"#;

#[tokio::test]
async fn a_recount_reports_corrects_and_says_what_it_found() {
    let site = Site::new().await;
    site.sql("CREATE TABLE likes (item VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, KEY (item))").await;
    site.sql("INSERT INTO likes VALUES ('a'), ('a'), ('a'), ('b')")
        .await;
    site.configure(FAMILY);
    let none = site.ends_with(3, &["drift", "shop/likes"]).await;
    assert!(
        none.err.contains("the database has no family shop/likes"),
        "{none:?}"
    );
    for id in ["a", "b"] {
        site.printed(&["add", "shop/likes", id]).await;
    }
    site.printed(&["drain"]).await;
    let never = site.ends_with(1, &["drift", "shop/likes"]).await;
    assert!(never.err.contains("was never recounted"), "{never:?}");

    let report = site.json(1, &["recount", "shop/likes", "--report"]).await;
    assert_eq!(
        (
            &report["checked"],
            &report["drifted"],
            &report["only_noted"]
        ),
        (&json!(2), &json!(1), &json!(1))
    );
    assert_eq!(site.printed(&["get", "shop/likes", "a"]).await, "a\t1\n");
    let corrected = site.ends_with(0, &["recount", "shop/likes"]).await;
    assert!(
        corrected
            .out
            .contains("2 checked, 1 differ: 1 raised, 0 lowered"),
        "{corrected:?}"
    );
    assert_eq!(
        site.printed(&["get", "shop/likes", "a", "b"]).await,
        "a\t3\nb\t1\n"
    );

    let drift = site.json(0, &["drift", "shop/likes"]).await;
    let found = &drift[0];
    assert_eq!(
        (&found["id"], &found["rows"], &found["delta"]),
        (&json!("a"), &json!(3), &json!(2)),
        "{drift}"
    );
    let run = report["run"].to_string();
    let first = site.json(0, &["drift", "shop/likes", "--run", &run]).await;
    assert_eq!(
        (&first[0]["delta"], &first[0]["run"]),
        (&json!(0), &report["run"])
    );
    assert!(
        site.printed(&["drift", "shop/likes"])
            .await
            .contains("\"a\"")
    );
    let last = site.printed(&["recount", "shop/likes"]).await;
    assert!(last.contains("2 checked, 0 differ"), "{last}");
    let none = site.printed(&["drift", "shop/likes"]).await;
    assert!(none.contains("found no counter that differs"), "{none}");
    let unknown = site.ends_with(1, &["drift", "shop/likes", "--run", "99"]);
    let unknown = unknown.await;
    assert!(
        unknown.err.contains("shop/likes has no run 99; the last"),
        "{unknown:?}"
    );
    assert!(
        site.ends_with(3, &["recount", "shop/plain"])
            .await
            .err
            .contains("no [family.recount] for shop/plain")
    );
}

#[tokio::test]
async fn a_recount_that_is_interrupted_is_continued_by_the_next() {
    const HELD: &str = "SELECT COUNT(*) FROM counterfoil_recounts WHERE holder > 0";
    let site = Site::new().await;
    site.sql("CREATE TABLE likes (item VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, KEY (item))").await;
    site.sql("INSERT INTO likes VALUES ('a')").await;
    site.configure(&FAMILY.replace("100ms", "1m"));
    let mut command = site.command();
    command
        .args(["recount", "shop/likes"])
        .stderr(Stdio::piped());
    let recount = command.spawn().expect("it starts");
    eventually("a run", async || site.number(HELD).await == 1).await;
    testkit::signal(&recount, "INT");
    let ended = timeout(Duration::from_secs(20), recount.wait_with_output()).await;
    let ended = ended.expect("it ends").expect("its output");
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(
        said.contains("the next recount of shop/likes continues"),
        "{said}"
    );
    site.configure(FAMILY);
    let next = site.printed(&["recount", "shop/likes"]).await;
    assert!(next.starts_with("run 1: 1 checked, 1 differ"), "{next}");
}

#[tokio::test]
async fn a_check_finds_a_recount_that_the_table_does_not_fit() {
    let site = Site::new().await;
    site.sql("CREATE TABLE likes (item VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, KEY (item))").await;
    for (line, wrong) in [
        ("keys = [\"item\"]", "keys = [\"itm\"]"),
        ("ids = \"both\"", "sum = \"itm\""),
        ("ids = \"both\"", "filter = \"itm > 1\""),
    ] {
        site.configure(&FAMILY.replace(line, wrong));
        let checked = site.ends_with(2, &["check"]).await;
        let told = "recount of shop/likes: reading the rows of likes failed";
        assert!(
            checked.out.contains(told) && checked.out.contains("'itm'"),
            "{checked:?}"
        );
    }
}

#[tokio::test]
async fn a_locked_table_of_rows_does_not_hold_up_a_check() {
    let site = Site::new().await;
    site.sql("CREATE TABLE likes (item VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, KEY (item))").await;
    site.configure(FAMILY);
    let mut holder = site.pool.acquire().await.expect("a connection");
    let lock = sqlx::raw_sql("LOCK TABLES likes WRITE");
    lock.execute(&mut *holder).await.expect("locked");
    for command in ["check", "status"] {
        let late = site.ends_with(2, &[command]).await;
        let told = "error: check: no reply within 10 s. Is a table locked?";
        assert!(late.out.contains(told), "{late:?}");
    }
}
