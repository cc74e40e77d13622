//! HOUSE test 2: the vectors of `lua/vectors`, run from Rust, Python and Node against a private Redis; what a vector
//! cannot say about the scripts (a full Redis, the server's clock); and the Python that the documentation shows.
//!
//! `COUNTERFOIL_PYTHON` names a Python that has redis-py, `COUNTERFOIL_NODE_MODULES` a folder that holds ioredis.
//! Without them the tests that need them are skipped.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use redis::{Connection, ConnectionLike, RedisError, RedisResult, Value, cmd};
use serde::Deserialize;
use serde_json::Value as Json;
use testkit::{RedisOptions, RedisServer};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Vectors {
    script: String,
    keys: Vec<String>,
    setups: HashMap<String, Vec<Json>>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    id: String,
    #[serde(rename = "why")]
    _why: String,
    #[serde(default)]
    setup: Setup,
    calls: Vec<Call>,
    after: Option<BTreeMap<String, Option<BTreeMap<String, Json>>>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Setup {
    Named(String),
    Steps(Vec<Json>),
}

impl Default for Setup {
    fn default() -> Self {
        Setup::Steps(Vec::new())
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Call {
    script: Option<String>,
    keys: Option<Vec<Json>>,
    args: Vec<Json>,
    reply: Option<Json>,
    pages: Option<Pages>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pages {
    cursor: usize,
    more_than: usize,
    collected: Json,
}

#[derive(Deserialize)]
struct Fill {
    prefix: String,
    count: usize,
    value: String,
}

type Bytes = Vec<u8>;
type Hash = BTreeMap<Bytes, Bytes>;

#[derive(Debug, PartialEq)]
enum Content {
    Hash(Hash),
    /// Members and their scores.
    Zset(Hash),
    Set(BTreeSet<Bytes>),
    /// About how many a HyperLogLog has.
    Hll(i64),
    String(Bytes),
    List(Vec<Bytes>),
}

struct Run {
    redis: Connection,
    hashes: HashMap<String, String>,
}

fn lua() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("lua")
}

/// The scripts by name.
fn scripts() -> HashMap<String, String> {
    let files = fs::read_dir(lua().join("v1")).unwrap().map(|entry| entry.unwrap().path());
    files.map(|path| (path.file_stem().unwrap().to_str().unwrap().into(), fs::read_to_string(path).unwrap())).collect()
}

fn vectors() -> Vec<Vectors> {
    let files = fs::read_dir(lua().join("vectors")).unwrap().map(|entry| entry.unwrap().path());
    let parse = |path: PathBuf| {
        serde_json::from_slice(&fs::read(&path).unwrap()).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    };
    files.map(parse).collect()
}

/// The array with its shorthands written out.
fn expanded(items: &[Json]) -> Vec<Json> {
    let expand = |item: &Json| match (item.get("ids"), item.get("times")) {
        (Some(ids), _) => {
            let (prefix, count) = (ids["prefix"].as_str().unwrap(), ids["count"].as_u64().unwrap());
            (1..=count).map(|i| format!("{prefix}{i}").into()).collect()
        }
        (_, Some(times)) => {
            let of = item["of"].as_array().unwrap();
            (0..times.as_u64().unwrap()).flat_map(|_| of.clone()).collect()
        }
        _ => vec![item.clone()],
    };
    items.iter().flat_map(expand).collect()
}

fn bytes(item: &Json) -> Bytes {
    if let Some(text) = item.as_str() {
        return text.into();
    }
    unhex(item["hex"].as_str().unwrap_or_else(|| panic!("neither a string nor hex: {item}")))
}

fn unhex(digits: &str) -> Bytes {
    (0..digits.len()).step_by(2).map(|i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap()).collect()
}

/// A field or member, which stands in front of a colon: text, or `hex:` and digits.
fn name(text: &str) -> Bytes {
    text.strip_prefix("hex:").map_or_else(|| text.into(), unhex)
}

fn all_bytes(items: &[Json]) -> Vec<Bytes> {
    expanded(items).iter().map(bytes).collect()
}

/// A reply as the redis crate hands it out.
fn value(item: &Json) -> Value {
    match item {
        Json::Number(number) => Value::Int(number.as_i64().unwrap()),
        Json::Array(items) => Value::Array(expanded(items).iter().map(value).collect()),
        other => Value::BulkString(bytes(other)),
    }
}

/// The content of a hash, which may be given as a fill.
fn hash(fields: &BTreeMap<String, Json>) -> Hash {
    match fields.get("fill").filter(|fill| fill.is_object()) {
        Some(fill) => {
            let fill: Fill = serde_json::from_value(fill.clone()).unwrap();
            (1..=fill.count).map(|i| (format!("{}{i}", fill.prefix).into(), fill.value.clone().into())).collect()
        }
        None => fields.iter().map(|(field, value)| (name(field), bytes(value))).collect(),
    }
}

/// The content of a key afterwards: a hash, or `{"zset": {...}}`, `{"set": [...]}`, `{"hll": N}`.
fn content(fields: &BTreeMap<String, Json>) -> Content {
    let only = fields.iter().next().filter(|_| fields.len() == 1);
    match only.map(|(kind, content)| (kind.as_str(), content)) {
        Some(("zset", Json::Object(scores))) => {
            Content::Zset(hash(&scores.iter().map(|(member, score)| (member.clone(), score.clone())).collect()))
        }
        Some(("set", Json::Array(members))) => Content::Set(all_bytes(members).into_iter().collect()),
        Some(("hll", Json::Number(count))) => Content::Hll(count.as_i64().unwrap()),
        _ => Content::Hash(hash(fields)),
    }
}

impl Run {
    fn new(mut redis: Connection, scripts: &HashMap<String, String>) -> Self {
        let mut load = |source: &String| cmd("SCRIPT").arg("LOAD").arg(source).query(&mut redis).unwrap();
        let hashes = scripts.iter().map(|(name, source)| (name.clone(), load(source))).collect();
        Run { redis, hashes }
    }

    fn send(&mut self, script: &str, keys: &[impl AsRef<[u8]>], args: &[impl AsRef<[u8]>]) -> RedisResult<Value> {
        let mut call = cmd("EVALSHA");
        call.arg(&self.hashes[script]).arg(keys.len());
        for word in keys.iter().map(AsRef::as_ref).chain(args.iter().map(AsRef::as_ref)) {
            call.arg(word);
        }
        self.redis.req_command(&call).and_then(Value::extract_error)
    }

    /// Every key of the database.
    fn contents(&mut self) -> BTreeMap<Bytes, Content> {
        let keys: Vec<Bytes> = cmd("KEYS").arg("*").query(&mut self.redis).unwrap();
        let mut contents = BTreeMap::new();
        for key in keys {
            let lives_ms: i64 = cmd("PTTL").arg(&key).query(&mut self.redis).unwrap();
            // or whether it is still there would be a matter of luck; -1 lives for ever
            let name = String::from_utf8_lossy(&key);
            assert!(lives_ms == -1 || lives_ms > 1000, "{name} is looked at, and lives for {lives_ms} ms only");
            let kind: String = cmd("TYPE").arg(&key).query(&mut self.redis).unwrap();
            let content = match kind.as_str() {
                "hash" => Content::Hash(cmd("HGETALL").arg(&key).query(&mut self.redis).unwrap()),
                "zset" => Content::Zset(
                    cmd("ZRANGE").arg(&key).arg(0).arg(-1).arg("WITHSCORES").query(&mut self.redis).unwrap(),
                ),
                "set" => Content::Set(cmd("SMEMBERS").arg(&key).query(&mut self.redis).unwrap()),
                "string" => {
                    let text: Bytes = cmd("GET").arg(&key).query(&mut self.redis).unwrap();
                    let is_hll = text.starts_with(b"HYLL");
                    let mut count = || cmd("PFCOUNT").arg(&key).query(&mut self.redis).unwrap();
                    if is_hll { Content::Hll(count()) } else { Content::String(text) }
                }
                _ => Content::List(cmd("LRANGE").arg(&key).arg(0).arg(-1).query(&mut self.redis).unwrap()),
            };
            contents.insert(key, content);
        }
        contents
    }

    fn set_up(&mut self, steps: &[Json]) {
        cmd("FLUSHDB").exec(&mut self.redis).unwrap();
        for step in steps {
            let mut command = redis::Cmd::new();
            if let Json::Array(words) = step {
                for word in all_bytes(words) {
                    command.arg(word);
                }
            } else {
                command.arg("HSET").arg(step["fill"]["key"].as_str().unwrap());
                for (field, value) in hash(&serde_json::from_value(step.clone()).unwrap()) {
                    command.arg(field).arg(value);
                }
            }
            command.exec(&mut self.redis).unwrap();
        }
    }

    fn case(&mut self, vectors: &Vectors, case: &Case) -> Result<(), String> {
        self.set_up(match &case.setup {
            Setup::Named(name) => &vectors.setups[name],
            Setup::Steps(steps) => steps,
        });
        for (i, call) in case.calls.iter().enumerate() {
            self.call(vectors, call).map_err(|wrong| format!("call {}: {wrong}", i + 1))?;
        }
        if let Some(after) = &case.after {
            let there = after.iter().filter_map(|(key, fields)| Some((key, fields.as_ref()?)));
            let expected = there.map(|(key, fields)| (key.clone().into(), content(fields))).collect();
            equal("afterwards", &self.contents(), &expected)?;
        }
        Ok(())
    }

    fn call(&mut self, vectors: &Vectors, call: &Call) -> Result<(), String> {
        let script = call.script.as_ref().unwrap_or(&vectors.script);
        let own: Vec<Bytes> = vectors.keys.iter().map(|key| key.clone().into()).collect();
        let keys = &call.keys.as_deref().map_or(own, all_bytes);
        let args = all_bytes(&call.args);
        if let Some(pages) = &call.pages {
            return self.pages(script, keys, args, pages);
        }
        let reply = call.reply.as_ref().ok_or("neither a reply nor pages")?;
        let before = self.contents();
        let got = self.send(script, keys, &args);
        match (reply.get("error").and_then(Json::as_str), got) {
            (Some(expected), Err(error)) => {
                check_error(expected, &error)?;
                equal("changed although refused", &self.contents(), &before)
            }
            (None, Ok(got)) => equal("reply", &got, &value(reply)),
            (_, got) => Err(format!("expected {reply}, got {got:?}")),
        }
    }

    /// Calls until the cursor is 0 again, and puts the pages together: hashes into one, numbers into their sum.
    fn pages(&mut self, script: &str, keys: &[Bytes], mut args: Vec<Bytes>, pages: &Pages) -> Result<(), String> {
        let (mut calls, mut sum, mut fields, mut size) = (0, 0, Hash::new(), None);
        while calls == 0 || args[pages.cursor - 1] != b"0" {
            calls += 1;
            let mut reply = self.send(script, keys, &args).map_err(|e| format!("page {calls}: {e}"))?;
            // some say with each page how much there is in all
            if let Value::Array(items) = &mut reply
                && let Some(Value::Int(all)) = items.get(3)
            {
                size = Some(*all as usize);
                items.truncate(3);
            }
            let (status, cursor, part): (Bytes, Bytes, Value) =
                redis::from_redis_value(reply).map_err(|e| format!("page {calls}: {e}"))?;
            if status != b"OK" || calls > 100_000 {
                return Err(format!("page {calls}: {}", String::from_utf8_lossy(&status)));
            }
            match part {
                Value::Int(number) => sum += number,
                part => fields.extend(redis::from_redis_value::<Hash>(part).map_err(|e| e.to_string())?),
            }
            args[pages.cursor - 1] = cursor;
        }
        if let Some(size) = size {
            equal("size", &size, &fields.len())?;
        }
        if calls <= pages.more_than {
            return Err(format!("expected more than {} pages, got {calls}", pages.more_than));
        }
        match pages.collected.as_i64() {
            Some(expected) => equal("sum of the pages", &sum, &expected),
            None => equal(
                "pages",
                &fields,
                &hash(&serde_json::from_value(pages.collected.clone()).map_err(|e| e.to_string())?),
            ),
        }
    }

    /// Runs those of one script, or all of them; answers how many passed, and what is wrong with each of the others.
    fn run(&mut self, script: Option<&str>) -> (usize, BTreeMap<String, String>) {
        let (mut passed, mut failed) = (0, BTreeMap::new());
        for vectors in vectors().iter().filter(|vectors| script.is_none_or(|script| vectors.script == script)) {
            for case in &vectors.cases {
                match self.case(vectors, case) {
                    Ok(()) => passed += 1,
                    Err(wrong) => drop(failed.insert(case.id.clone(), wrong)),
                }
            }
        }
        (passed, failed)
    }
}

fn equal<T: PartialEq + std::fmt::Debug>(what: &str, got: &T, expected: &T) -> Result<(), String> {
    if got == expected { Ok(()) } else { Err(format!("{what}: expected {expected:?}, got {got:?}")) }
}

/// The first word is the code; what follows stands somewhere in the text, which the versions of Redis frame differently.
fn check_error(expected: &str, error: &RedisError) -> Result<(), String> {
    let (code, text) = expected.split_once(' ').unwrap_or((expected, ""));
    if error.code() == Some(code) && error.detail().unwrap_or_default().contains(text) {
        return Ok(());
    }
    Err(format!("expected the error {expected:?}, got {error:?}"))
}

async fn start() -> (RedisServer, Connection) {
    let server = RedisServer::start(RedisOptions::volatile()).await;
    let connection = server.client().get_connection().unwrap();
    (server, connection)
}

#[tokio::test]
async fn rust() {
    let (_server, redis) = start().await;
    let (passed, failed) = Run::new(redis, &scripts()).run(None);
    assert!(passed > 0 && failed.is_empty(), "{passed} passed, {} failed: {failed:#?}", failed.len());
}

#[tokio::test]
async fn a_script_that_lost_a_guard_fails() {
    let (server, _) = start().await;
    let taken_out = [
        ("buffered_add", "seq <= last_seq", "false", "buffered_add/dup"),
        ("buffered_add", "attempt == 'repeat' and", "false and", "buffered_add/unknown"),
        (
            "buffered_add",
            "text = text:gsub(sequence, 'a')",
            "text = text:gsub(sequence, '')",
            "buffered_add/id-joining-fragments",
        ),
        ("buffered_add", "if not is_exact(sum)", "if false", "buffered_add/beyond-2-to-the-53"),
        ("buffered_rotate", "if cut > 0 then", "if false then", "buffered_rotate/held"),
        ("buffered_rotate", "incarnation or ARGV[1]", "ARGV[1]", "buffered_rotate/next-cut"),
        ("buffered_fetch", "if settled < settle_ms then", "if false then", "buffered_fetch/wait"),
        ("buffered_fetch", "state[1] ~= ARGV[1]", "false", "buffered_fetch/stale-other-incarnation"),
        ("buffered_release", "state[2] ~= ARGV[2]", "false", "buffered_release/stale-earlier-seq"),
        ("buffered_trim", ">= tonumber(ARGV[1])", "> tonumber(ARGV[1])", "buffered_trim/idle"),
        ("cached_incr", "if seq == last_seq then", "if false then", "cached_incr/dup"),
        ("cached_incr", "attempt == 'repeat' and", "false and", "cached_incr/unknown"),
        ("cached_incr", "is_less(result, low)", "false", "cached_incr/bounds-below-2-to-the-53"),
        ("cached_incr", "rows[at[id]] == 'ticket ' .. its_ticket", "true", "cached_incr/seed-with-another-ticket"),
        ("cached_get", "rows[at[id]] == 'ticket ' .. its_ticket", "true", "cached_get/seed-without-its-ticket"),
        ("cached_due", "count + 1 - #due", "0", "cached_due/beyond-the-horizon"),
        ("cached_claim", "if left > 0 then", "if false then", "cached_claim/wait"),
        ("cached_claim", "if is_ahead then row.at = now_ms end", "", "cached_claim/clock-stepped-back"),
        (
            "cached_saved",
            "if value and row and row.claim and version == row.lineage .. ':' .. row.n then",
            "if value and row then row.claim = row.claim or value",
            "cached_saved/stale-not-claimed",
        ),
        ("cached_rebase", "version == row.lineage .. ':' .. row.n", "true", "cached_rebase/stale-earlier-version"),
        (
            "cached_delete",
            "row.claim and 'KEPT:claimed' or not is_clean(value, text) and 'KEPT:dirty'",
            "false",
            "cached_delete/claimed-and-back",
        ),
        ("activity_touch", "seq <= tonumber(last:match('^%d+'))", "false", "activity_touch/dup"),
        ("activity_touch", "attempt == 'repeat' and", "false and", "activity_touch/unknown"),
        (
            "activity_touch",
            "'ZADD', visitors, 'GT', now_ms",
            "'ZADD', visitors, now_ms",
            "activity_touch/clock-stepped-back-one",
        ),
        ("activity_touch_hll", "seq <= tonumber(last:match('^%d+'))", "false", "activity_touch_hll/dup"),
        ("activity_touch_hll", "math.floor(now / layer_ms) ~= layer", "false", "activity_touch_hll/outside-late"),
        ("activity_now", "(tonumber(fields[i]) or gone) > gone", "true", "activity_now/quiet"),
        ("activity_now_hll", "(tonumber(fields[i]) or gone) > gone", "true", "activity_now_hll/quiet"),
        ("series_add", "seq <= last_seq", "false", "series_add/dup"),
        ("series_add", "start - slices * length", "start", "series_add/trimmed"),
        ("series_close", "redis.call('HDEL', open, id)", "", "series_close/over"),
        ("visitors_first", "seq <= last_seq", "false", "visitors_first/dup"),
        (
            "visitors_first",
            "redis.call('SADD', seen, ARGV[i]) == 1",
            "redis.call('SADD', seen, ARGV[i])",
            "visitors_first/was-there",
        ),
        ("visitors_first", "held >= max_pending", "false", "visitors_first/full"),
    ];
    for (name, guard, instead, id) in taken_out {
        let mut scripts = scripts();
        let source = scripts.get_mut(name).unwrap();
        assert_eq!(source.matches(guard).count(), 1, "{name} has no {guard:?}, or more than one");
        *source = source.replace(guard, instead);
        let (_, failed) = Run::new(server.client().get_connection().unwrap(), &scripts).run(Some(name));
        assert!(failed.contains_key(id), "{name} without {guard:?} passes {id}; failed: {:?}", failed.keys());
    }
}

const KEYS: [&str; 4] = ["buffer", "batch", "meta", "producers"];

fn keys(kinds: &[&str]) -> Vec<String> {
    kinds.iter().map(|kind| format!("cf1:{{shop/views/0}}:{kind}")).collect()
}

fn limit(run: &mut Run, bytes: usize) {
    cmd("CONFIG").arg("SET").arg("maxmemory").arg(bytes).exec(&mut run.redis).unwrap();
}

/// Where Redis takes no more writes, nothing may be half done, and what frees memory must go on.
#[tokio::test]
async fn a_full_redis_takes_no_hits_and_can_be_drained() {
    let (_server, redis) = start().await;
    let mut run = Run::new(redis, &scripts());
    let [buffer, batch, meta, producers] = KEYS;
    let add = ["w1", "2", "first", "1", "50", "60000", "1000", "1000", "a", "1"];
    let incarnation = "00000000000000aa";

    run.send("buffered_register", &keys(&[producers]), &["w1", "900"]).unwrap();
    run.send(
        "buffered_add",
        &keys(&[buffer, meta, producers]),
        &["w1", "1", "first", "1", "50", "60000", "1000", "900", "a", "1"],
    )
    .unwrap();
    limit(&mut run, 1);
    let before = run.contents();
    for producer in ["w1", ""] {
        let mut add = add;
        (add[0], add[1]) = (producer, if producer.is_empty() { "0" } else { "2" });
        let error = run.send("buffered_add", &keys(&[buffer, meta, producers]), &add).unwrap_err();
        assert!(error.to_string().contains("OOM") || error.code() == Some("OOM"), "{error:?}");
        equal("add", &run.contents(), &before).unwrap();
    }
    run.send("buffered_register", &keys(&[producers]), &["w2", "900"]).unwrap_err();
    equal("register", &run.contents(), &before).unwrap();

    let rotate = |run: &mut Run, owner: &str, now: &str| {
        run.send("buffered_rotate", &keys(&[buffer, batch, meta]), &[incarnation, owner, "30000", "0", "60000", now])
    };
    let text = |text: &str| Value::BulkString(text.into());
    let answer = |status: &str, age: i64| {
        Value::Array(vec![
            text(status),
            text(incarnation),
            text("1"),
            Value::Int(1),
            Value::Int(age),
            Value::Int(age + 100),
        ])
    };
    equal("cut", &rotate(&mut run, "r1", "1000"), &Ok(answer("OK", 0))).unwrap();
    equal("the lease", &rotate(&mut run, "r1", "1500"), &Ok(answer("HELD", 500))).unwrap();
    // the clock stepped back, so the time to settle is written anew
    let fetch = run.send("buffered_fetch", &keys(&[batch, meta]), &[incarnation, "1", "100", "0", "10", "800"]);
    equal("fetch", &fetch, &Ok(Value::Array(vec![text("WAIT"), Value::Int(100)]))).unwrap();
    let fetch = run.send("buffered_fetch", &keys(&[batch, meta]), &[incarnation, "1", "100", "0", "10", "900"]);
    let page = Value::Array(vec![text("a"), text("1")]);
    equal("fetch", &fetch, &Ok(Value::Array(vec![text("OK"), text("0"), page, Value::Int(1)]))).unwrap();
    let release = run.send("buffered_release", &keys(&[batch, meta]), &[incarnation, "1"]);
    equal("release", &release, &Ok(Value::Array(vec![text("OK")]))).unwrap();
    let trim = run.send("buffered_trim", &keys(&[producers]), &["0", "0", "10", "1000"]);
    equal("trim", &trim, &Ok(Value::Array(vec![text("OK"), text("0"), Value::Int(1)]))).unwrap();
    limit(&mut run, 0);
}

/// The same for cached counters: changes, seeds and tickets are refused, saves and deletions go on.
#[tokio::test]
async fn a_full_redis_takes_no_changes_and_can_be_drained() {
    let (_server, redis) = start().await;
    let mut run = Run::new(redis, &scripts());
    let cached = ["values", "rows", "agenda", "producers"];
    let [mine, other] = ["00000000000000aa", "00000000000000bb"];
    let version = format!("{mine}:1");
    fn incr<'a>(producer: &'a str, seq: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
        let fixed = [producer, seq, "first", "00000000000000aa", "30000", "5000", "1000", "", "", "1000"];
        [&fixed, rest].concat()
    }
    run.send("cached_incr", &keys(&cached), &incr("w1", "1", &["0", "a", "1", "b", "1", "c", "1"])).unwrap();
    let seeds = ["3", "a", mine, "5", "-", "b", mine, "5", "-", "c", mine, "5", "-", "a", "1", "b", "1"];
    run.send("cached_incr", &keys(&cached), &incr("w1", "2", &seeds)).unwrap();
    run.send("cached_get", &keys(&cached[..3]), &[mine, "30000", "1000", "1000", "0", "e"]).unwrap();

    limit(&mut run, 1);
    let before = run.contents();
    let seed = ["1", "e", mine, "5", "-", "e", "1"];
    for change in [&["0", "a", "1"][..], &["0", "c", "1"], &["0", "d", "1"], &seed] {
        for (producer, seq) in [("w1", "3"), ("", "0")] {
            let error = run.send("cached_incr", &keys(&cached), &incr(producer, seq, change)).unwrap_err();
            assert!(error.to_string().contains("OOM") || error.code() == Some("OOM"), "{error:?}");
            equal("incr", &run.contents(), &before).unwrap();
        }
    }
    run.send("cached_get", &keys(&cached[..3]), &[other, "30000", "1000", "1000", "0", "d"]).unwrap_err();
    run.send("cached_get", &keys(&cached[..3]), &["", "0", "1000", "1000", "1", "e", mine, "5", "-"]).unwrap_err();
    equal("get", &run.contents(), &before).unwrap();

    let text = |text: &str| Value::BulkString(text.into());
    let words = |words: &[&str]| Ok(Value::Array(["OK"].iter().chain(words).map(|word| text(word)).collect()));
    let get = run.send("cached_get", &keys(&cached[..3]), &["", "0", "1000", "1000", "0", "a", "c"]);
    equal("get", &get, &Ok(Value::Array(vec![text("OK"), Value::Int(6), Value::Int(5)]))).unwrap();
    let claim = run.send("cached_claim", &keys(&cached[..3]), &["0", "1000", "1000", "1000", "a"]);
    let save = ["SAVE", "5", "-", "6", &version].map(text).into_iter().chain([Value::Int(1)]).collect();
    equal("claim", &claim, &Ok(Value::Array(vec![text("OK"), Value::Array(save)]))).unwrap();
    let saved = run.send("cached_saved", &keys(&cached[..3]), &["5000", "1000", "1000", "a", &version]);
    equal("saved", &saved, &words(&["CLEAN"])).unwrap();
    run.send("cached_claim", &keys(&cached[..3]), &["0", "1000", "1000", "1000", "b"]).unwrap();
    let rebase = run.send("cached_rebase", &keys(&cached[..3]), &["1000", "1000", "b", &version, "9", "-"]);
    equal("rebase", &rebase, &words(&["OK"])).unwrap();
    let delete = run.send("cached_delete", &keys(&cached[..3]), &["1000", "2000", "a", "b", "c", "f"]);
    equal("delete", &delete, &words(&["DELETED", "KEPT:dirty", "DELETED", "GONE"])).unwrap();
    limit(&mut run, 0);
}

/// The same for activity and daily visitors: whatever would be the first write, it is refused before anything is done.
#[tokio::test]
async fn a_full_redis_takes_no_visitors() {
    let (_server, redis) = start().await;
    let mut run = Run::new(redis, &scripts());
    let touch = keys(&["producers", "open", "agenda", "views:0:p", "visitors:0:p"]);
    let logs = keys(&["producers", "open", "agenda", "views:9:p", "layer:333:9:p", "minute:960:9:p"]);
    let first = keys(&["buffer", "meta", "producers", "seen:a"]);
    let calls = |producer: &'static str, seq: &'static str, visitor: &'static str| {
        let args = |rest: &[&'static str]| [&[producer, seq, "first"], rest, &["1", visitor]].concat();
        [
            ("activity_touch", &touch, args(&["1000000", "3000", "200", "1", "1", "p", "1"])),
            ("activity_touch_hll", &logs, args(&["1000000", "3000", "200", "1", "333", "1", "p", "1"])),
            ("visitors_first", &first, args(&["50", "60000", "1000", "86400000", "1000000", "1", "a"])),
        ]
    };
    for (script, keys, args) in calls("", "0", "v") {
        run.send(script, keys, &args).unwrap();
    }
    limit(&mut run, 1);
    let before = run.contents();
    for (script, keys, args) in calls("w1", "1", "w").into_iter().chain(calls("", "0", "w")) {
        let error = run.send(script, keys, &args).unwrap_err();
        assert!(error.to_string().contains("OOM") || error.code() == Some("OOM"), "{script}: {error:?}");
        equal(script, &run.contents(), &before).unwrap();
    }
    let one_each = Ok(Value::Array(vec![Value::BulkString("OK".into()), Value::Int(1), Value::Int(1)]));
    equal("now", &run.send("activity_now", &touch[3..], &["1000000", "3000", "200"]), &one_each).unwrap();
    let now = run.send("activity_now_hll", &logs[3..5], &["1000000", "3000", "1", "333"]);
    equal("now", &now, &one_each).unwrap();
    limit(&mut run, 0);
}

/// The one command of an add that can fail is its first write.
#[tokio::test]
async fn a_count_of_hits_that_overflows_changes_nothing() {
    let (_server, redis) = start().await;
    let mut run = Run::new(redis, &scripts());
    let add = ["w1", "1", "first", "1", "50", "60000", "1000", "1000", "a", "1"];
    cmd("HSET").arg(keys(&["meta"])).arg("hits").arg(i64::MAX).exec(&mut run.redis).unwrap();
    let before = run.contents();
    run.send("buffered_add", &keys(&["buffer", "meta", "producers"]), &add).unwrap_err();
    equal("add", &run.contents(), &before).unwrap();
}

/// What the scripts write down when they are not told the time lies between two readings of the server's clock.
#[tokio::test]
async fn without_now_ms_the_servers_clock_counts() {
    let (_server, redis) = start().await;
    let mut run = Run::new(redis, &scripts());
    let clock = |run: &mut Run| {
        let (seconds, micros): (i64, i64) = cmd("TIME").query(&mut run.redis).unwrap();
        seconds * 1000 + micros / 1000
    };
    let field = |run: &mut Run, kind: &str, field: &str| -> String {
        cmd("HGET").arg(keys(&[kind])).arg(field).query(&mut run.redis).unwrap()
    };
    let incarnation = "00000000000000aa";

    let from = clock(&mut run);
    run.send("buffered_register", &keys(&["producers"]), &["w1", ""]).unwrap();
    let add = ["w2", "1", "first", "1", "50", "60000", "1000", "", "a", "1"];
    run.send("buffered_add", &keys(&["buffer", "meta", "producers"]), &add).unwrap();
    let rotate = [incarnation, "r1", "30000", "0", "60000", ""];
    run.send("buffered_rotate", &keys(&["buffer", "batch", "meta"]), &rotate).unwrap();
    let to = clock(&mut run);
    let written = [
        field(&mut run, "producers", "w1").replace("0 ", ""),
        field(&mut run, "producers", "w2").replace("1 ", ""),
        field(&mut run, "meta", "first_at"),
        field(&mut run, "meta", "rotated_at"),
    ];
    for time in written.map(|time| time.parse::<i64>().unwrap()) {
        assert!((from..=to).contains(&time), "{time} is not between {from} and {to}");
    }
    let lease: i64 = field(&mut run, "meta", "lease_until").parse().unwrap();
    assert!((from..=to).contains(&(lease - 30000)), "{lease}");

    let fetch = run.send("buffered_fetch", &keys(&["batch", "meta"]), &[incarnation, "1", "60000", "0", "10", ""]);
    let (status, ms): (String, i64) = redis::from_redis_value(fetch.unwrap()).unwrap();
    assert!(status == "WAIT" && (50_000..=60_000).contains(&ms), "{status} {ms}");
    let trim = run.send("buffered_trim", &keys(&["producers"]), &["60000", "0", "10", ""]);
    assert_eq!(redis::from_redis_value::<(String, String, i64)>(trim.unwrap()).unwrap().2, 0);
}

/// So they do where layers and visitors are concerned.
#[tokio::test]
async fn without_now_ms_the_servers_clock_names_the_layer() {
    let (_server, redis) = start().await;
    let mut run = Run::new(redis, &scripts());
    let place = keys(&["producers", "open", "agenda", "views:0:p", "visitors:0:p"]);
    let first = keys(&["buffer", "meta", "producers", "seen:a"]);
    let clock = |run: &mut Run| {
        let (seconds, micros): (i64, i64) = cmd("TIME").query(&mut run.redis).unwrap();
        seconds * 1000 + micros / 1000
    };

    let from = clock(&mut run);
    let touch = ["", "0", "first", "", "1", "1000", "1", "1", "p", "1", "1", "v"];
    run.send("activity_touch", &place, &touch).unwrap();
    run.send("visitors_first", &first, &["", "0", "first", "50", "60000", "9", "60000", "", "1", "a", "1", "v"])
        .unwrap();
    let to = clock(&mut run);
    let layer: i64 = cmd("ZSCORE").arg(&place[4]).arg("v").query(&mut run.redis).unwrap();
    let first_at: i64 = cmd("HGET").arg(&first[1]).arg("first_at").query(&mut run.redis).unwrap();
    for time in [layer, first_at] {
        assert!((from..=to).contains(&time), "{time} is not between {from} and {to}");
    }
    let other = keys(&["producers", "open", "agenda", "views:1:p", "visitors:1:p"]);
    let touch = ["", "0", "first", "", "3600000", "1000", "0", "1", "p", "1", "1", "v"];
    run.send("activity_touch", &other, &touch).unwrap();
    let now = run.send("activity_now", &other[3..], &["", "3600000", "1000"]).unwrap();
    assert_eq!(redis::from_redis_value::<(String, i64, i64)>(now).unwrap(), ("OK".into(), 1, 1));
    let logs = keys(&["producers", "open", "agenda", "views:9:p", "layer:1:9:p"]);
    let touch = ["", "0", "first", "", "3000", "1", "0", "1", "1", "p", "1", "1", "v"];
    for reply in [
        run.send("activity_touch_hll", &logs, &touch).unwrap(),
        run.send("activity_now_hll", &logs[3..], &["", "3000", "1", "1"]).unwrap(),
    ] {
        let (status, now): (String, String) = redis::from_redis_value(reply).unwrap();
        assert!(status == "OUTSIDE" && now.parse::<i64>().unwrap() >= to, "{status} {now}");
    }
}

/// The Python that has redis-py; without it, a sentence that says so.
fn python() -> Option<Command> {
    let python = std::env::var_os("COUNTERFOIL_PYTHON");
    if python.is_none() {
        eprintln!("COUNTERFOIL_PYTHON is not set: the test in Python is skipped");
    }
    python.map(|python| {
        let mut command = Command::new(python);
        // nothing is left behind in the source tree
        command.arg("-B");
        command
    })
}

fn client(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name)
}

/// Runs it to its end, and answers what it printed.
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{err}", output.status);
    out
}

