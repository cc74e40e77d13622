//! The commands that the scripts call, and a few to look at the keys.

use redis::Value;

use super::keyspace::{Bytes, Content, Hash, Keyspace, Refusal, Set, SortedSet};

type CommandResult = Result<Value, Refusal>;

/// Executes a command.
pub fn execute(keys: &mut Keyspace, words: &[Bytes]) -> CommandResult {
    let (command, args) = words.split_first().ok_or("ERR no command")?;
    let name = String::from_utf8_lossy(command).to_ascii_uppercase();
    match (name.as_str(), args) {
        ("TIME", []) => {
            let [seconds, rest] = [keys.now_us / 1_000_000, keys.now_us % 1_000_000];
            texts([seconds, rest].map(|part| part.to_string().into_bytes()))
        }
        ("INFO", [_]) => Ok(Value::BulkString(Vec::new())),
        ("EXISTS", names) => count(names.iter().filter(|key| keys.entry(key).is_some())),
        ("DEL" | "UNLINK", names) => count(names.iter().filter_map(|key| keys.remove(key))),
        ("RENAME", [from, to]) => keys.rename(from, to).map(|()| Value::Okay),
        ("PTTL", [key]) => Ok(Value::Int(
            match keys.entry(key).map(|one| one.expires_at) {
                None => -2,
                Some(None) => -1,
                Some(Some(at)) => at - keys.now_ms(),
            },
        )),
        ("PEXPIRE", [key, lives_ms]) => expire(keys, key, integer(lives_ms)?),
        ("KEYS", [_]) => texts(keys.keys()),
        ("TYPE", [key]) => {
            let kind = keys
                .entry(key)
                .map_or("none", |one| one.content.type_name());
            Ok(Value::SimpleString(kind.to_owned()))
        }
        ("SET", [key, value]) => {
            keys.insert(key, Content::String(value.clone()));
            Ok(Value::Okay)
        }
        ("GET", [key]) => Ok(match keys.entry(key).map(|one| &one.content) {
            Some(Content::String(value)) => Value::BulkString(value.clone()),
            _ => Value::Nil,
        }),
        ("FLUSHALL" | "FLUSHDB", []) => {
            keys.clear();
            Ok(Value::Okay)
        }
        (name, [key, args @ ..]) => match name.as_bytes() {
            [b'H', ..] => of_hash(keys, name, key, args),
            [b'S', ..] => of_set(keys, name, key, args),
            [b'Z', ..] => of_sorted_set(keys, name, key, args),
            _ => return Err("ERR Unknown Redis command called from script".to_owned()),
        }
        .unwrap_or_else(|| unknown(name)),
        (name, []) => unknown(name),
    }
}

fn unknown(name: &str) -> CommandResult {
    Err(format!(
        "ERR unknown command '{name}', or wrong arguments for it"
    ))
}

fn expire(keys: &mut Keyspace, key: &[u8], lives_ms: i64) -> CommandResult {
    let now = keys.now_ms();
    let Some(entry) = keys.entry(key) else {
        return Ok(Value::Int(0));
    };
    let at = now.checked_add(lives_ms);
    entry.expires_at = Some(at.ok_or("ERR invalid expire time in 'pexpire' command")?);
    Ok(Value::Int(1))
}

