//! get, add, list, pending, drain.

use std::process::Stdio;

use counterfoil::{Day, Durability, Family, Outcome};
use serde_json::json;
use tokio::process::Command;

use super::FAMILIES;
use crate::support::Site;

#[tokio::test]
async fn buffered_counters_are_added_read_listed_and_drained() {
    let site = Site::new().await;
    site.configure(FAMILIES);
    assert_eq!(
        site.printed(&["add", "shop/views", "a"]).await,
        "counted: a is 1\n"
    );
    assert_eq!(
        site.printed(&["add", "shop/views", "a", "-4"]).await,
        "counted: a is -3\n"
    );
    for expected in ["counted", "counted_before"] {
        let added = site
            .json(0, &["add", "shop/views", "b", "5", "--request", "job-1"])
            .await;
        assert_eq!(
            added,
            json!({ "family": "shop/views", "id": "b", "delta": 5, "outcome": expected, "value": 5 })
        );
    }
    assert_eq!(
        site.printed(&["get", "shop/views", "b", "a", "none"]).await,
        "b\t5\na\t-3\nnone\t0\n"
    );
    let values = json!([{ "id": "b", "value": 5 }, { "id": "a", "value": -3 }]);
    let got = site.json(0, &["get", "shop/views", "b", "a"]).await;
    assert_eq!(
        got,
        json!({ "family": "shop/views", "kind": "buffered", "values": values })
    );
    assert_eq!(
        site.number("SELECT COUNT(*) FROM counterfoil_values").await,
        0
    );

    let pending = site.printed(&["pending"]).await;
    let row: Vec<_> = pending
        .lines()
        .nth(1)
        .expect("a row")
        .split_whitespace()
        .collect();
    assert_eq!(row[..3], ["shop/views", "buffered", "2"], "{pending}");
    let pending = site.json(0, &["pending"]).await;
    assert_eq!(pending[0]["families"][0]["pending"], 2, "{pending}");

    assert_eq!(
        site.printed(&["drain"]).await,
        "pair main: everything is in MySQL\n"
    );
    let sum = "SELECT CAST(SUM(value) AS SIGNED) FROM counterfoil_values";
    assert_eq!(site.number(sum).await, 2);
    assert_eq!(site.printed(&["pending"]).await, "nothing is pending\n");
    let drained = site.json(0, &["drain"]).await;
    assert_eq!(
        drained,
        json!([{ "pair": "main", "drained": true, "left": [], "problems": [] }])
    );
    // the second call adds nothing
    assert_eq!(site.number(sum).await, 2);
    assert_eq!(
        site.printed(&["get", "shop/views", "b", "a"]).await,
        "b\t5\na\t-3\n"
    );
}

#[tokio::test]
async fn a_list_reads_page_after_page_and_stops_when_its_output_is_closed() {
    let site = Site::new().await;
    site.configure(FAMILIES);
    let family = Family::buffered("shop", "views").durability(Durability::Immediate);
    let views = site.writer().await.open(family).await.expect("opened");
    let ids: Vec<_> = (0..2500)
        .map(|number| format!("page/{number:04}"))
        .collect();
    for result in views.add_many(ids.iter().map(|id| (id, 2))).await {
        assert_eq!(result.expect("counted"), Outcome::Counted(2));
    }
    assert_eq!(
        site.printed(&["list", "shop/views", "--prefix", "none"])
            .await,
        ""
    );
    assert_eq!(
        site.json(0, &["list", "shop/views", "--prefix", "none"])
            .await,
        json!([])
    );
    let all = site
        .printed(&["list", "shop/views", "--limit", "3000"])
        .await;
    let expected: Vec<_> = ids.iter().map(|id| format!("{id}\t2")).collect();
    assert_eq!(all.lines().collect::<Vec<_>>(), expected);
    let some = site
        .json(
            0,
            &[
                "list",
                "shop/views",
                "--prefix",
                "page/1",
                "--after",
                "page/1998",
                "--limit",
                "5",
            ],
        )
        .await;
    assert_eq!(some, json!([{ "id": "page/1999", "value": 2 }]));
    let page = site
        .json(0, &["list", "shop/views", "--limit", "1500"])
        .await;
    assert_eq!(page.as_array().map(Vec::len), Some(1500));

    let piped = format!(
        "{} list shop/views --limit 3000 | head -n 1",
        env!("CARGO_BIN_EXE_counterfoil")
    );
    let mut shell = Command::new("bash");
    shell
        .args(["-c", &format!("set -o pipefail; {piped}")])
        .current_dir(site.folder())
        .stdin(Stdio::null());
    let ended = shell.output().await.expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(
        (
            ended.status.code(),
            text(&ended.stdout),
            text(&ended.stderr)
        ),
        (Some(0), "page/0000\t2\n".to_owned(), String::new())
    );
}

