//! The Lua bundle, and the calls of scripts by EVALSHA and EVAL.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::LazyLock;

use include_dir::{Dir, include_dir};
use redis::{Cmd, RedisError, RedisResult, ServerErrorKind, Value};

use crate::connection::Connection;
use crate::connection::refusal;
use crate::error::{Error, ErrorKind, Result};

static FILES: Dir<'static> = include_dir!("$CARGO_MANIFEST_DIR/lua/v1");

/// One script of the bundle, a file in `lua/v1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// The script's name, e.g. `buffered_add`.
    pub name: &'static str,
    /// The text that Redis runs, byte for byte.
    pub source: &'static str,
    /// The SHA-1 of the source in 40 hexadecimal digits, as EVALSHA takes it.
    pub sha1: String,
}

static BUNDLE: LazyLock<HashMap<&'static str, Script>> = LazyLock::new(|| {
    let script = |file: &'static include_dir::File<'static>| {
        let (name, source) = (file.path().file_stem()?.to_str()?, file.contents_utf8()?);
        Some((
            name,
            Script {
                name,
                source,
                sha1: sha1_smol::Sha1::from(source).digest().to_string(),
            },
        ))
    };
    FILES.files().filter_map(script).collect()
});

impl Script {
    /// Returns all scripts of the bundle, in no particular order.
    pub fn all() -> impl Iterator<Item = &'static Script> {
        BUNDLE.values()
    }

    /// Returns the script of that name.
    pub fn named(name: &str) -> Option<&'static Script> {
        BUNDLE.get(name)
    }

    /// Returns the first part of the name: the kind of family that the script is for, or `family`
    /// for any kind.
    pub(crate) fn kind(&self) -> &'static str {
        self.name.split('_').next().unwrap_or_default()
    }

    /// Returns `lua/manifest.json`: the keys, arguments, replies and errors of each script, for
    /// programs.
    pub fn manifest() -> &'static str {
        include_str!("../../lua/manifest.json")
    }

    /// Returns the Redis commands that the script calls, in upper case. A command may occur several
    /// times.
    pub(crate) fn commands(&self) -> impl Iterator<Item = &'static str> {
        self.source
            .split("call('")
            .skip(1)
            .filter_map(|call| call.split('\'').next())
    }
}

/// An argument of a call: arbitrary bytes.
pub type Arg<'a> = Cow<'a, [u8]>;

/// Borrows a value as an argument.
pub fn borrowed<T: AsRef<[u8]> + ?Sized>(word: &T) -> Arg<'_> {
    Cow::Borrowed(word.as_ref())
}

/// Formats a value as an owned argument.
pub fn owned<'a>(word: impl fmt::Display) -> Arg<'a> {
    Cow::Owned(word.to_string().into_bytes())
}

/// Calls a script by its hash, and by its source if Redis does not know the hash, which registers
/// it again.
///
/// The source is sent by EVAL, to the node of the call. SCRIPT LOAD goes to all nodes of a cluster,
/// and fails while any is unreachable, even a replica. From 7.4 on Redis forgets EVAL's scripts
/// among hundreds of others; they are then resent.
///
/// # Errors
/// [`Redis`](ErrorKind::Redis), [`AccessDenied`](ErrorKind::AccessDenied): definitely not executed.
/// [`OutcomeUnknown`](ErrorKind::OutcomeUnknown): no reply came, or the reply does not prove that
/// nothing was done. [`InvalidInput`](ErrorKind::InvalidInput), [`Corrupt`](ErrorKind::Corrupt):
/// the script refused the call and did nothing.
pub async fn call(
    redis: &Connection,
    name: &'static str,
    keys: &[impl AsRef<[u8]>],
    args: &[impl AsRef<[u8]>],
) -> Result<Reply> {
    let script = Script::named(name)
        .ok_or_else(|| Error::corrupt(format!("the bundle has no script {name}")))?;
    #[cfg(feature = "test-hooks")]
    if let Some(without_guard) = crate::testing::ablation::without_guard(script.source) {
        return Reply::new(
            name,
            eval(redis, &without_guard, keys, args)
                .await
                .map_err(not_executed)?,
        );
    }
    let mut reply = redis
        .send(&command("EVALSHA", &script.sha1, keys, args))
        .await;
    if matches!(&reply, Err(error) if error.kind() == redis::ErrorKind::Server(ServerErrorKind::NoScript))
    {
        tracing::debug!(script = name, "loading");
        reply = redis
            .send(&command("EVAL", script.source, keys, args))
            .await;
    }
    match reply {
        Ok(value) => Reply::new(name, value),
        Err(error) if is_wrong_type(&error) => Err(wrong_type(name, keys, error)),
        Err(error) => Err(classify(redis, name, error)),
    }
}

