//! The Lua bundle, and the only EVALSHA and EVAL.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::LazyLock;

use include_dir::{Dir, include_dir};
use redis::{Cmd, RedisError, RedisResult, ServerErrorKind, Value};

use crate::connection::Connection;
use crate::connection::refusal;
use crate::error::{Error, ErrorKind, Result};
use crate::testing::ablation;

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

    /// How its name begins: the kind of the families that it is for, or `family` for any.
    pub(crate) fn kind(&self) -> &'static str {
        self.name.split('_').next().unwrap_or_default()
    }

    /// What `lua/manifest.json` says of them: keys, arguments, replies and errors of each, for programs.
    pub fn manifest() -> &'static str {
        include_str!("../../lua/manifest.json")
    }

    /// The Redis commands that it calls, in upper case, some of them several times.
    pub(crate) fn commands(&self) -> impl Iterator<Item = &'static str> {
        self.source.split("call('").skip(1).filter_map(|call| call.split('\'').next())
    }
}

/// An argument of a call: bytes of any kind.
pub type Arg<'a> = Cow<'a, [u8]>;

/// What is there already, as an argument.
pub fn arg<T: AsRef<[u8]> + ?Sized>(word: &T) -> Arg<'_> {
    Cow::Borrowed(word.as_ref())
}

/// A word that is made for the call.
pub fn made<'a>(word: impl fmt::Display) -> Arg<'a> {
    Cow::Owned(word.to_string().into_bytes())
}

/// Calls a script by its hash; where Redis does not know it (any more), by its source, which makes it known again.
///
/// The source goes by EVAL, since that goes where the call goes. SCRIPT LOAD does not in a cluster: the client sends it
/// to all nodes, and it fails while any of them, a replica even, is away. From 7.4 on Redis forgets scripts that came by
/// EVAL when there are hundreds of others: they come again then.
///
/// # Errors
/// [`Redis`](ErrorKind::Redis), [`AccessDenied`](ErrorKind::AccessDenied): surely not executed.
/// [`OutcomeUnknown`](ErrorKind::OutcomeUnknown): no reply came, or one that does not say that nothing was done.
/// [`InvalidInput`](ErrorKind::InvalidInput), [`Corrupt`](ErrorKind::Corrupt): the script refused, and did nothing.
pub async fn call(
    redis: &Connection,
    name: &'static str,
    keys: &[impl AsRef<[u8]>],
    args: &[impl AsRef<[u8]>],
) -> Result<Reply> {
    let script = Script::named(name).ok_or_else(|| Error::corrupt(format!("the bundle has no script {name}")))?;
    if let Some(without_guard) = ablation::patched(name, script.source) {
        return Reply::new(name, eval(redis, &without_guard, keys, args).await.map_err(not_executed)?);
    }
    let mut reply = redis.send(&command("EVALSHA", &script.sha1, keys, args)).await;
    if matches!(&reply, Err(error) if error.kind() == redis::ErrorKind::Server(ServerErrorKind::NoScript)) {
        tracing::debug!(script = name, "loading");
        reply = redis.send(&command("EVAL", script.source, keys, args)).await;
    }
    match reply {
        Ok(value) => Reply::new(name, value),
        Err(error) if is_wrong_type(&error) => Err(wrong_type(name, keys, error)),
        Err(error) => Err(classify(redis, name, error)),
    }
}

/// Runs a text that is not of the bundle.
pub async fn eval(
    redis: &Connection,
    text: &str,
    keys: &[impl AsRef<[u8]>],
    args: &[impl AsRef<[u8]>],
) -> RedisResult<Value> {
    redis.send(&command("EVAL", text, keys, args)).await
}

fn command(verb: &str, what: &str, keys: &[impl AsRef<[u8]>], args: &[impl AsRef<[u8]>]) -> Cmd {
    let mut command = Cmd::with_capacity(keys.len() + args.len() + 3, what.len() + 64 * (keys.len() + args.len() + 1));
    command.arg(verb).arg(what).arg(keys.len());
    for key in keys {
        command.arg(key.as_ref());
    }
    for arg in args {
        command.arg(arg.as_ref());
    }
    command
}

/// Calls a script whose header says that a repeat is safe, so that a lost reply is no more than a reason to call again:
/// [`Redis`](ErrorKind::Redis), like a call that was surely not executed.
pub async fn repeat_safe(
    redis: &Connection,
    name: &'static str,
    keys: &[impl AsRef<[u8]>],
    args: &[impl AsRef<[u8]>],
) -> Result<Reply> {
    call(redis, name, keys, args).await.map_err(|error| match (error.kind(), below(&error)) {
        (ErrorKind::OutcomeUnknown, Some(refusal)) if refusal::is_denied(refusal) => not_executed(refusal.clone()),
        (ErrorKind::OutcomeUnknown, _) => {
            Error::new(ErrorKind::Redis, "Redis did not reply a call that may be repeated").with_source(error)
        }
        _ => error,
    })
}

fn not_executed(error: RedisError) -> Error {
    let refusal = if refusal::is_denied(&error) {
        Error::new(ErrorKind::AccessDenied, "Redis denies access")
    } else {
        Error::new(ErrorKind::Redis, "Redis did not execute the call")
    };
    refusal.with_source(error)
}

/// Redis 6.2 puts it into an error of the script's.
fn is_wrong_type(error: &RedisError) -> bool {
    error.code() == Some("WRONGTYPE") || error.detail().is_some_and(|detail| detail.contains("WRONGTYPE"))
}