fn of_hash(keys: &mut Keyspace, name: &str, key: &[u8], args: &[Bytes]) -> Option<CommandResult> {
    let reply = match (name, args) {
        ("HGET", [field]) => keys.read(key, |hash: &Hash| Ok(text(hash.get(field)))),
        ("HMGET", fields) => keys.read(key, |hash: &Hash| {
            Ok(Value::Array(
                fields.iter().map(|field| text(hash.get(field))).collect(),
            ))
        }),
        ("HEXISTS", [field]) => keys.read(key, |hash: &Hash| Ok(is(hash.get(field).is_some()))),
        ("HLEN", []) => keys.read(key, |hash: &Hash| Ok(int(hash.len()))),
        ("HKEYS", []) => keys.read(key, |hash: &Hash| {
            texts(hash.pairs().into_iter().map(|(field, _)| field.clone()))
        }),
        ("HGETALL", []) => keys.read(key, |hash: &Hash| {
            texts(hash.pairs().into_iter().flat_map(pair))
        }),
        ("HSCAN", [cursor, options @ ..]) => {
            keys.read(key, |hash: &Hash| scan(hash, cursor, options))
        }
        ("HSET", [_, ..]) if args.len().is_multiple_of(2) => keys.change(key, |hash: &mut Hash| {
            count(
                args.chunks(2)
                    .filter_map(|pair| pair.split_first())
                    .filter(|(field, value)| hash.insert(field, value.concat())),
            )
        }),
        ("HSETNX", [field, value]) => keys.change(key, |hash: &mut Hash| {
            let is_new = hash.get(field).is_none() && hash.insert(field, value.clone());
            Ok(is(is_new))
        }),
        ("HDEL", [_, ..]) => keys.change(key, |hash: &mut Hash| {
            count(args.iter().filter(|field| hash.remove(field)))
        }),
        ("HINCRBY", [field, by]) => keys.change(key, |hash: &mut Hash| increment(hash, field, by)),
        _ => return None,
    };
    Some(reply)
}

fn increment(hash: &mut Hash, field: &[u8], by: &[u8]) -> CommandResult {
    let delta = integer(by)?;
    let before = match hash.get(field) {
        Some(value) => integer(value).map_err(|_| "ERR hash value is not an integer")?,
        None => 0,
    };
    let sum = before
        .checked_add(delta)
        .ok_or("ERR increment or decrement would overflow")?;
    hash.insert(field, sum.to_string().into_bytes());
    Ok(Value::Int(sum))
}

fn scan(hash: &Hash, cursor: &[u8], options: &[Bytes]) -> CommandResult {
    let start = std::str::from_utf8(cursor)
        .ok()
        .and_then(|digits| digits.parse().ok())
        .ok_or("ERR invalid cursor")?;
    let (mut prefix, mut limit) = (Bytes::new(), 10);
    for option in options.chunks(2) {
        match option {
            [name, value] if name == b"MATCH" => prefix = literal_prefix(value)?,
            [name, value] if name == b"COUNT" => {
                limit = usize::try_from(integer(value)?).unwrap_or(1)
            }
            _ => return Err("ERR syntax error".to_owned()),
        }
    }
    let (next, mut fields) = hash.scan(start, limit);
    fields.retain(|(field, _)| field.starts_with(&prefix));
    Ok(Value::Array(vec![
        Value::BulkString(next.to_string().into_bytes()),
        texts(fields.into_iter().flat_map(pair))?,
    ]))
}

/// Returns the text before the final `*` of a pattern, in which `\` escapes the next character.
fn literal_prefix(pattern: &[u8]) -> Result<Bytes, Refusal> {
    let mut prefix = Bytes::new();
    let mut rest = pattern.iter();
    while let Some(byte) = rest.next() {
        match byte {
            b'\\' => prefix.extend(rest.next()),
            b'*' if rest.len() == 0 => return Ok(prefix),
            b'*' | b'?' | b'[' => break,
            other => prefix.push(*other),
        }
    }
    Err("ERR only a pattern of a prefix and * is known here".to_owned())
}

