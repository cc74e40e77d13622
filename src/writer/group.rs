//! The hits gathered for one call: pairs of id and delta by partition, with equal ids summed.

use std::hash::BuildHasher;
use std::sync::Arc;

use hashbrown::hash_table::Entry;
use hashbrown::{DefaultHashBuilder, HashTable};

use crate::scripts::counting::{PairRequest, PairResult, Pairs, PartitionCall, Seed, Update};
use crate::scripts::partition::Partition;

/// The maximum number of hits that wait for one call.
const HITS: u64 = 100_000;

/// The length that most ids do not exceed, by which a group reserves memory.
const ID: usize = 16;

/// The hits for one call.
///
/// Deltas of the same sign are summed by id. Every intermediate value then lies between its
/// neighbours, so that each caller can receive its own. A sum of both signs could leave the range
/// midway and still end within it.
#[derive(Debug, Default)]
pub struct Group {
    /// In the order of their first hits.
    pairs: Vec<Pair>,
    /// The ids of the pairs, one after the other.
    ids: Vec<u8>,
    /// The indexes of the pairs that further deltas may join.
    sums: HashTable<usize>,
    hasher: DefaultHashBuilder,
    /// The seeds of missing counters, applied before the changes: index of the pair, seed.
    seeds: Vec<(usize, Seed)>,
    requests: Vec<GroupRequest>,
    hits: u64,
    /// The indexes of the pairs by partition, once the group is complete.
    by_partition: Vec<usize>,
}

/// A pair of the group. The alignment puts it into one cache line, because with many ids most
/// accesses miss the cache.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Pair {
    partition: u32,
    callers: u32,
    id: (usize, usize),
    update: Update,
    hits: u64,
    /// The index of its result, once the group is complete.
    result: usize,
}

/// A pair with a request.
#[derive(Debug)]
struct GroupRequest {
    /// The index of the pair.
    pair: usize,
    /// The bytes of the request's name, beside those of the ids.
    name: (usize, usize),
    generation: Arc<str>,
}

/// A hit's position in its group.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    /// The index of its pair.
    pair: usize,
    /// The sum of its pair up to this hit.
    so_far: i64,
}

/// A hit, or several hits that are summed.
#[derive(Clone, Copy, Debug)]
pub struct Hit<'a> {
    pub partition: u32,
    pub id: &'a [u8],
    pub update: Update,
    pub hits: u64,
    /// The seed of a missing counter.
    pub seed: Option<Seed>,
    /// The name and the generation of a request, which is summed with no other hit.
    pub request: Option<(&'a str, &'a Arc<str>)>,
}

impl Group {
    /// Creates a group with room for this number of pairs.
    pub fn with_capacity(pairs: usize) -> Self {
        Group {
            pairs: Vec::with_capacity(pairs),
            ids: Vec::with_capacity(pairs * ID),
            sums: HashTable::with_capacity(pairs),
            ..Group::default()
        }
    }

    /// Returns whether the group has room for `pairs` more pairs, with at most `most` in all.
    pub fn has_room_for(&self, pairs: usize, most: usize) -> bool {
        self.is_empty() || (self.len() + pairs <= most && self.hits < HITS)
    }

    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Returns the number of pairs.
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    pub fn hits(&self) -> u64 {
        self.hits
    }

