//! The typed call of the script that counts visitors on one partition (docs/protocol.md, section
//! 5).

use std::time::Duration;

use indexmap::IndexMap;
use redis::Value;

use crate::error::Result;
use crate::family::Family;
use crate::family::kind::visit;
use crate::scripts::buffered::refusal;
use crate::scripts::bundle::{self, Reply, borrowed, owned};
use crate::scripts::fence::Fence;
use crate::scripts::partition::{Counted, PairResult, Partition, millis};

impl Partition {
    /// Counts each visit whose visitor was not counted for its id before.
    pub async fn first_visits<'p>(
        &'p self,
        family: &Family,
        remember: Duration,
        fence: Fence<'p>,
        visits: impl IntoIterator<Item = &'p [u8]>,
    ) -> Result<Counted> {
        let (ids, count) = by_id(visits);
        let (mut keys, mut args) = fence.begin(self.time());
        keys.extend([self.keys.buffer(), self.keys.meta()].map(String::into_bytes));
        keys.extend(ids.keys().map(|id| self.keys.seen(id)));
        args.extend([owned(millis(remember)), owned(ids.len())]);
        for (id, visitors) in &ids {
            args.extend([borrowed(*id), owned(visitors.len())]);
            args.extend(visitors.iter().map(|(_, visitor)| borrowed(*visitor)));
        }
        let reply = bundle::call(&self.redis, "visitors_first", &keys, &args).await?;
        let indexes = ids.values().flatten().map(|(index, _)| *index);
        let executed = |from, due, repeated| {
            let results = in_order(&reply, from, indexes, count)?;
            Ok(Counted::Executed {
                results,
                due,
                repeated,
            })
        };
        match reply.status() {
            "OK" => {
                let new = reply
                    .rest(1)?
                    .iter()
                    .filter(|word| **word == Value::Int(1))
                    .count() as u64;
                let due = new > 0 && family.is_due(new, reply.number(0)?);
                executed(1, if due { vec![0] } else { Vec::new() }, false)
            }
            "DUP" => executed(0, Vec::new(), true),
            "EXPIRED" => Ok(Counted::Expired),
            "PASSED" => Ok(Counted::Passed),
            _ => Err(reply.unexpected_reply()),
        }
    }
}

type ById<'p> = IndexMap<&'p [u8], Vec<(usize, &'p [u8])>>;

/// Groups visitors by id, each with its position among the visits. Also returns the number of
/// visits.
fn by_id<'p>(visits: impl IntoIterator<Item = &'p [u8]>) -> (ById<'p>, usize) {
    let mut ids = ById::new();
    let mut count = 0;
    for visit in visits {
        let (id, visitor) = visit::split(visit);
        ids.entry(id).or_default().push((count, visitor));
        count += 1;
    }
    (ids, count)
}

/// Returns the outcomes of the visits in their original order. The script replies by id.
fn in_order(
    reply: &Reply,
    from: usize,
    indexes: impl Iterator<Item = usize>,
    count: usize,
) -> Result<Vec<PairResult>> {
    let result = |word: &Value| match word {
        Value::Int(number) => Some(if *number == 1 {
            PairResult::First
        } else {
            PairResult::Repeated
        }),
        Value::BulkString(word) => match &**word {
            b"1" => Some(PairResult::First),
            b"0" => Some(PairResult::Repeated),
            word => refusal(word),
        },
        _ => None,
    };
    let results: Option<Vec<_>> = reply.rest(from)?.iter().map(result).collect();
    let results = results
        .filter(|results| results.len() == count)
        .ok_or_else(|| reply.unexpected_reply())?;
    let mut ordered = vec![PairResult::Repeated; count];
    for (index, word) in indexes.zip(results) {
        ordered[index] = word;
    }
    Ok(ordered)
}