/// Runs a script that is not in the bundle.
pub async fn eval(
    redis: &Connection,
    text: &str,
    keys: &[impl AsRef<[u8]>],
    args: &[impl AsRef<[u8]>],
) -> RedisResult<Value> {
    redis.send(&command("EVAL", text, keys, args)).await
}

fn command(verb: &str, what: &str, keys: &[impl AsRef<[u8]>], args: &[impl AsRef<[u8]>]) -> Cmd {
    let mut command = Cmd::with_capacity(
        keys.len() + args.len() + 3,
        what.len() + 64 * (keys.len() + args.len() + 1),
    );
    command.arg(verb).arg(what).arg(keys.len());
    for key in keys {
        command.arg(key.as_ref());
    }
    for arg in args {
        command.arg(arg.as_ref());
    }
    command
}

/// Calls a script whose header says that a repeat is safe. A lost reply is then only a reason to
/// call again: the error is [`Redis`](ErrorKind::Redis), as for a call that was definitely not
/// executed.
pub async fn repeat_safe(
    redis: &Connection,
    name: &'static str,
    keys: &[impl AsRef<[u8]>],
    args: &[impl AsRef<[u8]>],
) -> Result<Reply> {
    call(redis, name, keys, args)
        .await
        .map_err(|error| match (error.kind(), error.redis_error()) {
            (ErrorKind::OutcomeUnknown, Some(refusal)) if refusal::is_denied(refusal) => {
                not_executed(refusal.clone())
            }
            (ErrorKind::OutcomeUnknown, _) => Error::new(
                ErrorKind::Redis,
                "Redis did not reply to a call that may be repeated",
            )
            .with_source(error),
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

/// Returns whether a key holds another type. Redis 6.2 puts the code into the text of a script's
/// error.
fn is_wrong_type(error: &RedisError) -> bool {
    error.code() == Some("WRONGTYPE")
        || error
            .detail()
            .is_some_and(|detail| detail.contains("WRONGTYPE"))
}

/// Returns the error for a key of another type. Every script reads before it writes, so nothing was
/// done.
fn wrong_type(name: &str, keys: &[impl AsRef<[u8]>], error: RedisError) -> Error {
    let keys: Vec<_> = keys
        .iter()
        .take(20)
        .map(|key| String::from_utf8_lossy(key.as_ref()))
        .collect();
    let message = format!("{name}: a key holds another type: {}", keys.join(", "));
    Error::new(ErrorKind::Corrupt, message).with_source(error)
}

fn classify(redis: &Connection, name: &'static str, error: RedisError) -> Error {
    match error.code() {
        Some("BADARG") => Error::new(ErrorKind::InvalidInput, name).with_source(error),
        Some("BADKEY" | "BADSTATE") => Error::new(ErrorKind::Corrupt, name).with_source(error),
        _ if redis.definitely_not_executed(&error) => not_executed(error),
        None => Error::new(
            ErrorKind::OutcomeUnknown,
            format!("{name}: the reply was lost"),
        )
        .with_source(error),
        Some(_) => {
            let message = format!(
                "{name}: Redis refused the call; a part or an earlier arrival of it may have been executed"
            );
            Error::new(ErrorKind::OutcomeUnknown, message).with_source(error)
        }
    }
}

/// Runs a command that reads keys of one slot, within a script. A cluster connection may send plain
/// reads to a replica, which may lag. It also leaves nodes that it is not connected to out of a sum
/// over several keys.
pub async fn read<T>(
    redis: &Connection,
    verb: &str,
    keys: &[impl AsRef<[u8]>],
    args: &[&str],
) -> Result<T>
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

/// Returns whether any of the keys exists. In a cluster they must lie in one slot.
pub async fn any_exists(redis: &Connection, keys: &[String]) -> Result<bool> {
    read::<u64>(redis, "EXISTS", keys, &[])
        .await
        .map(|existing| existing > 0)
}

/// Runs a script that only reads.
pub async fn reading<T>(
    redis: &Connection,
    text: &str,
    keys: &[impl AsRef<[u8]>],
    args: &[impl AsRef<[u8]>],
) -> Result<T>
where
    T: redis::FromRedisValue,
{
    let value = eval(redis, text, keys, args).await.map_err(|error| {
        if is_wrong_type(&error) {
            wrong_type("a read", keys, error)
        } else {
            not_executed(error)
        }
    })?;
    T::from_redis_value(value)
        .map_err(|error| Error::corrupt("unexpected value").with_source(error))
}

/// Calls a script that does not exist. Returns an error only if Redis refuses the call before it
/// looks up the script.
pub async fn call_none(redis: &Connection, key: &str) -> Result<()> {
    let reply = redis
        .send(&command("EVALSHA", &"0".repeat(40), &[key], &[""; 0]))
        .await;
    match reply {
        Err(error) if error.kind() == redis::ErrorKind::Server(ServerErrorKind::NoScript) => Ok(()),
        reply => reply.map(drop).map_err(not_executed),
    }
}

/// Returns whether a call was refused because its keys lie in several slots of a cluster.
pub fn crosses_slots(error: &Error) -> bool {
    error
        .redis_error()
        .is_some_and(|error| error.kind() == redis::ErrorKind::Server(ServerErrorKind::CrossSlot))
}

/// Returns whether a call was refused by a reply that does not prove that nothing was done. Redis
/// would reply to a repeat that the call was executed before, although a part of it may be missing.
pub fn may_be_partly_executed(error: &Error) -> bool {
    error
        .redis_error()
        .is_some_and(|error| error.code().is_some() && !refusal::proves_not_executed(error))
}

/// Runs a plain reading command. It may be executed any number of times and on any node.
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
        let mut reply = Reply {
            script,
            status: String::new(),
            rest: Vec::new(),
        };
        let Value::Array(mut items) = value else {
            return Err(reply.unexpected_reply());
        };
        if items.is_empty() {
            return Err(reply.unexpected_reply());
        }
        reply.rest = items.split_off(1);
        reply.status = items
            .pop()
            .and_then(text)
            .ok_or_else(|| reply.unexpected_reply())?;
        Ok(reply)
    }

    pub fn status(&self) -> &str {
        &self.status
    }

    /// Returns the error for a reply that the script's header does not list.
    pub fn unexpected_reply(&self) -> Error {
        Error::corrupt(format!(
            "{} replied {:?} {:?}",
            self.script, self.status, self.rest
        ))
    }

    /// Returns the values from position `from` on; an error if the reply is shorter.
    pub fn rest(&self, from: usize) -> Result<&[Value]> {
        self.rest.get(from..).ok_or_else(|| self.unexpected_reply())
    }

    /// Takes the strings from position `from` on; an error if the reply is shorter.
    pub fn strings(&mut self, from: usize) -> Result<Vec<String>> {
        let values = self.split_off(from)?;
        values
            .into_iter()
            .map(text)
            .collect::<Option<_>>()
            .ok_or_else(|| self.unexpected_reply())
    }

    /// Takes the byte strings from position `from` on; an error if the reply is shorter.
    pub fn byte_strings(&mut self, from: usize) -> Result<Vec<Vec<u8>>> {
        let values = self.split_off(from)?;
        byte_strings(values).ok_or_else(|| self.unexpected_reply())
    }

    fn split_off(&mut self, from: usize) -> Result<Vec<Value>> {
        if from <= self.rest.len() {
            Ok(self.rest.split_off(from))
        } else {
            Err(self.unexpected_reply())
        }
    }

    /// Takes the array of byte strings at the given position.
    pub fn byte_strings_in(&mut self, at: usize) -> Result<Vec<Vec<u8>>> {
        match self
            .rest
            .get_mut(at)
            .map(|item| std::mem::replace(item, Value::Nil))
        {
            Some(Value::Array(items)) => byte_strings(items).ok_or_else(|| self.unexpected_reply()),
            _ => Err(self.unexpected_reply()),
        }
    }

    /// Returns the number at the given position, sent as an integer or a string.
    pub fn number<T: std::str::FromStr + TryFrom<i64>>(&self, at: usize) -> Result<T> {
        let number = match self.rest.get(at) {
            Some(Value::Int(number)) => T::try_from(*number).ok(),
            Some(Value::BulkString(bytes)) => std::str::from_utf8(bytes)
                .ok()
                .and_then(|text| text.parse().ok()),
            _ => None,
        };
        number.ok_or_else(|| self.unexpected_reply())
    }

    /// Returns the string at the given position.
    pub fn string(&self, at: usize) -> Result<String> {
        self.rest
            .get(at)
            .cloned()
            .and_then(text)
            .ok_or_else(|| self.unexpected_reply())
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
