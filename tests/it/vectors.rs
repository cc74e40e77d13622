//! The vectors of `lua/vectors`, run from Rust, Python and Node against a private Redis, and tests
//! of what vectors cannot express: a full Redis and the server's clock.
//!
//! `COUNTERFOIL_PYTHON` names a Python with redis-py, `COUNTERFOIL_NODE_MODULES` a folder that
//! contains ioredis. Without them, the tests that need them are skipped.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use redis::{Connection, ConnectionLike, RedisError, RedisResult, Value, cmd};
use serde::Deserialize;
use serde_json::Value as Json;
use testkit::{RedisOptions, RedisServer};

use crate::support::model::scripts;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Vectors {
    script: String,
    #[serde(rename = "prefix")]
    _prefix: String,
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
    setup: Vec<Json>,
    calls: Vec<Call>,
    after: Option<BTreeMap<String, Option<BTreeMap<String, Json>>>>,
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
    /// Members with their scores.
    Zset(Hash),
    Set(BTreeSet<Bytes>),
    /// The approximate count of a HyperLogLog.
    Hll(i64),
    String(Bytes),
    List(Vec<Bytes>),
}

struct Run {
    redis: Connection,
    hashes: HashMap<String, String>,
}

pub(crate) fn lua() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("lua")
}

fn vectors() -> Vec<Vectors> {
    let files = fs::read_dir(lua().join("vectors"))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let parse = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        let prefix = serde_json::from_str::<Json>(&text).unwrap()["prefix"].clone();
        let text = text.replace("\"@", &format!("\"{}", prefix.as_str().unwrap()));
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    };
    files.map(parse).collect()
}

/// Returns the array with its shorthands expanded.
fn expanded(items: &[Json]) -> Vec<Json> {
    let expand = |item: &Json| match (item.get("ids"), item.get("times")) {
        (Some(ids), _) => {
            let (prefix, count) = (
                ids["prefix"].as_str().unwrap(),
                ids["count"].as_u64().unwrap(),
            );
            (1..=count).map(|i| format!("{prefix}{i}").into()).collect()
        }
        (_, Some(times)) => {
            let of = item["of"].as_array().unwrap();
            (0..times.as_u64().unwrap())
                .flat_map(|_| of.clone())
                .collect()
        }
        _ => vec![item.clone()],
    };
    items.iter().flat_map(expand).collect()
}

fn bytes(item: &Json) -> Bytes {
    if let Some(text) = item.as_str() {
        return text.into();
    }
    unhex(
        item["hex"]
            .as_str()
            .unwrap_or_else(|| panic!("neither a string nor hex: {item}")),
    )
}

fn unhex(digits: &str) -> Bytes {
    (0..digits.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap())
        .collect()
}

/// Parses a field or member, the part before a colon: text, or `hex:` and digits.
fn name(text: &str) -> Bytes {
    text.strip_prefix("hex:").map_or_else(|| text.into(), unhex)
}

fn all_bytes(items: &[Json]) -> Vec<Bytes> {
    expanded(items).iter().map(bytes).collect()
}

/// Returns a reply as the redis crate represents it.
fn value(item: &Json) -> Value {
    match item {
        Json::Number(number) => Value::Int(number.as_i64().unwrap()),
        Json::Array(items) => Value::Array(expanded(items).iter().map(value).collect()),
        other => Value::BulkString(bytes(other)),
    }
}

/// Returns the content of a hash, which may be given as a fill.
fn hash(fields: &BTreeMap<String, Json>) -> Hash {
    match fields.get("fill").filter(|fill| fill.is_object()) {
        Some(fill) => {
            let fill: Fill = serde_json::from_value(fill.clone()).unwrap();
            (1..=fill.count)
                .map(|i| {
                    (
                        format!("{}{i}", fill.prefix).into(),
                        fill.value.clone().into(),
                    )
                })
                .collect()
        }
        None => fields
            .iter()
            .map(|(field, value)| (name(field), bytes(value)))
            .collect(),
    }
}

/// Returns the expected content of a key: a hash, or `{"zset": {...}}`, `{"set": [...]}`, `{"hll":
/// N}`.
fn content(fields: &BTreeMap<String, Json>) -> Content {
    let only = fields.iter().next().filter(|_| fields.len() == 1);
    match only.map(|(kind, content)| (kind.as_str(), content)) {
        Some(("zset", Json::Object(scores))) => Content::Zset(hash(
            &scores
                .iter()
                .map(|(member, score)| (member.clone(), score.clone()))
                .collect(),
        )),
        Some(("set", Json::Array(members))) => {
            Content::Set(all_bytes(members).into_iter().collect())
        }
        Some(("hll", Json::Number(count))) => Content::Hll(count.as_i64().unwrap()),
        _ => Content::Hash(hash(fields)),
    }
}

