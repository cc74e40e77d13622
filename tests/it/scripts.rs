//! Cases that vectors cannot express: scripts that a full Redis refuses, beside the counting ones of
//! the models, and the server's clock.

use redis::ToRedisArgs;
use serde_json::{Value as Json, json};

use crate::vectors::{Run, equal, value};

use crate::support::*;

const FENCE: &str = "calls calls_before";
const HOME: &str = "calls calls_before requests requests_before";
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

    /// Configures an activity with layers of this length, in ms, and no further settings.
    fn set_window(&mut self, layer_ms: &str) {
        let calls = &*keys("calls")[0];
        self.get(&[
            "HSET",
            calls,
            "=stripes",
            "1",
            "=layer",
            layer_ms,
            "=layers",
            "1000",
            "=keep_minutes",
            "1",
        ])
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
        let settings = [
            "salt",
            now_ms,
            "buffered",
            "1",
            "",
            "{}",
            "max_pending",
            "9",
        ];
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

#[tokio::test]
async fn a_full_redis_begins_no_epoch_and_takes_no_settings() {
    let (_server, mut run) = Run::new().await;
    let settings = ["salt", "900", "buffered", "1", "", "{}", "max_pending", "9"];
    let asked = ["buffered", "1", "", "900"];
    run.configure("900");
    let epoch = run.strings("family_epoch", &keys(HOME), &asked);
    run.limit("1");
    run.check_refused("family_epoch", &keys(HOME), &["buffered", "1", "", "60900"]);
    for other in ["cf1:{shop/views/0}:meta", "cf1:{shop/views/1}:meta"] {
        run.check_refused(
            "family_configure",
            &[keys("calls")[0].clone(), other.into()],
            &settings,
        );
    }
    let again = run.strings("family_epoch", &keys(HOME), &asked);
    equal("epoch", &again, &epoch).unwrap();
    run.limit("0");
}

/// Changes, seeds and tickets of cached counters are refused.
#[tokio::test]
async fn a_full_redis_accepts_no_changes() {
    let (_server, mut run) = Run::new().await;
    let incr = fenced("base buffer batch meta");
    let (seed, get) = (keys("calls base"), keys("base buffer batch meta"));
    fn change<'a>(caller: &'a str, n: &'a str, pairs: &[&'a str]) -> Vec<&'a str> {
        let count = ["0", "1", "2", "3"][pairs.len() / 2];
        [&[caller, n, EPOCH, "1000", "0", count], pairs].concat()
    }
    run.begin_epoch();
    let () = run.get(&["HSET", &get[3], "incarnation", "00000000000000aa"]);
    let missed = run.strings(
        "cached_incr",
        &incr,
        &change("w1", "1", &["a", "1", "b", "1", "c", "1"]),
    );
    let ticket = missed[1].strip_prefix("MISS:").unwrap();
    let seeds = ["a", "b", "c"].map(|id| [id, ticket, "5"]).concat();
    run.strings("cached_seed", &seed, &[&["1000", ""][..], &seeds].concat());
    run.strings(
        "cached_incr",
        &incr,
        &change("w1", "2", &["a", "1", "b", "1"]),
    );
    let missed = run.strings("cached_get", &get, &["1", "1000", "salt", "", "e"]);
    let other = missed[1].strip_prefix("MISS:").unwrap();

    run.limit("1");
    // pending, not pending, without a base, and with a ticket
    for id in ["a", "c", "d", "e"] {
        for caller in ["w1", ""] {
            run.check_refused("cached_incr", &incr, &change(caller, "3", &[id, "1"]));
        }
    }
    run.check_refused("cached_get", &get, &["1", "1000", "salt", "", "d"]);
    run.check_refused("cached_seed", &seed, &["1000", "", "e", other, "5"]);

    run.expect(
        "cached_get",
        &get,
        &["0", "1000", "salt", "", "a", "c"],
        json!(["OK", 6, 5]),
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
    run.strings("family_epoch", &keys(HOME), &["buffered", "1", "", ""]);
    run.strings(
        "buffered_add",
        &fenced("buffer meta"),
        &["", "0", "", "", "0", "1", "1", "a", "1"],
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
    let add = ["", "", "", "", "0", "1", "1", "a", "1"];
    for _ in 0..100 {
        let () = run.get(&["FLUSHDB"]);
        run.configure("");
        let epoch = run.strings("family_epoch", &keys(HOME), &["", "", "", ""]);
        run.strings("buffered_add", &fenced("buffer meta"), &add);
        let [incarnation, _, nonce] = run.rotate("");
        run.strings("buffered_add", &fenced("other unconfigured"), &add);
        let first = run.get(&["HGET", &keys("unconfigured")[0], "incarnation"]);
        let (get, asked) = (keys("base buffer batch meta"), ["1", "", "salt", "", "a"]);
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
    run.set_window("1");
    let touch = ["", "0", "", "", "1", "1", "p", "1", "1", "v"];
    let visitors = fenced("buffer meta views:0:p visitors:0:p");
    run.strings("activity_touch", &visitors, &touch);
    run.strings(
        "visitors_first",
        &fenced("buffer meta seen:a"),
        &["", "0", "", "", "1", "a", "1", "v"],
    );
    let to = run.clock();
    let layer = run.number("ZSCORE", "visitors:0:p", "v");
    let first_at = run.number("HGET", "meta", "first_at");
    expect_between(from, to, &[-layer, first_at]);

    run.set_window("3600000");
    let other = fenced("buffer meta views:1:p visitors:1:p");
    run.strings("activity_touch", &other, &touch);
    run.expect(
        "activity_now",
        &keys("calls views:1:p visitors:1:p"),
        &["1", ""],
        json!(["OK", 1, 1]),
    );
}
