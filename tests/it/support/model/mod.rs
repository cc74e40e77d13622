//! Random sequences of script calls, on a real Redis and on a plain reference: the frame that all
//! models share. A kind adds its steps and its part of the reference.

mod fence;
mod partition;
mod requests;

// other test programs that include this module use only a part of it
#[allow(unused_imports)]
use crate::support::*;

pub use fence::{Called, Family, Sent, called};
#[allow(unused_imports)]
pub use partition::{BatchCall, Deltas, Partition, Which};
pub use requests::{REMEMBER_MS, Requests, SentRequest, name_requests, requests};

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use proptest::collection::vec;
use proptest::test_runner::Config;
use redis::{Connection, ConnectionLike, Pipeline, Value, from_redis_value};

use super::random;
use fence::{Callers, Refusal};

pub type Checked<T = ()> = Result<T, TestCaseError>;
pub type Fields = BTreeMap<String, String>;

/// Every key by its kind, with its content and its time to live in ms, if it has one.
pub type Keys = BTreeMap<String, (Content, Option<i64>)>;

pub const FENCE: [&str; 2] = ["calls", "calls_before"];
/// The keys of a home.
pub const HOME: [&str; 4] = ["calls", "calls_before", "requests", "requests_before"];
pub const EPOCH_MS: u64 = 60_000;
/// Numbers at the limits of what Lua and clients can hold.
pub const LIMITS: [i64; 8] = [
    i64::MAX,
    i64::MIN,
    i64::MAX - 1,
    i64::MIN + 1,
    1 << 53,
    (1 << 53) + 1,
    -(1 << 53) - 1,
    1 << 62,
];
/// A script's error for misuse.
const BADARG: &str = "BADARG";
/// Scripts that free memory or only read, which the models call on a full Redis.
const DRAINING: [&str; 7] = [
    "buffered_fetch",
    "buffered_read",
    "buffered_release",
    "buffered_reset",
    "buffered_rotate",
    "cached_delete",
    "cached_saved",
];
/// The longest duration of a sequence in ms.
const TAKES_MS: i64 = 15_000;

#[derive(Clone, Debug)]
pub enum Step<S> {
    /// The clock moves forward or back.
    Clock(i64),
    /// A new epoch begins if one is due.
    Epoch,
    /// Redis loses its memory.
    Forget,
    Own(S),
}

/// One kind of counters: its part of the reference, and its calls.
pub trait Kind: Sized {
    type Step: Clone + Debug;
    const NAME: &'static str;
    /// The family, as in keys. The scripts are called on its partition 0.
    const FAMILY: &'static str;
    const START: u64;

    fn steps() -> BoxedStrategy<Step<Self::Step>>;

    /// Begins on an empty Redis, where it configures the family.
    fn begin(frame: &mut Frame) -> Checked<Self>;

    /// Calls the scripts and the reference, and compares them.
    fn step(&mut self, frame: &mut Frame, step: &Self::Step) -> Checked;

    /// Returns the keys that Redis must have, besides those of the fence. Empty ones do not exist.
    fn keys(&self) -> Keys;

    /// Called before a step to the next epoch.
    fn epoch_ends(&mut self, _frame: &mut Frame) -> Checked {
        Ok(())
    }

    /// Checks what must be true after every step.
    fn check(&self) -> Checked {
        Ok(())
    }
}

/// The content of a key.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    Hash(Fields),
    Zset(Fields),
    Set(BTreeSet<String>),
}

impl Content {
    pub fn hash<K: ToString, V: ToString>(fields: &BTreeMap<K, V>) -> Self {
        Content::Hash(texts(fields))
    }

    pub fn zset<K: ToString, V: ToString>(scores: &BTreeMap<K, V>) -> Self {
        Content::Zset(texts(scores))
    }

    fn is_empty(&self) -> bool {
        match self {
            Content::Hash(fields) | Content::Zset(fields) => fields.is_empty(),
            Content::Set(members) => members.is_empty(),
        }
    }
}

fn texts<K: ToString, V: ToString>(fields: &BTreeMap<K, V>) -> Fields {
    fields
        .iter()
        .map(|(k, v)| (k.to_string(), v.to_string()))
        .collect()
}

pub fn text(text: impl ToString) -> Value {
    Value::BulkString(text.to_string().into())
}

pub fn int(number: impl TryInto<i64, Error: Debug>) -> Value {
    Value::Int(number.try_into().unwrap())
}

/// Returns an integer if every client can hold it exactly, else its digits.
pub fn amount(sum: i64) -> Value {
    if sum.unsigned_abs() < 1 << 53 {
        Value::Int(sum)
    } else {
        text(sum)
    }
}

