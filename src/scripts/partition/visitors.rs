//! The typed call of the script that counts visitors on one partition (docs/protocol.md, section
//! 5).

use indexmap::IndexMap;

use crate::error::Result;
use crate::family::Family;
use crate::family::kind::visit;
use crate::scripts::bundle::{self, borrowed, owned};
use crate::scripts::counting::{CallReply, PairResult};
use crate::scripts::fence::Fence;
use crate::scripts::partition::Partition;

impl Partition {
    /// Counts each visit whose visitor was not counted for its id before.
    pub async fn first_visits<'p>(
        &'p self,
        family: &Family,
        fence: Fence<'p>,
        visits: impl IntoIterator<Item = &'p [u8]>,
    ) -> Result<CallReply> {
        let (ids, count) = by_id(visits);
        let (mut keys, mut args) = fence.begin(self.time());
        keys.extend([self.keys.buffer(), self.keys.meta()]);
        keys.extend(ids.keys().map(|id| self.keys.seen(id)));
        args.push(owned(ids.len()));
        for (id, visitors) in &ids {
            args.extend([borrowed(*id), owned(visitors.len())]);
            args.extend(visitors.iter().map(|(_, visitor)| borrowed(*visitor)));
        }
        let mut reply = bundle::call(&self.redis, "visitors_first", &keys, &args).await?;
        if let Some(outcome) = CallReply::not_executed(&reply)? {
            return Ok(outcome);
        }
        let repeated = reply.status() == "DUP";
        let total = if repeated { 0 } else { reply.number()? };
        let replied = reply.read_all(count, |reply| {
            reply.read(|word| match PairResult::parse(word)? {
                PairResult::Counted(1) => Some(PairResult::First),
                PairResult::Counted(0) => Some(PairResult::Repeated),
                PairResult::Counted(_) => None,
                refusal => Some(refusal),
            })
        })?;
        let new = replied
            .iter()
            .filter(|result| **result == PairResult::First)
            .count() as u64;
        let is_due = !repeated && new > 0 && family.is_due(new, total);
        // the script replies by id, the caller expects the order of the visits
        let mut results = vec![PairResult::Repeated; count];
        for ((index, _), result) in ids.values().flatten().zip(replied) {
            results[*index] = result;
        }
        Ok(CallReply::Executed {
            results,
            due: if is_due { vec![0] } else { Vec::new() },
            repeated,
        })
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
