//! What vectors cannot express: scripts on a full Redis, and the server's clock.

use redis::ToRedisArgs;
use serde_json::{Value as Json, json};

use crate::vectors::{Run, equal, value};

use crate::support::*;

const FENCE: &str = "calls calls_before";
const EPOCH: &str = "e2";

/// Returns the keys of these kinds, which single spaces separate.
fn keys(kinds: &str) -> Vec<String> {
    kinds
        .split(' ')
        .map(|kind| format!("cf1:{{shop/views/0}}:{kind}"))
        .collect()
}

/// Returns the keys of a counting script.
fn fenced(kinds: &str) -> Vec<String> {
    keys(&format!("{FENCE} {kinds}"))
}

impl Run {
    /// Returns the strings of a reply, with integers as text.
    fn strings(
        &mut self,
        script: &str,
        keys: &[impl ToRedisArgs],
        args: &[impl ToRedisArgs],
    ) -> Vec<String> {
        redis::from_redis_value(self.send(script, keys, args).unwrap()).unwrap()
    }

    fn expect(&mut self, script: &str, keys: &[String], args: &[impl ToRedisArgs], expected: Json) {
        equal(
            script,
            &self.send(script, keys, args).unwrap(),
            &value(&expected),
        )
        .unwrap();
    }

    /// Begins an epoch, so that calls may have a caller.
    fn begin_epoch(&mut self) {
        self.get(&["HSET", &keys("calls")[0], "=now", EPOCH, "=before", "e1"])
    }

    fn limit(&mut self, bytes: &str) {
        self.get(&["CONFIG", "SET", "maxmemory", bytes])
    }

    /// Checks that Redis refuses the call because its memory is full, and that nothing changes.
    fn check_refused(&mut self, script: &str, keys: &[String], args: &[&str]) {
        let before = self.contents();
        let error = self.send(script, keys, args).unwrap_err();
        // Redis 6.2 has the code in the text, as "-OOM"
        assert!(
            error.code() == Some("OOM") || format!("{error:#}").contains("OOM"),
            "{script} {args:?}: {error}"
        );
        equal(script, &self.contents(), &before).unwrap();
    }

    /// Configures a family of buffered counters.
    fn configure(&mut self, now_ms: &str) {
        let settings = ["salt", now_ms, "buffered", "1", "9", "{}", ""];
        self.strings("family_configure", &keys("calls meta"), &settings);
    }

    /// Cuts the buffer, and returns the id of the batch.
    fn rotate(&mut self, now_ms: &str) -> [String; 3] {
        let args = ["salt", "r1", "30000", "0", "60000", "0", "", now_ms];
        let reply = self.strings("buffered_rotate", &keys("buffer batch meta"), &args);
        assert!(reply[0] == "OK" || reply[0] == "HELD", "{reply:?}");
        [1, 2, 3].map(|i| reply[i].clone())
    }

    fn clock(&mut self) -> i64 {
        let (seconds, micros): (i64, i64) = self.get(&["TIME"]);
        seconds * 1000 + micros / 1000
    }

    /// Returns a number in a hash, or a score.
    fn number(&mut self, command: &str, key: &str, field: &str) -> i64 {
        self.get(&[command, &keys(key)[0], field])
    }
}

