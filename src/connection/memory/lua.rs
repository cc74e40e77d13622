//! The execution of commands and of scripts, in Lua 5.1 as Redis embeds it.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use mlua::{Function, Lua, LuaOptions, LuaString, StdLib, Table, Value as LuaValue, Variadic};
use parking_lot::Mutex;
use redis::Value;
use sha1_smol::Sha1;

use super::commands;
use super::keyspace::{Bytes, Keyspace, Refusal};

/// The reply to INFO: a version that lacks nothing, and no persistence.
const INFO: &str = "redis_version:7.2.0\r\nrole:master\r\naof_enabled:0\r\nmaxmemory:0\r\n\
     maxmemory_policy:noeviction\r\ncluster_enabled:0\r\n";

/// The keys, and the scripts that are known.
pub struct Server {
    keys: Arc<Mutex<Keyspace>>,
    lua: Result<Lua, mlua::Error>,
    scripts: HashMap<Bytes, Function>,
}

/// An error reply inside of a script.
#[derive(Debug)]
struct RaisedError(Refusal);

impl fmt::Display for RaisedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for RaisedError {}

impl Server {
    pub fn new() -> Self {
        let keys = Arc::default();
        Server {
            lua: new_lua(&keys),
            keys,
            scripts: HashMap::new(),
        }
    }

    pub fn execute(&mut self, words: &[Bytes]) -> Result<Value, Refusal> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let now_us = since.unwrap_or_default().as_micros();
        self.keys.lock().now_us = i64::try_from(now_us).unwrap_or(i64::MAX);
        let Some((name, args)) = words.split_first() else {
            return Err("ERR no command".to_owned());
        };
        match (name.to_ascii_uppercase().as_slice(), args) {
            (b"EVALSHA", [sha1, rest @ ..]) => self.run(sha1, rest),
            (b"EVAL", [source, rest @ ..]) => {
                let sha1 = self.load(source)?;
                self.run(&sha1, rest)
            }
            (b"SCRIPT", [_, source]) => self.load(source).map(Value::BulkString),
            (b"INFO", _) => Ok(Value::BulkString(INFO.into())),
            (b"PING", []) => Ok(Value::SimpleString("PONG".to_owned())),
            _ => commands::execute(&mut self.keys.lock(), words),
        }
    }

    fn load(&mut self, source: &[u8]) -> Result<Bytes, Refusal> {
        let sha1 = Sha1::from(source).digest().to_string().into_bytes();
        let lua = self.lua.as_ref().map_err(failure)?;
        let script = lua.load(source).into_function().map_err(|e| failure(&e))?;
        self.scripts.insert(sha1.clone(), script);
        Ok(sha1)
    }

    /// Runs a script with the number of keys, the keys and the arguments.
    fn run(&self, sha1: &Bytes, rest: &[Bytes]) -> Result<Value, Refusal> {
        let script = self
            .scripts
            .get(sha1)
            .ok_or("NOSCRIPT No matching script.")?;
        let (keys, args) =
            keys_and_args(rest).ok_or("ERR Number of keys can't be greater than number of args")?;
        let lua = self.lua.as_ref().map_err(failure)?;
        let result = call(lua, script, keys, args).map_err(|error| failure(&error))?;
        from_lua(result)
    }
}

/// Splits the words of EVALSHA after the script, which begin with the number of keys.
fn keys_and_args(words: &[Bytes]) -> Option<(&[Bytes], &[Bytes])> {
    let (number, rest) = words.split_first()?;
    let keys = std::str::from_utf8(number).ok()?.parse().ok()?;
    rest.split_at_checked(keys)
}

fn call(
    lua: &Lua,
    script: &Function,
    keys: &[Bytes],
    args: &[Bytes],
) -> Result<LuaValue, mlua::Error> {
    lua.globals().set("KEYS", strings(lua, keys)?)?;
    lua.globals().set("ARGV", strings(lua, args)?)?;
    script.call(())
}

fn failure(error: &mlua::Error) -> Refusal {
    match error.downcast_ref::<RaisedError>() {
        Some(RaisedError(refusal)) => refusal.clone(),
        None => format!("ERR {error}"),
    }
}

