//! The hits gathered for one call: pairs of id and delta, with equal ids summed.

use std::collections::HashMap;

use indexmap::IndexMap;

use crate::scripts::cached::Seed;
use crate::scripts::partition::{PairResult, Update};

/// The maximum number of hits that wait for one call.
const HITS: u64 = 100_000;

/// The hits for one call.
///
/// Deltas of the same sign are summed by id. Every intermediate value then lies between its
/// neighbours, so that each caller can receive its own. A sum of both signs could leave the range
/// midway and still end within it.
#[derive(Debug, Default)]
pub struct Group {
    ups: IndexMap<Box<[u8]>, Pair>,
    downs: IndexMap<Box<[u8]>, Pair>,
    /// Pairs that are not summed with any other.
    alone: Vec<(Box<[u8]>, Pair)>,
    /// The seeds of missing counters, applied before the changes.
    seeds: IndexMap<Box<[u8]>, (u32, Seed)>,
    hits: u64,
}

#[derive(Clone, Copy, Debug)]
struct Pair {
    partition: u32,
    sum: i64,
    hits: u64,
    callers: u32,
    /// Set if the sum replaces the counter's value.
    sets: bool,
}

/// A hit's position in its group.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    list: List,
    index: usize,
    /// The sum of its pair up to this hit.
    so_far: i64,
}

/// The part of a group that goes to one partition.
#[derive(Debug)]
pub struct PartitionGroup<'a> {
    pub partition: u32,
    pub hits: u64,
    /// The positions of its pairs in the group.
    pub indexes: Vec<usize>,
    pub pairs: Vec<(&'a [u8], Update)>,
}

#[derive(Clone, Copy, Debug)]
enum List {
    Ups,
    Downs,
    Alone,
}

impl Group {
    pub fn with_capacity(pairs: usize) -> Self {
        Group {
            ups: IndexMap::with_capacity(pairs),
            ..Group::default()
        }
    }

    /// Returns whether the group has room for `pairs` more pairs, with at most `most` in all.
    pub fn has_room_for(&self, pairs: usize, most: usize) -> bool {
        self.is_empty() || (self.len() + pairs <= most && self.hits < HITS)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of pairs.
    pub fn len(&self) -> usize {
        self.ups.len() + self.downs.len() + self.alone.len()
    }

    pub fn hits(&self) -> u64 {
        self.hits
    }

    /// Adds a delta that stands for `hits` hits.
    pub fn push(&mut self, partition: u32, id: &[u8], delta: i64, hits: u64) -> Position {
        let (list, pairs) = if delta < 0 {
            (List::Downs, &mut self.downs)
        } else {
            (List::Ups, &mut self.ups)
        };
        let Some((index, _, pair)) = pairs.get_full_mut(id) else {
            self.hits += hits;
            let (index, _) = pairs.insert_full(
                id.into(),
                Pair {
                    partition,
                    sum: delta,
                    hits,
                    callers: 1,
                    sets: false,
                },
            );
            return Position {
                list,
                index,
                so_far: delta,
            };
        };
        let Some(so_far) = pair.sum.checked_add(delta) else {
            return self.push_alone(partition, id, delta, hits);
        };
        *pair = Pair {
            sum: so_far,
            hits: pair.hits + hits,
            callers: pair.callers + 1,
            ..*pair
        };
        self.hits += hits;
        Position {
            list,
            index,
            so_far,
        }
    }

    /// Adds a delta that is not summed with others.
    pub fn push_alone(&mut self, partition: u32, id: &[u8], delta: i64, hits: u64) -> Position {
        self.push_single(
            id,
            Pair {
                partition,
                sum: delta,
                hits,
                callers: 1,
                sets: false,
            },
        )
    }

    /// Adds a value that replaces the counter's, after all sums.
    pub fn push_set(&mut self, partition: u32, id: &[u8], value: i64) -> Position {
        self.push_single(
            id,
            Pair {
                partition,
                sum: value,
                hits: 1,
                callers: 1,
                sets: true,
            },
        )
    }

    fn push_single(&mut self, id: &[u8], pair: Pair) -> Position {
        self.hits += pair.hits;
        self.alone.push((id.into(), pair));
        Position {
            list: List::Alone,
            index: self.alone.len() - 1,
            so_far: pair.sum,
        }
    }

    /// Adds a seed, used if the counter is missing. It replaces an earlier seed, because its ticket
    /// is newer.
    pub fn push_seed(&mut self, partition: u32, id: &[u8], seed: Seed) {
        self.seeds.insert(id.into(), (partition, seed));
    }

    /// Returns the pairs by partition, as a call carries them, each with its index in the results
    /// of the whole group.
    pub fn by_partition(&self) -> Vec<PartitionGroup<'_>> {
        let mut partition_groups: Vec<PartitionGroup<'_>> = Vec::new();
        let mut at = HashMap::<u32, usize>::new();
        for (index, (id, pair)) in self.all().enumerate() {
            let group = *at.entry(pair.partition).or_insert_with(|| {
                partition_groups.push(PartitionGroup {
                    partition: pair.partition,
                    hits: 0,
                    indexes: Vec::new(),
                    pairs: Vec::new(),
                });
                partition_groups.len() - 1
            });
            let group = &mut partition_groups[group];
            group.hits += pair.hits;
            group.indexes.push(index);
            group.pairs.push((
                id,
                if pair.sets {
                    Update::Set(pair.sum)
                } else {
                    Update::Add(pair.sum)
                },
            ));
        }
        partition_groups
    }