fn of_set(keys: &mut Keyspace, name: &str, key: &[u8], args: &[Bytes]) -> Option<CommandResult> {
    let reply = match (name, args) {
        ("SMEMBERS", []) => keys.read(key, |set: &Set| texts(set.iter().cloned())),
        ("SMISMEMBER", members) => keys.read(key, |set: &Set| {
            let are_in = members.iter().map(|member| is(set.contains(member)));
            Ok(Value::Array(are_in.collect()))
        }),
        ("SCARD", []) => keys.read(key, |set: &Set| Ok(int(set.len()))),
        // the first ones, where Redis takes any
        ("SPOP", [number]) => match integer(number).map(usize::try_from) {
            Ok(Ok(number)) => keys.change(key, |set: &mut Set| {
                let taken: Vec<_> = set.iter().take(number).cloned().collect();
                set.retain(|member| !taken.contains(member));
                texts(taken)
            }),
            Ok(Err(_)) => Err("ERR value is out of range, must be positive".to_owned()),
            Err(refusal) => Err(refusal),
        },
        ("SADD", [_, ..]) => keys.change(key, |set: &mut Set| {
            count(args.iter().filter(|member| set.insert((*member).clone())))
        }),
        ("SREM", [_, ..]) => keys.change(key, |set: &mut Set| {
            count(args.iter().filter(|member| set.remove(*member)))
        }),
        _ => return None,
    };
    Some(reply)
}

fn of_sorted_set(
    keys: &mut Keyspace,
    name: &str,
    key: &[u8],
    args: &[Bytes],
) -> Option<CommandResult> {
    let reply = match (name, args) {
        ("ZCARD", []) => keys.read(key, |set: &SortedSet| Ok(int(set.0.len()))),
        ("ZMSCORE", members) => keys.read(key, |set: &SortedSet| {
            let scores = members.iter().map(|member| {
                let score = set.0.get(member).copied();
                text(score.map(score_text).as_ref())
            });
            Ok(Value::Array(scores.collect()))
        }),
        ("ZCOUNT", [min, max]) => {
            keys.read(key, |set: &SortedSet| Ok(int(within(set, min, max)?.len())))
        }
        ("ZRANGEBYSCORE", [min, max, limit, offset, most]) if limit == b"LIMIT" => keys
            .read(key, |set: &SortedSet| {
                page(within(set, min, max)?, offset, most)
            }),
        ("ZRANGEBYLEX", [min, max, limit, offset, most]) if limit == b"LIMIT" => {
            keys.read(key, |set: &SortedSet| {
                let members = set
                    .sorted()
                    .into_iter()
                    .map(|(_, member)| member)
                    .filter(|member| is_beyond(member, min, true) && is_beyond(member, max, false))
                    .cloned()
                    .collect();
                page(members, offset, most)
            })
        }
        ("ZRANGE", [first, last, options @ ..]) => keys.read(key, |set: &SortedSet| {
            let (first, last) = places(set.0.len(), integer(first)?, integer(last)?);
            let members = set.sorted().into_iter().take(last).skip(first);
            let with_scores = options.iter().any(|option| option == b"WITHSCORES");
            texts(members.flat_map(|(score, member)| {
                let shown = with_scores.then(|| score_text(score));
                std::iter::once(member.clone()).chain(shown)
            }))
        }),
        ("ZREM", [_, ..]) => keys.change(key, |set: &mut SortedSet| {
            count(args.iter().filter_map(|member| set.0.remove(member)))
        }),
        ("ZREMRANGEBYRANK", [first, last]) => keys.change(key, |set: &mut SortedSet| {
            let (first, last) = places(set.0.len(), integer(first)?, integer(last)?);
            let sorted = set.sorted().into_iter().take(last).skip(first);
            let gone: Vec<_> = sorted.map(|(_, member)| member.clone()).collect();
            count(gone.iter().filter_map(|member| set.0.remove(member)))
        }),
        ("ZADD", [_, ..]) => keys.change(key, |set: &mut SortedSet| add_scores(set, args)),
        _ => return None,
    };
    Some(reply)
}

