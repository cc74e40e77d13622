//! The only place where a key is spelt (docs/protocol.md, section 2).

use crate::family::Family;
use crate::family::calendar::Precision;

/// A key with a name of the application's in it.
pub type Key = Vec<u8>;

/// The keys of one partition of a family. All carry one hash tag, so that they live in one Redis Cluster slot.
#[derive(Clone, Debug)]
pub struct Keys {
    tag: String,
}

impl Keys {
    pub fn new(family: &Family, partition: u32) -> Self {
        Keys { tag: format!("cf1:{{{}/{}/{partition}}}:", family.namespace(), family.name()) }
    }

    /// Hash id -> delta: what is being counted.
    pub fn buffer(&self) -> String {
        format!("{}buffer", self.tag)
    }

    /// Hash id -> delta: what is on its way to the database.
    pub fn batch(&self) -> String {
        format!("{}batch", self.tag)
    }

    /// Hash: the batch's id, times and counts, and the lease.
    pub fn meta(&self) -> String {
        format!("{}meta", self.tag)
    }

    /// The fence of calls whose home this partition is: what is remembered of the current epoch, and of the one before.
    pub fn fence(&self) -> [String; 2] {
        [self.calls(), format!("{}calls_before", self.tag)]
    }

    /// Hash caller -> its last call, with the epoch's name and the family's settings.
    pub fn calls(&self) -> String {
        format!("{}calls", self.tag)
    }

    /// Everything of a family of this kind that is not in the database and that a reset drops.
    pub fn unsaved(&self, family: &Family) -> Vec<String> {
        let mut keys = vec![self.buffer(), self.batch()];
        if family.keeps_slices() {
            keys.extend([self.open(), self.schedule()]);
        }
        if family.is_cached() {
            keys.push(self.base());
        }
        keys
    }

    /// Nothing: what commands are tried on.
    pub fn probe(&self) -> String {
        format!("{}probe", self.tag)
    }

    /// Hash id -> when a cached counter may be deleted, and what its row held when it was seeded or last saved, or the ticket
    /// for its seeding.
    pub fn base(&self) -> String {
        format!("{}base", self.tag)
    }

    /// Sorted set kept id -> when its slice is over.
    pub fn schedule(&self) -> String {
        format!("{}schedule", self.tag)
    }

    /// Hash kept id -> count of a slice that is not over yet and is to be kept.
    pub fn open(&self) -> String {
        format!("{}open", self.tag)
    }

    /// Sorted set of the names of series.
    pub fn names(&self) -> String {
        format!("{}names", self.tag)
    }

    /// Sorted set name -> when nothing of the series is in any window any more.
    pub fn idle(&self) -> String {
        format!("{}idle", self.tag)
    }

    /// Hash slice start -> count, of one series at one precision.
    pub fn window(&self, precision: Precision, name: &[u8]) -> Key {
        self.of(format_args!("series:{precision}"), name)
    }

    /// Hash layer -> views, of one stripe of a page.
    pub fn views(&self, stripe: u32, page: &[u8]) -> Key {
        self.of(format_args!("views:{stripe}"), page)
    }

    /// Sorted set visitor -> ms: when it was seen last, of one stripe of a page.
    pub fn visitors(&self, stripe: u32, page: &[u8]) -> Key {
        self.of(format_args!("visitors:{stripe}"), page)
    }

    /// HyperLogLog of the visitors of one layer, of one stripe of a page.
    pub fn layer(&self, layer: i64, stripe: u32, page: &[u8]) -> Key {
        self.of(format_args!("layer:{layer}:{stripe}"), page)
    }

    /// HyperLogLog of the visitors of one minute, of one stripe of a page.
    pub fn minute(&self, minute: i64, stripe: u32, page: &[u8]) -> Key {
        self.of(format_args!("minute:{minute}:{stripe}"), page)
    }

    /// Set of those who have been counted as visitors of an id.
    pub fn seen(&self, id: &[u8]) -> Key {
        self.of(format_args!("seen"), id)
    }

    /// Names, pages and ids end the key, so that they may hold what separates its parts.
    fn of(&self, what: std::fmt::Arguments<'_>, end: &[u8]) -> Key {
        let mut key = format!("{}{what}:", self.tag).into_bytes();
        key.extend_from_slice(end);
        key
    }
}
