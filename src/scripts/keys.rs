//! The keys in Redis, spelled out only here (docs/protocol.md, section 2).

use crate::family::Family;
use crate::family::calendar::Precision;

/// A key that contains a name from the application.
pub type Key = Vec<u8>;

/// The keys of one partition of a family. All carry one hash tag, so that they live in one Redis
/// Cluster slot.
#[derive(Clone, Debug)]
pub struct Keys {
    tag: String,
}

impl Keys {
    pub fn new(family: &Family, partition: u32) -> Self {
        Keys {
            tag: format!(
                "cf1:{{{}/{}/{partition}}}:",
                family.namespace(),
                family.name()
            ),
        }
    }

    /// Returns the key of the hash id -> delta of what is being counted.
    pub fn buffer(&self) -> String {
        format!("{}buffer", self.tag)
    }

    /// Returns the key of the hash id -> delta of what is on its way to the database.
    pub fn batch(&self) -> String {
        format!("{}batch", self.tag)
    }

    /// The keys of which one exists while something is pending.
    pub fn pending(&self) -> [String; 2] {
        [self.buffer(), self.batch()]
    }

    /// Returns the key of the hash with the batch's id, times and counts, and the lease.
    pub fn meta(&self) -> String {
        format!("{}meta", self.tag)
    }

    /// Returns the fence's keys, for calls whose home this partition is: the memories of the
    /// current and the previous epoch.
    pub fn fence(&self) -> [String; 2] {
        [self.calls(), format!("{}calls_before", self.tag)]
    }

    /// Returns the key of the hash caller -> its last call, with the epoch's name and the family's
    /// settings.
    pub fn calls(&self) -> String {
        format!("{}calls", self.tag)
    }

    /// Returns the keys that a reset of the family drops: all those whose content is not in the
    /// database.
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

    /// Returns a key that never exists, for trials of commands.
    pub fn probe(&self) -> String {
        format!("{}probe", self.tag)
    }

    /// Returns the key of the hash id -> when a cached counter may be deleted. It also holds the
    /// row's value at its seeding or last save, or the ticket for its seeding.
    pub fn base(&self) -> String {
        format!("{}base", self.tag)
    }

    /// Returns the key of the sorted set kept id -> when its slice is over.
    pub fn schedule(&self) -> String {
        format!("{}schedule", self.tag)
    }

    /// Returns the key of the hash kept id -> count of a slice that is not over yet and will be
    /// kept.
    pub fn open(&self) -> String {
        format!("{}open", self.tag)
    }

    /// Returns the key of the sorted set of the names of series.
    pub fn names(&self) -> String {
        format!("{}names", self.tag)
    }

    /// Returns the key of the sorted set name -> when the last slice of the series leaves every
    /// window.
    pub fn idle(&self) -> String {
        format!("{}idle", self.tag)
    }

    /// Returns the key of the hash slice start -> count of one series at one precision.
    pub fn window(&self, precision: Precision, name: &[u8]) -> Key {
        self.of(format_args!("series:{precision}"), name)
    }

    /// Returns the key of the hash layer -> views of one stripe of a page.
    pub fn views(&self, stripe: u32, page: &[u8]) -> Key {
        self.of(format_args!("views:{stripe}"), page)
    }

    /// Returns the key of the sorted set visitor -> ms of the last visit, of one stripe of a page.
    pub fn visitors(&self, stripe: u32, page: &[u8]) -> Key {
        self.of(format_args!("visitors:{stripe}"), page)
    }

    /// Returns the key of the HyperLogLog of the visitors of one layer, of one stripe of a page.
    pub fn layer(&self, layer: i64, stripe: u32, page: &[u8]) -> Key {
        self.of(format_args!("layer:{layer}:{stripe}"), page)
    }

    /// Returns the key of the HyperLogLog of the visitors of one minute, of one stripe of a page.
    pub fn minute(&self, minute: i64, stripe: u32, page: &[u8]) -> Key {
        self.of(format_args!("minute:{minute}:{stripe}"), page)
    }

    /// Returns the key of the set of visitors already counted for an id.
    pub fn seen(&self, id: &[u8]) -> Key {
        self.of(format_args!("seen"), id)
    }

    /// Returns a key that ends with a name, page or id, which may therefore contain separators.
    fn of(&self, what: std::fmt::Arguments<'_>, end: &[u8]) -> Key {
        let mut key = format!("{}{what}:", self.tag).into_bytes();
        key.extend_from_slice(end);
        key
    }
}