    /// Adds a hit. A delta is summed with those of its id, unless the sum leaves the range.
    pub fn push(&mut self, hit: &Hit<'_>) -> Position {
        let (Update::Add(delta), None) = (hit.update, hit.request) else {
            return self.push_alone(hit);
        };
        let (pairs, ids, hasher) = (&self.pairs, &self.ids, &self.hasher);
        let is_joined = |index: &usize| pairs[*index].is_joined_by(hit, ids);
        let hash = |index: &usize| hasher.hash_one(pairs[*index].id(ids));
        let index = match self.sums.entry(hasher.hash_one(hit.id), is_joined, hash) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                new.insert(pairs.len());
                return self.push_alone(hit);
            }
        };
        let pair = &mut self.pairs[index];
        let Some(so_far) = pair.update.amount().checked_add(delta) else {
            return self.push_alone(hit);
        };
        pair.update = Update::Add(so_far);
        pair.hits += hit.hits;
        pair.callers += 1;
        self.hits += hit.hits;
        self.seed(index, hit.seed);
        Position {
            pair: index,
            so_far,
        }
    }

    /// Returns whether the hit would join a pair.
    pub fn has_sum_of(&self, hit: &Hit<'_>) -> bool {
        let is_joined = |index: &usize| self.pairs[*index].is_joined_by(hit, &self.ids);
        let hash = self.hasher.hash_one(hit.id);
        self.sums.find(hash, is_joined).is_some()
    }

    /// Adds a hit that is not summed with others.
    pub fn push_alone(&mut self, hit: &Hit<'_>) -> Position {
        let (index, start) = (self.pairs.len(), self.ids.len());
        self.ids.extend_from_slice(hit.id);
        self.pairs.push(Pair {
            partition: hit.partition,
            callers: 1,
            id: (start, self.ids.len()),
            update: hit.update,
            hits: hit.hits,
            result: 0,
        });
        self.hits += hit.hits;
        self.seed(index, hit.seed);
        if let Some((name, generation)) = hit.request {
            let start = self.ids.len();
            self.ids.extend_from_slice(name.as_bytes());
            self.requests.push(GroupRequest {
                pair: index,
                name: (start, self.ids.len()),
                generation: generation.clone(),
            });
        }
        Position {
            pair: index,
            so_far: hit.update.amount(),
        }
    }

    /// Adds a seed, or replaces the pair's earlier seed, because its ticket is newer.
    fn seed(&mut self, index: usize, seed: Option<Seed>) {
        let Some(seed) = seed else { return };
        match self.seeds.iter_mut().find(|(of, _)| *of == index) {
            Some((_, earlier)) => *earlier = seed,
            None => self.seeds.push((index, seed)),
        }
    }

    /// Completes the group: divides its pairs by partition. No more hits are added.
    pub fn complete(&mut self) {
        self.by_partition = (0..self.pairs.len()).collect();
        self.by_partition
            .sort_by_key(|index| self.pairs[*index].partition);
        for (result, index) in self.by_partition.iter().enumerate() {
            self.pairs[*index].result = result;
        }
    }

    /// Returns what a call of the complete group carries to each partition.
    pub fn calls<'a>(
        &'a self,
        partition: impl Fn(u32) -> &'a Partition,
    ) -> Vec<PartitionCall<'a, impl Pairs<'a>>> {
        let calls = self.parts().map(|(number, indexes)| PartitionCall {
            partition: partition(number),
            hits: indexes.iter().map(|index| self.pairs[*index].hits).sum(),
            pairs: indexes.iter().map(|index| {
                let pair = &self.pairs[*index];
                (pair.id(&self.ids), pair.update)
            }),
            seeds: self.seeds_of(number),
        });
        calls.collect()
    }

    /// Returns the number of each partition in the complete group, with the indexes of its pairs.
    pub fn parts(&self) -> impl Iterator<Item = (u32, &[usize])> {
        let partition = |index: usize| self.pairs[index].partition;
        self.by_partition
            .chunk_by(move |one, next| partition(*one) == partition(*next))
            .map(move |indexes| (partition(indexes[0]), indexes))
    }

    fn seeds_of(&self, partition: u32) -> Vec<(&[u8], Seed)> {
        let seeds = self.seeds.iter();
        seeds
            .map(|(index, seed)| (&self.pairs[*index], *seed))
            .filter(|(pair, _)| pair.partition == partition)
            .map(|(pair, seed)| (pair.id(&self.ids), seed))
            .collect()
    }

    /// Returns the requests, once the group is complete.
    pub fn requests(&self) -> impl Iterator<Item = PairRequest<'_>> {
        self.requests.iter().map(|request| PairRequest {
            pair: self.pairs[request.pair].result + 1,
            name: &self.ids[request.name.0..request.name.1],
            generation: &request.generation,
        })
    }

    /// Returns the partition of the first hit.
    pub fn partition(&self) -> u32 {
        self.pairs.first().map_or(0, |pair| pair.partition)
    }

    /// Returns all pairs as summed hits, without seeds.
    pub fn summed(&self) -> impl Iterator<Item = Hit<'_>> {
        self.pairs.iter().map(|pair| Hit {
            partition: pair.partition,
            id: pair.id(&self.ids),
            update: pair.update,
            hits: pair.hits,
            seed: None,
            request: None,
        })
    }

    /// Returns each pair's hits and result. Omits refused sums of several callers, whose hits are
    /// retried alone.
    pub fn settled_hits(&self, results: &[PairResult]) -> impl Iterator<Item = (u64, PairResult)> {
        self.pairs
            .iter()
            .map(|pair| (pair, results[pair.result]))
            .filter(|(pair, result)| !pair.is_retried_alone(*result))
            .map(|(pair, result)| (pair.hits, result))
    }

    /// Returns the outcome of a hit, given those of the pairs; `None` if it was refused in a sum
    /// and must be tried alone. A repeat receives the current pending value, which includes other
    /// callers' later hits.
    pub fn own(
        &self,
        position: Position,
        results: &[PairResult],
        repeated: bool,
    ) -> Option<PairResult> {
        let pair = &self.pairs[position.pair];
        match results[pair.result] {
            PairResult::Counted(sum) if !repeated => {
                let later = pair.update.amount().wrapping_sub(position.so_far);
                Some(PairResult::Counted(sum.wrapping_sub(later)))
            }
            // of several visits of one visitor, only the first is a first visit
            PairResult::First if position.so_far > 1 => Some(PairResult::Repeated),
            refused if pair.is_retried_alone(refused) => None,
            same => Some(same),
        }
    }
}

