//! The permissions of the Redis user. A command refused in the middle of a script leaves the script
//! half done. Before a family is used, all commands that its kind's scripts call are therefore
//! tried.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::{join, join_all};

use crate::admin::{Finding, Role, Severity};
use crate::connection::Connection;
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::scripts::bundle::{self, Script};
use crate::scripts::keys::Keys;

/// Trial calls of the commands that the crate needs, with arguments that change nothing. `@` is a
/// key that does not exist, or that the last trial removes.
const TRIES: [&str; 32] = [
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
    "SADD @ member",
    "PFADD @ element",
    "HSETNX @ field value",
    "UNLINK @",
];

/// The scripts that a [`Writer`](Role::Writer) calls for the kinds that it counts in.
const WRITING: [&str; 9] = [
    "activity_touch",
    "activity_touch_hll",
    "buffered_add",
    "cached_get",
    "cached_incr",
    "cached_seed",
    "family_epoch",
    "series_add",
    "visitors_first",
];

/// The scripts that a [`Reader`](Role::Reader) calls.
const READING: [&str; 6] = [
    "activity_now",
    "activity_now_hll",
    "buffered_read",
    "cached_get",
    "series_get",
    "series_names",
];

/// The commands that `cached_get` calls only to issue tickets, which callers need to seed counters.
const TICKETS: [&str; 2] = ["HSET", "TIME"];

/// A script that tries commands and returns those denied to the user. Most servers give the error
/// no code of its own.
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

/// Returns the permissions that this connection's user lacks for the family, as ACL rules:
/// `+pexpire`, or `~cf1:{shop/views/*` for its keys.
///
/// # Errors
/// [`AccessDenied`](ErrorKind::AccessDenied) without credentials; [`Redis`](ErrorKind::Redis) if
/// Redis cannot be asked.
pub async fn missing(redis: &Connection, family: &Family) -> Result<Vec<String>> {
    let used = commands_of(family, Role::Reconciler);
    let is_used = |words: &&str| {
        words
            .split(' ')
            .next()
            .is_some_and(|command| used.contains(command))
    };
    // as one word: Redis disconnects an unauthenticated client that sends more than ten
    let tries = [TRIES
        .into_iter()
        .filter(is_used)
        .collect::<Vec<_>>()
        .join(",")];
    let key = [Keys::new(family, 0).probe()];
    let tried = bundle::reading::<Vec<String>>(redis, TRY, &key, &tries);
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

/// Refuses a user that lacks a permission for the family, and names the permission.
pub async fn refuse_lacking(redis: &Connection, family: &Family) -> Result<()> {
    let missing = missing(redis, family).await?;
    if missing.is_empty() {
        Ok(())
    } else {
        Err(lacking(family, &missing))
    }
}

/// Turns a permission error of a script into one that names the missing ACL rule. Other errors stay
/// as they are.
pub fn explain(family: &Family, error: Error) -> Error {
    lacks(family, "evalsha", error).map_or_else(|error| error, |rule| lacking(family, &[rule]))
}

fn lacking(family: &Family, rules: &[String]) -> Error {
    let message = format!(
        "{family}: the Redis user lacks {} (see docs/operations.md)",
        rules.join(" ")
    );
    Error::new(ErrorKind::AccessDenied, message)
}

/// Checks one family of each kind, and returns missing permissions as findings.
pub async fn findings(redis: &Connection, families: &[Family]) -> Vec<Finding> {
    let kinds: BTreeMap<_, _> = families
        .iter()
        .map(|family| (family.kind(), family))
        .collect();
    let refusals = join_all(kinds.values().map(|family| refuse_lacking(redis, family))).await;
    let refusals = refusals
        .into_iter()
        .filter_map(Result::err)
        .filter(|error| error.kind() == ErrorKind::AccessDenied);
    let advice =
        "Add it with ACL SETUSER: a script that is refused halfway leaves half of its writes.";
    refusals
        .map(|error| Finding::new(Severity::Error, "redis acl", format!("{error:#}"), advice))
        .collect()
}

/// Returns the ACL rules, for `ACL SETUSER`, that a user of that role needs for these families.
/// They begin with a key pattern for each family, such as `~cf1:{shop/views/*`. A rule for each
/// command follows, such as `+evalsha`, only for commands that the families' kinds need. Both lists
/// are ascending and without duplicates.
///
/// The connection itself needs further rules: a password, and `+cluster|slots`, `+select` or
/// `+script|load`, as docs/operations.md says.
pub fn acl_rules(families: &[Family], role: Role) -> Vec<String> {
    let keys: BTreeSet<_> = families.iter().map(key_pattern).collect();
    let commands: BTreeSet<_> = families
        .iter()
        .flat_map(|family| commands_of(family, role))
        .collect();
    let commands = commands
        .into_iter()
        .chain(["EVAL", "EVALSHA"])
        .map(str::to_lowercase)
        .collect::<BTreeSet<_>>();
    keys.into_iter()
        .chain(commands.into_iter().map(|command| format!("+{command}")))
        .collect()
}

fn key_pattern(family: &Family) -> String {
    format!("~cf1:{{{family}/*")
}

/// Returns the commands that a user of that role sends for a family, in scripts and directly.
fn commands_of(family: &Family, role: Role) -> BTreeSet<&'static str> {
    let is_of_kind = |script: &&Script| {
        family
            .scripts()
            .iter()
            .any(|name| script.name.starts_with(name))
    };
    let all = Script::all();
    match role {
        Role::Reconciler => {
            let used =
                all.filter(|script| is_of_kind(script) || script.name.starts_with("family_"));
            used.flat_map(Script::commands)
                .chain(OWN_COMMANDS)
                .collect()
        }
        Role::Writer => {
            let counts =
                |script: &&Script| script.kind() == family.kind() || script.kind() == "family";
            let used = all.filter(|script| counts(script) && WRITING.contains(&script.name));
            used.flat_map(Script::commands).collect()
        }
        Role::Reader => {
            let used = all.filter(|script| is_of_kind(script) && READING.contains(&script.name));
            let read = |script: &'static Script| {
                let is_asked =
                    |command: &&str| script.name != "cached_get" || !TICKETS.contains(command);
                script.commands().filter(is_asked)
            };
            used.flat_map(read).collect()
        }
    }
}

/// The commands that the crate sends outside the bundle's scripts.
const OWN_COMMANDS: [&str; 4] = ["EXISTS", "HGET", "HSCAN", "INFO"];

/// Returns the ACL rule that a user needs to send this command, or the error if it has another
/// cause.
fn lacks(family: &Family, command: &str, error: Error) -> Result<String> {
    let refusal = error
        .redis_error()
        .filter(|refused| refused.code() == Some("NOPERM"));
    match refusal.and_then(|refused| refused.detail()) {
        Some(text) if text.contains(&format!("'{command}'")) => Ok(format!("+{command}")),
        Some(_) => Ok(key_pattern(family)),
        None => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_of_a_role_is_in_the_bundle() {
        for name in WRITING.iter().chain(&READING) {
            assert!(Script::named(name).is_some(), "{name}");
        }
    }

    #[test]
    fn each_family_has_its_keys_and_all_share_their_commands() {
        let family = |name| {
            Family::buffered("shop", name)
                .build()
                .expect("valid")
                .clone()
        };
        let rules = acl_rules(
            &[family("views"), family("clicks"), family("views")],
            Role::Reader,
        );
        let expected = [
            "~cf1:{shop/clicks/*",
            "~cf1:{shop/views/*",
            "+eval",
            "+evalsha",
            "+exists",
            "+hmget",
        ];
        assert_eq!(rules, expected);
    }
}
