//! The backlog of partitions in Redis, for monitoring: read without a reconciler.

use std::time::Duration;

use crate::connection::Connection;
use crate::error::Result;
use crate::scripts::bundle;
use crate::scripts::keys::Keys;

/// The hits of a family that wait in Redis for the database, from all processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// The number of pending ids. An id of a wide family counts in each partition that has it. An
    /// id that was counted again after its batch was cut counts twice.
    pub ids: u64,
    /// The age of the oldest of these hits, by the Redis server's clock; `None` if there are none.
    pub oldest: Option<Duration>,
    /// The number of hits counted since Redis has known the family, including those in the
    /// database; its growth is the rate. For visitors it is the number of new ones. For cached
    /// counters equal ids of one call count as one, and so do equal names and times of a series. For
    /// activity it is the number of views. 0 for a series or activity that keeps nothing.
    pub counted: u64,
    /// The number of hits that Redis has refused since it has known the family, from clients in all
    /// languages: those that found the buffer full, were out of range or came too late. 0 for cached
    /// counters, and for a series or activity that keeps nothing.
    pub refused: u64,
    /// The number of ids in the buffer of the fullest partition. At
    /// [`max_pending`](crate::Family::max_pending), Redis refuses further ids.
    pub fullest: u64,
    /// The number of requests that Redis remembers, for buffered and cached counters.
    pub requests: u64,
}

impl Backlog {
    pub(crate) fn join(self, more: Backlog) -> Self {
        Backlog {
            ids: self.ids + more.ids,
            oldest: self.oldest.max(more.oldest),
            counted: self.counted + more.counted,
            refused: self.refused + more.refused,
            fullest: self.fullest.max(more.fullest),
            requests: self.requests + more.requests,
        }
    }
}

/// Returns the backlog of each of these partitions.
pub async fn of_partitions(redis: &Connection, partitions: &[&Keys]) -> Result<Vec<Backlog>> {
    let keys: Vec<_> = partitions
        .iter()
        .flat_map(|keys| {
            let [requests, requests_before] = keys.requests();
            let waiting = [keys.buffer(), keys.batch(), keys.meta()];
            waiting.into_iter().chain([requests, requests_before])
        })
        .collect();
    let mut reply = bundle::expect_ok(redis, "buffered_backlog", &keys, &[""]).await?;
    reply.read_all(partitions.len(), |reply| {
        Ok(Backlog {
            ids: reply.number()?,
            oldest: reply.optional_millis()?,
            counted: reply.number()?,
            refused: reply.number()?,
            fullest: reply.number()?,
            requests: reply.number()?,
        })
    })
}