pub fn reply(status: &str, words: impl IntoIterator<Item = Value>) -> Value {
    Value::Array([text(status)].into_iter().chain(words).collect())
}

/// Returns the items of a reply as text.
pub fn words(reply: &Value) -> Vec<String> {
    reply
        .as_sequence()
        .unwrap_or_default()
        .iter()
        .map(|item| from_redis_value(item.clone()).unwrap_or_default())
        .collect()
}

fn fails_with(got: Checked<Value>, text: &str) -> bool {
    got.is_err_and(|error| format!("{error:#}").contains(text))
}

/// A Redis that has the scripts loaded.
#[derive(Clone)]
struct Scripts {
    redis: Rc<RefCell<Connection>>,
    hashes: Rc<HashMap<String, String>>,
    family: &'static str,
}

/// A counting call.
pub struct CountingCall<'a> {
    pub script: &'static str,
    /// The kind of families that the script counts for.
    pub kind: &'static str,
    pub keys: &'a [String],
    /// The arguments after those of the fence.
    pub args: Vec<String>,
    /// Returns the words of a reply to a repeat, from what the call's record contains.
    pub dup: fn(&str) -> Vec<Value>,
}

/// The reply to a counting call, and its record if it was executed.
pub type Counted = (Value, Option<String>);

/// The words of a reply to a repeat in most kinds: the record.
pub fn record(record: &str) -> Vec<Value> {
    vec![text(record)]
}

/// One sequence: the part of the reference that all kinds share, and the state of the callers.
pub struct Frame {
    scripts: Scripts,
    pub now: u64,
    /// The time in ms by which calls for an epoch name a later time than other calls, so that a new
    /// epoch begins although the counters' clock stands still.
    pub ahead: u64,
    /// The id of the database for which the family is configured; empty if it is unknown.
    pub database: &'static str,
    pub family: Family,
    pub callers: Callers,
    /// All names that scripts made, by what they name.
    names: BTreeSet<(&'static str, String)>,
    salts: u64,
}

impl Frame {
    fn new(scripts: Scripts, now: u64) -> Self {
        Frame {
            scripts,
            now,
            ahead: 0,
            database: "",
            family: Family::default(),
            callers: Callers::default(),
            names: BTreeSet::new(),
            salts: 0,
        }
    }

    pub fn key(&self, kind: &str) -> String {
        format!("cf1:{{{}/0}}:{kind}", self.scripts.family)
    }

    pub fn salt(&mut self) -> String {
        self.salts += 1;
        format!("salt {}", self.salts)
    }

    pub fn ask<T: FromRedisValue>(&self, pipeline: &Pipeline) -> T {
        pipeline
            .query(&mut *self.scripts.redis.borrow_mut())
            .unwrap()
    }

    /// Sends a command on a key, and ignores the reply.
    pub fn write(&self, command: &str, kind: &str, words: &[&str]) {
        let mut pipeline = pipe();
        pipeline
            .cmd(command)
            .arg(self.key(kind))
            .arg(words)
            .ignore();
        self.ask::<()>(&pipeline);
    }

    /// Calls the script. If it refuses misuse, the result is `BADARG`.
    pub fn call(
        &self,
        script: &str,
        kinds: &[impl AsRef<str>],
        args: &[impl AsRef<str>],
    ) -> Checked<Value> {
        let mut call = cmd("EVALSHA");
        call.arg(&self.scripts.hashes[script]).arg(kinds.len());
        for kind in kinds {
            call.arg(self.key(kind.as_ref()));
        }
        for arg in args {
            call.arg(arg.as_ref());
        }
        let drains = DRAINING.contains(&script);
        if drains {
            self.fill_up(true);
        }
        let got = self.scripts.redis.borrow_mut().req_command(&call);
        if drains {
            self.fill_up(false);
        }
        match got.and_then(Value::extract_error) {
            Err(error) if error.code() == Some(BADARG) => Ok(Value::SimpleString(BADARG.into())),
            reply => reply.map_err(|error| TestCaseError::fail(format!("{script}: {error}"))),
        }
    }