    /// Returns the seeds of missing counters of this partition.
    pub fn seeds_of(&self, partition: u32) -> Vec<(&[u8], Seed)> {
        let own = self.seeds.iter().filter(|(_, (of, _))| *of == partition);
        own.map(|(id, (_, seed))| (&**id, *seed)).collect()
    }

    /// Returns each pair's hits and result. Omits refused sums of several callers, whose hits are
    /// retried alone.
    pub fn settled_hits<'a>(
        &'a self,
        results: &'a [PairResult],
    ) -> impl Iterator<Item = (u64, PairResult)> + 'a {
        let settled = |((_, pair), result): ((_, &Pair), &PairResult)| {
            (pair.hits, *result, pair.is_retried_alone(*result))
        };
        self.all()
            .zip(results)
            .map(settled)
            .filter(|(.., again)| !again)
            .map(|(hits, result, _)| (hits, result))
    }

    /// Returns the outcome of a hit, given those of the pairs; `None` if it was refused in a sum
    /// and must be tried alone.
    pub fn own(
        &self,
        position: Position,
        results: &[PairResult],
        repeated: bool,
    ) -> Option<PairResult> {
        let (index, pair) = match position.list {
            List::Ups => (position.index, &self.ups[position.index]),
            List::Downs => (self.ups.len() + position.index, &self.downs[position.index]),
            List::Alone => (
                self.ups.len() + self.downs.len() + position.index,
                &self.alone[position.index].1,
            ),
        };
        match results[index] {
            // a repeat receives the current pending value, which includes other callers' later hits
            PairResult::Counted(sum) if !repeated => Some(PairResult::Counted(
                sum.wrapping_sub(pair.sum).wrapping_add(position.so_far),
            )),
            // of several visits of one visitor, only the first is a first visit
            PairResult::First if position.so_far > 1 => Some(PairResult::Repeated),
            refused if pair.is_retried_alone(refused) => None,
            same => Some(same),
        }
    }

    fn all(&self) -> impl Iterator<Item = (&Box<[u8]>, &Pair)> {
        self.ups
            .iter()
            .chain(&self.downs)
            .chain(self.alone.iter().map(|(id, pair)| (id, pair)))
    }
}

impl Pair {
    /// Returns whether the pair's hits are retried alone: one of them may fit where the sum does
    /// not.
    fn is_retried_alone(self, result: PairResult) -> bool {
        self.callers > 1 && matches!(result, PairResult::OutOfRange(_))
    }
}
