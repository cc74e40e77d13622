//! The vectors of `lua/vectors`, run from Rust, Python and Node against a private Redis.
//!
//! `COUNTERFOIL_PYTHON` names a Python with redis-py, `COUNTERFOIL_NODE_MODULES` a folder that
//! contains ioredis. Without them, the tests that need them are skipped.

use std::ffi::OsString;
use std::process::Command;

use counterfoil::MemoryRedis;
use redis::aio::ConnectionLike as _;
use redis::{Cmd, ConnectionLike, RedisError, ToRedisArgs, Value};
use serde::Deserialize;
use serde_json::Value as Json;

use crate::support::*;

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
pub enum Content {
    Hash(Hash),
    /// Members with their scores.
    Zset(Hash),
    Set(BTreeSet<Bytes>),
    String(Bytes),
    List(Vec<Bytes>),
}

/// A Redis with the scripts.
pub struct Run {
    redis: Box<dyn ConnectionLike + Send>,
    hashes: HashMap<String, String>,
}

pub fn lua() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("lua")
}

fn vectors() -> Vec<Vectors> {
    let files = fs::read_dir(lua().join("vectors")).unwrap();
    let parse = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        let prefix = serde_json::from_str::<Json>(&text).unwrap()["prefix"].clone();
        serde_json::from_str(&text.replace("\"@", &format!("\"{}", prefix.as_str().unwrap())))
            .unwrap_or_else(|e| panic!("{}: {e}", path.display()))
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
pub fn value(item: &Json) -> Value {
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
    fields
        .iter()
        .map(|(field, value)| (name(field), bytes(value)))
        .collect()
}

/// Returns the content of a hash given as JSON.
fn hash_of(json: &Json) -> Hash {
    hash(&serde_json::from_value(json.clone()).unwrap())
}

/// Returns the expected content of a key: a hash, `{"zset": {...}}` or `{"set": [...]}`.
fn content(fields: &BTreeMap<String, Json>) -> Content {
    match fields
        .iter()
        .next()
        .filter(|_| fields.len() == 1)
        .map(|(kind, content)| (kind.as_str(), content))
    {
        Some(("zset", scores @ Json::Object(_))) => Content::Zset(hash_of(scores)),
        Some(("set", Json::Array(members))) => {
            Content::Set(all_bytes(members).into_iter().collect())
        }
        _ => Content::Hash(hash(fields)),
    }
}

impl Run {
    pub async fn new() -> (RedisServer, Self) {
        let server = new_redis().await;
        let redis = server.client().get_connection().unwrap();
        (server, Run::over(redis))
    }

    /// Loads the scripts. Panics in a runtime if the connection is in memory.
    fn over(redis: impl ConnectionLike + Send + 'static) -> Self {
        let (redis, hashes) = (Box::new(redis), HashMap::new());
        let mut run = Run { redis, hashes };
        scripts()
            .iter()
            .for_each(|(name, source)| run.load(name, source));
        run
    }

    fn load(&mut self, name: &str, source: &str) {
        let hash = self.get(&["SCRIPT", "LOAD", source]);
        self.hashes.insert(name.into(), hash);
    }

    /// Sends a command.
    pub fn get<T: FromRedisValue>(&mut self, words: &[impl ToRedisArgs]) -> T {
        redis::Cmd::new()
            .arg(words)
            .query(&mut *self.redis)
            .unwrap()
    }

    pub fn send(
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
    pub fn contents(&mut self) -> BTreeMap<Bytes, Content> {
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
                    Content::Zset(self.get(&[&all("ZRANGE")[..], &["WITHSCORES".into()]].concat()))
                }
                "set" => Content::Set(self.get(&one("SMEMBERS"))),
                "string" => Content::String(self.get(&one("GET"))),
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
                    fill.arg(hash_of(step)).exec(&mut *self.redis).unwrap();
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

    /// Checks that all vectors pass.
    fn passes_all(&mut self) {
        let (mut passed, mut failed) = (0, BTreeMap::new());
        for vectors in vectors() {
            for case in &vectors.cases {
                match self.case(&vectors, case) {
                    Ok(()) => passed += 1,
                    Err(wrong) => drop(failed.insert(case.id.clone(), wrong)),
                }
            }
        }
        assert!(
            passed > 0 && failed.is_empty(),
            "{passed} passed, {} failed: {failed:#?}",
            failed.len()
        );
    }

    /// Checks that without the guard the vector with this id fails.
    fn check_guard(&mut self, vectors: &[Vectors], script: &str, guard: &[String]) {
        self.load(script, &changed(script, guard));
        let id = format!("{script}/{}", guard[2]);
        let of_script = vectors.iter().filter(|vectors| vectors.script == script);
        let mut cases = of_script.flat_map(|of| of.cases.iter().map(move |case| (of, case)));
        let named = cases.find(|(_, case)| case.id == id);
        let (vectors, case) = named.unwrap_or_else(|| panic!("there is no vector {id}"));
        assert!(
            self.case(vectors, case).is_err(),
            "{script} without {guard:?} passes {id}"
        );
        self.load(script, &scripts()[script]);
    }
}

pub fn equal<T: PartialEq + Debug>(what: &str, got: &T, expected: &T) -> Result<(), String> {
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
    run.passes_all();
}

/// The stand-in for Redis as a connection that blocks.
struct InMemory(MemoryRedis, Runtime);

impl ConnectionLike for InMemory {
    fn req_packed_command(&mut self, packed: &[u8]) -> RedisResult<Value> {
        let words: Vec<Bytes> = redis::from_redis_value(redis::parse_redis_value(packed)?)?;
        let command = Cmd::new().arg(words).to_owned();
        self.1.block_on(self.0.req_packed_command(&command))
    }

    fn req_packed_commands(&mut self, _: &[u8], _: usize, _: usize) -> RedisResult<Vec<Value>> {
        unreachable!("no vector is a pipeline")
    }

    fn get_db(&self) -> i64 {
        0
    }

    fn check_connection(&mut self) -> bool {
        true
    }

    fn is_open(&self) -> bool {
        true
    }
}

#[test]
fn in_memory() {
    let mut run = Run::over(InMemory(MemoryRedis::new(), runtime()));
    run.passes_all();
}

/// The scripts that share the fence.
pub const FENCED: [&str; 5] = [
    "buffered_add",
    "cached_incr",
    "series_add",
    "activity_touch",
    "visitors_first",
];

#[tokio::test]
async fn a_script_without_a_guard_fails_its_vector() {
    let ((_server, mut run), vectors) = (Run::new().await, vectors());
    let mut all = changes("vectors");
    let fence = all.remove("fence").unwrap();
    for script in FENCED {
        all.entry(script.into()).or_default().extend(fence.clone());
    }
    for (script, guards) in all {
        for guard in guards {
            run.check_guard(&vectors, &script, &guard);
        }
    }
}

/// Returns the Python with redis-py, or reports that it is missing.
pub fn python() -> Option<Command> {
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
pub fn node_modules() -> Option<OsString> {
    let modules = std::env::var_os("COUNTERFOIL_NODE_MODULES");
    let modules = modules.filter(|path| Path::new(path).exists());
    if modules.is_none() {
        eprintln!("COUNTERFOIL_NODE_MODULES is not set: the test in Node is skipped");
    }
    modules
}

pub fn client(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/clients")
        .join(name)
}

/// Runs the command to its end, and returns its output.
pub fn run(command: &mut Command) -> String {
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
    let server = new_redis().await;
    if let Some(mut python) = python() {
        passed(&run(python
            .arg(client("vectors.py"))
            .arg(server.socket())
            .arg(lua())));
    }
}

#[tokio::test]
async fn node_runs_the_vectors() {
    let server = new_redis().await;
    let Some(modules) = node_modules() else {
        return;
    };
    passed(&run(Command::new("node")
        .arg(client("vectors.mjs"))
        .arg(server.socket())
        .arg(lua())
        .env("NODE_PATH", modules)));
}