fn passed(output: &str) {
    let cases: usize = vectors().iter().map(|vectors| vectors.cases.len()).sum();
    assert_eq!(output.trim(), format!("{cases} passed, 0 failed"));
}

#[tokio::test]
async fn python_runs_the_vectors() {
    let (server, _) = start().await;
    if let Some(mut python) = python() {
        passed(&run(python.arg(client("vectors.py")).arg(server.socket()).arg(lua())));
    }
}

#[tokio::test]
async fn node_runs_the_vectors() {
    let (server, _) = start().await;
    match std::env::var_os("COUNTERFOIL_NODE_MODULES") {
        Some(modules) => {
            let mut node = Command::new("node");
            passed(&run(node.env("NODE_PATH", modules).arg(client("vectors.mjs")).arg(server.socket()).arg(lua())));
        }
        None => eprintln!("COUNTERFOIL_NODE_MODULES is not set: the test in Node is skipped"),
    }
}

/// What the documentation shows counts exactly, also where replies get lost.
#[tokio::test]
async fn python_of_the_documentation_counts_exactly() {
    let (server, _) = start().await;
    if let Some(mut python) = python() {
        let root = env!("CARGO_MANIFEST_DIR");
        assert_eq!(run(python.arg(client("readme.py")).arg(server.socket()).arg(root)).trim(), "passed");
    }
}