fn add_scores(set: &mut SortedSet, args: &[Bytes]) -> CommandResult {
    let option = args
        .first()
        .filter(|first| first.first().is_some_and(u8::is_ascii_uppercase));
    let pairs = args
        .get(usize::from(option.is_some())..)
        .unwrap_or_default();
    let mut added = 0;
    for pair in pairs.chunks(2) {
        let [score, member] = pair else {
            return Err("ERR syntax error".to_owned());
        };
        let score = float(score)?;
        let is_taken = match (option.map(Vec::as_slice), set.0.get(member)) {
            (Some(b"XX"), before) => before.is_some(),
            (Some(b"LT"), Some(before)) => score < *before,
            (Some(b"GT"), Some(before)) => score > *before,
            _ => true,
        };
        if is_taken {
            added += usize::from(set.0.insert(member.clone(), score).is_none());
        }
    }
    Ok(int(added))
}

/// Returns the members with scores between these, both included.
fn within(set: &SortedSet, min: &[u8], max: &[u8]) -> Result<Vec<Bytes>, Refusal> {
    let range = float(min)?..=float(max)?;
    Ok(set
        .sorted()
        .into_iter()
        .filter(|(score, _)| range.contains(score))
        .map(|(_, member)| member.clone())
        .collect())
}

/// Returns whether the member lies beyond a bound such as `[a`, `(a`, `-` or `+`, upwards or
/// downwards.
fn is_beyond(member: &Bytes, bound: &[u8], upwards: bool) -> bool {
    match bound.split_first() {
        Some((b'-', [])) => upwards,
        Some((b'+', [])) => !upwards,
        Some((kind, bound)) => match member.as_slice().cmp(bound) {
            std::cmp::Ordering::Equal => *kind == b'[',
            std::cmp::Ordering::Greater => upwards,
            std::cmp::Ordering::Less => !upwards,
        },
        None => false,
    }
}

/// Returns the first place of a range and the one after its last. Negative ones count from the end.
fn places(len: usize, first: i64, last: i64) -> (usize, usize) {
    let end = i64::try_from(len).unwrap_or(i64::MAX);
    let place = |at: i64| if at < 0 { end + at } else { at };
    let unsigned = |at: i64| usize::try_from(at.clamp(0, end)).unwrap_or(0);
    (unsigned(place(first)), unsigned(place(last) + 1))
}

fn page(members: Vec<Bytes>, offset: &[u8], most: &[u8]) -> CommandResult {
    let [skipped, taken] = [integer(offset)?, integer(most)?]
        .map(|number| usize::try_from(number).unwrap_or(usize::MAX));
    texts(members.into_iter().skip(skipped).take(taken))
}

fn pair((field, value): (&Bytes, &Bytes)) -> [Bytes; 2] {
    [field.clone(), value.clone()]
}

fn int(number: usize) -> Value {
    Value::Int(i64::try_from(number).unwrap_or(i64::MAX))
}

fn is(so: bool) -> Value {
    int(usize::from(so))
}

fn count(items: impl IntoIterator) -> CommandResult {
    Ok(int(items.into_iter().count()))
}

fn text(value: Option<&Bytes>) -> Value {
    value.map_or(Value::Nil, |value| Value::BulkString(value.clone()))
}

fn texts(values: impl IntoIterator<Item = Bytes>) -> CommandResult {
    Ok(Value::Array(
        values.into_iter().map(Value::BulkString).collect(),
    ))
}

fn score_text(score: f64) -> Bytes {
    score.to_string().into_bytes()
}

/// Parses an integer as Redis does: no sign but a minus, and no leading zeros.
fn integer(word: &[u8]) -> Result<i64, Refusal> {
    std::str::from_utf8(word)
        .ok()
        .and_then(|text| text.parse().ok())
        .filter(|number: &i64| number.to_string().as_bytes() == word)
        .ok_or_else(|| "ERR value is not an integer or out of range".to_owned())
}

fn float(word: &[u8]) -> Result<f64, Refusal> {
    std::str::from_utf8(word)
        .ok()
        .and_then(|text| text.parse().ok())
        .filter(|number: &f64| !number.is_nan())
        .ok_or_else(|| "ERR value is not a valid float".to_owned())
}
