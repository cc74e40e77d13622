//! The Lua bundle, and the calls of scripts by EVALSHA and EVAL.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::LazyLock;
use std::time::Duration;

use include_dir::{Dir, include_dir};
use redis::{Cmd, RedisError, ServerErrorKind, ToRedisArgs, Value};

use crate::connection::Connection;
use crate::connection::refusal;
use crate::error::{Error, ErrorKind, Result};
use crate::scripts::keys::Key;

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

/// The length that most keys and arguments do not exceed, by which a call reserves memory.
const WORD: usize = 32;

/// A call of a script. Keys, then arguments, are written straight into the command.
pub struct ScriptCall {
    script: &'static Script,
    keys: usize,
    command: Cmd,
}

impl ScriptCall {
    /// Begins a call with this number of keys, and room for this number of arguments.
    pub fn new(name: &'static str, keys: usize, args: usize) -> Result<Self> {
        let script = Script::named(name)
            .ok_or_else(|| Error::corrupt(format!("the bundle has no script {name}")))?;
        let words = 3 + keys + args;
        let mut command = Cmd::with_capacity(words, words * WORD);
        command.arg("EVALSHA").arg(&script.sha1).arg(keys);
        Ok(ScriptCall {
            script,
            keys,
            command,
        })
    }

    /// Adds the next key or argument, or all of an array.
    pub fn arg(&mut self, word: impl ToRedisArgs) -> &mut Self {
        self.command.arg(word);
        self
    }

    /// Calls the script by its hash, and by its source if Redis does not know the hash, which
    /// registers it again.
    ///
    /// The source is sent by EVAL, to the node of the call. SCRIPT LOAD goes to all nodes of a
    /// cluster, and fails while any is unreachable, even a replica. From 7.4 on Redis forgets
    /// EVAL's scripts among hundreds of others; they are then resent.
    ///
    /// # Errors
    /// [`Redis`](ErrorKind::Redis), [`AccessDenied`](ErrorKind::AccessDenied): definitely not
    /// executed. [`OutcomeUnknown`](ErrorKind::OutcomeUnknown): no reply came, or the reply does
    /// not prove that nothing was done. [`InvalidInput`](ErrorKind::InvalidInput),
    /// [`Corrupt`](ErrorKind::Corrupt): the script refused the call and did nothing.
    pub async fn send(self, redis: &Connection) -> Result<Reply> {
        let name = self.script.name;
        #[cfg(feature = "test-hooks")]
        if let Some(text) = crate::testing::ablation::without_guard(self.script.source) {
            let reply = redis.send(&self.with_source(&text)).await;
            let reply = reply.map_err(|error| classify(redis, name, error))?;
            return Reply::new(name, self.first_key(), reply);
        }
        let mut reply = redis.send(&self.command).await;
        if matches!(&reply, Err(error) if error.kind() == redis::ErrorKind::Server(ServerErrorKind::NoScript))
        {
            tracing::debug!(script = name, "loading");
            reply = redis.send(&self.with_source(self.script.source)).await;
        }
        match reply {
            Ok(value) => Reply::new(name, self.first_key(), value),
            Err(error) if is_wrong_type(&error) => Err(self.wrong_type(error)),
            Err(error) => Err(classify(redis, name, error)),
        }
    }

    fn with_source(&self, source: &str) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(source).arg(self.keys);
        for word in self.words() {
            command.arg(word);
        }
        command
    }

    /// Returns the keys, then the arguments.
    fn words(&self) -> impl Iterator<Item = &[u8]> {
        self.command.args_iter().skip(3).map(|word| match word {
            redis::Arg::Simple(word) => word,
            _ => &[],
        })
    }

    fn first_key(&self) -> &[u8] {
        self.words().next().unwrap_or_default()
    }

    /// Returns the error for a key of another type. Every script reads before it writes, so
    /// nothing was done.
    fn wrong_type(&self, error: RedisError) -> Error {
        let keys: Vec<_> = self
            .words()
            .take(self.keys.min(20))
            .map(String::from_utf8_lossy)
            .collect();
        let name = self.script.name;
        let message = format!("{name}: a key holds another type: {}", keys.join(", "));
        Error::new(ErrorKind::Corrupt, message).with_source(error)
    }
}

