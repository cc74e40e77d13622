//! The Lua bundle, and the only EVALSHA.

use std::collections::HashMap;
use std::sync::LazyLock;

use include_dir::{Dir, include_dir};
use redis::aio::ConnectionLike;
use redis::{Cmd, RedisError, ServerErrorKind, Value};

use crate::error::{Error, ErrorKind, Result};

static FILES: Dir<'static> = include_dir!("$CARGO_MANIFEST_DIR/lua/v1");

/// One script of the bundle, as it lies in `lua/v1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// Its name, e.g. `buffered_add`.
    pub name: &'static str,
    /// What Redis runs, byte for byte.
    pub source: &'static str,
    /// The SHA-1 of the source in 40 hexadecimal digits, as EVALSHA takes it.
    pub sha1: String,
}

static BUNDLE: LazyLock<HashMap<&'static str, Script>> = LazyLock::new(|| {
    let script = |file: &'static include_dir::File<'static>| {
        let (name, source) = (file.path().file_stem()?.to_str()?, file.contents_utf8()?);
        Some((name, Script { name, source, sha1: sha1_smol::Sha1::from(source).digest().to_string() }))
    };
    FILES.files().filter_map(script).collect()
});

impl Script {
    /// All scripts of the bundle, in no particular order.
    pub fn all() -> impl Iterator<Item = &'static Script> {
        BUNDLE.values()
    }

    /// The script of that name.
    pub fn named(name: &str) -> Option<&'static Script> {
        BUNDLE.get(name)
    }
}

