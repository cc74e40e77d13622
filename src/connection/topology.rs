//! The topology of Redis, which the connection declares. In a cluster a call stays in one slot, and
//! every partition is the home of its own calls. On one server partition 0 is the home of all
//! calls.

use std::ops::Range;
use std::sync::Arc;

use crate::connection::Connection;
use crate::connection::outage::Outage;

/// The topology of the servers behind a connection.
#[derive(Debug)]
pub struct Topology {
    is_cluster: bool,
    outage: Arc<Outage>,
}

impl Topology {
    pub fn of(redis: &Connection) -> Self {
        Topology {
            is_cluster: redis.is_cluster(),
            outage: Arc::default(),
        }
    }

    pub fn is_cluster(&self) -> bool {
        self.is_cluster
    }

    /// Returns the outage of the single server; `None` in a cluster, where each home has its own.
    pub fn outage(&self) -> Option<&Arc<Outage>> {
        (!self.is_cluster()).then_some(&self.outage)
    }

    /// Returns the partition that remembers the callers of this one.
    pub fn home_of(&self, partition: u32) -> u32 {
        if self.is_cluster() { partition } else { 0 }
    }

    /// Returns the partitions, of `partitions` in all, that remember callers.
    pub fn homes(&self, partitions: u32) -> Range<u32> {
        if self.is_cluster() {
            0..partitions
        } else {
            0..1
        }
    }

    /// Returns the partitions, of `partitions` in all, whose callers this home remembers.
    pub fn partitions_of(&self, home: u32, partitions: u32) -> Range<u32> {
        if self.is_cluster() {
            home..home + 1
        } else {
            0..partitions
        }
    }
}
