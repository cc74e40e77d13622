//! The script that counts visitors, as a typed call on one partition (PROTOCOL section 5).

use std::time::Duration;

use indexmap::IndexMap;
use redis::Value;
use redis::aio::ConnectionLike;

use crate::error::Result;
use crate::family::Family;
use crate::partition::{Fence, Partition, guarded, millis};
use crate::script::{self, Reply, arg, made};
use crate::visit;

/// What became of a visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visited {
    /// The visitor's first one: it counts.
    First,
    /// The visitor has been counted.
    Again,
    /// Not counted: too many ids are pending.
    Full,
}

/// What `visitors_first` answers.
#[derive(Debug, PartialEq, Eq)]
pub enum VisitReply {
    /// Executed now, or before (DUP).
    Executed {
        /// Whether a sync is due.
        due: bool,
        /// What became of each visit.
        visited: Vec<Visited>,
    },
    /// Redis lost its memory of the producer.
    Unknown,
}

impl<C: ConnectionLike + Clone + 'static> Partition<C> {
    /// Counts each visit whose visitor was not counted for its id before.
    pub async fn first_visits<'p>(
        &'p self,
        family: &Family,
        remember: Duration,
        fence: Option<Fence<'p>>,
        visits: impl IntoIterator<Item = &'p [u8]>,
    ) -> Result<VisitReply> {
        let fence = guarded(fence);
        let (ids, count) = by_id(visits);
        let mut keys = [self.keys.buffer(), self.keys.meta(), self.keys.producers()].map(String::into_bytes).to_vec();
        keys.extend(ids.keys().map(|id| self.keys.seen(id)));
        let mut args = Vec::from(Fence::args(fence.as_ref()));
        args.extend([made(family.sync_hits), made(millis(family.sync_time)), made(family.max_pending)]);
        args.extend([made(millis(remember)), self.time(), made(ids.len())]);
        for (id, visitors) in &ids {
            args.extend([arg(*id), made(visitors.len())]);
            args.extend(visitors.iter().map(|(_, visitor)| arg(*visitor)));
        }
        let reply = script::call(&self.redis, "visitors_first", &keys, &args).await?;
        match reply.status() {
            "OK" | "DUP" => {
                let places = ids.values().flatten().map(|(place, _)| *place);
                let visited = in_order(&reply, places, count)?;
                Ok(VisitReply::Executed { due: reply.number::<u8>(0)? == 1, visited })
            }
            "UNKNOWN" => Ok(VisitReply::Unknown),
            _ => Err(reply.misshapen()),
        }
    }
}

type ById<'p> = IndexMap<&'p [u8], Vec<(usize, &'p [u8])>>;

/// The visitors of each id with their places among the visits, and how many there are.
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

/// The words of the answer, brought to the places of their visits.
fn in_order(reply: &Reply, places: impl Iterator<Item = usize>, count: usize) -> Result<Vec<Visited>> {
    let visited = |word: &Value| match word {
        Value::Int(1) => Some(Visited::First),
        Value::Int(0) => Some(Visited::Again),
        Value::BulkString(word) if **word == *b"FULL" => Some(Visited::Full),
        _ => None,
    };
    let words: Option<Vec<_>> = reply.rest(1)?.iter().map(visited).collect();
    let words = words.filter(|words| words.len() == count).ok_or_else(|| reply.misshapen())?;
    let mut ordered = vec![Visited::Again; count];
    for (place, word) in places.zip(words) {
        ordered[place] = word;
    }
    Ok(ordered)
}
