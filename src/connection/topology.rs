//! Whether Redis is a cluster, where a call stays in one slot and every partition is the home of its own calls.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::connection::Connection;

/// What is known of the servers behind a connection.
#[derive(Debug)]
pub struct Topology {
    cluster: AtomicBool,
}

impl Topology {
    /// As the connection declares. It is taken for one to a single node until that refuses keys of several slots.
    pub fn of(redis: &Connection) -> Self {
        Topology { cluster: AtomicBool::new(redis.is_cluster()) }
    }

    pub fn is_cluster(&self) -> bool {
        self.cluster.load(Ordering::Relaxed)
    }

    /// A call was refused since its keys lie in several slots.
    pub fn found_cluster(&self) {
        self.cluster.store(true, Ordering::Relaxed);
    }

    /// The partition that remembers the callers of this one.
    pub fn home_of(&self, partition: u32) -> u32 {
        if self.is_cluster() { partition } else { 0 }
    }

    /// The partitions that remember callers, of so many.
    pub fn homes(&self, partitions: u32) -> Range<u32> {
        if self.is_cluster() { 0..partitions } else { 0..1 }
    }

    /// The partitions whose callers this home remembers, of so many.
    pub fn partitions_of(&self, home: u32, partitions: u32) -> Range<u32> {
        if self.is_cluster() { home..home + 1 } else { 0..partitions }
    }
}
