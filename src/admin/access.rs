//! The permissions of the Redis user. A command refused in the middle of a script leaves the script
//! half done. Before a family is used, all commands that its kind's scripts call are therefore
//! tried.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::join_all;
use redis::Value;

use crate::admin::{Finding, Role};
use crate::connection::Connection;
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::scripts::bundle::{self, Script};
use crate::scripts::keys::{KEPT, Keys, WANTED};

/// Trial calls of the commands that scripts call, with arguments that change nothing. `@` is a key
/// that does not exist. The last one removes what others may have written.
const CALLED: [&str; 32] = [
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
    "PTTL @",
    "RENAME @ @",
    "SCARD @",
    "SMISMEMBER @ member",
    "SPOP @ 0",
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
    "HSETNX @ field value",
    "UNLINK @",
];

/// The scripts that a [`Writer`](Role::Writer) calls for the kinds that it counts in.
const WRITING: [&str; 9] = [
    "activity_touch",
    "buffered_add",
    "cached_get",
    "cached_incr",
    "cached_seed",
    "family_epoch",
    "family_want",
    "series_add",
    "visitors_first",
];

/// The scripts that a [`Reader`](Role::Reader) calls.
const READING: [&str; 5] = [
    "activity_now",
    "buffered_read",
    "cached_get",
    "series_get",
    "series_names",
];

/// The commands that `cached_get` calls only to issue tickets, which callers need to seed counters.
const TICKETS: [&str; 2] = ["HSET", "TIME"];

/// Returns the permissions that this connection's user lacks for the family, or the commands that
/// the server does not know, as ACL rules: `+pexpire`, or `~cf1:{shop/views/*` for its keys.
///
/// # Errors
/// [`AccessDenied`](ErrorKind::AccessDenied) without credentials; [`Redis`](ErrorKind::Redis) if
/// Redis cannot be asked.
pub async fn missing(redis: &Connection, family: &Family) -> Result<Vec<String>> {
    // EVAL is sent only if Redis does not know a script
    let mut eval = redis::cmd("EVAL");
    // an undeclared cluster refuses this call, because its keys lie in several slots
    let partitions = if redis.is_cluster() { 1 } else { PARTITIONS };
    eval.arg("return").arg(partitions);
    for number in 0..partitions {
        eval.arg(Keys::new(family, number).probe());
    }
    if let Err(error) = bundle::query::<Value>(redis, &eval).await {
        return lacks(family, "eval", error).map(|rule| vec![rule]);
    }
    let used = commands_of(family, Role::Reconciler);
    let called: Vec<_> = CALLED
        .into_iter()
        .filter(|words| used.contains(command_of(words)))
        .collect();
    let keys = [Keys::new(family, 0).probe()];
    let mut reply = match bundle::expect_ok(redis, "family_try", &keys, &called).await {
        Ok(reply) => reply,
        Err(error) => return lacks(family, "evalsha", error).map(|rule| vec![rule]),
    };
    let mut missing = reply.read_all(reply.left(), |reply| {
        reply.text().map(|command| format!("+{command}"))
    })?;
    for key in [KEPT, WANTED] {
        if let Err(error) = bundle::expect_ok(redis, "family_try", &[key], &["EXISTS @"]).await {
            lacks(family, "evalsha", error)?;
            missing.push(format!("~{key}"));
        }
    }
    Ok(missing)
}

/// The number of partitions of which at least two lie in different slots.
const PARTITIONS: u32 = 3;

fn command_of(words: &str) -> &str {
    words.split(' ').next().unwrap_or_default()
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
        "{family}: the Redis user lacks {} (or rename-command hides it, see docs/operations.md)",
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
    let checks = join_all(kinds.values().map(|family| refuse_lacking(redis, family))).await;
    let advice = "Add it with ACL SETUSER, or remove rename-command from redis.conf: a script that is refused halfway leaves half \
         of its writes.";
    checks
        .into_iter()
        .filter_map(Result::err)
        .filter(|error| error.kind() == ErrorKind::AccessDenied)
        .map(|error| Finding::error("redis acl", format!("{error:#}"), advice))
        .collect()
}

/// Returns the ACL rules, for `ACL SETUSER`, that a user of that role needs for these families.
/// They begin with a key pattern for each family, such as `~cf1:{shop/views/*`. A
/// [`Reconciler`](Role::Reconciler) also needs `~cf1:kept`, where daemons keep the names of families
/// that they opened by a pattern, and all but a [`Reader`](Role::Reader) need `~cf1:wanted`, where
/// clients announce families that Redis does not know. A rule for each command follows, such as
/// `+evalsha`, only for commands that the families' kinds need. Both lists are ascending and without
/// duplicates.
///
/// The connection itself needs further rules: a password, and `+cluster|slots`, `+select` or
/// `+script|load`, as docs/operations.md says.
pub fn acl_rules(families: &[Family], role: Role) -> Vec<String> {
    let keys: BTreeSet<_> = families.iter().map(key_pattern).collect();
    let commands: BTreeSet<_> = families
        .iter()
        .flat_map(|family| commands_of(family, role))
        .map(str::to_lowercase)
        .collect();
    let of_no_family: &[_] = match role {
        _ if families.is_empty() => &[],
        Role::Reconciler => &[KEPT, WANTED],
        Role::Writer => &[WANTED],
        Role::Reader => &[],
    };
    keys.into_iter()
        .chain(of_no_family.iter().map(|key| format!("~{key}")))
        .chain(commands.into_iter().map(|command| format!("+{command}")))
        .collect()
}

fn key_pattern(family: &Family) -> String {
    format!("~cf1:{{{family}/*")
}

/// Returns the commands that a user of that role sends for a family, in scripts and directly.
fn commands_of(family: &Family, role: Role) -> BTreeSet<&'static str> {
    let mut commands = BTreeSet::from(["EVAL", "EVALSHA"]);
    if role == Role::Reconciler {
        commands.insert("INFO");
    }
    for script in Script::all().filter(|script| is_called(script, family, role)) {
        let issues_tickets = script.name != "cached_get" || role != Role::Reader;
        commands.extend(
            script
                .commands()
                .filter(|command| issues_tickets || !TICKETS.contains(command)),
        );
    }
    commands
}

/// Returns whether a user of that role calls the script for a family.
fn is_called(script: &Script, family: &Family, role: Role) -> bool {
    let mut prefixes = family.scripts().iter();
    let is_of_kind = prefixes.any(|prefix| script.name.starts_with(prefix));
    match role {
        Role::Reconciler => is_of_kind || script.kind() == "family",
        Role::Writer => {
            WRITING.contains(&script.name) && [family.kind(), "family"].contains(&script.kind())
        }
        Role::Reader => is_of_kind && READING.contains(&script.name),
    }
}

/// Returns the ACL rule that a user needs to send this command, or the error if it has another
/// cause.
fn lacks(family: &Family, command: &str, error: Error) -> Result<String> {
    let refused = error.redis_error();
    match refused.and_then(|refused| Some((refused.code()?, refused.detail()?))) {
        Some(("ERR", text)) if text.starts_with("unknown command") => Ok(format!("+{command}")),
        Some(("NOPERM", text)) if text.contains(&format!("'{command}'")) => {
            Ok(format!("+{command}"))
        }
        Some(("NOPERM", _)) => Ok(key_pattern(family)),
        _ => Err(error),
    }
}