    /// Calls a counting script, and the reference unless the fence refuses the call. If the
    /// reference returns an error, the script must fail with that word, and change nothing. Returns
    /// the words of a call that was executed.
    pub fn count<R: Clone>(
        &mut self,
        counting: CountingCall<'_>,
        sent: &Sent,
        reference: &mut R,
        count: impl FnOnce(&mut R, &mut Family, Option<&Value>) -> Result<Counted, &'static str>,
    ) -> Checked<Option<Vec<String>>> {
        let CountingCall { script, keys, .. } = counting;
        let args = [&sent.fence(self.now)[..], &counting.args].concat();
        self.disturb(sent, true);
        let got = self.call(script, keys, &args);
        self.disturb(sent, false);

        let (mut after, mut family) = (reference.clone(), self.family.clone());
        let expected = match self.family.refusal(sent, counting.kind) {
            Err(word) => Err(word),
            Ok(Some(Refusal::OtherKind)) => Ok((Value::SimpleString(BADARG.into()), None)),
            Ok(Some(Refusal::Expired)) => Ok((reply("EXPIRED", []), None)),
            Ok(Some(Refusal::Passed)) => Ok((reply("PASSED", []), None)),
            Ok(Some(Refusal::Dup(record))) => Ok((reply("DUP", (counting.dup)(&record)), None)),
            Ok(None) => count(&mut after, &mut family, got.as_ref().ok()),
        };
        match expected {
            Err(word) => prop_assert!(fails_with(got, word), "expected {word}"),
            Ok((_, Some(_))) if sent.full => prop_assert!(fails_with(got, "maxmemory")),
            Ok((reply, record)) => {
                let got = got?;
                prop_assert_eq!(&got, &reply);
                self.callers.check(sent, &got)?;
                if let Some(record) = record {
                    (*reference, self.family) = (after, family);
                    self.family.note(sent, record);
                    return Ok(Some(words(&got).split_off(1)));
                }
            }
        }
        Ok(None)
    }

    /// Leaves Redis no memory for writes, or as much as it wants.
    fn fill_up(&self, full: bool) {
        let mut limit = pipe();
        limit
            .cmd("CONFIG")
            .arg("SET")
            .arg("maxmemory")
            .arg(u8::from(full));
        self.ask::<()>(limit.ignore());
    }

    /// Gives a key another type and fills the memory, or takes both back.
    fn disturb(&self, sent: &Sent, begins: bool) {
        if sent.full {
            self.fill_up(begins);
        }
        let Some(key) = sent.spoilt.as_ref().map(|kind| self.key(kind)) else {
            return;
        };
        let (from, to) = if begins {
            (&*key, "spare")
        } else {
            ("spare", &*key)
        };
        if !begins {
            self.ask::<()>(pipe().del(&key).ignore());
        }
        if self.ask::<(bool,)>(pipe().exists(from)).0 {
            self.ask::<()>(pipe().rename(from, to).ignore());
        }
        if begins {
            self.ask::<()>(pipe().set(&key, "1").ignore());
        }
    }

    /// Checks that a name from a script is valid and new.
    pub fn made(&mut self, what: &'static str, name: &str) -> Checked {
        prop_assert!(
            name.len() == 16 && u64::from_str_radix(name, 16).is_ok(),
            "{name:?} is no {what}"
        );
        prop_assert!(
            self.names.insert((what, name.into())),
            "the {what} {name} was given before"
        );
        Ok(())
    }

    /// Configures the family, and gives these partitions their incarnations.
    pub fn configure<'a>(
        &mut self,
        kind: &str,
        partitions: u64,
        max_pending: usize,
        metas: impl IntoIterator<Item = (&'static str, &'a mut Partition)>,
    ) -> Checked {
        let settings = [("max_pending", max_pending.to_string())];
        self.configure_with(kind, partitions, &settings, metas)
    }

