//! What of a family waits in Redis for the database, for those who watch it: read without a reconciler.

use std::time::Duration;

use futures_util::future::try_join_all;
use redis::aio::ConnectionLike;

use crate::error::Result;
use crate::family::Family;
use crate::metrics;
use crate::scripts::bundle;
use crate::scripts::partition::{Partition, millis};
use crate::writer::opened::Opened;
use crate::writer::shared::Shared;

/// How many partitions are asked at a time.
const CALLS: usize = 64;
/// How many cached counters one call looks at.
const PAGE: u64 = 500;

/// What of a family waits in Redis for the database, whoever counted it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Pending ids, or cached counters that are not saved. An id of a wide family counts in each partition that has it,
    /// and one that was counted again since the batch was cut counts twice.
    pub ids: u64,
    /// How long ago the oldest of these hits was counted, by the Redis server's clock; `None` if there are none. A cached
    /// counter whose save was begun is as old as that.
    pub oldest: Option<Duration>,
    /// Slices that are kept and not over yet, or minutes of activity: the database gets them when they are.
    pub open: u64,
}

impl Backlog {
    fn join(self, more: Backlog) -> Self {
        Backlog { ids: self.ids + more.ids, oldest: self.oldest.max(more.oldest), open: self.open + more.open }
    }
}

impl<C, S> Shared<C, S>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    /// The backlog of all partitions of the family, as measured from now on.
    pub async fn backlog(&self, opened: &Opened) -> Result<Backlog> {
        let family = &opened.family;
        let partitions: Vec<_> = (0..family.partitions()).map(|number| self.partition(family, number)).collect();
        let mut backlog = Backlog::default();
        for some in partitions.chunks(CALLS) {
            let all = try_join_all(some.iter().map(|partition| partition.backlog(family))).await?;
            backlog = all.into_iter().fold(backlog, Backlog::join);
        }
        let seconds = backlog.oldest.map_or(0.0, |oldest| oldest.as_secs_f64());
        ::metrics::gauge!(metrics::BACKLOG_IDS, "family" => opened.label.clone()).set(backlog.ids as f64);
        ::metrics::gauge!(metrics::BACKLOG_SECONDS, "family" => opened.label.clone()).set(seconds);
        Ok(backlog)
    }
}

impl<C: ConnectionLike + Clone + 'static> Partition<C> {
    async fn backlog(&self, family: &Family) -> Result<Backlog> {
        match family.is_cached() {
            true => self.unsaved(family.sync_time).await,
            false => self.uncut_and_cut().await,
        }
    }

    /// Of what goes the buffered way.
    async fn uncut_and_cut(&self) -> Result<Backlog> {
        const LOOK: &str = "\
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local since, oldest = redis.call('HMGET', KEYS[3], 'first_at', 'batch_first_at'), -1
local ids = { redis.call('HLEN', KEYS[1]), redis.call('HLEN', KEYS[2]) }
for k = 1, 2 do
  if ids[k] > 0 then oldest = math.max(oldest, 0, now - (since[k] or now)) end
end
return { ids[1] + ids[2], oldest, redis.call('HLEN', KEYS[4]) }";
        let keys = [self.keys.buffer(), self.keys.batch(), self.keys.meta(), self.keys.open()];
        let (ids, oldest, open): (u64, i64, u64) = bundle::reading(&self.redis, LOOK, &keys, &[""; 0]).await?;
        Ok(Backlog { ids, oldest: age(oldest), open })
    }

    /// Of cached counters, page by page of the schedule, which has all of them. A change is scheduled to be saved so much
    /// later.
    async fn unsaved(&self, save_after: Duration) -> Result<Backlog> {
        const LOOK: &str = "\
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local due, ids, oldest = redis.call('ZRANGE', KEYS[3], ARGV[1], ARGV[2], 'WITHSCORES'), 0, -1
for i = 1, #due, 2 do
  local value, row = redis.call('HGET', KEYS[1], due[i]), redis.call('HGET', KEYS[2], due[i])
  if value and value:byte() ~= 61 then
    local claimed = row and row:match('^%S+ %S+ %S+ %S+ %S+ %S+ (%d+)$')
    ids, oldest = ids + 1, math.max(oldest, 0, now - (claimed or due[i + 1] - ARGV[3]))
  end
end
return { #due / 2, ids, oldest }";
        let keys = [self.keys.values(), self.keys.rows(), self.keys.schedule()];
        let (mut backlog, mut first) = (Backlog::default(), 0);
        loop {
            let args = [first.to_string(), (first + PAGE - 1).to_string(), millis(save_after)];
            let (seen, ids, oldest): (u64, u64, i64) = bundle::reading(&self.redis, LOOK, &keys, &args).await?;
            backlog = backlog.join(Backlog { ids, oldest: age(oldest), open: 0 });
            first += PAGE;
            if seen < PAGE {
                return Ok(backlog);
            }
        }
    }
}

/// -1 stands for none.
fn age(ms: i64) -> Option<Duration> {
    u64::try_from(ms).ok().map(Duration::from_millis)
}