/// Returns the arguments of a call on a batch.
fn with_id<'a>(id: &'a [String; 3], rest: &[&'a str]) -> Vec<&'a str> {
    id.iter()
        .map(String::as_str)
        .chain(rest.iter().copied())
        .collect()
}

/// A full Redis leaves no call half done, and still executes calls that free memory.
#[tokio::test]
async fn a_full_redis_accepts_no_hits_and_can_be_drained() {
    let (_server, mut run) = Run::new().await;
    let (both, add) = (keys("batch meta"), fenced("buffer meta"));
    let settings = ["salt", "900", "buffered", "1", "9", "{}", ""];
    let asked = ["buffered", "1", "", "900"];
    run.configure("900");
    let epoch = run.strings("family_epoch", &keys(FENCE), &asked);
    let hit = |caller, n| [caller, n, &*epoch[1], "1000", "1", "1", "a", "1"];
    run.strings("buffered_add", &add, &hit("w1", "1"));
    run.limit("1");
    for caller in ["w1", ""] {
        run.check_refused("buffered_add", &add, &hit(caller, "2"));
    }
    run.check_refused(
        "family_epoch",
        &keys(FENCE),
        &["buffered", "1", "", "60900"],
    );
    for other in ["cf1:{shop/views/0}:meta", "cf1:{shop/views/1}:meta"] {
        run.check_refused(
            "family_configure",
            &[keys("calls")[0].clone(), other.into()],
            &settings,
        );
    }
    let again = run.strings("family_epoch", &keys(FENCE), &asked);
    equal("epoch", &again, &epoch).unwrap();

    let id = run.rotate("1000");
    equal("the lease", &run.rotate("1500"), &id).unwrap();
    // the clock stepped back, so the script rewrites the time of the cut
    for (now_ms, expected) in [
        ("800", json!(["WAIT", 100])),
        ("900", json!(["OK", "0", ["a", "1"], 1])),
    ] {
        let args = with_id(&id, &["100", "0", "10", now_ms]);
        run.expect("buffered_fetch", &both, &args, expected);
    }
    run.expect("buffered_release", &both, &id, json!(["OK"]));
    run.limit("0");
    run.strings("buffered_add", &add, &hit("w1", "2"));
    run.limit("1");
    let id = run.rotate("70000");
    let reset = run.strings(
        "buffered_reset",
        &keys("meta calls buffer batch"),
        &with_id(&id, &["salt", "70000"]),
    );
    assert_eq!(reset[..3], ["OK", "1", "1"]);
    run.limit("0");
}

/// A full Redis refuses changes, seeds and tickets of cached counters. Saves and deletions still
/// work.
#[tokio::test]
async fn a_full_redis_accepts_no_changes_and_can_be_drained() {
    let (_server, mut run) = Run::new().await;
    let kinds = "base buffer batch meta";
    let (incr, all) = (fenced(kinds), keys(kinds));
    let (seed, get) = (keys("base"), keys("base buffer batch"));
    fn change<'a>(caller: &'a str, n: &'a str, pairs: &[&'a str]) -> Vec<&'a str> {
        let count = ["0", "1", "2", "3"][pairs.len() / 2];
        [&[caller, n, EPOCH, "1000", "30000", "", "", count], pairs].concat()
    }
    run.begin_epoch();
    let missed = run.strings(
        "cached_incr",
        &incr,
        &change("w1", "1", &["a", "1", "b", "1", "c", "1"]),
    );
    let ticket = missed[1].strip_prefix("MISS:").unwrap();
    let seeds = ["a", "b", "c"].map(|id| [id, ticket, "5"]).concat();
    run.strings(
        "cached_seed",
        &seed,
        &[&["1000", "1000"][..], &seeds].concat(),
    );
    run.strings(
        "cached_incr",
        &incr,
        &change("w1", "2", &["a", "1", "b", "1"]),
    );
    let missed = run.strings("cached_get", &get, &["30000", "1000", "salt", "e"]);
    let other = missed[1].strip_prefix("MISS:").unwrap();

    run.limit("1");
    // pending, not pending, without a base, and with a ticket
    for id in ["a", "c", "d", "e"] {
        for caller in ["w1", ""] {
            run.check_refused("cached_incr", &incr, &change(caller, "3", &[id, "1"]));
        }
    }
    run.check_refused(
        "cached_incr",
        &incr,
        &change("", "3", &["a", "9007199254740993"]),
    );
    run.check_refused("cached_get", &get, &["30000", "1000", "salt", "d"]);
    run.check_refused("cached_seed", &seed, &["1000", "1000", "e", other, "5"]);

    run.expect(
        "cached_get",
        &get,
        &["", "1000", "salt", "a", "c"],
        json!(["OK", 6, 5]),
    );
    let id = run.rotate("1000");
    run.expect(
        "cached_saved",
        &all,
        &with_id(&id, &["1000", "1000", "a", "6"]),
        json!(["OK", 1]),
    );
    for (ids, outcomes) in [
        (
            &["a", "b", "c", "f"][..],
            &["DELETED", "KEPT:batch", "DELETED", "GONE"][..],
        ),
        (&["b"], &["KEPT:batch"]),
    ] {
        assert_eq!(
            run.strings(
                "cached_delete",
                &get,
                &[&["0", "1000", "3000"], ids].concat()
            ),
            [&["OK", "0"], outcomes].concat()
        );
    }
    run.limit("0");
}

/// Slices that are over can still move to the buffer.
#[tokio::test]
async fn a_full_redis_accepts_no_series_and_can_be_drained() {
    let (_server, mut run) = Run::new().await;
    let add = fenced("open schedule names idle series:60s:site");
    run.begin_epoch();
    let call = |caller, n| {
        let slices = ["1", "60s 60 60 60s/*/", "site", "1"];
        [&[caller, n, EPOCH, "1000"], &slices[..]].concat()
    };
    run.strings("series_add", &add, &call("w1", "1"));
    run.limit("1");
    for caller in ["w1", ""] {
        run.check_refused("series_add", &add, &call(caller, "2"));
    }
    let (close, moved) = (keys("open schedule buffer meta"), json!(["OK", 1, ""]));
    run.expect("series_close", &close, &["10", "0", "60000"], moved);
    run.limit("0");
}

