//! The hits gathered for one call: pairs of id and delta by partition, with equal ids summed.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};
use indexmap::IndexMap;

use crate::scripts::cached::Seed;
use crate::scripts::partition::{PairResult, Pairs, Update};

/// The maximum number of hits that wait for one call.
const HITS: u64 = 100_000;

/// The hits for one call.
///
/// Deltas of the same sign are summed by id. Every intermediate value then lies between its
/// neighbours, so that each caller can receive its own. A sum of both signs could leave the range
/// midway and still end within it.
#[derive(Debug, Default)]
pub struct Group {
    /// By the number of the partition.
    parts: IndexMap<u32, Part, DefaultHashBuilder>,
    /// The pairs that further deltas may join.
    sums: HashTable<PairIndex>,
    len: usize,
    hits: u64,
}

/// The hits of one partition.
#[derive(Debug, Default)]
pub struct Part {
    pub hits: u64,
    pairs: Vec<Pair>,
    /// The ids of the pairs, one after the other.
    ids: Vec<u8>,
    /// The seeds of missing counters, applied before the changes: index of the pair, seed.
    seeds: Vec<(usize, Seed)>,
    /// The index of its first result among those of the group, once the group is complete.
    first_result: usize,
}

#[derive(Clone, Copy, Debug)]
struct Pair {
    id: (usize, usize),
    update: Update,
    hits: u64,
    callers: u32,
}

/// The index of a pair's part, and its index there.
#[derive(Clone, Copy, Debug)]
pub struct PairIndex {
    part: usize,
    pair: usize,
}

/// A hit's position in its group.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    pair: PairIndex,
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
}

impl Group {
    /// Creates a group with room for this number of pairs.
    pub fn with_capacity(pairs: usize) -> Self {
        Group {
            sums: HashTable::with_capacity(pairs),
            ..Group::default()
        }
    }

    /// Returns whether the group has room for `pairs` more pairs, with at most `most` in all.
    pub fn has_room_for(&self, pairs: usize, most: usize) -> bool {
        self.is_empty() || (self.len + pairs <= most && self.hits < HITS)
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of pairs.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn hits(&self) -> u64 {
        self.hits
    }

    /// Adds a hit. A delta is summed with those of its id, unless the sum leaves the range.
    pub fn push(&mut self, hit: &Hit<'_>) -> Position {
        let Update::Add(delta) = hit.update else {
            return self.push_alone(hit);
        };
        let Some(at) = self.sum_of(hit) else {
            let position = self.push_alone(hit);
            let parts = &self.parts;
            let rehash = |at: &PairIndex| parts[at.part].hash(at.pair, parts.hasher());
            let hash = rehash(&position.pair);
            self.sums.insert_unique(hash, position.pair, rehash);
            return position;
        };
        let part = &mut self.parts[at.part];
        let pair = &mut part.pairs[at.pair];
        let Some(so_far) = pair.update.amount().checked_add(delta) else {
            return self.push_alone(hit);
        };
        pair.update = Update::Add(so_far);
        pair.hits += hit.hits;
        pair.callers += 1;
        part.hits += hit.hits;
        part.seed(at.pair, hit.seed);
        self.hits += hit.hits;
        Position { pair: at, so_far }
    }

    /// Returns the pair that the hit would join.
    pub fn sum_of(&self, hit: &Hit<'_>) -> Option<PairIndex> {
        let (parts, is_down) = (&self.parts, hit.update.amount() < 0);
        let is_same = |at: &PairIndex| {
            parts.get_index(at.part).is_some_and(|(partition, part)| {
                let pair = &part.pairs[at.pair];
                *partition == hit.partition && pair.is_down() == is_down && part.id(pair) == hit.id
            })
        };
        let hash = hash(parts.hasher(), hit.id, is_down);
        self.sums.find(hash, is_same).copied()
    }

    /// Adds a hit that is not summed with others.
    pub fn push_alone(&mut self, hit: &Hit<'_>) -> Position {
        let entry = self.parts.entry(hit.partition);
        let at = entry.index();
        let part = entry.or_default();
        let (start, index) = (part.ids.len(), part.pairs.len());
        part.ids.extend_from_slice(hit.id);
        part.pairs.push(Pair {
            id: (start, part.ids.len()),
            update: hit.update,
            hits: hit.hits,
            callers: 1,
        });
        part.hits += hit.hits;
        part.seed(index, hit.seed);
        self.hits += hit.hits;
        self.len += 1;
        Position {
            pair: PairIndex {
                part: at,
                pair: index,
            },
            so_far: hit.update.amount(),
        }
    }

    /// Returns the part of each partition that a call carries.
    pub fn parts(&self) -> impl Iterator<Item = (u32, &Part)> {
        self.parts
            .iter()
            .map(|(partition, part)| (*partition, part))
    }

    /// Returns the partition of the first part.
    pub fn partition(&self) -> u32 {
        self.parts.keys().next().copied().unwrap_or_default()
    }

    /// Returns all pairs as summed hits, without seeds.
    pub fn summed(&self) -> impl Iterator<Item = Hit<'_>> {
        self.parts().flat_map(|(partition, part)| {
            part.pairs.iter().map(move |pair| Hit {
                partition,
                id: part.id(pair),
                update: pair.update,
                hits: pair.hits,
                seed: None,
            })
        })
    }