/// Creates a Lua with the libraries and functions of Redis that the scripts use.
fn new_lua(keys: &Arc<Mutex<Keyspace>>) -> Result<Lua, mlua::Error> {
    let libraries = StdLib::TABLE | StdLib::STRING | StdLib::MATH;
    let lua = Lua::new_with(libraries, LuaOptions::default())?;
    let redis = lua.create_table()?;
    let (calling, trying) = (keys.clone(), keys.clone());
    let call = lua.create_function(move |lua, words: Variadic<LuaValue>| {
        match execute(&calling, &words)? {
            Ok(reply) => to_lua(lua, &reply),
            Err(refusal) => Err(mlua::Error::external(RaisedError(refusal))),
        }
    })?;
    let pcall = lua.create_function(move |lua, words: Variadic<LuaValue>| {
        match execute(&trying, &words)? {
            Ok(reply) => to_lua(lua, &reply),
            Err(refusal) => reply_table(lua, "err", refusal.as_bytes()),
        }
    })?;
    let error_reply =
        lua.create_function(|lua, text: LuaString| reply_table(lua, "err", &text.as_bytes()))?;
    let sha1hex = lua.create_function(|_, text: LuaString| {
        Ok(Sha1::from(&*text.as_bytes()).digest().to_string())
    })?;
    redis.set("call", call)?;
    redis.set("pcall", pcall)?;
    redis.set("error_reply", error_reply)?;
    redis.set("sha1hex", sha1hex)?;
    lua.globals().set("redis", redis)?;
    Ok(lua)
}

fn execute(
    keys: &Mutex<Keyspace>,
    words: &[LuaValue],
) -> Result<Result<Value, Refusal>, mlua::Error> {
    let command: Vec<Bytes> = words.iter().map(word).collect::<Result<_, _>>()?;
    Ok(commands::execute(&mut keys.lock(), &command))
}

/// Returns an argument of a command. Redis sends whole numbers without a fraction.
fn word(value: &LuaValue) -> Result<Bytes, mlua::Error> {
    match value {
        LuaValue::String(text) => Ok(text.as_bytes().to_vec()),
        LuaValue::Integer(number) => Ok(number.to_string().into_bytes()),
        LuaValue::Number(number) => Ok(number.to_string().into_bytes()),
        _ => {
            let message = "ERR Lua redis lib command arguments must be strings or integers";
            Err(mlua::Error::external(RaisedError(message.to_owned())))
        }
    }
}

fn strings(lua: &Lua, words: &[Bytes]) -> Result<Table, mlua::Error> {
    let strings = words.iter().map(|word| lua.create_string(word));
    lua.create_sequence_from(strings.collect::<Result<Vec<_>, _>>()?)
}

/// Returns an error reply (`err`) or a status (`ok`) as Lua receives it.
fn reply_table(lua: &Lua, kind: &str, text: &[u8]) -> Result<LuaValue, mlua::Error> {
    let table = lua.create_table()?;
    table.set(kind, lua.create_string(text)?)?;
    Ok(LuaValue::Table(table))
}

fn to_lua(lua: &Lua, reply: &Value) -> Result<LuaValue, mlua::Error> {
    Ok(match reply {
        #[expect(clippy::cast_precision_loss, reason = "as in Redis")]
        Value::Int(number) => LuaValue::Number(*number as f64),
        Value::BulkString(bytes) => LuaValue::String(lua.create_string(bytes)?),
        Value::Array(values) => {
            let items: Vec<_> = values
                .iter()
                .map(|value| to_lua(lua, value))
                .collect::<Result<_, _>>()?;
            LuaValue::Table(lua.create_sequence_from(items)?)
        }
        Value::Okay => reply_table(lua, "ok", b"OK")?,
        Value::SimpleString(text) => reply_table(lua, "ok", text.as_bytes())?,
        _ => LuaValue::Boolean(false),
    })
}

/// Converts the result of a script as Redis does: a number is cut to an integer, and an array ends
/// before its first nil.
fn from_lua(value: LuaValue) -> Result<Value, Refusal> {
    Ok(match value {
        LuaValue::Integer(number) => Value::Int(number),
        #[expect(clippy::cast_possible_truncation, reason = "as in Redis")]
        LuaValue::Number(number) => Value::Int(number as i64),
        LuaValue::String(text) => Value::BulkString(text.as_bytes().to_vec()),
        LuaValue::Boolean(true) => Value::Int(1),
        LuaValue::Table(table) => {
            if let Ok(Some(refusal)) = table.raw_get::<Option<LuaString>>("err") {
                return Err(refusal.to_string_lossy());
            }
            let values = table
                .sequence_values::<LuaValue>()
                .map(|value| from_lua(value.map_err(|e| failure(&e))?))
                .collect::<Result<_, _>>()?;
            Value::Array(values)
        }
        _ => Value::Nil,
    })
}