/// Waits until a call would be sent at once.
pub async fn ready(redis: &Connection) -> Result<()> {
    redis.ready().await.map_err(not_executed)
}

/// Makes a [`ScriptCall`] with these keys and arguments.
pub async fn call(
    redis: &Connection,
    name: &'static str,
    keys: &[impl AsRef<[u8]>],
    args: &[impl AsRef<[u8]>],
) -> Result<Reply> {
    let mut call = ScriptCall::new(name, keys.len(), args.len())?;
    for key in keys {
        call.arg(key.as_ref());
    }
    for arg in args {
        call.arg(arg.as_ref());
    }
    call.send(redis).await
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
            (ErrorKind::OutcomeUnknown, _) => error.with_kind(ErrorKind::Redis),
            _ => error,
        })
}

/// Calls a script whose repeat is safe, and whose only status is OK.
pub async fn expect_ok(
    redis: &Connection,
    name: &'static str,
    keys: &[impl AsRef<[u8]>],
    args: &[impl AsRef<[u8]>],
) -> Result<Reply> {
    repeat_safe(redis, name, keys, args).await?.expect_ok()
}

/// The advice for a call that Redis refuses because its keys lie in several slots. If the
/// connection declares the cluster, no call has such keys.
const UNDECLARED: &str = "Redis is a cluster, and the connection is one to a single server: connect with Cluster (feature `cluster`), \
     or declare a custom connection with `is_cluster: true`; in counterfoil.toml, name its nodes as `cluster`";

fn not_executed(error: RedisError) -> Error {
    if error.kind() == redis::ErrorKind::Server(ServerErrorKind::CrossSlot) {
        return Error::invalid(UNDECLARED).with_source(error);
    }
    if refusal::is_denied(&error) {
        return Error::new(ErrorKind::AccessDenied, "Redis denies access").with_source(error);
    }
    if let Some(reason) = refusal::unsent_reason(&error) {
        return Error::redis("Redis is unreachable").with_source(reason);
    }
    let message = match error.code() {
        Some(_) => "Redis did not execute the call",
        None => "Redis did not reply",
    };
    Error::redis(message).with_source(error)
}

/// Returns whether a key holds another type. Redis 6.2 puts the code into the text of a script's
/// error.
fn is_wrong_type(error: &RedisError) -> bool {
    error.code() == Some("WRONGTYPE")
        || error
            .detail()
            .is_some_and(|detail| detail.contains("WRONGTYPE"))
}