    /// Configures the family with these settings of scripts, and gives these partitions their
    /// incarnations.
    pub fn configure_with<'a>(
        &mut self,
        kind: &str,
        partitions: u64,
        settings: &[(&str, String)],
        metas: impl IntoIterator<Item = (&'static str, &'a mut Partition)>,
    ) -> Checked {
        let (mut keys, mut parts) = (vec![FENCE[0]], vec![]);
        for (meta, partition) in metas {
            partition.is_known();
            keys.push(meta);
            parts.push((meta, partition));
        }
        let description = format!("settings {}", self.salts);
        let [now, partitions] = [self.now + self.ahead, partitions].map(|n| n.to_string());
        let salt = self.salt();
        let database = self.database;
        let mut args = vec![&*salt, &*now, kind, &*partitions, database, &*description];
        args.extend(settings.iter().flat_map(|(name, value)| [*name, &**value]));
        prop_assert_eq!(
            self.call("family_configure", &keys, &args)?,
            reply("OK", [])
        );
        self.family
            .configure(kind, &partitions, database, settings, &description);
        for (meta, partition) in parts {
            self.learn(meta, partition)?;
            if !database.is_empty() {
                partition.set([("database", database.into())]);
            }
        }
        // names derive from the time: at the same time, the next epoch could get the name of an old
        // one
        self.now += 1;
        Ok(())
    }

    /// Reads the incarnation if a script has just made it.
    pub fn learn(&mut self, meta: &'static str, partition: &mut Partition) -> Checked {
        if partition.lacks_name() {
            let [name]: [Option<String>; 1] = self.ask(pipe().hget(self.key(meta), "incarnation"));
            let name = name.unwrap_or_default();
            self.made(meta, &name)?;
            partition.set([("incarnation", name)]);
        }
        Ok(())
    }

    /// Asks for the epoch of a family of this kind and number of partitions.
    pub fn epoch(&mut self, kind: &str, partitions: &str) -> Checked {
        let now = self.now + self.ahead;
        let got = self.call(
            "family_epoch",
            &HOME,
            &[kind, partitions, "", &now.to_string()],
        )?;
        let begins = match self.family.due(now, kind, partitions) {
            Ok(begins) => begins,
            Err(refusal) => {
                prop_assert_eq!(got, refusal);
                return Ok(());
            }
        };
        let [status, name, generation, known @ ..] = &words(&got)[..] else {
            return Err(TestCaseError::fail(format!("{got:?} is no epoch")));
        };
        prop_assert_eq!(status, "OK");
        let settings = self.family.known().unwrap();
        prop_assert_eq!(known, &settings[..]);
        let last = self.family.get("=now").cloned();
        if begins.epoch {
            self.named("epoch", name, last.as_deref())?;
            self.family.begin(now, name);
        } else {
            prop_assert_eq!(Some(name), last.as_ref());
        }
        let last = self.family.requests.generation().cloned();
        if begins.generation {
            self.named("generation", generation, last.as_deref())?;
            self.family.requests.begin(now, generation);
        } else {
            prop_assert_eq!(generation, &last.unwrap_or_default());
        }
        Ok(())
    }

    /// Checks the name of a new epoch or generation.
    fn named(&mut self, what: &'static str, name: &str, last: Option<&str>) -> Checked {
        // a script derives a name from the time and the last name. Without a last name, a test's
        // clock that stepped back can lead to an old name, which is no mistake of the script: such
        // a sequence is given up
        prop_assume!(last.is_some() || !self.names.contains(&(what, name.to_owned())));
        self.made(what, name)
    }

    /// Compares every key of the server with those of the reference.
    fn check_keys(&self, mut expected: Keys) -> Checked {
        expected.extend(
            HOME.into_iter()
                .zip(self.family.keys())
                .map(|(kind, fields)| (kind.into(), (Content::Hash(fields), None))),
        );
        expected.retain(|_, (content, _)| !content.is_empty());
        let (keys,): (BTreeSet<String>,) = self.ask(pipe().cmd("KEYS").arg("*"));
        let expected_keys: BTreeSet<_> = expected.keys().map(|kind| self.key(kind)).collect();
        prop_assert_eq!(keys, expected_keys, "keys");
        if expected.is_empty() {
            return Ok(());
        }
        let mut read = pipe();
        for (kind, (content, _)) in &expected {
            let key = self.key(kind);
            match content {
                Content::Hash(_) => read.hgetall(&key),
                Content::Zset(_) => read.zrange_withscores(&key, 0, -1),
                Content::Set(_) => read.smembers(&key),
            };
            read.pttl(key);
        }
        let got: Vec<Value> = self.ask(&read);
        for ((kind, (content, lives)), got) in expected.iter().zip(got.chunks(2)) {
            let (value, left) = (
                got[0].clone(),
                from_redis_value::<i64>(got[1].clone()).unwrap(),
            );
            let value = match content {
                Content::Hash(_) => Content::Hash(from_redis_value(value).unwrap()),
                Content::Zset(_) => Content::Zset(from_redis_value(value).unwrap()),
                Content::Set(_) => Content::Set(from_redis_value(value).unwrap()),
            };
            prop_assert_eq!(&value, content, "{}", kind);
            // the server's own clock goes on while that of the sequence stands still, so a key may
            // have less time to live
            prop_assert!(
                lives.map_or(left == -1, |ms| (ms - TAKES_MS..=ms).contains(&left)),
                "{kind} lives {left} ms, expected {lives:?}"
            );
        }
        Ok(())
    }

    fn step<K: Kind>(&mut self, kind: &mut K, step: &Step<K::Step>) -> Checked {
        match step {
            Step::Clock(ms) => self.now = self.now.saturating_add_signed(*ms),
            Step::Epoch => {
                kind.epoch_ends(self)?;
                self.epoch(K::NAME, "")?;
            }
            Step::Forget => {
                self.scripts.forget();
                self.family = Family::default();
                self.epoch(K::NAME, "")?;
                *kind = K::begin(self)?;
            }
            Step::Own(step) => kind.step(self, step)?,
        }
        self.check_keys(kind.keys())?;
        kind.check()
    }
}

