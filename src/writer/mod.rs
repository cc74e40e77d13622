//! The write path of a family (PROTOCOL section 3): one producer-fenced call at a time per partition, which carries
//! everything that was asked for while the one before was under way. This is group commit: nothing waits for a timer,
//! and calls grow with the load.

mod answer;
mod call;
mod dispatch;
mod group;
mod lane;
mod lead;
mod producer;
mod recorder;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::join_all;
use redis::aio::ConnectionLike;

pub use self::answer::Answer;
pub use self::dispatch::Dispatch;
use self::group::Group;
use self::lane::Lane;
use self::recorder::Recorder;
use crate::cached::{Change, Seed};
use crate::error::{Error, Result};
use crate::partition::random;
use crate::shared::{Opened, Work};

/// Of how many partitions of a wide family the least busy one is looked for.
const CANDIDATES: u32 = 8;

/// Counts the hits of one family.
#[derive(Debug)]
pub struct Writer<C> {
    opened: Arc<Opened>,
    dispatch: Arc<Dispatch<C>>,
    work: Arc<Work>,
    lanes: Box<[OnceLock<Arc<Lane<C>>>]>,
    /// Where the search for the least busy partition of a wide family begins.
    turn: AtomicU32,
    recorder: Recorder,
}

/// What became of one hit of many.
type Own = Result<Answer>;

impl<C> Writer<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    pub fn new(opened: Arc<Opened>, dispatch: Arc<Dispatch<C>>, work: Arc<Work>) -> Self {
        let lanes = (0..opened.registered.family.partitions()).map(|_| OnceLock::new()).collect();
        // so that not all processes begin with the same one
        let turn = AtomicU32::new(random().unwrap_or(0) as u32);
        Writer { opened, dispatch, work, lanes, turn, recorder: Recorder::new() }
    }

    /// Counts one hit. Without `wait` it is an error if many others wait already.
    pub async fn add(&self, id: &[u8], delta: i64, patience: Duration, wait: bool) -> Own {
        self.change(id, Change::Add(delta), None, patience, wait).await
    }

    /// The same for any change, before which a missing counter is seeded if a seed is given.
    pub async fn change(&self, id: &[u8], change: Change, seed: Option<Seed>, patience: Duration, wait: bool) -> Own {
        let lane = self.lane(self.partition_for(id));
        let push = |group: &mut Group| {
            lane.has_room_for(group, 1).then(|| {
                if let Some(seed) = seed {
                    group.push_seed(id, seed);
                }
                match change {
                    Change::Add(delta) => group.push(id, delta, 1),
                    Change::Set(value) => group.push_set(id, value),
                }
            })
        };
        let (call, seat) = lane.count(patience, wait, push).await?;
        match (call.own(seat)?, change) {
            (None, Change::Add(delta)) => Self::add_alone(lane, id, delta, 1, patience).await,
            (answer, _) => answer.ok_or_else(|| Error::corrupt("a value was summed")),
        }
    }

    /// Counts what stands for so many hits and was refused in a sum with others.
    async fn add_alone(lane: &Arc<Lane<C>>, id: &[u8], delta: i64, hits: u64, patience: Duration) -> Own {
        let push = |group: &mut Group| lane.has_room_for(group, 1).then(|| group.push_alone(id, delta, hits));
        let (call, seat) = lane.count(patience, true, push).await?;
        call.own(seat)?.ok_or_else(|| Error::corrupt("a hit that was tried alone was summed"))
    }

    /// Counts many hits, and answers what became of each: those of one partition go together, and partitions fail by
    /// themselves.
    pub async fn add_many(&self, hits: &[(&[u8], i64)], patience: Duration) -> Vec<Own> {
        let mut places: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (place, (id, _)) in hits.iter().enumerate() {
            places.entry(self.partition_for(id)).or_default().push(place);
        }
        let parts = places.iter().map(|(partition, places)| async move {
            let mut owns = Vec::with_capacity(places.len());
            for some in places.chunks(self.chunk()) {
                let some: Vec<_> = some.iter().map(|place| hits[*place]).collect();
                owns.extend(self.add_some(self.lane(*partition), &some, patience).await);
            }
            owns
        });
        let owns = join_all(parts).await.into_iter().flatten();
        let mut owns: Vec<_> = places.values().flatten().zip(owns).collect();
        owns.sort_unstable_by_key(|(place, _)| **place);
        owns.into_iter().map(|(_, own)| own).collect()
    }

    async fn add_some(&self, lane: &Arc<Lane<C>>, hits: &[(&[u8], i64)], patience: Duration) -> Vec<Own> {
        let push = |group: &mut Group| {
            let fits = lane.has_room_for(group, hits.len());
            fits.then(|| hits.iter().map(|(id, delta)| group.push(id, *delta, 1)).collect::<Vec<_>>())
        };
        let (call, seats) = match lane.count(patience, true, push).await {
            Ok(counted) => counted,
            Err(error) => return hits.iter().map(|_| Err(error.again())).collect(),
        };
        let mut owns = Vec::with_capacity(hits.len());
        for (seat, (id, delta)) in seats.into_iter().zip(hits) {
            owns.push(match call.own(seat) {
                Ok(Some(answer)) => Ok(answer),
                Ok(None) => Self::add_alone(lane, id, *delta, 1, patience).await,
                Err(error) => Err(error),
            });
        }
        owns
    }

    /// Counts a hit in this process, and sees to it that it is sent soon.
    pub fn record(self: &Arc<Self>, id: &[u8], delta: i64) -> Result<()> {
        let family = &self.opened.registered.family;
        self.recorder.record(family, family.home_of(id).unwrap_or_else(|| family.partition_by(id)), id, delta)?;
        Recorder::begin(self);
        Ok(())
    }

    /// Sends what was recorded.
    pub async fn flush(self: &Arc<Self>) -> Result<()> {
        Recorder::flush(self.clone()).await
    }

    /// How many hits of one caller go together: they must find room beside others.
    fn chunk(&self) -> usize {
        self.opened.registered.family.pairs_a_call().div_ceil(2)
    }

    fn lane(&self, number: u32) -> &Arc<Lane<C>> {
        self.lanes[number as usize].get_or_init(|| {
            let partition = self.dispatch.partition(&self.opened.registered.family, number);
            Arc::new(Lane::new(self.opened.clone(), number, partition, self.dispatch.clone(), self.work.clone()))
        })
    }

    /// The partition that takes an increment of this id: its own, or the least busy one of a wide family.
    fn partition_for(&self, id: &[u8]) -> u32 {
        let family = &self.opened.registered.family;
        if let Some(home) = family.home_of(id) {
            return home;
        }
        // as long as nothing waits there, the same one as before: fewer partitions are brought to the database
        let count = family.partitions();
        let last = self.turn.load(Ordering::Relaxed) % count;
        if self.lane(last).waiting() == 0 {
            return last;
        }
        let first = self.turn.fetch_add(1, Ordering::Relaxed);
        let candidates = (0..count.min(CANDIDATES)).map(|step| first.wrapping_add(step) % count);
        candidates.min_by_key(|number| self.lane(*number).waiting()).unwrap_or(0)
    }
}