#[tokio::test]
async fn cached_counters_keep_their_bounds_and_rows() {
    let site = Site::new().await;
    site.sql("CREATE TABLE item (id BIGINT PRIMARY KEY, votes BIGINT NOT NULL)")
        .await;
    site.sql("INSERT INTO item VALUES (7, 40)").await;
    let of_rows = "[[family]]\nname = \"forum/votes\"\nkind = \"cached\"\n\
                   table = { name = \"item\", write = \"update\", keys = [[\"id\", \"signed\"]], value = \"votes\" }\n";
    site.configure(&format!("{FAMILIES}{of_rows}"));
    assert_eq!(
        site.printed(&["add", "forum/votes", "7", "2"]).await,
        "counted: 7 is 42\n"
    );
    for outcome in ["counted", "counted_before"] {
        let added = site
            .json(0, &["add", "forum/votes", "7", "1", "--request", "r"])
            .await;
        assert_eq!(
            (&added["outcome"], &added["value"]),
            (&json!(outcome), &json!(43))
        );
    }
    let no_row = site.ends_with(1, &["add", "forum/votes", "8"]).await;
    assert_eq!(no_row.out, "");
    assert!(
        no_row.err.contains("\"8\" was not counted: it has no row"),
        "{no_row:?}"
    );
    assert_eq!(
        site.json(1, &["add", "forum/votes", "8"]).await["outcome"],
        "no_row"
    );

    site.printed(&["add", "shop/votes", "x", "3"]).await;
    let below = site.ends_with(1, &["add", "shop/votes", "x", "-4"]).await;
    assert!(
        below.err.contains("outside the family's bounds") && below.err.contains("it is 3"),
        "{below:?}"
    );
    assert_eq!(below.err.lines().count(), 1, "{below:?}");
    let refused = site.json(1, &["add", "shop/votes", "x", "-4"]).await;
    assert_eq!(
        (&refused["outcome"], &refused["value"]),
        (&json!("out_of_range"), &json!(3))
    );
    assert_eq!(site.printed(&["get", "shop/votes", "x"]).await, "x\t3\n");
    assert!(
        site.ends_with(3, &["list", "shop/votes"])
            .await
            .err
            .contains("cannot be listed")
    );
    site.printed(&["drain"]).await;
    assert_eq!(site.number("SELECT votes FROM item").await, 43);
}

