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
    /// The number of kept slices, or minutes of activity, that are not over yet. They reach the
    /// database once they are.
    pub open: u64,
    /// The number of hits counted since Redis has known the family, including those in the
    /// database; its growth is the rate. For buffered counters it includes hits that were out of
    /// range or found the buffer full. For visitors it is the number of new ones. For cached
    /// counters equal ids of one call count as one. For series and activity a kept slice counts as
    /// one hit, once it is over. 0 for a family that keeps nothing.
    pub counted: u64,
}

impl Backlog {
    pub(crate) fn join(self, more: Backlog) -> Self {
        Backlog {
            ids: self.ids + more.ids,
            oldest: self.oldest.max(more.oldest),
            open: self.open + more.open,
            counted: self.counted + more.counted,
        }
    }
}

/// Returns the backlog of each of these partitions.
pub async fn of_partitions(redis: &Connection, partitions: Vec<&Keys>) -> Result<Vec<Backlog>> {
    const LOOK: &str = "\
local time, found = redis.call('TIME'), {}
local now = time[1] * 1000 + math.floor(time[2] / 1000)
for k = 1, #KEYS, 4 do
  local meta = redis.call('HMGET', KEYS[k + 2], 'first_at', 'batch_first_at', 'hits', 'hits_before')
  local ids, oldest = { redis.call('HLEN', KEYS[k]), redis.call('HLEN', KEYS[k + 1]) }, -1
  for i = 1, 2 do
    if ids[i] > 0 then oldest = math.max(oldest, 0, now - (meta[i] or now)) end
  end
  local counted = (tonumber(meta[3]) or 0) + (tonumber(meta[4]) or 0)
  found[#found + 1] = { ids[1] + ids[2], oldest, redis.call('HLEN', KEYS[k + 3]), counted }
end
return found";
    let keys: Vec<_> = partitions
        .iter()
        .flat_map(|keys| [keys.buffer(), keys.batch(), keys.meta(), keys.open()])
        .collect();
    let found: Vec<(u64, i64, u64, u64)> = bundle::reading(redis, LOOK, &keys, &[""; 0]).await?;
    let backlog = |(ids, oldest, open, counted)| Backlog {
        ids,
        oldest: age(oldest),
        open,
        counted,
    };
    Ok(found.into_iter().map(backlog).collect())
}

/// Converts an age in milliseconds; -1 stands for none.
fn age(ms: i64) -> Option<Duration> {
    u64::try_from(ms).ok().map(Duration::from_millis)
}
