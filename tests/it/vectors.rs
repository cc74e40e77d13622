//! The vectors of `lua/vectors`, run from Rust, Python and Node against a private Redis, and tests
//! of what vectors cannot express: a full Redis and the server's clock.
//!
//! `COUNTERFOIL_PYTHON` names a Python with redis-py, `COUNTERFOIL_NODE_MODULES` a folder that
//! contains ioredis. Without them, the tests that need them are skipped.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use redis::{
    Connection, ConnectionLike, FromRedisValue, RedisError, RedisResult, ToRedisArgs, Value, cmd,
};
use serde::Deserialize;
use serde_json::{Value as Json, json};
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

/// A Redis with the scripts.
pub(crate) struct Run {
    redis: Connection,
    hashes: HashMap<String, String>,
}

pub(crate) fn lua() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("lua")
}

fn vectors() -> Vec<Vectors> {
    let files = fs::read_dir(lua().join("vectors")).unwrap();
    let parse = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        let prefix = serde_json::from_str::<Json>(&text).unwrap()["prefix"].clone();
        let text = text.replace("\"@", &format!("\"{}", prefix.as_str().unwrap()));
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    };
    files.map(|entry| parse(entry.unwrap().path())).collect()
}

/// Returns the array with its shorthands expanded.
fn expanded(items: &[Json]) -> Vec<Json> {
    let expand = |item: &Json| match (item.get("ids"), item.get("times")) {
        (Some(ids), _) => {
            let prefix = ids["prefix"].as_str().unwrap();
            let numbers = 1..=ids["count"].as_u64().unwrap();
            numbers.map(|i| format!("{prefix}{i}").into()).collect()
        }
        (_, Some(times)) => {
            let of = item["of"].as_array().unwrap();
            vec![&**of; times.as_u64().unwrap() as usize].concat()
        }
        _ => vec![item.clone()],
    };
    items.iter().flat_map(expand).collect()
}

fn bytes(item: &Json) -> Bytes {
    match (item.as_str(), item["hex"].as_str()) {
        (Some(text), _) => text.into(),
        (None, Some(digits)) => unhex(digits),
        _ => panic!("neither a string nor hex: {item}"),
    }
}

fn unhex(digits: &str) -> Bytes {
    let pairs = (0..digits.len()).step_by(2).map(|i| &digits[i..i + 2]);
    pairs
        .map(|pair| u8::from_str_radix(pair, 16).unwrap())
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
    if let Some(fill) = fields.get("fill").filter(|fill| fill.is_object()) {
        let fill: Fill = serde_json::from_value(fill.clone()).unwrap();
        let fields = (1..=fill.count).map(|i| format!("{}{i}", fill.prefix).into());
        return fields
            .map(|field| (field, fill.value.clone().into()))
            .collect();
    }
    let fields = fields.iter();
    fields
        .map(|(field, value)| (name(field), bytes(value)))
        .collect()
}

/// Returns the content of a hash given as JSON.
fn hash_of(json: &Json) -> Hash {
    hash(&serde_json::from_value(json.clone()).unwrap())
}

/// Returns the expected content of a key: a hash, or `{"zset": {...}}`, `{"set": [...]}`, `{"hll":
/// N}`.
fn content(fields: &BTreeMap<String, Json>) -> Content {
    let only = fields.iter().next().filter(|_| fields.len() == 1);
    match only.map(|(kind, content)| (kind.as_str(), content)) {
        Some(("zset", scores @ Json::Object(_))) => Content::Zset(hash_of(scores)),
        Some(("set", Json::Array(members))) => {
            Content::Set(all_bytes(members).into_iter().collect())
        }
        Some(("hll", Json::Number(count))) => Content::Hll(count.as_i64().unwrap()),
        _ => Content::Hash(hash(fields)),
    }
}

impl Run {
    pub(crate) async fn new() -> (RedisServer, Self) {
        let server = RedisServer::start(RedisOptions::volatile()).await;
        let redis = server.client().get_connection().unwrap();
        let hashes = HashMap::new();
        let mut run = Run { redis, hashes };
        scripts()
            .iter()
            .for_each(|(name, source)| run.load(name, source));
        (server, run)
    }

    fn load(&mut self, name: &str, source: &str) {
        let hash = self.get(&["SCRIPT", "LOAD", source]);
        self.hashes.insert(name.into(), hash);
    }

