//! The work that writers announce to the reconciler of their process.

use std::collections::HashSet;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The work that writers announce to a reconciler of the same process.
#[derive(Debug, Default)]
pub struct Work {
    announced: Mutex<HashSet<WorkItem>>,
    notify: Notify,
}

/// The place of a family among those that this process has in use. The database has another number
/// for the family, a [`FamilyNumber`](crate::store::FamilyNumber).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FamilySlot(pub usize);

/// A partition of a family in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionId {
    pub family: FamilySlot,
    pub number: u32,
}

/// One item of work for the reconciler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkItem {
    /// A family was opened, and is searched for hits.
    Family(FamilySlot),
    /// A family was opened, and needs upkeep.
    Upkeep(FamilySlot),
    /// A sync is due in this partition.
    Due(PartitionId),
}

impl Work {
    pub fn announce(&self, announced: WorkItem) {
        if self.announced.lock().insert(announced) {
            self.notify.notify_one();
        }
    }

    /// Waits for announcements, and takes all of them.
    pub async fn take(&self) -> HashSet<WorkItem> {
        loop {
            let taken = std::mem::take(&mut *self.announced.lock());
            if !taken.is_empty() {
                return taken;
            }
            self.notify.notified().await;
        }
    }
}