impl Run {
    fn new(mut redis: Connection, scripts: &HashMap<String, String>) -> Self {
        let mut load = |source: &String| {
            cmd("SCRIPT")
                .arg("LOAD")
                .arg(source)
                .query(&mut redis)
                .unwrap()
        };
        let hashes = scripts
            .iter()
            .map(|(name, source)| (name.clone(), load(source)))
            .collect();
        Run { redis, hashes }
    }

    fn send(
        &mut self,
        script: &str,
        keys: &[impl AsRef<[u8]>],
        args: &[impl AsRef<[u8]>],
    ) -> RedisResult<Value> {
        let mut call = cmd("EVALSHA");
        call.arg(&self.hashes[script]).arg(keys.len());
        for word in keys
            .iter()
            .map(AsRef::as_ref)
            .chain(args.iter().map(AsRef::as_ref))
        {
            call.arg(word);
        }
        self.redis.req_command(&call).and_then(Value::extract_error)
    }

    /// Returns every key of the database with its content.
    fn contents(&mut self) -> BTreeMap<Bytes, Content> {
        let keys: Vec<Bytes> = cmd("KEYS").arg("*").query(&mut self.redis).unwrap();
        let mut contents = BTreeMap::new();
        for key in keys {
            let lives_ms: i64 = cmd("PTTL").arg(&key).query(&mut self.redis).unwrap();
            // a key that expires soon might vanish before it is read; -1 means that it never
            // expires
            let name = String::from_utf8_lossy(&key);
            assert!(
                lives_ms == -1 || lives_ms > 1000,
                "{name} is looked at, and lives for {lives_ms} ms only"
            );
            let kind: String = cmd("TYPE").arg(&key).query(&mut self.redis).unwrap();
            let content = match kind.as_str() {
                "hash" => Content::Hash(cmd("HGETALL").arg(&key).query(&mut self.redis).unwrap()),
                "zset" => Content::Zset(
                    cmd("ZRANGE")
                        .arg(&key)
                        .arg(0)
                        .arg(-1)
                        .arg("WITHSCORES")
                        .query(&mut self.redis)
                        .unwrap(),
                ),
                "set" => Content::Set(cmd("SMEMBERS").arg(&key).query(&mut self.redis).unwrap()),
                "string" => {
                    let text: Bytes = cmd("GET").arg(&key).query(&mut self.redis).unwrap();
                    let is_hll = text.starts_with(b"HYLL");
                    let mut count = || cmd("PFCOUNT").arg(&key).query(&mut self.redis).unwrap();
                    if is_hll {
                        Content::Hll(count())
                    } else {
                        Content::String(text)
                    }
                }
                _ => Content::List(
                    cmd("LRANGE")
                        .arg(&key)
                        .arg(0)
                        .arg(-1)
                        .query(&mut self.redis)
                        .unwrap(),
                ),
            };
            contents.insert(key, content);
        }
        contents
    }

    fn set_up(&mut self, vectors: &Vectors, steps: &[Json]) {
        for step in steps {
            let mut command = redis::Cmd::new();
            if let Json::String(name) = step {
                self.set_up(vectors, &vectors.setups[name]);
                continue;
            } else if let Json::Array(words) = step {
                for word in all_bytes(words) {
                    command.arg(word);
                }
            } else {
                command
                    .arg("HSET")
                    .arg(step["fill"]["key"].as_str().unwrap());
                for (field, value) in hash(&serde_json::from_value(step.clone()).unwrap()) {
                    command.arg(field).arg(value);
                }
            }
            command.exec(&mut self.redis).unwrap();
        }
    }

