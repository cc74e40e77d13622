//! The keys in Redis, spelled out only here (docs/protocol.md, section 2).

use std::fmt;

use crate::family::Family;
use crate::family::calendar::Precision;

/// A key. Some contain a name from the application, which may be of any bytes.
pub type Key = Vec<u8>;

/// The key of the set of families that clients want, and that Redis does not know. It belongs to no
/// family, and has no hash tag.
pub const WANTED: &str = "cf1:wanted";

/// The key of the set of families that daemons opened by a pattern. It belongs to no family, either.
pub const KEPT: &str = "cf1:kept";

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
    pub fn buffer(&self) -> Key {
        self.key("buffer")
    }

    /// Returns the key of the hash id -> delta of what is on its way to the database.
    pub fn batch(&self) -> Key {
        self.key("batch")
    }

    /// Returns the keys of which at least one exists while something is pending.
    pub fn pending(&self) -> [Key; 2] {
        [self.buffer(), self.batch()]
    }

    /// Returns the key of the hash with the batch's id, times and counts, and the lease.
    pub fn meta(&self) -> Key {
        self.key("meta")
    }

    /// Returns the fence's keys, for calls whose home this partition is: the memories of the
    /// current and the previous epoch.
    pub fn fence(&self) -> [Key; 2] {
        [self.calls(), self.key("calls_before")]
    }

    /// Returns the key of the hash caller -> its last call, with the epoch's name and the family's
    /// settings.
    pub fn calls(&self) -> Key {
        self.key("calls")
    }

    /// Returns the keys of the requests, for calls whose home this partition is: the memories of the
    /// current and the previous generation.
    pub fn requests(&self) -> [Key; 2] {
        [self.key("requests"), self.key("requests_before")]
    }

    /// Returns all keys of a home.
    pub fn home(&self) -> [Key; 4] {
        let ([calls, calls_before], [requests, requests_before]) = (self.fence(), self.requests());
        [calls, calls_before, requests, requests_before]
    }

    /// Returns the keys that a reset of the family drops: all those whose content is not in the
    /// database.
    pub fn unsaved(&self, family: &Family) -> Vec<Key> {
        let mut keys = vec![self.buffer(), self.batch()];
        if family.is_cached() {
            keys.push(self.base());
        }
        keys
    }

    /// Returns the keys of a partition that never expire, without those of
    /// [`pending`](Self::pending) hits and of a [`home`](Self::home).
    pub fn lasting(&self) -> [Key; 6] {
        let [days, months] = self.calendars();
        let [base, names, idle] = [self.base(), self.names(), self.idle()];
        [base, names, idle, self.meta(), days, months]
    }

    /// Returns a key that never exists, for trials of commands.
    pub fn probe(&self) -> Key {
        self.key("probe")
    }

    /// Returns the key of the hash id -> the base of a cached counter: the time of its seeding or
    /// last save, and the value that its row had then. Before the seeding it is the time and the
    /// ticket of the last miss.
    pub fn base(&self) -> Key {
        self.key("base")
    }

    /// Returns the keys of the sorted sets date -> start of the days and of the months, at a home.
    pub fn calendars(&self) -> [Key; 2] {
        [Precision::Day, Precision::Month].map(|precision| self.calendar(precision))
    }

    /// Returns the key of the calendar of this precision.
    pub fn calendar(&self, precision: Precision) -> Key {
        self.key(&format!("calendar:{precision}"))
    }

    /// Returns the key of the sorted set of the names of series.
    pub fn names(&self) -> Key {
        self.key("names")
    }

    /// Returns the key of the sorted set name -> when the last slice of the series leaves every
    /// window.
    pub fn idle(&self) -> Key {
        self.key("idle")
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

    /// Returns the key of the set of visitors already counted for an id.
    pub fn seen(&self, id: &[u8]) -> Key {
        self.of(format_args!("seen"), id)
    }

    fn key(&self, what: &str) -> Key {
        [&self.tag, what].concat().into_bytes()
    }

    /// Returns a key that ends with a name, page or id, which may therefore contain separators.
    fn of(&self, what: fmt::Arguments<'_>, end: &[u8]) -> Key {
        let mut key = format!("{}{what}:", self.tag).into_bytes();
        key.extend_from_slice(end);
        key
    }
}