    /// Sends a command.
    pub(crate) fn get<T: FromRedisValue>(&mut self, words: &[impl ToRedisArgs]) -> T {
        redis::Cmd::new().arg(words).query(&mut self.redis).unwrap()
    }

    fn send(
        &mut self,
        script: &str,
        keys: &[impl ToRedisArgs],
        args: &[impl ToRedisArgs],
    ) -> RedisResult<Value> {
        let mut call = cmd("EVALSHA");
        call.arg(&self.hashes[script]).arg(keys.len());
        call.arg(keys).arg(args);
        self.redis.req_command(&call).and_then(Value::extract_error)
    }

    /// Returns every key of the database with its content.
    fn contents(&mut self) -> BTreeMap<Bytes, Content> {
        let keys: Vec<Bytes> = self.get(&["KEYS", "*"]);
        let mut contents = BTreeMap::new();
        for key in keys {
            let one = |command: &str| [command.into(), key.clone()];
            let all = |command: &str| [command.into(), key.clone(), "0".into(), "-1".into()];
            let lives_ms: i64 = self.get(&one("PTTL"));
            // a key that expires soon might vanish before it is read; -1 means that it never
            // expires
            let name = String::from_utf8_lossy(&key);
            assert!(
                lives_ms == -1 || lives_ms > 1000,
                "{name} is read, and lives for {lives_ms} ms only"
            );
            let content = match &*self.get::<String>(&one("TYPE")) {
                "hash" => Content::Hash(self.get(&one("HGETALL"))),
                "zset" => {
                    let with_scores = [&all("ZRANGE")[..], &["WITHSCORES".into()]].concat();
                    Content::Zset(self.get(&with_scores))
                }
                "set" => Content::Set(self.get(&one("SMEMBERS"))),
                "string" => match self.get::<Bytes>(&one("GET")) {
                    text if text.starts_with(b"HYLL") => Content::Hll(self.get(&one("PFCOUNT"))),
                    text => Content::String(text),
                },
                _ => Content::List(self.get(&all("LRANGE"))),
            };
            contents.insert(key, content);
        }
        contents
    }

    fn set_up(&mut self, vectors: &Vectors, steps: &[Json]) {
        for step in steps {
            match step {
                Json::String(name) => self.set_up(vectors, &vectors.setups[name]),
                Json::Array(words) => self.get(&all_bytes(words)),
                step => {
                    let mut fill = cmd("HSET");
                    fill.arg(step["fill"]["key"].as_str().unwrap());
                    fill.arg(hash_of(step)).exec(&mut self.redis).unwrap();
                }
            }
        }
    }

