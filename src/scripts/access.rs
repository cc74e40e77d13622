//! What the Redis user may do. A command that is refused in the middle of a script leaves half of it, so every one that the
//! scripts of a kind use is tried before a family of that kind is.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::{join, join_all};
use redis::aio::ConnectionLike;

use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::finding::{Finding, Severity};
use crate::scripts::bundle::{self, Script};
use crate::scripts::keys::Keys;

/// The commands that are needed of a Redis, with arguments that change nothing: `@` is a key that is not there, or that the
/// last one takes away again.
const TRIES: [&str; 33] = [
    "EXISTS @",
    "HDEL @ field",
    "HEXISTS @ field",
    "HGET @ field",
    "HGETALL @",
    "HINCRBY @ field none",
    "HKEYS @",
    "HLEN @",
    "HMGET @ field",
    "HSCAN @ 0",
    "HSET @ field value field",
    "INFO server",
    "PEXPIRE @ none",
    "PFCOUNT @",
    "PTTL @",
    "RENAME @ @",
    "SMISMEMBER @ member",
    "SREM @ member",
    "TIME",
    "ZADD @ none member",
    "ZCARD @",
    "ZCOUNT @ 0 0",
    "ZMSCORE @ member",
    "ZRANGE @ 0 0",
    "ZRANGEBYLEX @ - +",
    "ZRANGEBYSCORE @ 0 0",
    "ZREM @ member",
    "ZREMRANGEBYRANK @ 0 0",
    "ZSCAN @ 0",
    "ZSCORE @ member",
    "SADD @ member",
    "PFADD @ element",
    "UNLINK @",
];

/// Those that the crate sends beside the bundle's scripts.
const OWN: [&str; 6] = ["EXISTS", "HGET", "HSCAN", "INFO", "ZCARD", "ZSCAN"];

/// Tries each, and returns the names of those that are refused to the user. Most servers give such an error no code of its own.
const TRY: &str = "\
local denied = {}
for try in ARGV[1]:gmatch('[^,]+') do
  local words = {}
  for word in try:gmatch('%S+') do words[#words + 1] = word == '@' and KEYS[1] or word end
  local reply = redis.pcall(unpack(words))
  local text = type(reply) == 'table' and reply.err or ''
  if text:find('NOPERM') or text:find('ACL failure in script') or text:find('The user executing the script') then
    denied[#denied + 1] = words[1]:lower()
  end
end
return denied";

/// What the user of this connection lacks for the family, as rules of an ACL: `+pexpire`, or `~cf1:{shop/*` for its keys.
///
/// # Errors
/// [`AccessDenied`](ErrorKind::AccessDenied) without credentials; [`Redis`](ErrorKind::Redis) where it cannot be asked.
pub async fn missing<C>(redis: &C, family: &Family) -> Result<Vec<String>>
where
    C: ConnectionLike + Clone + 'static,
{
    let used = commands_of(family);
    let is_used = |words: &&str| words.split(' ').next().is_some_and(|command| used.contains(command));
    // in one word: who has not logged in is cut off for more than ten
    let tries = [TRIES.into_iter().filter(is_used).collect::<Vec<_>>().join(",")];
    let key = [Keys::new(family, 0).probe()];
    let tried = bundle::reading::<_, Vec<String>>(redis, TRY, &key, &tries);
    let (tried, evalsha) = join(tried, bundle::call_none(redis, &key[0])).await;
    let mut missing = match tried {
        Ok(denied) => denied.iter().map(|command| format!("+{command}")).collect(),
        Err(error) => vec![lacks(family, "eval", error)?],
    };
    if let Err(error) = evalsha {
        missing.push(lacks(family, "evalsha", error)?);
    }
    missing.dedup();
    Ok(missing)
}

/// Refuses a user who lacks something for the family, and names it.
pub async fn refuse_lacking<C>(redis: &C, family: &Family) -> Result<()>
where
    C: ConnectionLike + Clone + 'static,
{
    let missing = missing(redis, family).await?;
    if missing.is_empty() { Ok(()) } else { Err(lacking(family, &missing)) }
}

/// The same error for a script that was refused to the user.
pub fn explain(family: &Family, error: Error) -> Error {
    lacks(family, "evalsha", error).map_or_else(|error| error, |rule| lacking(family, &[rule]))
}

fn lacking(family: &Family, rules: &[String]) -> Error {
    let message = format!("{family}: the Redis user lacks {} (see docs/operations.md)", rules.join(" "));
    Error::new(ErrorKind::AccessDenied, message)
}

/// The same for one family of each kind, as findings.
pub async fn findings<C>(redis: &C, families: &[Family]) -> Vec<Finding>
where
    C: ConnectionLike + Clone + 'static,
{
    let kinds: BTreeMap<_, _> = families.iter().map(|family| (family.kind(), family)).collect();
    let refusals = join_all(kinds.values().map(|family| refuse_lacking(redis, family))).await;
    let refusals = refusals.into_iter().filter_map(Result::err).filter(|error| error.kind() == ErrorKind::AccessDenied);
    let advice = "Add it with ACL SETUSER: a script that is refused in its middle leaves half of what it does.";
    refusals.map(|error| Finding::new(Severity::Error, "redis acl", error.to_string(), advice)).collect()
}

/// The commands of the scripts that families of this kind are used with, and those that the crate sends itself.
fn commands_of(family: &Family) -> BTreeSet<&'static str> {
    let is_used =
        |script: &&Script| family.scripts().iter().chain(&["family_"]).any(|name| script.name.starts_with(name));
    Script::all().filter(is_used).flat_map(Script::commands).chain(OWN).collect()
}

/// What the user lacks who may not send this command.
fn lacks(family: &Family, command: &str, error: Error) -> Result<String> {
    let refusal = bundle::below(&error).filter(|below| below.code() == Some("NOPERM"));
    match refusal.and_then(|below| below.detail()) {
        Some(text) if text.contains(&format!("'{command}'")) => Ok(format!("+{command}")),
        Some(_) => Ok(format!("~cf1:{{{}/*", family.namespace())),
        None => Err(error),
    }
}
