//! The only place where a key is spelt (PROTOCOL section 2).

use crate::family::Family;

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

    /// Hash producer -> its last call.
    pub fn producers(&self) -> String {
        format!("{}producers", self.tag)
    }

    /// Hash id -> value of a cached counter.
    pub fn values(&self) -> String {
        format!("{}values", self.tag)
    }

    /// Hash id -> what is known of a cached counter's row, or the ticket for its seeding.
    pub fn rows(&self) -> String {
        format!("{}rows", self.tag)
    }

    /// Sorted set id -> when something is next to be done about a cached counter.
    pub fn agenda(&self) -> String {
        format!("{}agenda", self.tag)
    }

    /// String, for 10 s: what asks whether a connection resends, by a number of its own.
    pub fn probe(&self, number: u64) -> String {
        format!("{}probe-{number:016x}", self.tag)
    }
}
