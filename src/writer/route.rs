//! The destinations of a family's calls: its partitions, and their homes, which remember the
//! callers.

use std::sync::{Arc, OnceLock};

use tokio::time::Instant;

use crate::connection::Connection;
use crate::connection::outage::Outage;
use crate::connection::topology::Topology;
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::family::kind::Kind;
use crate::process::family::OpenFamily;
use crate::process::work::{Work, WorkItem};
use crate::scripts::counting::CallReply;
use crate::scripts::fence::Fence;
use crate::scripts::home::Home;
use crate::scripts::partition::Partition;
use crate::scripts::partition::epoch::Epoch;
use crate::scripts::partition::settings::Destination;
use crate::writer::group::Group;

/// The partitions and homes of one family in one Redis.
#[derive(Debug)]
pub struct Route {
    pub redis: Connection,
    pub opened: Arc<OpenFamily>,
    topology: Arc<Topology>,
    work: Arc<Work>,
    partitions: Box<[OnceLock<Partition>]>,
    homes: Box<[OnceLock<Home>]>,
}

impl Route {
    pub fn new(
        redis: Connection,
        opened: Arc<OpenFamily>,
        topology: Arc<Topology>,
        work: Arc<Work>,
    ) -> Self {
        let partitions = 0..opened.family.partitions();
        Route {
            partitions: partitions.clone().map(|_| OnceLock::new()).collect(),
            homes: partitions.map(|_| OnceLock::new()).collect(),
            redis,
            opened,
            topology,
            work,
        }
    }

    pub fn family(&self) -> &Family {
        &self.opened.family
    }

    pub fn error(&self, kind: ErrorKind, what: &str) -> Error {
        Error::new(kind, format!("{}: {what}", self.family()))
    }

    /// Returns whether a call may carry hits of several partitions.
    pub fn spans_partitions(&self) -> bool {
        self.family().spans_partitions() && !self.topology.is_cluster()
    }

    fn partition(&self, number: u32) -> &Partition {
        self.partitions[number as usize]
            .get_or_init(|| Partition::new(self.redis.clone(), self.family(), number))
    }

    /// Returns the home of calls to this partition.
    pub fn home(&self, partition: u32) -> &Home {
        let number = self.topology.home_of(partition);
        self.homes[number as usize].get_or_init(|| {
            Home::new(
                self.partition(number).clone(),
                number,
                self.topology.clone(),
            )
        })
    }

    /// Returns the outage of the server that remembers calls to this partition.
    pub fn outage(&self, partition: u32) -> &Arc<Outage> {
        self.home(partition).outage()
    }

    /// Notes that a call to this partition, which began at this time, has failed. It may begin an
    /// outage.
    pub fn failed(&self, partition: u32, began: Instant, error: &Error) {
        let home = self.home(partition);
        let key = home.keys().probe();
        home.outage().failed(&self.redis, key, began, error);
    }

    /// Returns the epoch for a new call with this home.
    pub async fn epoch(&self, home: &Home) -> Result<Epoch> {
        let known = self.opened.known();
        let to = match &known {
            Some(known) => known.destination(),
            None => Destination::UNKNOWN,
        };
        home.epoch(self.family(), &to).await
    }

    /// Returns the epoch that Redis knows now.
    pub async fn new_epoch(&self, home: &Home) -> Result<Epoch> {
        home.forget_known();
        self.epoch(home).await
    }

    /// Asks for the epochs of calls to this partition again, and so configures the family where
    /// Redis has lost it.
    pub async fn renew(&self, partition: u32) -> Result<()> {
        self.new_epoch(self.home(partition)).await.map(drop)
    }

    /// Calls the script of the family's kind once, and announces where a sync is due.
    pub async fn count(&self, fence: Fence<'_>, group: &Group) -> Result<CallReply> {
        let counted = self.call_script(fence, group).await?;
        if let CallReply::Executed { due, .. } = &counted {
            for index in due {
                if let Some((partition, _)) = group.parts().nth(*index) {
                    let due = WorkItem::Due(self.opened.partition(partition));
                    self.work.announce(due);
                }
            }
        }
        Ok(counted)
    }

    async fn call_script(&self, fence: Fence<'_>, group: &Group) -> Result<CallReply> {
        let calls = group.calls(|number| self.partition(number));
        let requests: Vec<_> = group.requests().collect();
        let family = self.family();
        // calls of other kinds than these two stay in one partition
        let (one, pairs) = (calls[0].partition, || calls[0].pairs.clone());
        let deltas = || pairs().map(|(id, update)| (id, update.amount()));
        match &family.kind {
            Kind::Buffered => Partition::add_to(family, fence, &calls, &requests).await,
            Kind::Cached(_) => {
                let known = self.opened.known();
                let database = known.as_ref().map_or("", |known| &known.database);
                Partition::incr_in(family, database, fence, &calls, &requests).await
            }
            Kind::Series(_) => {
                let labels = self.home(group.partition()).labels();
                one.add_to_series(family, &labels, fence, deltas()).await
            }
            Kind::Activity(sliding) => one.touch(family, sliding, fence, deltas()).await,
            Kind::Visitors(_) => {
                let visits = pairs().map(|(visit, _)| visit);
                one.first_visits(family, fence, visits).await
            }
        }
    }
}