impl Pair {
    fn id(self, ids: &[u8]) -> &[u8] {
        &ids[self.id.0..self.id.1]
    }

    fn is_joined_by(self, hit: &Hit<'_>, ids: &[u8]) -> bool {
        let is_down = |update: Update| update.amount() < 0;
        self.partition == hit.partition
            && is_down(self.update) == is_down(hit.update)
            && self.id(ids) == hit.id
    }

    /// Returns whether the pair's hits are retried alone: one of them may fit where the sum does
    /// not.
    fn is_retried_alone(self, result: PairResult) -> bool {
        self.callers > 1 && matches!(result, PairResult::OutOfRange(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hit(partition: u32, id: &str, delta: i64) -> Hit<'_> {
        Hit {
            partition,
            id: id.as_bytes(),
            update: Update::Add(delta),
            hits: 1,
            seed: None,
            request: None,
        }
    }

    #[test]
    fn equal_ids_of_a_partition_are_summed_by_sign() {
        let mut group = Group::default();
        let hits = [
            hit(0, "a", 2),
            hit(1, "b", 1),
            hit(0, "a", 3),
            hit(0, "a", -1),
            hit(2, "a", 1),
            hit(0, "a", -4),
            hit(0, "a", i64::MAX),
        ];
        let positions = hits.map(|hit| group.push(&hit));
        group.complete();
        let parts = group.parts().map(|(partition, indexes)| {
            let pairs = indexes.iter().map(|index| group.pairs[*index]);
            let pairs = pairs.map(|pair| (pair.id(&group.ids), pair.update.amount()));
            (partition, pairs.collect::<Vec<_>>())
        });
        let a = b"a".as_slice();
        let expected = [
            (0, vec![(a, 5), (a, -5), (a, i64::MAX)]),
            (1, vec![(b"b".as_slice(), 1)]),
            (2, vec![(a, 1)]),
        ];
        assert!(parts.eq(expected));
        assert_eq!((group.len(), group.hits()), (5, 7));

        let results = [105, 100, i64::MAX, 21, 31].map(PairResult::Counted);
        let own = positions.map(|position| group.own(position, &results, false));
        let expected = [102, 21, 105, 104, 31, 100, i64::MAX].map(PairResult::Counted);
        assert_eq!(own, expected.map(Some));
    }
}
