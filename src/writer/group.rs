//! What is gathered for one call: pairs of id and delta, with equal ids summed.

use indexmap::IndexMap;

use crate::cached::{Change, Seed};
use crate::writer::answer::Answer;
use crate::writer::call::Until;

/// How many hits may wait for one call.
const HITS: u64 = 100_000;

/// The hits for one call to one partition.
///
/// Deltas of one sign are summed by id. So each value in between lies between the one before and the one after, and
/// every caller can be told its own; a sum of both signs could leave the range on its way and yet end within it.
#[derive(Debug, Default)]
pub struct Group {
    ups: IndexMap<Box<[u8]>, Pair>,
    downs: IndexMap<Box<[u8]>, Pair>,
    /// Not to be summed with any other.
    alone: Vec<(Box<[u8]>, Pair)>,
    /// What missing counters are seeded with before.
    seeds: IndexMap<Box<[u8]>, Seed>,
    hits: u64,
    until: Option<Until>,
}

#[derive(Clone, Copy, Debug)]
struct Pair {
    sum: i64,
    hits: u64,
    callers: u32,
    /// The sum is to be the value.
    sets: bool,
}

/// A hit's place in its group.
#[derive(Clone, Copy, Debug)]
pub struct Seat {
    list: List,
    index: usize,
    /// The sum of its pair up to this hit.
    so_far: i64,
}

#[derive(Clone, Copy, Debug)]
enum List {
    Ups,
    Downs,
    Alone,
}

impl Group {
    pub fn with_capacity(pairs: usize) -> Self {
        Group { ups: IndexMap::with_capacity(pairs), ..Group::default() }
    }

    /// Whether it takes so many more pairs, of so many at most.
    pub fn has_room_for(&self, pairs: usize, most: usize) -> bool {
        self.is_empty() || (self.len() + pairs <= most && self.hits < HITS)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of pairs.
    pub fn len(&self) -> usize {
        self.ups.len() + self.downs.len() + self.alone.len()
    }

    pub fn hits(&self) -> u64 {
        self.hits
    }

    /// How long the most patient caller waits.
    pub fn until(&self) -> Option<Until> {
        self.until
    }

    pub fn wait_until(&mut self, until: Until) {
        self.until = Some(self.until.map_or(until, |other| other.or(until)));
    }

    /// Adds a delta that stands for so many hits.
    pub fn push(&mut self, id: &[u8], delta: i64, hits: u64) -> Seat {
        let (list, pairs) = if delta < 0 { (List::Downs, &mut self.downs) } else { (List::Ups, &mut self.ups) };
        let Some((index, _, pair)) = pairs.get_full_mut(id) else {
            self.hits += hits;
            let (index, _) = pairs.insert_full(id.into(), Pair { sum: delta, hits, callers: 1, sets: false });
            return Seat { list, index, so_far: delta };
        };
        let Some(so_far) = pair.sum.checked_add(delta) else { return self.push_alone(id, delta, hits) };
        *pair = Pair { sum: so_far, hits: pair.hits + hits, callers: pair.callers + 1, sets: false };
        self.hits += hits;
        Seat { list, index, so_far }
    }

    /// Adds a delta that is not summed with others.
    pub fn push_alone(&mut self, id: &[u8], delta: i64, hits: u64) -> Seat {
        self.push_single(id, Pair { sum: delta, hits, callers: 1, sets: false })
    }

    /// Adds a value that replaces the counter's, after everything that is summed.
    pub fn push_set(&mut self, id: &[u8], value: i64) -> Seat {
        self.push_single(id, Pair { sum: value, hits: 1, callers: 1, sets: true })
    }

    fn push_single(&mut self, id: &[u8], pair: Pair) -> Seat {
        self.hits += pair.hits;
        self.alone.push((id.into(), pair));
        Seat { list: List::Alone, index: self.alone.len() - 1, so_far: pair.sum }
    }

    /// Adds what the counter is to be seeded with if it is missing. Of several the last one: it has the latest ticket.
    pub fn push_seed(&mut self, id: &[u8], seed: Seed) {
        self.seeds.insert(id.into(), seed);
    }

    /// The ids and deltas in the order in which a call carries them.
    pub fn pairs(&self) -> impl Iterator<Item = (&[u8], i64)> {
        self.all().map(|(id, pair)| (&**id, pair.sum))
    }

    /// The same as changes of cached counters.
    pub fn changes(&self) -> impl Iterator<Item = (&[u8], Change)> {
        self.all().map(|(id, pair)| (&**id, if pair.sets { Change::Set(pair.sum) } else { Change::Add(pair.sum) }))
    }

    pub fn seeds(&self) -> impl Iterator<Item = (&[u8], Seed)> {
        self.seeds.iter().map(|(id, seed)| (&**id, *seed))
    }

    /// For each pair how many hits it stands for, unless its callers were many and its sum was refused: they come again.
    pub fn settled_hits<'a>(&'a self, answers: &'a [Answer]) -> impl Iterator<Item = (u64, Answer)> + 'a {
        let settled = |((_, pair), answer): ((_, &Pair), &Answer)| (pair.hits, *answer, pair.comes_again(*answer));
        self.all().zip(answers).map(settled).filter(|(.., again)| !again).map(|(hits, answer, _)| (hits, answer))
    }

    /// What became of a hit, given what became of the pairs; `None` if it was refused in a sum and must be tried alone.
    pub fn own(&self, seat: Seat, answers: &[Answer], repeated: bool) -> Option<Answer> {
        let (place, pair) = match seat.list {
            List::Ups => (seat.index, &self.ups[seat.index]),
            List::Downs => (self.ups.len() + seat.index, &self.downs[seat.index]),
            List::Alone => (self.ups.len() + self.downs.len() + seat.index, &self.alone[seat.index].1),
        };
        match answers[place] {
            // a repeat is answered what is pending by then, whoever else has counted meanwhile
            Answer::Counted(sum) if !repeated => {
                Some(Answer::Counted(sum.wrapping_sub(pair.sum).wrapping_add(seat.so_far)))
            }
            // of several visits of one visitor the first one is the first
            Answer::First if seat.so_far > 1 => Some(Answer::Again),
            refused if pair.comes_again(refused) => None,
            same => Some(same),
        }
    }

    fn all(&self) -> impl Iterator<Item = (&Box<[u8]>, &Pair)> {
        self.ups.iter().chain(&self.downs).chain(self.alone.iter().map(|(id, pair)| (id, pair)))
    }
}

impl Pair {
    /// One of many may fit where the sum does not.
    fn comes_again(self, answer: Answer) -> bool {
        self.callers > 1 && matches!(answer, Answer::OutOfRange(_))
    }
}