/// Every script reads before it writes, so nothing was done.
fn wrong_type(name: &str, keys: &[impl AsRef<[u8]>], error: RedisError) -> Error {
    let keys: Vec<_> = keys.iter().take(20).map(|key| String::from_utf8_lossy(key.as_ref())).collect();
    let message = format!("{name}: a key holds another type: {}", keys.join(", "));
    Error::new(ErrorKind::Corrupt, message).with_source(error)
}

fn classify(redis: &Connection, name: &'static str, error: RedisError) -> Error {
    match error.code() {
        Some("BADARG") => Error::new(ErrorKind::InvalidInput, name).with_source(error),
        Some("BADKEY" | "BADSTATE") => Error::new(ErrorKind::Corrupt, name).with_source(error),
        _ if redis.definitely_not_executed(&error) => not_executed(error),
        None => Error::new(ErrorKind::OutcomeUnknown, format!("{name}: the reply was lost")).with_source(error),
        Some(_) => {
            let message = format!("{name}: Redis refused it, perhaps after a part or an earlier arrival was executed");
            Error::new(ErrorKind::OutcomeUnknown, message).with_source(error)
        }
    }
}

/// A command that reads keys of one slot. It goes as a script, since a cluster connection may send plain reads to a
/// replica, which may be behind, and leaves nodes that it has no connection to out of a sum over several keys.
pub async fn read<T>(redis: &Connection, verb: &str, keys: &[impl AsRef<[u8]>], args: &[&str]) -> Result<T>
where
    T: redis::FromRedisValue,
{
    const READ: &str = "\
local words = { ARGV[1] }
for i = 1, #KEYS do words[#words + 1] = KEYS[i] end
for i = 2, #ARGV do words[#words + 1] = ARGV[i] end
return redis.call(unpack(words))";
    let words: Vec<&str> = std::iter::once(verb).chain(args.iter().copied()).collect();
    reading(redis, READ, keys, &words).await
}

/// Runs a text that only reads.
pub async fn reading<T>(
    redis: &Connection,
    text: &str,
    keys: &[impl AsRef<[u8]>],
    args: &[impl AsRef<[u8]>],
) -> Result<T>
where
    T: redis::FromRedisValue,
{
    let value = eval(redis, text, keys, args)
        .await
        .map_err(|error| if is_wrong_type(&error) { wrong_type("a read", keys, error) } else { not_executed(error) })?;
    T::from_redis_value(value).map_err(|error| Error::corrupt("what was read").with_source(error))
}

/// Calls a script that there is not: an error only where Redis does not even look for it.
pub async fn call_none(redis: &Connection, key: &str) -> Result<()> {
    let reply = redis.send(&command("EVALSHA", &"0".repeat(40), &[key], &[""; 0])).await;
    match reply {
        Err(error) if error.kind() == redis::ErrorKind::Server(ServerErrorKind::NoScript) => Ok(()),
        reply => reply.map(drop).map_err(not_executed),
    }
}

/// Whether a call was refused because its keys lie in several slots of a cluster.
pub fn crosses_slots(error: &Error) -> bool {
    below(error).is_some_and(|error| error.kind() == redis::ErrorKind::Server(ServerErrorKind::CrossSlot))
}

/// Whether a call was refused by a reply that does not tell that nothing was done. Of a repeat Redis would say that it was
/// executed before, although a part of it may be missing.
pub fn may_be_half_done(error: &Error) -> bool {
    below(error).is_some_and(|error| error.code().is_some() && !refusal::tells_that_nothing_was_done(error))
}

/// What Redis, or its client, said.
pub fn below(error: &Error) -> Option<&RedisError> {
    std::error::Error::source(error)?.downcast_ref()
}

/// A plain reading command, for which it does not matter how often it is executed, nor where.
pub async fn query<T>(redis: &Connection, command: &Cmd) -> Result<T>
where
    T: redis::FromRedisValue,
{
    let value = redis.send(command).await.map_err(not_executed)?;
    T::from_redis_value(value).map_err(|error| not_executed(error.into()))
}

/// A script's reply: a status word, then strings and integers.
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

    /// The error for a reply that the script's header does not know.
    pub fn misshapen(&self) -> Error {
        Error::corrupt(format!("{} replied {:?} {:?}", self.script, self.status, self.rest))
    }

    /// What comes from the given place on, which must be there.
    pub fn rest(&self, from: usize) -> Result<&[Value]> {
        self.rest.get(from..).ok_or_else(|| self.misshapen())
    }

    /// The strings from the given place on, which must be there.
    pub fn strings(&mut self, from: usize) -> Result<Vec<String>> {
        let values = self.split_off(from)?;
        values.into_iter().map(text).collect::<Option<_>>().ok_or_else(|| self.misshapen())
    }

    /// The same of any bytes.
    pub fn byte_strings(&mut self, from: usize) -> Result<Vec<Vec<u8>>> {
        let values = self.split_off(from)?;
        byte_strings(values).ok_or_else(|| self.misshapen())
    }

    fn split_off(&mut self, from: usize) -> Result<Vec<Value>> {
        if from <= self.rest.len() { Ok(self.rest.split_off(from)) } else { Err(self.misshapen()) }
    }

    /// The array of strings of any bytes at the given place.
    pub fn byte_strings_in(&mut self, at: usize) -> Result<Vec<Vec<u8>>> {
        match self.rest.get_mut(at).map(|item| std::mem::replace(item, Value::Nil)) {
            Some(Value::Array(items)) => byte_strings(items).ok_or_else(|| self.misshapen()),
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

fn byte_strings(values: Vec<Value>) -> Option<Vec<Vec<u8>>> {
    let bytes = |value| match value {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    };
    values.into_iter().map(bytes).collect()
}

fn text(value: Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        Value::Okay => Some("OK".to_owned()),
        _ => None,
    }
}