/// Calls a script by its hash, and loads it first wherever Redis does not know it (any more).
///
/// # Errors
/// [`Redis`](ErrorKind::Redis): surely not executed. [`OutcomeUnknown`](ErrorKind::OutcomeUnknown): the connection
/// failed after the call was handed to it. [`InvalidInput`](ErrorKind::InvalidInput), [`Corrupt`](ErrorKind::Corrupt):
/// the script refused, and did nothing.
pub async fn call<C>(redis: &C, name: &'static str, keys: &[String], args: &[impl AsRef<[u8]>]) -> Result<Reply>
where
    C: ConnectionLike + Clone,
{
    let script = Script::named(name).ok_or_else(|| Error::corrupt(format!("the bundle has no script {name}")))?;
    let mut redis = redis.clone();
    // a SCRIPT FLUSH may come between loading and calling, again and again
    for _ in 0..5 {
        let mut call = Cmd::with_capacity(keys.len() + args.len() + 3, 64 * (keys.len() + args.len() + 2));
        call.arg("EVALSHA").arg(&script.sha1).arg(keys.len()).arg(keys);
        for arg in args {
            call.arg(arg.as_ref());
        }
        match redis.req_packed_command(&call).await.and_then(Value::extract_error) {
            Ok(value) => return Reply::new(name, value),
            Err(error) if error.kind() == redis::ErrorKind::Server(ServerErrorKind::NoScript) => {
                tracing::debug!(script = name, "loading");
                let mut load = Cmd::new();
                load.arg("SCRIPT").arg("LOAD").arg(script.source);
                // the call itself was surely not executed, whatever becomes of the loading
                redis.req_packed_command(&load).await.and_then(Value::extract_error).map_err(not_executed)?;
            }
            Err(error) => return Err(classify(name, error)),
        }
    }
    Err(Error::new(ErrorKind::Redis, format!("{name}: Redis keeps forgetting the script")))
}

/// Calls a script whose header says that a repeat is safe, so that a lost reply is no more than a reason to call again:
/// [`Redis`](ErrorKind::Redis), like a call that was surely not executed.
pub async fn repeat_safe<C>(redis: &C, name: &'static str, keys: &[String], args: &[impl AsRef<[u8]>]) -> Result<Reply>
where
    C: ConnectionLike + Clone,
{
    call(redis, name, keys, args).await.map_err(|error| match error.kind() {
        ErrorKind::OutcomeUnknown => {
            Error::new(ErrorKind::Redis, "Redis did not answer a call that may be repeated").with_source(error)
        }
        _ => error,
    })
}

fn not_executed(error: RedisError) -> Error {
    Error::new(ErrorKind::Redis, "Redis did not execute the call").with_source(error)
}

/// What a failed call means: a reply that is an error is a refusal before the first write (every script checks before
/// it writes, and its first write is a plain call); anything else may have been executed.
fn classify(name: &'static str, error: RedisError) -> Error {
    match error.code() {
        Some("BADARG") => Error::new(ErrorKind::InvalidInput, name).with_source(error),
        Some("BADKEY" | "BADSTATE") => Error::new(ErrorKind::Corrupt, name).with_source(error),
        Some(_) => not_executed(error),
        None if error.is_connection_refusal() => not_executed(error),
        None => Error::new(ErrorKind::OutcomeUnknown, format!("{name}: the reply was lost")).with_source(error),
    }
}

/// A plain reading command, for which it does not matter how often it is executed.
pub async fn query<C, T>(redis: &C, command: &Cmd) -> Result<T>
where
    C: ConnectionLike + Clone,
    T: redis::FromRedisValue,
{
    let mut redis = redis.clone();
    command.query_async(&mut redis).await.map_err(not_executed)
}

/// A script's answer: a status word, then strings and integers.
#[derive(Debug)]
pub struct Reply {
    script: &'static str,
    status: String,
    rest: Vec<Value>,
}

impl Reply {
    fn new(script: &'static str, value: Value) -> Result<Self> {
        let mut reply = Reply { script, status: String::new(), rest: Vec::new() };
        let Value::Array(mut items) = value else { return Err(reply.misshapen()) };
        if items.is_empty() {
            return Err(reply.misshapen());
        }
        reply.rest = items.split_off(1);
        reply.status = items.pop().and_then(text).ok_or_else(|| reply.misshapen())?;
        Ok(reply)
    }

    pub fn status(&self) -> &str {
        &self.status
    }

    /// The error for an answer that the script's header does not know.
    pub fn misshapen(&self) -> Error {
        Error::corrupt(format!("{} answered {:?} {:?}", self.script, self.status, self.rest))
    }

    /// What comes from the given place on, which must be there.
    pub fn rest(&self, from: usize) -> Result<&[Value]> {
        self.rest.get(from..).ok_or_else(|| self.misshapen())
    }

    /// The strings from the given place on, which must be there.
    pub fn strings(&mut self, from: usize) -> Result<Vec<String>> {
        if from > self.rest.len() {
            return Err(self.misshapen());
        }
        strings(self.rest.split_off(from)).ok_or_else(|| self.misshapen())
    }

    /// The array of strings at the given place.
    pub fn list(&mut self, at: usize) -> Result<Vec<String>> {
        match self.rest.get_mut(at).map(|value| std::mem::replace(value, Value::Nil)) {
            Some(Value::Array(items)) => strings(items).ok_or_else(|| self.misshapen()),
            _ => Err(self.misshapen()),
        }
    }

    /// The number at the given place, sent as an integer or a string.
    pub fn number<T: std::str::FromStr + TryFrom<i64>>(&self, at: usize) -> Result<T> {
        let number = match self.rest.get(at) {
            Some(Value::Int(number)) => T::try_from(*number).ok(),
            Some(Value::BulkString(bytes)) => std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok()),
            _ => None,
        };
        number.ok_or_else(|| self.misshapen())
    }

    /// The string at the given place.
    pub fn string(&self, at: usize) -> Result<String> {
        self.rest.get(at).cloned().and_then(text).ok_or_else(|| self.misshapen())
    }
}

fn strings(values: Vec<Value>) -> Option<Vec<String>> {
    values.into_iter().map(text).collect()
}

fn text(value: Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        Value::Okay => Some("OK".to_owned()),
        _ => None,
    }
}