#[tokio::test]
async fn series_visitors_and_activity_are_read_as_what_they_are() {
    let site = Site::new().await;
    site.configure(FAMILIES);
    let writer = site.writer().await;
    let visitors = Family::visitors("shop", "daily").durability(Durability::Immediate);
    let visitors = writer.open(visitors).await.expect("opened");
    let day: Day = "2026-09-20".parse().expect("a day");
    for (visitor, expected) in [
        ("a", Outcome::Counted(1)),
        ("b", Outcome::Counted(1)),
        ("a", Outcome::CountedBefore(0)),
    ] {
        assert_eq!(
            visitors
                .first_visit("12/5", day, visitor)
                .await
                .expect("counted"),
            expected
        );
    }
    let activity = Family::activity("shop", "readers").durability(Durability::Immediate);
    let activity = writer.open(activity).await.expect("opened");
    for visitor in ["a", "b", "a"] {
        activity.touch("/home", visitor).await.expect("counted");
    }
    assert_eq!(
        site.printed(&["get", "shop/daily", "12/5/2026-09-20"])
            .await,
        "12/5/2026-09-20\t2\n"
    );
    assert_eq!(
        site.printed(&["list", "shop/daily"]).await,
        "12/5/2026-09-20\t2\n"
    );
    let wrong = site.ends_with(3, &["get", "shop/daily", "12"]).await;
    assert!(
        wrong.err.contains("\"12\" is not SCOPE/YYYY-MM-DD"),
        "{wrong:?}"
    );
    assert_eq!(
        site.printed(&["get", "shop/readers", "/home", "/none"])
            .await,
        "/home\t3\t2\n/none\t0\t0\n"
    );
    let pages = json!([{ "page": "/home", "views": 3, "visitors": 2 }]);
    assert_eq!(
        site.json(0, &["get", "shop/readers", "/home"]).await["pages"],
        pages
    );

    assert_eq!(
        site.printed(&["add", "shop/downloads", "iso", "3"]).await,
        "counted\n"
    );
    let slices = site.printed(&["get", "shop/downloads", "iso"]).await;
    let last: Vec<_> = slices
        .lines()
        .last()
        .expect("a slice")
        .split('\t')
        .collect();
    assert!(
        slices.lines().count() > 100 && last[0] == "iso" && last[1].ends_with(":00Z"),
        "{slices}"
    );
    let sum = |slices: &str| {
        slices
            .lines()
            .filter_map(|line| line.rsplit('\t').next()?.parse::<i64>().ok())
            .sum::<i64>()
    };
    assert_eq!(sum(&slices), 3);
    let series = site
        .json(0, &["get", "shop/downloads", "iso", "--precision", "day"])
        .await;
    assert_eq!(series["series"][0]["precision"], "day");
    let today = series["series"][0]["slices"]
        .as_array()
        .and_then(|slices| slices.last())
        .expect("today");
    assert_eq!(today["start"].as_u64().expect("seconds") % 86_400, 0);
    assert_eq!(site.printed(&["list", "shop/downloads"]).await, "iso\n");

    for (args, why) in [
        (
            &["get", "shop/downloads", "iso", "--precision", "7s"][..],
            "7s",
        ),
        (
            &["get", "shop/downloads", "iso", "--precision", "soon"],
            "soon",
        ),
        (&["add", "shop/downloads", "iso", "0"], "greater than 0"),
        (
            &["add", "shop/downloads", "iso", "--request", "r"],
            "does not support --request",
        ),
        (
            &["add", "shop/daily", "12/2026-09-20"],
            "only applications count them",
        ),
        (
            &["add", "shop/readers", "/home"],
            "only applications count them",
        ),
        (&["list", "shop/readers"], "cannot be listed"),
        (&["get", "views", "a"], "not NAMESPACE/FAMILY"),
        (
            &["get", "shop/none", "a"],
            "family shop/none is neither in the configuration nor in the database",
        ),
        (&["get", "shop/views", ""], "id"),
        (&["get", "shop/views"], "<IDS>"),
        (&["add", "shop/views", "a", "many"], "many"),
        (&["add", "shop/views", "a", "--request", ""], "request"),
        (&["get", "shop/views", "a", "--pair", "none"], "[pair.none]"),
    ] {
        let refused = site.ends_with(3, args).await;
        assert!(
            refused.err.contains(why) && refused.out.is_empty(),
            "{args:?}: {refused:?}"
        );
    }
}

#[tokio::test]
async fn drain_opens_what_was_announced_of_a_pattern() {
    let site = Site::new().await;
    site.configure(FAMILIES);
    let family = Family::buffered("tenant-9", "views").durability(Durability::Immediate);
    let views = site.writer().await.open(family).await.expect("opened");
    assert_eq!(
        views.add("a", 6).await.expect("counted"),
        Outcome::Counted(6)
    );
    site.want("tenant-9/views").await;
    // a limit beyond what a clock can have
    site.printed(&["drain", "--timeout", "2562047788015215h"])
        .await;
    assert_eq!(site.number("SELECT value FROM counterfoil_values").await, 6);
}

#[tokio::test]
async fn drain_that_is_not_done_in_time_names_what_is_left() {
    let site = Site::new().await;
    site.configure("[[family]]\nname = \"shop/slow\"\nkind = \"buffered\"\ndurability = \"1h\"\n");
    site.printed(&["add", "shop/slow", "a", "2"]).await;
    let late = site.ends_with(1, &["drain", "--timeout", "2500ms"]).await;
    assert!(
        late.err
            .contains("pair main: 1 id of 1 family pending, the oldest"),
        "{late:?}"
    );
    assert!(
        late.err
            .contains("not everything is in MySQL: shop/slow: 1 id, the oldest"),
        "{late:?}"
    );
    // a command continues after the reader of its progress has ended
    let piped = format!(
        "set -o pipefail; {} drain --timeout 2500ms 2>&1 | head -n 1",
        env!("CARGO_BIN_EXE_counterfoil")
    );
    let mut shell = Command::new("bash");
    let shell = shell.args(["-c", &piped]).current_dir(site.folder());
    let ended = shell.output().await.expect("it runs");
    assert_eq!(ended.status.code(), Some(1), "{ended:?}");
    let late = site.json(1, &["drain", "--timeout", "100ms"]).await;
    assert_eq!(
        (&late[0]["drained"], &late[0]["left"][0]["pending"]),
        (&json!(false), &json!(1)),
        "{late}"
    );
}