    fn case(&mut self, vectors: &Vectors, case: &Case) -> Result<(), String> {
        cmd("FLUSHDB").exec(&mut self.redis).unwrap();
        self.set_up(vectors, &case.setup);
        let mut expected = self.contents();
        for (i, call) in case.calls.iter().enumerate() {
            self.call(vectors, call)
                .map_err(|wrong| format!("call {}: {wrong}", i + 1))?;
        }
        let Some(after) = &case.after else {
            return Ok(());
        };
        for (key, fields) in after {
            match fields {
                Some(fields) => expected.insert(key.clone().into(), content(fields)),
                None => expected.remove(key.as_bytes()),
            };
        }
        equal("afterwards", &self.contents(), &expected)
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

    /// Calls until the cursor is 0 again, and merges the pages: hashes into one, numbers into their
    /// sum.
    fn pages(
        &mut self,
        script: &str,
        keys: &[Bytes],
        mut args: Vec<Bytes>,
        pages: &Pages,
    ) -> Result<(), String> {
        let (mut calls, mut sum, mut fields, mut size) = (0, 0, Hash::new(), None);
        while calls == 0 || args[pages.cursor - 1] != b"0" {
            calls += 1;
            let mut reply = self
                .send(script, keys, &args)
                .map_err(|e| format!("page {calls}: {e}"))?;
            // some replies contain the total with each page
            if let Value::Array(items) = &mut reply
                && let Some(Value::Int(all)) = items.get(3)
            {
                size = Some(*all as usize);
                items.truncate(3);
            }
            let (status, cursor, part): (Bytes, Bytes, Value) =
                redis::from_redis_value(reply).map_err(|e| format!("page {calls}: {e}"))?;
            if status != b"OK" || calls > 100_000 {
                return Err(format!(
                    "page {calls}: {}",
                    String::from_utf8_lossy(&status)
                ));
            }
            match part {
                Value::Int(number) => sum += number,
                part => {
                    fields.extend(redis::from_redis_value::<Hash>(part).map_err(|e| e.to_string())?)
                }
            }
            args[pages.cursor - 1] = cursor;
        }
        if let Some(size) = size {
            equal("size", &size, &fields.len())?;
        }
        if calls <= pages.more_than {
            return Err(format!(
                "expected more than {} pages, got {calls}",
                pages.more_than
            ));
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

    /// Runs the vectors of one script, or of all. Returns the number that passed, and the other
    /// ones' failures.
    fn run(&mut self, script: Option<&str>) -> (usize, BTreeMap<String, String>) {
        let (mut passed, mut failed) = (0, BTreeMap::new());
        for vectors in vectors()
            .iter()
            .filter(|vectors| script.is_none_or(|script| vectors.script == script))
        {
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
    if got == expected {
        Ok(())
    } else {
        Err(format!("{what}: expected {expected:?}, got {got:?}"))
    }
}

/// Checks that the first word stands alone in the error text, since Redis 6.2 puts "ERR Error
/// running script" before its own errors. The remaining words must occur anywhere in the text.
fn check_error(expected: &str, error: &RedisError) -> Result<(), String> {
    let (word, rest) = expected.split_once(' ').unwrap_or((expected, ""));
    let text = format!(
        "{} {}",
        error.code().unwrap_or_default(),
        error.detail().unwrap_or_default()
    );
    if text.split_whitespace().any(|part| part == word) && text.contains(rest) {
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
    assert!(
        passed > 0 && failed.is_empty(),
        "{passed} passed, {} failed: {failed:#?}",
        failed.len()
    );
}

/// The scripts that share the fence.
const FENCED: [&str; 6] = [
    "buffered_add",
    "cached_incr",
    "series_add",
    "activity_touch",
    "activity_touch_hll",
    "visitors_first",
];

#[tokio::test]
async fn a_script_that_lost_its_fence_fails() {
    let (server, _) = start().await;
    let guards = [
        ("n - last_n == 0", "false", "dup"),
        ("n - last_n < 0", "false", "caller-used-twice"),
        ("epoch ~= before", "false", "expired"),
        (
            "last = last or redis.call('HGET', KEYS[2], caller)",
            "last = nil",
            "epoch-before-dup",
        ),
        (
            "n <= '9007199254740992'",
            "true",
            "n-is-not-a-number-of-a-call",
        ),
        (
            "n:find('^[1-9]%d*$')",
            "tonumber(n)",
            "n-is-not-a-number-of-a-call",
        ),
        ("caller:byte() == 61 or", "", "caller-reserved"),
        (
            "kind and kind ~= own_kind",
            "false",
            "family-of-another-kind",
        ),
    ];
    for name in FENCED {
        for (guard, instead, id) in guards {
            check_guard(&server, name, guard, instead, &format!("{name}/{id}"));
        }
    }
}

#[tokio::test]
async fn a_script_that_lost_a_guard_fails() {
    let (server, _) = start().await;
    let taken_out = [
        ("family_epoch", "age < 60000", "false", "family_epoch/again"),
        (
            "family_epoch",
            "partitions == tonumber(right)",
            "true",
            "family_epoch/mismatch-partitions",
        ),
        (
            "family_epoch",
            "if not kind then",
            "if false then",
            "family_epoch/unconfigured",
        ),
        (
            "family_epoch",
            "state[3] = name, now or name",
            "state[3] = name, name",
            "family_epoch/next",
        ),
        (
            "family_configure",
            "is_other or",
            "",
            "family_configure/other-partitions",
        ),
        (
            "family_configure",
            "== 0 then without",
            ">= 0 then without",
            "family_configure/again",
        ),
        (
            "buffered_add",
            "sum >= 2^53 or sum <= -2^53",
            "false",
            "buffered_add/beyond-2-to-the-53",
        ),
        (
            "buffered_add",
            "and call('HEXISTS', buffer, id) == 0",
            "and true",
            "buffered_add/full",
        ),
        (
            "buffered_add",
            "grows and max + 1 or max",
            "max",
            "buffered_add/list-becomes-a-table-when-full",
        ),
        (
            "buffered_add",
            "call('HSETNX', meta, 'incarnation',",
            "call('HGET', meta,",
            "buffered_add/first-hit-is-due",
        ),
        (
            "buffered_rotate",
            "if cut > 0 then",
            "if false then",
            "buffered_rotate/held",
        ),
        (
            "buffered_rotate",
            "incarnation or random(meta)",
            "random(meta)",
            "buffered_rotate/next-cut",
        ),
        (
            "buffered_rotate",
            "random(batch)",
            "'0000000000000000'",
            "buffered_rotate/nonces-differ",
        ),
        (
            "buffered_fetch",
            "if settled < settle_ms then",
            "if false then",
            "buffered_fetch/wait",
        ),
        (
            "buffered_fetch",
            "state[1] == ARGV[1]",
            "true",
            "buffered_fetch/stale-other-incarnation",
        ),
        (
            "buffered_fetch",
            "state[3] == ARGV[3]",
            "true",
            "buffered_fetch/stale-other-nonce",
        ),
        (
            "buffered_release",
            "state[2] ~= ARGV[2]",
            "false",
            "buffered_release/stale-earlier-seq",
        ),
        (
            "buffered_release",
            "state[3] ~= ARGV[3]",
            "false",
            "buffered_release/stale-other-nonce",
        ),
        (
            "buffered_reset",
            "if not is_same then",
            "if false then",
            "buffered_reset/stale",
        ),
        (
            "buffered_reset",
            "(state[3] or '') == ARGV[3]",
            "true",
            "buffered_reset/stale",
        ),
        (
            "buffered_reset",
            "'=now', '=before',",
            "'=before',",
            "buffered_reset/earlier-calls-have-expired",
        ),
        (
            "cached_incr",
            "value % 1 == 0 and",
            "",
            "cached_incr/bad-state",
        ),
        (
            "cached_incr",
            "is_lowered and after < low",
            "false",
            "cached_incr/min",
        ),
        (
            "cached_incr",
            "math.abs(value) < 2^53 then",
            "true then",
            "cached_incr/beyond-2-to-the-53",
        ),
        (
            "cached_seed",
            "row ~= 'ticket ' .. ticket",
            "not row",
            "cached_seed/with-another-ticket",
        ),
        (
            "cached_get",
            "not base and ticket_ms > 0",
            "ticket_ms > 0",
            "cached_get/miss-stored-ticket",
        ),
        (
            "cached_get",
            "size < 2^53 and",
            "size < 1e99 and",
            "cached_get/beyond-2-to-the-53",
        ),
        (
            "cached_saved",
            "state[3] == ARGV[3]",
            "true",
            "cached_saved/stale",
        ),
        (
            "cached_saved",
            "row == '-' and not is_waiting",
            "row == '-'",
            "cached_saved/no-row",
        ),
        (
            "cached_saved",
            "bases[i] and not bases[i]:find('ticket', 15, true)",
            "true",
            "cached_saved/without-a-base",
        ),
        (
            "cached_delete",
            "if waits[i + 1] then",
            "if false then",
            "cached_delete/due",
        ),
        (
            "cached_delete",
            "if cut[i + 1] then",
            "if false then",
            "cached_delete/due",
        ),
        (
            "cached_delete",
            "<= now_ms",
            "< now_ms",
            "cached_delete/due-now",
        ),
        (
            "activity_touch",
            "call('ZADD', visitors, 'LT',",
            "call('ZADD', visitors,",
            "activity_touch/clock-stepped-back-one",
        ),
        (
            "activity_touch_hll",
            "math.floor(now_ms / layer_ms) ~= layer",
            "false",
            "activity_touch_hll/outside-late",
        ),
        (
            "activity_now",
            "(tonumber(fields[i]) or gone) > gone",
            "true",
            "activity_now/quiet",
        ),
        (
            "activity_now_hll",
            "number and number > gone",
            "true",
            "activity_now_hll/quiet",
        ),
        (
            "series_add",
            "slice.gone - length",
            "slice.gone",
            "series_add/trimmed",
        ),
        (
            "series_close",
            "redis.call('HDEL', open, id)",
            "",
            "series_close/over",
        ),
        (
            "visitors_first",
            "known[arg - first + 1] == 1 or",
            "",
            "visitors_first/was-there",
        ),
        (
            "visitors_first",
            "count >= 1",
            "true",
            "visitors_first/bad-arguments",
        ),
        (
            "buffered_scan",
            "prefix:gsub('[*?%[%]\\\\]', '\\\\%0')",
            "prefix",
            "buffered_scan/prefix-of-pattern-characters",
        ),
        (
            "buffered_backlog",
            "if cut > 0 then",
            "if true then",
            "buffered_backlog/buffer",
        ),
        (
            "buffered_backlog",
            "if waiting > 0 then",
            "if true then",
            "buffered_backlog/batch-after-an-older-buffer",
        ),
        (
            "visitors_first",
            "pending >= max then",
            "false then",
            "visitors_first/full",
        ),
    ];
    for (name, guard, instead, id) in taken_out {
        check_guard(&server, name, guard, instead, id);
    }
}

/// Checks that without the guard the vector with this id fails.
fn check_guard(server: &RedisServer, name: &str, guard: &str, instead: &str, id: &str) {
    let mut scripts = scripts();
    let source = scripts.get_mut(name).unwrap();
    assert_eq!(
        source.matches(guard).count(),
        1,
        "{name} has no {guard:?}, or more than one"
    );
    *source = source.replace(guard, instead);
    let (_, failed) = Run::new(server.client().get_connection().unwrap(), &scripts).run(Some(name));
    assert!(
        failed.contains_key(id),
        "{name} without {guard:?} passes {id}; failed: {:?}",
        failed.keys()
    );
}

const FENCE: [&str; 2] = ["calls", "calls_before"];
const EPOCH: &str = "e2";

fn keys(kinds: &[&str]) -> Vec<String> {
    kinds
        .iter()
        .map(|kind| format!("cf1:{{shop/views/0}}:{kind}"))
        .collect()
}

/// Returns the keys of a counting script.
fn fenced(kinds: &[&str]) -> Vec<String> {
    keys(&[&FENCE, kinds].concat())
}

/// Begins an epoch, so that calls may have a caller.
fn begin_epoch(run: &mut Run) {
    cmd("HSET")
        .arg(keys(&["calls"]))
        .arg("=now")
        .arg(EPOCH)
        .arg("=before")
        .arg("e1")
        .exec(&mut run.redis)
        .unwrap();
}

fn limit(run: &mut Run, bytes: usize) {
    cmd("CONFIG")
        .arg("SET")
        .arg("maxmemory")
        .arg(bytes)
        .exec(&mut run.redis)
        .unwrap();
}

/// Checks that Redis refuses the call because its memory is full, and that nothing changes.
fn check_refused(run: &mut Run, script: &str, keys: &[String], args: &[&str]) {
    let before = run.contents();
    let error = run.send(script, keys, args).unwrap_err();
    // Redis 6.2 has the code in the text, as "-OOM"
    assert!(
        error.code() == Some("OOM") || format!("{error:#}").contains("OOM"),
        "{script} {args:?}: {error}"
    );
    equal(script, &run.contents(), &before).unwrap();
}

fn words(words: &[&str]) -> RedisResult<Value> {
    Ok(Value::Array(
        words
            .iter()
            .map(|word| Value::BulkString((*word).into()))
            .collect(),
    ))
}

fn text(text: &str) -> Value {
    Value::BulkString(text.into())
}

/// Returns the strings of a reply, with integers as text.
fn strings(reply: RedisResult<Value>) -> Vec<String> {
    redis::from_redis_value(reply.unwrap()).unwrap()
}

/// Cuts the buffer, and returns the id of the batch.
fn rotate(run: &mut Run, data: &[String], now_ms: &str) -> [String; 3] {
    let reply = strings(run.send(
        "buffered_rotate",
        data,
        &["salt", "r1", "30000", "0", "60000", now_ms],
    ));
    assert!(reply[0] == "OK" || reply[0] == "HELD", "{reply:?}");
    [1, 2, 3].map(|i| reply[i].clone())
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
async fn a_full_redis_takes_no_hits_and_can_be_drained() {
    let (_server, redis) = start().await;
    let mut run = Run::new(redis, &scripts());
    let (data, both, home) = (
        keys(&["buffer", "batch", "meta"]),
        keys(&["batch", "meta"]),
        keys(&["calls", "meta"]),
    );

    let (settings, epoch) = (
        ["salt", "900", "buffered", "1", "9", "{}"],
        ["buffered", "1", "900"],
    );
    run.send("family_configure", &home, &settings).unwrap();
    let name = strings(run.send("family_epoch", &keys(&FENCE), &epoch));
    let add = fenced(&["buffer", "meta"]);
    run.send(
        "buffered_add",
        &add,
        &["w1", "1", &name[1], "900", "1", "1", "a", "1"],
    )
    .unwrap();
    limit(&mut run, 1);
    for caller in ["w1", ""] {
        check_refused(
            &mut run,
            "buffered_add",
            &add,
            &[caller, "2", &name[1], "1000", "1", "1", "a", "1"],
        );
    }
    check_refused(
        &mut run,
        "family_epoch",
        &keys(&FENCE),
        &["buffered", "1", "60900"],
    );
    check_refused(&mut run, "family_configure", &home, &settings);
    check_refused(
        &mut run,
        "family_configure",
        &[home[0].clone(), "cf1:{shop/views/1}:meta".into()],
        &settings,
    );
    equal(
        "epoch",
        &strings(run.send("family_epoch", &keys(&FENCE), &epoch)),
        &name,
    )
    .unwrap();

    let id = rotate(&mut run, &data, "1000");
    equal("the lease", &rotate(&mut run, &data, "1500"), &id).unwrap();
    // the clock stepped back, so the script rewrites the time of the cut
    let fetch = run.send(
        "buffered_fetch",
        &both,
        &with_id(&id, &["100", "0", "10", "800"]),
    );
    equal(
        "fetch",
        &fetch,
        &Ok(Value::Array(vec![text("WAIT"), Value::Int(100)])),
    )
    .unwrap();
    let fetch = run.send(
        "buffered_fetch",
        &both,
        &with_id(&id, &["100", "0", "10", "900"]),
    );
    let page = Value::Array(vec![text("a"), text("1")]);
    equal(
        "fetch",
        &fetch,
        &Ok(Value::Array(vec![
            text("OK"),
            text("0"),
            page,
            Value::Int(1),
        ])),
    )
    .unwrap();
    equal(
        "release",
        &run.send("buffered_release", &both, &with_id(&id, &[])),
        &words(&["OK"]),
    )
    .unwrap();
    limit(&mut run, 0);
    run.send(
        "buffered_add",
        &add,
        &["w1", "2", &name[1], "1000", "1", "1", "a", "1"],
    )
    .unwrap();
    limit(&mut run, 1);
    let id = rotate(&mut run, &data, "70000");
    let reset = run.send(
        "buffered_reset",
        &keys(&["meta", "calls", "buffer", "batch"]),
        &with_id(&id, &["salt", "70000"]),
    );
    assert_eq!(strings(reset)[..3], ["OK", "1", "1"]);
    limit(&mut run, 0);
}

/// A full Redis refuses changes, seeds and tickets of cached counters. Saves and deletions still
/// work.
#[tokio::test]
async fn a_full_redis_takes_no_changes_and_can_be_drained() {
    let (_server, redis) = start().await;
    let mut run = Run::new(redis, &scripts());
    let kinds = ["base", "buffer", "batch", "meta"];
    let (incr, all, data) = (fenced(&kinds), keys(&kinds), keys(&kinds[1..]));
    let (seed, get) = (keys(&kinds[..1]), keys(&kinds[..3]));
    fn change<'a>(caller: &'a str, n: &'a str, pairs: &[&'a str]) -> Vec<&'a str> {
        let count = ["0", "1", "2", "3"][pairs.len() / 2];
        [&[caller, n, EPOCH, "1000", "30000", "", "", count], pairs].concat()
    }
    begin_epoch(&mut run);
    let missed = strings(run.send(
        "cached_incr",
        &incr,
        &change("w1", "1", &["a", "1", "b", "1", "c", "1"]),
    ));
    let ticket = missed[1].strip_prefix("MISS:").unwrap();
    let seeds = ["a", "b", "c"].map(|id| [id, ticket, "5"]).concat();
    run.send(
        "cached_seed",
        &seed,
        &[&["1000", "1000"][..], &seeds].concat(),
    )
    .unwrap();
    run.send(
        "cached_incr",
        &incr,
        &change("w1", "2", &["a", "1", "b", "1"]),
    )
    .unwrap();
    let missed = strings(run.send("cached_get", &get, &["30000", "1000", "salt", "e"]));
    let other = missed[1].strip_prefix("MISS:").unwrap();

    limit(&mut run, 1);
    // pending, not pending, without a base, and with a ticket
    for id in ["a", "c", "d", "e"] {
        for caller in ["w1", ""] {
            check_refused(
                &mut run,
                "cached_incr",
                &incr,
                &change(caller, "3", &[id, "1"]),
            );
        }
    }
    check_refused(
        &mut run,
        "cached_incr",
        &incr,
        &change("", "3", &["a", "9007199254740993"]),
    );
    check_refused(
        &mut run,
        "cached_get",
        &get,
        &["30000", "1000", "salt", "d"],
    );
    check_refused(
        &mut run,
        "cached_seed",
        &seed,
        &["1000", "1000", "e", other, "5"],
    );

    let values = run.send("cached_get", &get, &["", "1000", "salt", "a", "c"]);
    equal(
        "get",
        &values,
        &Ok(Value::Array(vec![text("OK"), Value::Int(6), Value::Int(5)])),
    )
    .unwrap();
    let id = rotate(&mut run, &data, "1000");
    let saved = run.send(
        "cached_saved",
        &all,
        &with_id(&id, &["1000", "1000", "a", "6"]),
    );
    equal(
        "saved",
        &saved,
        &Ok(Value::Array(vec![text("OK"), Value::Int(1)])),
    )
    .unwrap();
    let delete = strings(run.send(
        "cached_delete",
        &get,
        &["0", "1000", "3000", "a", "b", "c", "f"],
    ));
    assert_eq!(
        delete,
        ["OK", "0", "DELETED", "KEPT:batch", "DELETED", "GONE"]
    );
    let kept = strings(run.send("cached_delete", &get, &["0", "1000", "3000", "b"]));
    assert_eq!(kept, ["OK", "0", "KEPT:batch"]);
    limit(&mut run, 0);
}

/// Slices that are over can still move to the buffer.
#[tokio::test]
async fn a_full_redis_takes_no_series_and_can_be_drained() {
    let (_server, redis) = start().await;
    let mut run = Run::new(redis, &scripts());
    let add = fenced(&["open", "schedule", "names", "idle", "series:60s:site"]);
    let close = keys(&["open", "schedule", "buffer", "meta"]);
    begin_epoch(&mut run);
    let call = |caller: &'static str, n: &'static str| {
        [
            caller,
            n,
            EPOCH,
            "1000",
            "1",
            "60s 60 60 60s/*/",
            "site",
            "1",
        ]
    };
    run.send("series_add", &add, &call("w1", "1")).unwrap();
    limit(&mut run, 1);
    for caller in ["w1", ""] {
        check_refused(&mut run, "series_add", &add, &call(caller, "2"));
    }
    let moved = Ok(Value::Array(vec![
        Value::BulkString("OK".into()),
        Value::Int(1),
        Value::BulkString("".into()),
    ]));
    equal(
        "close",
        &run.send("series_close", &close, &["10", "0", "60000"]),
        &moved,
    )
    .unwrap();
    limit(&mut run, 0);
}

/// A full Redis refuses calls of activity and daily visitors before anything is done, whatever
/// their first write is.
#[tokio::test]
async fn a_full_redis_takes_no_visitors() {
    let (_server, redis) = start().await;
    let mut run = Run::new(redis, &scripts());
    let touch = fenced(&["open", "schedule", "views:0:p", "visitors:0:p"]);
    let logs = fenced(&[
        "open",
        "schedule",
        "views:9:p",
        "layer:333:9:p",
        "minute:960:9:p",
    ]);
    let first = fenced(&["buffer", "meta", "seen:a"]);
    let calls = |caller: &'static str, visitor: &'static str| {
        let args = |rest: &[&'static str]| {
            [&[caller, "1", EPOCH, "1000000"], rest, &["1", visitor]].concat()
        };
        [
            (
                "activity_touch",
                &touch,
                args(&["3000", "200", "1", "1", "p", "1"]),
            ),
            (
                "activity_touch_hll",
                &logs,
                args(&["3000", "200", "1", "333", "1", "p", "1"]),
            ),
            ("visitors_first", &first, args(&["86400000", "1", "a"])),
        ]
    };
    begin_epoch(&mut run);
    for (script, keys, args) in calls("", "v") {
        run.send(script, keys, &args).unwrap();
    }
    limit(&mut run, 1);
    for (script, keys, args) in calls("w1", "w").into_iter().chain(calls("", "w")) {
        check_refused(&mut run, script, keys, &args);
    }
    let one_each = Ok(Value::Array(vec![
        Value::BulkString("OK".into()),
        Value::Int(1),
        Value::Int(1),
    ]));
    equal(
        "now",
        &run.send("activity_now", &touch[4..], &["1000000", "3000", "200"]),
        &one_each,
    )
    .unwrap();
    let now = run.send(
        "activity_now_hll",
        &logs[4..6],
        &["1000000", "3000", "1", "333"],
    );
    equal("now", &now, &one_each).unwrap();
    limit(&mut run, 0);
}

fn clock(run: &mut Run) -> i64 {
    let (seconds, micros): (i64, i64) = cmd("TIME").query(&mut run.redis).unwrap();
    seconds * 1000 + micros / 1000
}

/// Times that scripts write without `now_ms` lie between two readings of the server's clock.
#[tokio::test]
async fn without_now_ms_the_servers_clock_counts() {
    let (_server, redis) = start().await;
    let mut run = Run::new(redis, &scripts());
    let field = |run: &mut Run, kind: &str, field: &str| -> i64 {
        cmd("HGET")
            .arg(keys(&[kind]))
            .arg(field)
            .query(&mut run.redis)
            .unwrap()
    };
    let from = clock(&mut run);
    run.send(
        "family_configure",
        &keys(&["calls", "meta"]),
        &["salt", "", "buffered", "1", "9", "{}"],
    )
    .unwrap();
    run.send("family_epoch", &keys(&FENCE), &["buffered", "1", ""])
        .unwrap();
    let add = ["", "0", "", "", "1", "1", "a", "1"];
    run.send("buffered_add", &fenced(&["buffer", "meta"]), &add)
        .unwrap();
    let id = rotate(&mut run, &keys(&["buffer", "batch", "meta"]), "");
    let to = clock(&mut run);
    let written = [
        field(&mut run, "calls", "=began_at"),
        field(&mut run, "meta", "first_at"),
        field(&mut run, "meta", "rotated_at"),
        field(&mut run, "meta", "lease_until") - 30_000,
    ];
    for time in written {
        assert!(
            (from..=to).contains(&time),
            "{time} is not between {from} and {to}"
        );
    }
    let fetch = run.send(
        "buffered_fetch",
        &keys(&["batch", "meta"]),
        &with_id(&id, &["60000", "0", "10", ""]),
    );
    let (status, ms): (String, i64) = redis::from_redis_value(fetch.unwrap()).unwrap();
    assert!(
        status == "WAIT" && (50_000..=60_000).contains(&ms),
        "{status} {ms}"
    );
}

/// A Redis that lost its memory creates only new names for epochs, incarnations, nonces and
/// tickets.
#[tokio::test]
async fn no_name_comes_again() {
    let (_server, redis) = start().await;
    let mut run = Run::new(redis, &scripts());
    let mut names = BTreeSet::new();
    for _ in 0..100 {
        cmd("FLUSHDB").exec(&mut run.redis).unwrap();
        run.send(
            "family_configure",
            &keys(&["calls", "meta"]),
            &["salt", "", "buffered", "1", "9", "{}"],
        )
        .unwrap();
        let epoch = strings(run.send("family_epoch", &keys(&FENCE), &["", "", ""]));
        run.send(
            "buffered_add",
            &fenced(&["buffer", "meta"]),
            &["", "", "", "", "1", "1", "a", "1"],
        )
        .unwrap();
        let [incarnation, _, nonce] = rotate(&mut run, &keys(&["buffer", "batch", "meta"]), "");
        run.send(
            "buffered_add",
            &fenced(&["other", "unconfigured"]),
            &["", "", "", "", "1", "1", "a", "1"],
        )
        .unwrap();
        let first: String = cmd("HGET")
            .arg(keys(&["unconfigured"]))
            .arg("incarnation")
            .query(&mut run.redis)
            .unwrap();
        let get = keys(&["base", "buffer", "batch"]);
        let ticket = strings(run.send("cached_get", &get, &["30000", "", "salt", "a"])).remove(1);
        for name in [epoch[1].clone(), incarnation, nonce, first, ticket] {
            assert!(names.insert(name.clone()), "{name} came again");
        }
    }
}

/// The server's clock also determines layers and visitors.
#[tokio::test]
async fn without_now_ms_the_servers_clock_names_the_layer() {
    let (_server, redis) = start().await;
    let mut run = Run::new(redis, &scripts());
    let place = fenced(&["open", "schedule", "views:0:p", "visitors:0:p"]);
    let first = fenced(&["buffer", "meta", "seen:a"]);

    let from = clock(&mut run);
    let touch = ["", "0", "", "", "1", "1000", "1", "1", "p", "1", "1", "v"];
    run.send("activity_touch", &place, &touch).unwrap();
    run.send(
        "visitors_first",
        &first,
        &["", "0", "", "", "60000", "1", "a", "1", "v"],
    )
    .unwrap();
    let to = clock(&mut run);
    let layer: i64 = cmd("ZSCORE")
        .arg(&place[5])
        .arg("v")
        .query(&mut run.redis)
        .unwrap();
    let first_at: i64 = cmd("HGET")
        .arg(&first[3])
        .arg("first_at")
        .query(&mut run.redis)
        .unwrap();
    for time in [-layer, first_at] {
        assert!(
            (from..=to).contains(&time),
            "{time} is not between {from} and {to}"
        );
    }
    let other = fenced(&["open", "schedule", "views:1:p", "visitors:1:p"]);
    let touch = [
        "", "0", "", "", "3600000", "1000", "0", "1", "p", "1", "1", "v",
    ];
    run.send("activity_touch", &other, &touch).unwrap();
    let now = run
        .send("activity_now", &other[4..], &["", "3600000", "1000"])
        .unwrap();
    assert_eq!(
        redis::from_redis_value::<(String, i64, i64)>(now).unwrap(),
        ("OK".into(), 1, 1)
    );
    let logs = fenced(&["open", "schedule", "views:9:p", "layer:1:9:p"]);
    let touch = [
        "", "0", "", "", "3000", "1", "0", "1", "1", "p", "1", "1", "v",
    ];
    for reply in [
        run.send("activity_touch_hll", &logs, &touch).unwrap(),
        run.send("activity_now_hll", &logs[4..], &["", "3000", "1", "1"])
            .unwrap(),
    ] {
        let (status, now): (String, String) = redis::from_redis_value(reply).unwrap();
        assert!(
            status == "OUTSIDE" && now.parse::<i64>().unwrap() >= to,
            "{status} {now}"
        );
    }
}

/// Returns the Python with redis-py, or reports that it is missing.
pub(crate) fn python() -> Option<Command> {
    let python = std::env::var_os("COUNTERFOIL_PYTHON");
    if python.is_none() {
        eprintln!("COUNTERFOIL_PYTHON is not set: the test in Python is skipped");
    }
    python.map(|python| {
        let mut command = Command::new(python);
        // writes no bytecode into the source tree
        command.arg("-B");
        command
    })
}

pub(crate) fn client(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/clients")
        .join(name)
}

/// Runs the command to its end, and returns its output.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{out}{err}",
        output.status
    );
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
        passed(&run(python
            .arg(client("vectors.py"))
            .arg(server.socket())
            .arg(lua())));
    }
}

#[tokio::test]
async fn node_runs_the_vectors() {
    let (server, _) = start().await;
    match std::env::var_os("COUNTERFOIL_NODE_MODULES") {
        Some(modules) => {
            let mut node = Command::new("node");
            passed(&run(node
                .env("NODE_PATH", modules)
                .arg(client("vectors.mjs"))
                .arg(server.socket())
                .arg(lua())));
        }
        None => eprintln!("COUNTERFOIL_NODE_MODULES is not set: the test in Node is skipped"),
    }
}
