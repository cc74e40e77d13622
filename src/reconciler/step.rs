//! The steps of a reconciler, which it retries when they fail or panic.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;

use crate::error::{Error, ErrorKind, Result};
use crate::process::work::{FamilySlot, PartitionId, WorkItem};

/// A step of a reconciler that is retried when it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Searches and upkeeps of a family, and all steps of a partition.
    Work(WorkItem),
    Listing,
    Servers,
    Rejects,
}

impl Step {
    /// Returns its name in the log and in [`Failing`](crate::Failing).
    pub fn name(self) -> &'static str {
        match self {
            Step::Work(WorkItem::Family(_)) => "search for hits",
            Step::Work(WorkItem::Upkeep(_)) => "upkeep",
            Step::Work(WorkItem::Due(_)) => "flush",
            Step::Listing => "search for families",
            Step::Servers => "check of Redis",
            Step::Rejects => "retry of rejects",
        }
    }

    /// Returns the slot of its family, if it concerns one.
    pub fn family(self) -> Option<FamilySlot> {
        match self {
            Step::Work(
                WorkItem::Family(slot)
                | WorkItem::Upkeep(slot)
                | WorkItem::Due(PartitionId { family: slot, .. }),
            ) => Some(slot),
            Step::Listing | Step::Servers | Step::Rejects => None,
        }
    }
}

/// Returns the result of a step, or an error if it panics. A panic that repeats has the same text,
/// so that the log does not repeat it each time.
pub async fn caught<T>(step: impl Future<Output = Result<T>>) -> Result<T> {
    let ended = AssertUnwindSafe(step).catch_unwind().await;
    ended.unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
            .unwrap_or_default();
        let message = format!("a task panicked: {text}");
        Err(Error::new(ErrorKind::Closed, message))
    })
}
