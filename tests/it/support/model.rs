//! Random sequences of script calls, on a real Redis and on a plain reference: the part that all
//! models share.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt::Debug;
use std::fs;
use std::path::Path;
use std::rc::Rc;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, TestCaseError, TestError, TestRunner};
use redis::{Connection, ConnectionLike, FromRedisValue, Pipeline, Value, cmd};
use testkit::{RedisOptions, RedisServer};

pub type Checked = Result<(), TestCaseError>;

/// A kind's reference, and the Redis that it is compared with.
pub trait Model {
    type Step: Debug;
    /// The family, as in keys. The scripts are called on its partition 0.
    const FAMILY: &'static str;
    /// The scripts with a fence.
    const FENCED: &'static [&'static str];

    fn steps() -> BoxedStrategy<Self::Step>;

    /// Begins on an empty Redis.
    fn new(scripts: Scripts) -> Self;

    /// Calls the scripts and the reference, and compares them.
    fn step(&mut self, step: &Self::Step) -> Checked;
}

/// The number of a call, relative to the caller's last one.
#[derive(Clone, Copy, Debug)]
pub enum Number {
    Next,
    Skipping,
    Same,
    Earlier,
}

impl Number {
    /// Returns the number, which also becomes the last one if it is higher.
    pub fn after(self, last: &mut u64) -> u64 {
        let n = match self {
            Number::Next => *last + 1,
            Number::Skipping => *last + 9,
            Number::Same => *last,
            Number::Earlier => last.saturating_sub(1),
        };
        *last = n.max(*last).max(1);
        n.max(1)
    }
}

/// Draws the next number `usual` times as often as each unusual one.
pub fn numbers(usual: u32) -> impl Strategy<Value = Number> {
    prop_oneof![
        usual => Just(Number::Next),
        1 => Just(Number::Skipping),
        3 => Just(Number::Same),
        1 => Just(Number::Earlier),
    ]
}

/// A script's error for misuse.
pub const BADARG: &str = "BADARG";

/// A Redis that has the scripts loaded.
#[derive(Clone)]
pub struct Scripts {
    redis: Rc<RefCell<Connection>>,
    hashes: Rc<HashMap<String, String>>,
    family: &'static str,
}

impl Scripts {
    /// Calls the script. If it refuses misuse, the result is [`BADARG`].
    pub fn call(
        &self,
        script: &str,
        kinds: &[&str],
        args: &[String],
    ) -> Result<Value, TestCaseError> {
        let mut call = cmd("EVALSHA");
        call.arg(&self.hashes[script]).arg(kinds.len());
        call.arg(kinds.iter().map(|kind| self.key(kind)).collect::<Vec<_>>());
        let reply = self
            .redis
            .borrow_mut()
            .req_command(call.arg(args))
            .and_then(Value::extract_error);
        match reply {
            Err(error) if error.code() == Some(BADARG) => {
                Ok(Value::SimpleString(BADARG.to_owned()))
            }
            reply => {
                reply.map_err(|error| TestCaseError::fail(format!("{script} {args:?}: {error}")))
            }
        }
    }

    pub fn key(&self, kind: &str) -> String {
        format!("cf1:{{{}/0}}:{kind}", self.family)
    }

    /// Empties Redis.
    pub fn forget(&self) {
        cmd("FLUSHDB").exec(&mut *self.redis.borrow_mut()).unwrap();
    }

    pub fn ask<T: FromRedisValue>(&self, pipeline: &Pipeline) -> T {
        pipeline.query(&mut *self.redis.borrow_mut()).unwrap()
    }
}

/// Returns the scripts' sources by name.
fn sources() -> HashMap<String, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("lua/v1");
    let files = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    files
        .map(|path| {
            (
                path.file_stem().unwrap().to_str().unwrap().into(),
                fs::read_to_string(path).unwrap(),
            )
        })
        .collect()
}

fn play<M: Model>(
    mut redis: Connection,
    sources: &HashMap<String, String>,
    config: Config,
) -> Result<(), TestError<Vec<M::Step>>> {
    let mut load = |source: &String| {
        cmd("SCRIPT")
            .arg("LOAD")
            .arg(source)
            .query(&mut redis)
            .unwrap()
    };
    let hashes: HashMap<_, String> = sources
        .iter()
        .map(|(name, source)| (name.clone(), load(source)))
        .collect();
    let scripts = Scripts {
        redis: Rc::new(RefCell::new(redis)),
        hashes: Rc::new(hashes),
        family: M::FAMILY,
    };
    TestRunner::new(config).run(&vec(M::steps(), 1..80), |steps| {
        scripts.forget();
        let mut model = M::new(scripts.clone());
        for (i, step) in steps.iter().enumerate() {
            model.step(step).map_err(|error| match error {
                TestCaseError::Fail(reason) => {
                    TestCaseError::fail(format!("step {i}, {step:?}: {reason}"))
                }
                other => other,
            })?;
        }
        Ok(())
    })
}

/// Expects that the scripts match the reference in `COUNTERFOIL_CASES` sequences, 100 by default.
pub async fn agrees<M: Model>(source_file: &'static str) {
    let server = RedisServer::start(RedisOptions::volatile()).await;
    let cases = std::env::var("COUNTERFOIL_CASES").ok();
    let cases = cases.map_or(100, |cases| {
        cases.parse().expect("COUNTERFOIL_CASES is a number")
    });
    let config = Config {
        cases,
        source_file: Some(source_file),
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource(
            "proptest-regressions",
        ))),
        ..Config::default()
    };
    if let Err(error) = play::<M>(
        server.client().get_connection().unwrap(),
        &sources(),
        config,
    ) {
        panic!("{error}");
    }
}

/// Parts of every fenced script, with their replacements.
const FENCE: [(&str, &str); 5] = [
    ("epoch ~= before", "false"),
    ("epoch ~= before then return", "true then return"),
    ("last = last or redis.call('HGET', KEYS[2], caller)", ""),
    ("n - last_n < 0", "false"),
    ("n - last_n == 0", "false"),
];

/// Expects that no script passes with one of the changes, (script, from, to), or without its fence.
pub async fn notices<M: Model>(changes: &[(&str, &str, &str)]) {
    let server = RedisServer::start(RedisOptions::volatile()).await;
    let fences = M::FENCED
        .iter()
        .flat_map(|name| FENCE.map(|(from, to)| (*name, from, to)));
    for (name, from, to) in fences.chain(changes.iter().copied()) {
        let mut sources = sources();
        let source = sources.get_mut(name).unwrap();
        assert_eq!(
            source.matches(from).count(),
            1,
            "{name} has no {from:?}, or more than one"
        );
        *source = source.replace(from, to);
        let config = Config {
            cases: 20_000,
            failure_persistence: None,
            max_shrink_iters: 0,
            ..Config::default()
        };
        let played = play::<M>(server.client().get_connection().unwrap(), &sources, config);
        assert!(
            matches!(played, Err(TestError::Fail(..))),
            "{name} with {to:?} for {from:?} passes: {played:?}"
        );
    }
}