/// A full Redis refuses calls of activity and daily visitors before anything is done, whatever
/// their first write is.
#[tokio::test]
async fn a_full_redis_accepts_no_visitors() {
    let (_server, mut run) = Run::new().await;
    let touch = fenced("open schedule views:0:p visitors:0:p");
    let logs = fenced("open schedule views:9:p layer:333:9:p minute:960:9:p");
    let first = fenced("buffer meta seen:a");
    let calls = |caller: &'static str, visitor: &'static str| {
        let args = |rest: &str| {
            let args = format!("{caller} 1 {EPOCH} 1000000 {rest} 1 {visitor}");
            args.split(' ').map(str::to_owned).collect::<Vec<_>>()
        };
        [
            ("activity_touch", &touch, args("3000 200 1 1 p 1")),
            ("activity_touch_hll", &logs, args("3000 200 1 333 1 p 1")),
            ("visitors_first", &first, args("86400000 1 a")),
        ]
    };
    run.begin_epoch();
    for (script, keys, args) in calls("", "v") {
        run.send(script, keys, &args).unwrap();
    }
    run.limit("1");
    for (script, keys, args) in calls("w1", "w").into_iter().chain(calls("", "w")) {
        let args: Vec<_> = args.iter().map(String::as_str).collect();
        run.check_refused(script, keys, &args);
    }
    let (window, one_each) = (["1000000", "3000", "200"], json!(["OK", 1, 1]));
    run.expect("activity_now", &touch[4..], &window, one_each.clone());
    run.expect(
        "activity_now_hll",
        &logs[4..6],
        &["1000000", "3000", "1", "333"],
        one_each,
    );
    run.limit("0");
}

fn expect_between(from: i64, to: i64, times: &[i64]) {
    assert!(
        times.iter().all(|time| (from..=to).contains(time)),
        "{times:?} are not between {from} and {to}"
    );
}

/// Times that scripts write without `now_ms` lie between two readings of the server's clock.
#[tokio::test]
async fn without_now_ms_the_servers_clock_counts() {
    let (_server, mut run) = Run::new().await;
    let from = run.clock();
    run.configure("");
    run.strings("family_epoch", &keys(FENCE), &["buffered", "1", "", ""]);
    run.strings(
        "buffered_add",
        &fenced("buffer meta"),
        &["", "0", "", "", "1", "1", "a", "1"],
    );
    let id = run.rotate("");
    let to = run.clock();
    let written = [
        run.number("HGET", "calls", "=began_at"),
        run.number("HGET", "meta", "first_at"),
        run.number("HGET", "meta", "rotated_at"),
        run.number("HGET", "meta", "lease_until") - 30_000,
    ];
    expect_between(from, to, &written);
    let fetch = run.strings(
        "buffered_fetch",
        &keys("batch meta"),
        &with_id(&id, &["60000", "0", "10", ""]),
    );
    assert_eq!(fetch[0], "WAIT");
    expect_between(50_000, 60_000, &[fetch[1].parse().unwrap()]);
}

/// A Redis that lost its memory creates only new names for epochs, incarnations, nonces and
/// tickets.
#[tokio::test]
async fn no_name_is_created_twice() {
    let (_server, mut run) = Run::new().await;
    let mut names = BTreeSet::new();
    let add = ["", "", "", "", "1", "1", "a", "1"];
    for _ in 0..100 {
        let () = run.get(&["FLUSHDB"]);
        run.configure("");
        let epoch = run.strings("family_epoch", &keys(FENCE), &["", "", "", ""]);
        run.strings("buffered_add", &fenced("buffer meta"), &add);
        let [incarnation, _, nonce] = run.rotate("");
        run.strings("buffered_add", &fenced("other unconfigured"), &add);
        let first = run.get(&["HGET", &keys("unconfigured")[0], "incarnation"]);
        let (get, asked) = (keys("base buffer batch"), ["30000", "", "salt", "a"]);
        let ticket = run.strings("cached_get", &get, &asked).remove(1);
        for name in [epoch[1].clone(), incarnation, nonce, first, ticket] {
            assert!(names.insert(name.clone()), "{name} was created twice");
        }
    }
}

/// The server's clock also determines layers and visitors.
#[tokio::test]
async fn without_now_ms_the_servers_clock_names_the_layer() {
    let (_server, mut run) = Run::new().await;
    let from = run.clock();
    let touch = ["", "0", "", "", "1", "1000", "1", "1", "p", "1", "1", "v"];
    let visitors = fenced("open schedule views:0:p visitors:0:p");
    run.strings("activity_touch", &visitors, &touch);
    run.strings(
        "visitors_first",
        &fenced("buffer meta seen:a"),
        &["", "0", "", "", "60000", "1", "a", "1", "v"],
    );
    let to = run.clock();
    let layer = run.number("ZSCORE", "visitors:0:p", "v");
    let first_at = run.number("HGET", "meta", "first_at");
    expect_between(from, to, &[-layer, first_at]);

    let other = fenced("open schedule views:1:p visitors:1:p");
    run.strings(
        "activity_touch",
        &other,
        &[
            "", "0", "", "", "3600000", "1000", "0", "1", "p", "1", "1", "v",
        ],
    );
    run.expect(
        "activity_now",
        &other[4..],
        &["", "3600000", "1000"],
        json!(["OK", 1, 1]),
    );
    let logs = fenced("open schedule views:9:p layer:1:9:p");
    for reply in [
        run.strings(
            "activity_touch_hll",
            &logs,
            &[
                "", "0", "", "", "3000", "1", "0", "1", "1", "p", "1", "1", "v",
            ],
        ),
        run.strings("activity_now_hll", &logs[4..], &["", "3000", "1", "1"]),
    ] {
        let now: i64 = reply[1].parse().unwrap();
        assert!(reply[0] == "OUTSIDE" && now >= to, "{reply:?}");
    }
}