    fn case(&mut self, vectors: &Vectors, case: &Case) -> Result<(), String> {
        let () = self.get(&["FLUSHDB"]);
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
            let of_page = |e: String| format!("page {calls}: {e}");
            let reply = self.send(script, keys, &args);
            let mut reply = reply.map_err(|e| of_page(e.to_string()))?;
            // some replies contain the total with each page
            if let Value::Array(items) = &mut reply
                && let Some(Value::Int(all)) = items.get(3)
            {
                size = Some(*all as usize);
                items.truncate(3);
            }
            let (status, cursor, part): (String, Bytes, Value) =
                redis::from_redis_value(reply).map_err(|e| of_page(e.to_string()))?;
            if status != "OK" || calls > 100_000 {
                return Err(of_page(status));
            }
            match part {
                Value::Int(number) => sum += number,
                part => fields.extend(redis::from_redis_value::<Hash>(part).unwrap()),
            }
            args[pages.cursor - 1] = cursor;
        }
        if let Some(size) = size {
            equal("size", &size, &fields.len())?;
        }
        if calls <= pages.more_than {
            let more_than = pages.more_than;
            return Err(format!("expected more than {more_than} pages, got {calls}"));
        }
        match pages.collected.as_i64() {
            Some(expected) => equal("sum of the pages", &sum, &expected),
            None => equal("pages", &fields, &hash_of(&pages.collected)),
        }
    }

    /// Runs vectors. Returns the number that passed, and the other ones' failures.
    fn run<'v>(
        &mut self,
        vectors: impl IntoIterator<Item = &'v Vectors>,
    ) -> (usize, BTreeMap<String, String>) {
        let (mut passed, mut failed) = (0, BTreeMap::new());
        for vectors in vectors {
            for case in &vectors.cases {
                match self.case(vectors, case) {
                    Ok(()) => passed += 1,
                    Err(wrong) => drop(failed.insert(case.id.clone(), wrong)),
                }
            }
        }
        (passed, failed)
    }

    /// Checks that without the guard the vector with this id fails.
    fn check_guard(&mut self, vectors: &[Vectors], script: &str, [guard, instead, id]: [&str; 3]) {
        let source = scripts().remove(script).unwrap();
        let count = source.matches(guard).count();
        assert_eq!(count, 1, "{script} has no {guard:?}, or more than one");
        self.load(script, &source.replace(guard, instead));
        let own = vectors.iter().filter(|vectors| vectors.script == script);
        let (_, failed) = self.run(own);
        assert!(
            failed.contains_key(&format!("{script}/{id}")),
            "{script} without {guard:?} passes {id}; failed: {:?}",
            failed.keys()
        );
        self.load(script, &source);
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

#[tokio::test]
async fn rust() {
    let (_server, mut run) = Run::new().await;
    let (passed, failed) = run.run(&vectors());
    assert!(
        passed > 0 && failed.is_empty(),
        "{passed} passed, {} failed: {failed:#?}",
        failed.len()
    );
}

/// The scripts that share the fence.
pub(crate) const FENCED: [&str; 6] = [
    "buffered_add",
    "cached_incr",
    "series_add",
    "activity_touch",
    "activity_touch_hll",
    "visitors_first",
];

/// The guards of the fence, like those of scripts.
const FENCE_GUARDS: [[&str; 3]; 8] = [
    ["n - last_n == 0", "false", "dup"],
    ["n - last_n < 0", "false", "caller-used-twice"],
    ["epoch ~= before", "false", "expired"],
    [
        "last = last or redis.call('HGET', KEYS[2], caller)",
        "last = nil",
        "epoch-before-dup",
    ],
    [
        "n <= '9007199254740992'",
        "true",
        "n-is-not-a-number-of-a-call",
    ],
    [
        "n:find('^[1-9]%d*$')",
        "tonumber(n)",
        "n-is-not-a-number-of-a-call",
    ],
    ["caller:byte() == 61 or", "", "caller-reserved"],
    [
        "kind and kind ~= own_kind",
        "false",
        "family-of-another-kind",
    ],
];

/// The guards of each script: their text, what replaces it, and the vector that then fails.
const GUARDS: [(&str, &[[&str; 3]]); 21] = [
    (
        "family_epoch",
        &[
            ["age < 60000", "false", "again"],
            [
                "partitions == tonumber(right)",
                "true",
                "mismatch-partitions",
            ],
            ["if not kind then", "if false then", "unconfigured"],
            [
                "state[3] = name, now or name",
                "state[3] = name, name",
                "next",
            ],
        ],
    ),
    (
        "family_configure",
        &[
            ["is_other or", "", "other-partitions"],
            ["== 0 then without", ">= 0 then without", "again"],
        ],
    ),
    (
        "buffered_add",
        &[
            ["sum >= 2^53 or sum <= -2^53", "false", "beyond-2-to-the-53"],
            ["and call('HEXISTS', buffer, id) == 0", "and true", "full"],
            [
                "grows and max + 1 or max",
                "max",
                "list-becomes-a-table-when-full",
            ],
            [
                "call('HSETNX', meta, 'incarnation',",
                "call('HGET', meta,",
                "first-hit-is-due",
            ],
        ],
    ),
    (
        "buffered_rotate",
        &[
            ["if cut > 0 then", "if false then", "held"],
            ["incarnation or random(meta)", "random(meta)", "next-cut"],
            ["random(batch)", "'0000000000000000'", "nonces-differ"],
        ],
    ),
    (
        "buffered_fetch",
        &[
            ["if settled < settle_ms then", "if false then", "wait"],
            ["state[1] == ARGV[1]", "true", "stale-other-incarnation"],
            ["state[3] == ARGV[3]", "true", "stale-other-nonce"],
        ],
    ),
    (
        "buffered_release",
        &[
            ["state[2] ~= ARGV[2]", "false", "stale-earlier-seq"],
            ["state[3] ~= ARGV[3]", "false", "stale-other-nonce"],
        ],
    ),
    (
        "buffered_reset",
        &[
            ["if not is_same then", "if false then", "stale"],
            ["(state[3] or '') == ARGV[3]", "true", "stale"],
            [
                "'=now', '=before',",
                "'=before',",
                "earlier-calls-have-expired",
            ],
        ],
    ),
    (
        "cached_incr",
        &[
            ["value % 1 == 0 and", "", "bad-state"],
            ["is_lowered and after < low", "false", "min"],
            [
                "math.abs(value) < 2^53 then",
                "true then",
                "beyond-2-to-the-53",
            ],
        ],
    ),
    (
        "cached_seed",
        &[[
            "row ~= 'ticket ' .. ticket",
            "not row",
            "with-another-ticket",
        ]],
    ),
    (
        "cached_get",
        &[
            [
                "not base and ticket_ms > 0",
                "ticket_ms > 0",
                "miss-stored-ticket",
            ],
            ["size < 2^53 and", "size < 1e99 and", "beyond-2-to-the-53"],
        ],
    ),
    (
        "cached_saved",
        &[
            ["state[3] == ARGV[3]", "true", "stale"],
            ["row == '-' and not is_waiting", "row == '-'", "no-row"],
            [
                "bases[i] and not bases[i]:find('ticket', 15, true)",
                "true",
                "without-a-base",
            ],
        ],
    ),
    (
        "cached_delete",
        &[
            ["if waits[i + 1] then", "if false then", "due"],
            ["if cut[i + 1] then", "if false then", "due"],
            ["<= now_ms", "< now_ms", "due-now"],
        ],
    ),
    (
        "activity_touch",
        &[[
            "call('ZADD', visitors, 'LT',",
            "call('ZADD', visitors,",
            "clock-stepped-back-one",
        ]],
    ),
    (
        "activity_touch_hll",
        &[[
            "math.floor(now_ms / layer_ms) ~= layer",
            "false",
            "outside-late",
        ]],
    ),
    (
        "activity_now",
        &[["(tonumber(fields[i]) or gone) > gone", "true", "quiet"]],
    ),
    (
        "activity_now_hll",
        &[["number and number > gone", "true", "quiet"]],
    ),
    (
        "series_add",
        &[["slice.gone - length", "slice.gone", "trimmed"]],
    ),
    (
        "series_close",
        &[["redis.call('HDEL', open, id)", "", "over"]],
    ),
    (
        "visitors_first",
        &[
            ["count >= 1", "true", "bad-arguments"],
            ["known[arg - first + 1] == 1 or", "", "was-there"],
            ["pending >= max then", "false then", "full"],
        ],
    ),
    (
        "buffered_scan",
        &[[
            "prefix:gsub('[*?%[%]\\\\]', '\\\\%0')",
            "prefix",
            "prefix-of-pattern-characters",
        ]],
    ),
    (
        "buffered_backlog",
        &[
            ["if cut > 0 then", "if true then", "buffer"],
            [
                "if waiting > 0 then",
                "if true then",
                "batch-after-an-older-buffer",
            ],
        ],
    ),
];

#[tokio::test]
async fn a_script_without_a_guard_fails_its_vector() {
    let ((_server, mut run), vectors) = (Run::new().await, vectors());
    let fences = FENCED.map(|script| (script, &FENCE_GUARDS[..]));
    for (script, guards) in fences.into_iter().chain(GUARDS) {
        for guard in guards {
            run.check_guard(&vectors, script, *guard);
        }
    }
}

const FENCE: &str = "calls calls_before";
const EPOCH: &str = "e2";

/// Returns the keys of these kinds, which single spaces separate.
pub(crate) fn keys(kinds: &str) -> Vec<String> {
    let kinds = kinds.split(' ');
    kinds
        .map(|kind| format!("cf1:{{shop/views/0}}:{kind}"))
        .collect()
}

/// Returns the keys of a counting script.
pub(crate) fn fenced(kinds: &str) -> Vec<String> {
    keys(&format!("{FENCE} {kinds}"))
}

impl Run {
    /// Returns the strings of a reply, with integers as text.
    pub(crate) fn strings(
        &mut self,
        script: &str,
        keys: &[impl ToRedisArgs],
        args: &[impl ToRedisArgs],
    ) -> Vec<String> {
        redis::from_redis_value(self.send(script, keys, args).unwrap()).unwrap()
    }

    fn expect(&mut self, script: &str, keys: &[String], args: &[impl ToRedisArgs], expected: Json) {
        let reply = self.send(script, keys, args).unwrap();
        equal(script, &reply, &value(&expected)).unwrap();
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
        let settings = ["salt", now_ms, "buffered", "1", "9", "{}"];
        self.strings("family_configure", &keys("calls meta"), &settings);
    }

    /// Cuts the buffer, and returns the id of the batch.
    fn rotate(&mut self, now_ms: &str) -> [String; 3] {
        let args = ["salt", "r1", "30000", "0", "60000", now_ms];
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
    let id = id.iter().map(String::as_str);
    id.chain(rest.iter().copied()).collect()
}

/// A full Redis leaves no call half done, and still executes calls that free memory.
#[tokio::test]
async fn a_full_redis_accepts_no_hits_and_can_be_drained() {
    let (_server, mut run) = Run::new().await;
    let (both, add) = (keys("batch meta"), fenced("buffer meta"));
    let settings = ["salt", "900", "buffered", "1", "9", "{}"];
    let asked = ["buffered", "1", "900"];
    run.configure("900");
    let epoch = run.strings("family_epoch", &keys(FENCE), &asked);
    let hit = |caller, n| [caller, n, &*epoch[1], "1000", "1", "1", "a", "1"];
    run.strings("buffered_add", &add, &hit("w1", "1"));
    run.limit("1");
    for caller in ["w1", ""] {
        run.check_refused("buffered_add", &add, &hit(caller, "2"));
    }
    run.check_refused("family_epoch", &keys(FENCE), &["buffered", "1", "60900"]);
    for other in ["cf1:{shop/views/0}:meta", "cf1:{shop/views/1}:meta"] {
        let home = [keys("calls")[0].clone(), other.into()];
        run.check_refused("family_configure", &home, &settings);
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
    let all = keys("meta calls buffer batch");
    let reset = run.strings("buffered_reset", &all, &with_id(&id, &["salt", "70000"]));
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
    let three = change("w1", "1", &["a", "1", "b", "1", "c", "1"]);
    let missed = run.strings("cached_incr", &incr, &three);
    let ticket = missed[1].strip_prefix("MISS:").unwrap();
    let seeds = ["a", "b", "c"].map(|id| [id, ticket, "5"]).concat();
    let seeds = [&["1000", "1000"][..], &seeds].concat();
    run.strings("cached_seed", &seed, &seeds);
    let two = change("w1", "2", &["a", "1", "b", "1"]);
    run.strings("cached_incr", &incr, &two);
    let missed = run.strings("cached_get", &get, &["30000", "1000", "salt", "e"]);
    let other = missed[1].strip_prefix("MISS:").unwrap();

    run.limit("1");
    // pending, not pending, without a base, and with a ticket
    for id in ["a", "c", "d", "e"] {
        for caller in ["w1", ""] {
            run.check_refused("cached_incr", &incr, &change(caller, "3", &[id, "1"]));
        }
    }
    let large = change("", "3", &["a", "9007199254740993"]);
    run.check_refused("cached_incr", &incr, &large);
    run.check_refused("cached_get", &get, &["30000", "1000", "salt", "d"]);
    run.check_refused("cached_seed", &seed, &["1000", "1000", "e", other, "5"]);

    let asked = ["", "1000", "salt", "a", "c"];
    run.expect("cached_get", &get, &asked, json!(["OK", 6, 5]));
    let id = run.rotate("1000");
    let saved = with_id(&id, &["1000", "1000", "a", "6"]);
    run.expect("cached_saved", &all, &saved, json!(["OK", 1]));
    for (ids, outcomes) in [
        (
            &["a", "b", "c", "f"][..],
            &["DELETED", "KEPT:batch", "DELETED", "GONE"][..],
        ),
        (&["b"], &["KEPT:batch"]),
    ] {
        let deleted = [&["0", "1000", "3000"], ids].concat();
        let deleted = run.strings("cached_delete", &get, &deleted);
        assert_eq!(deleted, [&["OK", "0"], outcomes].concat());
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
    let window = ["1000000", "3000", "1", "333"];
    run.expect("activity_now_hll", &logs[4..6], &window, one_each);
    run.limit("0");
}

fn expect_between(from: i64, to: i64, times: &[i64]) {
    let are_between = times.iter().all(|time| (from..=to).contains(time));
    assert!(are_between, "{times:?} are not between {from} and {to}");
}

/// Times that scripts write without `now_ms` lie between two readings of the server's clock.
#[tokio::test]
async fn without_now_ms_the_servers_clock_counts() {
    let (_server, mut run) = Run::new().await;
    let from = run.clock();
    run.configure("");
    run.strings("family_epoch", &keys(FENCE), &["buffered", "1", ""]);
    let add = ["", "0", "", "", "1", "1", "a", "1"];
    run.strings("buffered_add", &fenced("buffer meta"), &add);
    let id = run.rotate("");
    let to = run.clock();
    let written = [
        run.number("HGET", "calls", "=began_at"),
        run.number("HGET", "meta", "first_at"),
        run.number("HGET", "meta", "rotated_at"),
        run.number("HGET", "meta", "lease_until") - 30_000,
    ];
    expect_between(from, to, &written);
    let args = with_id(&id, &["60000", "0", "10", ""]);
    let fetch = run.strings("buffered_fetch", &keys("batch meta"), &args);
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
        let epoch = run.strings("family_epoch", &keys(FENCE), &["", "", ""]);
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
    let first = ["", "0", "", "", "60000", "1", "a", "1", "v"];
    run.strings("visitors_first", &fenced("buffer meta seen:a"), &first);
    let to = run.clock();
    let layer = run.number("ZSCORE", "visitors:0:p", "v");
    let first_at = run.number("HGET", "meta", "first_at");
    expect_between(from, to, &[-layer, first_at]);

    let other = fenced("open schedule views:1:p visitors:1:p");
    let touch = [
        "", "0", "", "", "3600000", "1000", "0", "1", "p", "1", "1", "v",
    ];
    run.strings("activity_touch", &other, &touch);
    let now = ["", "3600000", "1000"];
    run.expect("activity_now", &other[4..], &now, json!(["OK", 1, 1]));
    let logs = fenced("open schedule views:9:p layer:1:9:p");
    let touch = [
        "", "0", "", "", "3000", "1", "0", "1", "1", "p", "1", "1", "v",
    ];
    for reply in [
        run.strings("activity_touch_hll", &logs, &touch),
        run.strings("activity_now_hll", &logs[4..], &["", "3000", "1", "1"]),
    ] {
        let now: i64 = reply[1].parse().unwrap();
        assert!(reply[0] == "OUTSIDE" && now >= to, "{reply:?}");
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

/// Returns the folder that contains ioredis, or reports that it is missing.
pub(crate) fn node_modules() -> Option<OsString> {
    let modules = std::env::var_os("COUNTERFOIL_NODE_MODULES");
    let modules = modules.filter(|path| Path::new(path).exists());
    if modules.is_none() {
        eprintln!("COUNTERFOIL_NODE_MODULES is not set: the test in Node is skipped");
    }
    modules
}

pub(crate) fn client(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients");
    folder.join(name)
}

/// Runs the command to its end, and returns its output.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output();
    let output = output.unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err, status) = (text(&output.stdout), text(&output.stderr), output.status);
    assert!(status.success(), "{command:?}: {status}\n{out}{err}");
    out
}

fn passed(output: &str) {
    let cases: usize = vectors().iter().map(|vectors| vectors.cases.len()).sum();
    assert_eq!(output.trim(), format!("{cases} passed, 0 failed"));
}

#[tokio::test]
async fn python_runs_the_vectors() {
    let server = RedisServer::start(RedisOptions::volatile()).await;
    if let Some(mut python) = python() {
        let vectors = python.arg(client("vectors.py")).arg(server.socket());
        passed(&run(vectors.arg(lua())));
    }
}

#[tokio::test]
async fn node_runs_the_vectors() {
    let server = RedisServer::start(RedisOptions::volatile()).await;
    let Some(modules) = node_modules() else {
        return;
    };
    let mut node = Command::new("node");
    let vectors = node.arg(client("vectors.mjs")).arg(server.socket());
    passed(&run(vectors.arg(lua()).env("NODE_PATH", modules)));
}