    /// Completes the group: its results begin with those of the first part.
    pub fn complete(&mut self) {
        let mut first = 0;
        for part in self.parts.values_mut() {
            part.first_result = first;
            first += part.pairs.len();
        }
    }

    /// Returns each pair's hits and result. Omits refused sums of several callers, whose hits are
    /// retried alone.
    pub fn settled_hits(&self, results: &[PairResult]) -> impl Iterator<Item = (u64, PairResult)> {
        let pairs = self.parts.values().flat_map(|part| &part.pairs);
        pairs
            .zip(results)
            .filter(|(pair, result)| !pair.is_retried_alone(**result))
            .map(|(pair, result)| (pair.hits, *result))
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
        let part = &self.parts[position.pair.part];
        let pair = &part.pairs[position.pair.pair];
        match results[part.first_result + position.pair.pair] {
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

impl Part {
    fn id(&self, pair: &Pair) -> &[u8] {
        &self.ids[pair.id.0..pair.id.1]
    }

    fn hash(&self, index: usize, hasher: &DefaultHashBuilder) -> u64 {
        let pair = &self.pairs[index];
        hash(hasher, self.id(pair), pair.is_down())
    }

    /// Adds a seed, or replaces the pair's earlier seed, because its ticket is newer.
    fn seed(&mut self, index: usize, seed: Option<Seed>) {
        let Some(seed) = seed else { return };
        match self.seeds.iter_mut().find(|(of, _)| *of == index) {
            Some((_, earlier)) => *earlier = seed,
            None => self.seeds.push((index, seed)),
        }
    }

    /// Returns the ids, each with its update.
    pub fn pairs(&self) -> impl Pairs<'_> {
        self.pairs.iter().map(|pair| (self.id(pair), pair.update))
    }

    /// Returns the seeds of missing counters.
    pub fn seeds(&self) -> Vec<(&[u8], Seed)> {
        let seeds = self.seeds.iter();
        seeds
            .map(|(index, seed)| (self.id(&self.pairs[*index]), *seed))
            .collect()
    }
}

impl Pair {
    fn is_down(&self) -> bool {
        self.update.amount() < 0
    }

    /// Returns whether the pair's hits are retried alone: one of them may fit where the sum does
    /// not.
    fn is_retried_alone(self, result: PairResult) -> bool {
        self.callers > 1 && matches!(result, PairResult::OutOfRange(_))
    }
}

fn hash(hasher: &DefaultHashBuilder, id: &[u8], is_down: bool) -> u64 {
    hasher.hash_one((id, is_down))
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
        let parts = group.parts().map(|(partition, part)| {
            let pairs = part.pairs().map(|(id, update)| (id, update.amount()));
            (partition, part.hits, pairs.collect::<Vec<_>>())
        });
        let a = b"a".as_slice();
        let expected = [
            (0, 5, vec![(a, 5), (a, -5), (a, i64::MAX)]),
            (1, 1, vec![(b"b".as_slice(), 1)]),
            (2, 1, vec![(a, 1)]),
        ];
        assert!(parts.eq(expected));
        assert_eq!((group.len(), group.hits()), (5, 7));

        group.complete();
        let results = [105, 100, i64::MAX, 21, 31].map(PairResult::Counted);
        let own = positions.map(|position| group.own(position, &results, false));
        let expected = [102, 21, 105, 104, 31, 100, i64::MAX].map(PairResult::Counted);
        assert_eq!(own, expected.map(Some));
    }
}