impl Scripts {
    fn forget(&self) {
        cmd("FLUSHDB").exec(&mut *self.redis.borrow_mut()).unwrap();
    }
}

/// Returns the scripts' sources by name.
pub fn scripts() -> HashMap<String, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("lua/v1");
    let script = |entry: io::Result<fs::DirEntry>| {
        let path = entry.unwrap().path();
        (
            path.file_stem().unwrap().to_str().unwrap().to_owned(),
            fs::read_to_string(path).unwrap(),
        )
    };
    fs::read_dir(folder).unwrap().map(script).collect()
}

fn play<K: Kind>(
    mut redis: Connection,
    sources: &HashMap<String, String>,
    config: Config,
) -> Result<(), TestError<Vec<Step<K::Step>>>> {
    let load = |(name, source): (&String, &String)| {
        let hash = cmd("SCRIPT").arg("LOAD").arg(source).query(&mut redis);
        (name.clone(), hash.unwrap())
    };
    let hashes = sources.iter().map(load).collect();
    let scripts = Scripts {
        redis: Rc::new(RefCell::new(redis)),
        hashes: Rc::new(hashes),
        family: K::FAMILY,
    };
    TestRunner::new(config).run(&vec(K::steps(), 1..80), |steps| {
        scripts.forget();
        let mut frame = Frame::new(scripts.clone(), K::START);
        let mut kind = K::begin(&mut frame)?;
        for (i, step) in steps.iter().enumerate() {
            frame.step(&mut kind, step).map_err(|error| match error {
                TestCaseError::Fail(why) => {
                    TestCaseError::fail(format!("step {i}, {step:?}: {why}"))
                }
                other => other,
            })?;
        }
        Ok(())
    })
}

/// Expects that the scripts match the reference in `COUNTERFOIL_CASES` sequences, 50 by default.
pub async fn agrees<K: Kind>() {
    let server = new_redis().await;
    let config = random::config(random::cases(50));
    let redis = server.client().get_connection().unwrap();
    play::<K>(redis, &scripts(), config).unwrap_or_else(|error| panic!("{error}"));
}

/// Returns the changes to scripts in `guards.json` that this test must notice, by script. A change
/// is a text of the script and its replacement. For the test of the vectors, the name of the vector
/// that must fail follows.
pub fn changes(test: &str) -> BTreeMap<String, Vec<Vec<String>>> {
    let all = include_str!("../../guards.json");
    let mut all: HashMap<String, _> = serde_json::from_str(all).unwrap();
    all.remove(test).unwrap()
}

/// Returns the script's source with the change.
pub fn changed(script: &str, change: &[String]) -> String {
    let (source, from) = (scripts().remove(script).unwrap(), &change[0]);
    assert_eq!(
        source.matches(from).count(),
        1,
        "{script} has no {from:?}, or more than one"
    );
    source.replace(from, &change[1])
}

/// The share of the changes that is tried by default: one in this number, and others with another
/// seed.
const ONE_IN: usize = 5;

/// Expects that no script passes with one of its changes. With `COUNTERFOIL_CASES` tries all of them.
pub async fn notices<K: Kind>(kind: &str) {
    let server = new_redis().await;
    let changes = changes(kind);
    let changes = changes.iter();
    let all = changes.flat_map(|(name, changes)| changes.iter().map(move |change| (name, change)));
    let (first, step) = match std::env::var_os("COUNTERFOIL_CASES") {
        Some(_) => (0, 1),
        None => (testkit::seed() as usize % ONE_IN, ONE_IN),
    };
    for (number, (name, change)) in all.enumerate() {
        let mut sources = scripts();
        sources.insert(name.clone(), changed(name, change));
        if number % step != first {
            continue;
        }
        let config = Config {
            max_shrink_iters: 0,
            ..random::config(20_000)
        };
        let started = Instant::now();
        let played = play::<K>(server.client().get_connection().unwrap(), &sources, config);
        assert!(
            matches!(played, Err(TestError::Fail(..))),
            "{name} with {change:?} passes: {played:?}"
        );
        println!("{name} with {change:?} fails after {:?}", started.elapsed());
    }
}
