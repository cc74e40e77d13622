//! Terms that several models share.

use std::collections::BTreeMap;
use std::fmt::{Debug, Formatter, Result};
use std::ops::Add;

/// One increment, which must reach the database exactly once. Hits are numbered from 0.
pub type Hit = u8;

/// The name of an incarnation, a nonce, an epoch or a ticket: random in truth, here the next unused
/// number. 0 stands for none.
pub type Name = u8;

/// Returns a name that was never given out.
pub(crate) fn next_name(names: &mut Name) -> Name {
    *names += 1;
    *names
}

/// A bag of hits that remembers which of them it holds more than once.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Hits {
    held: u8,
    repeated: u8,
}

impl Hits {
    /// The most hits that a bag can tell apart.
    pub const CAPACITY: u8 = 8;

    /// Returns a bag with one hit.
    pub fn one(hit: Hit) -> Self {
        assert!(
            hit < Self::CAPACITY,
            "hit {hit} is beyond what a bag can hold"
        );
        Self {
            held: 1 << hit,
            repeated: 0,
        }
    }

    /// Returns a bag with the first `count` hits, one of each.
    pub fn first(count: u8) -> Self {
        (0..count).map(Self::one).fold(Self::default(), Add::add)
    }

    /// Returns the different hits in ascending order.
    pub fn iter(self) -> impl Iterator<Item = Hit> {
        (0..Self::CAPACITY).filter(move |hit| self.contains(*hit))
    }

    /// Returns the highest hit.
    pub fn last(self) -> Option<Hit> {
        self.iter().last()
    }

    /// Returns whether the bag holds nothing.
    pub fn is_empty(self) -> bool {
        self.held == 0
    }

    /// Returns whether the bag holds `hit`.
    pub fn contains(self, hit: Hit) -> bool {
        self.held & 1 << hit != 0
    }

    /// Returns whether the bag holds every hit of `others`.
    pub fn contains_all(self, others: Self) -> bool {
        others.held & !self.held == 0
    }

    /// Returns whether the bag holds a hit more than once.
    pub fn has_repeats(self) -> bool {
        self.repeated != 0
    }

    /// Returns the hits of either bag, one of each.
    pub fn union(self, others: Self) -> Self {
        Self {
            held: self.held | others.held,
            repeated: 0,
        }
    }

    /// Returns the hits that `others` holds as well.
    pub fn among(self, others: Self) -> Self {
        Self {
            held: self.held & others.held,
            repeated: self.repeated & others.held,
        }
    }

    /// Returns the hits that `others` does not hold.
    pub fn without(self, others: Self) -> Self {
        Self {
            held: self.held & !others.held,
            repeated: self.repeated & !others.held,
        }
    }
}

/// The sum of two bags: a hit that both hold is held more than once.
impl Add for Hits {
    type Output = Self;

    fn add(self, others: Self) -> Self {
        Self {
            held: self.held | others.held,
            repeated: self.repeated | others.repeated | self.held & others.held,
        }
    }
}

impl Debug for Hits {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> Result {
        let mut list = formatter.debug_list();
        for hit in self.iter() {
            list.entry(&hit);
            if self.repeated & 1 << hit != 0 {
                list.entry(&hit);
            }
        }
        list.finish()
    }
}

/// The state in which Redis returns after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Crash {
    /// The state of the last fsync of the append-only file. Workers fetch a batch only once its
    /// rotation is durable.
    ToLastFsync,
    /// Empty: nothing is persistent.
    Emptied,
    /// The state of the last snapshot, however much the database has received since. Nothing waits
    /// for a snapshot.
    SetBack,
}

/// The identity of a batch, and what Redis remembers of its last cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BatchId {
    /// The incarnation of the partition.
    pub incarnation: Name,
    /// The number of the cut within the incarnation, from 1; 0 before the first.
    pub seq: u8,
    /// A name that is new for every cut.
    pub nonce: Name,
}

/// The database: what it stores, and the ledger of what was applied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Database {
    /// The hits in the rows of the counters.
    pub rows: Hits,
    /// The ledger of the partition.
    pub ledger: Ledger,
}

/// The ledger of one partition: a row per incarnation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ledger(BTreeMap<Name, LedgerRow>);

/// The latest batch of an incarnation, as far as it was applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct LedgerRow {
    /// The number of the batch.
    pub seq: u8,
    /// The nonce of the batch.
    pub nonce: Name,
    /// The last id that was added, or none once the batch is complete.
    pub position: Option<Hit>,
}

/// The result of comparing a ledger row with a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No part of the batch was applied.
    New,
    /// The row is about this batch: continue at the position, or repeat nothing if it is complete.
    Same,
    /// The ledger is past this batch. If Redis still has it, Redis was set back; otherwise the
    /// worker is late.
    Behind,
}

impl Ledger {
    /// Returns the row of `incarnation`; a missing row says that nothing was applied.
    pub fn row(&self, incarnation: Name) -> LedgerRow {
        self.0.get(&incarnation).copied().unwrap_or_default()
    }

    /// Returns whether `incarnation` has a row.
    pub fn has_row(&self, incarnation: Name) -> bool {
        self.0.contains_key(&incarnation)
    }

    /// Advances the row of a batch to `position`, or to complete.
    pub fn advance(&mut self, batch: BatchId, position: Option<Hit>) {
        self.0.insert(
            batch.incarnation,
            LedgerRow {
                seq: batch.seq,
                nonce: batch.nonce,
                position,
            },
        );
    }

    /// Returns whether the last cut that Redis remembers lies behind what the database has
    /// received.
    pub fn proves_set_back(&self, last_cut: BatchId) -> bool {
        self.row(last_cut.incarnation).proves_set_back(last_cut)
    }
}

impl LedgerRow {
    /// Compares the row with a batch that a worker is about to apply.
    pub fn verdict(self, batch: BatchId) -> Verdict {
        if (batch.seq, batch.nonce) == (self.seq, self.nonce) {
            Verdict::Same
        } else if batch.seq > self.seq {
            Verdict::New
        } else {
            Verdict::Behind
        }
    }

    /// Returns whether the last cut that Redis remembers lies behind this row.
    pub fn proves_set_back(self, last_cut: BatchId) -> bool {
        last_cut.seq < self.seq || (last_cut.seq == self.seq && last_cut.nonce != self.nonce)
    }

    /// Returns whether the row lacks the last cut that Redis remembers, or a part of it.
    pub fn lacks(self, last_cut: BatchId) -> bool {
        self.seq < last_cut.seq || (self.seq == last_cut.seq && self.position.is_some())
    }

    /// Returns whether the row lacks the batch before this one, or a part of it, although Redis
    /// released that before it cut this one.
    pub fn is_behind_before(self, batch: BatchId) -> bool {
        self.seq + 1 < batch.seq || (self.seq + 1 == batch.seq && self.position.is_some())
    }

    /// Returns whether the row says that the database contains the part of `batch` that is `hit`.
    pub fn has_stored(self, batch: BatchId, hit: Hit) -> bool {
        match self.verdict(batch) {
            Verdict::New => false,
            Verdict::Same => self.position.is_none_or(|position| hit <= position),
            Verdict::Behind => self.seq > batch.seq,
        }
    }
}