fn classify(redis: &Connection, name: &'static str, error: RedisError) -> Error {
    match error.code() {
        Some("BADARG") => Error::new(ErrorKind::InvalidInput, name).with_source(error),
        Some("BADKEY" | "BADSTATE") => Error::new(ErrorKind::Corrupt, name).with_source(error),
        _ if redis.definitely_not_executed(&error) => not_executed(error),
        None => Error::new(
            ErrorKind::OutcomeUnknown,
            format!("Redis did not reply to the script {name}"),
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

/// Returns the number of these keys that exist. In a cluster they must lie in one slot.
pub async fn count_existing(redis: &Connection, keys: &[Key]) -> Result<u64> {
    const KEYS: usize = 1000;
    let mut count = 0;
    for keys in keys.chunks(KEYS) {
        let mut reply = expect_ok(redis, "family_exists", keys, &[""; 0]).await?;
        count += reply.number::<u64>()?;
    }
    Ok(count)
}

/// Returns whether any of the keys exists. In a cluster they must lie in one slot.
pub async fn any_exists(redis: &Connection, keys: &[Key]) -> Result<bool> {
    Ok(count_existing(redis, keys).await? > 0)
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

/// A script's reply: a status word, then strings and integers, which are read in their order.
#[derive(Debug)]
pub struct Reply {
    script: &'static str,
    key: String,
    status: String,
    values: Vec<Value>,
    /// The index of the value that is read next.
    next: usize,
}

impl Reply {
    fn new(script: &'static str, first_key: &[u8], reply: Value) -> Result<Self> {
        let Value::Array(values) = reply else {
            return Err(Error::corrupt(format!("{script} replied {reply:?}")));
        };
        let mut reply = Reply {
            script,
            key: String::from_utf8_lossy(first_key).into_owned(),
            status: String::new(),
            values,
            next: 0,
        };
        reply.status = reply.text()?;
        Ok(reply)
    }

    pub fn status(&self) -> &str {
        &self.status
    }

    /// Returns the reply unless it has another status than OK.
    pub fn expect_ok(self) -> Result<Self> {
        if self.status == "OK" {
            Ok(self)
        } else {
            Err(self.unexpected_reply())
        }
    }

    /// Returns true for OK, and false for the other status that the script may reply.
    pub fn is_ok_or(&self, other: &str) -> Result<bool> {
        match &*self.status {
            "OK" => Ok(true),
            status if status == other => Ok(false),
            _ => Err(self.unexpected_reply()),
        }
    }

    /// Returns the first key of the call, for errors.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the error for a reply that the script's header does not list.
    pub fn unexpected_reply(&self) -> Error {
        Error::corrupt(format!(
            "{} of {} replied {:?}",
            self.script, self.key, self.values
        ))
    }

    /// Returns the number of values that were not read yet.
    pub fn left(&self) -> usize {
        self.values.len().saturating_sub(self.next)
    }

    /// Reads the next value if `parse` accepts it.
    pub fn read<T>(&mut self, parse: impl FnOnce(&Value) -> Option<T>) -> Result<T> {
        let value = self.values.get(self.next).and_then(parse);
        self.next += 1;
        value.ok_or_else(|| self.unexpected_reply())
    }

    /// Reads as many items as expected. The reply must end with them.
    pub fn read_all<T>(
        &mut self,
        count: usize,
        mut read: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        let items = (0..count).map(|_| read(self)).collect::<Result<_>>()?;
        self.expect_end().map(|()| items)
    }

    /// Returns an error unless all values were read.
    pub fn expect_end(&self) -> Result<()> {
        if self.left() == 0 {
            Ok(())
        } else {
            Err(self.unexpected_reply())
        }
    }

    /// Reads a number, sent as an integer or a string.
    pub fn number<T: std::str::FromStr + TryFrom<i64>>(&mut self) -> Result<T> {
        self.read(|value| match value {
            Value::Int(number) => T::try_from(*number).ok(),
            value => text(value)?.parse().ok(),
        })
    }

    /// Reads a duration in milliseconds.
    pub fn millis(&mut self) -> Result<Duration> {
        self.number().map(Duration::from_millis)
    }

    /// Reads a duration in milliseconds; `None` if it is empty.
    pub fn optional_millis(&mut self) -> Result<Option<Duration>> {
        if self.values.get(self.next).and_then(text) == Some("") {
            return self.text().map(|_| None);
        }
        self.millis().map(Some)
    }

    pub fn text(&mut self) -> Result<String> {
        self.read(|value| text(value).map(str::to_owned))
    }

    pub fn bytes(&mut self) -> Result<Vec<u8>> {
        self.read(bytes)
    }

    /// Reads an array of byte strings.
    pub fn byte_strings(&mut self) -> Result<Vec<Vec<u8>>> {
        self.read(|value| match value {
            Value::Array(items) => items.iter().map(bytes).collect(),
            _ => None,
        })
    }
}

fn bytes(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Some(bytes.clone()),
        _ => None,
    }
}

/// Returns the text of a string; `None` for a value of another type and for other bytes.
pub fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        Value::Okay => Some("OK"),
        _ => None,
    }
}
