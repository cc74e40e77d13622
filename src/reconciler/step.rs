//! The steps of a reconciler, which it retries when they fail or panic.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;

use crate::error::{Error, ErrorKind, Result};
use crate::process::work::{Announced, FamilySlot};

/// A step of a reconciler that is retried when it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    /// Searches and upkeeps of a family, and all steps of a partition.
    Work(Announced),
    Listing,
    Servers,
    Rejects,
}

impl Step {
    /// Returns its name in the log and in [`Failing`](crate::Failing).
    pub fn name(self) -> &'static str {
        match self {
            Step::Work(Announced::Family(_)) => "search for hits",
            Step::Work(Announced::Upkeep(_)) => "upkeep",
            Step::Work(Announced::Due(_)) => "flush",
            Step::Listing => "search for families",
            Step::Servers => "check of Redis",
            Step::Rejects => "retry of rejects",
        }
    }

    /// Returns the slot of its family, if it concerns one.
    pub fn family(self) -> Option<FamilySlot> {
        match self {
            Step::Work(
                Announced::Family(slot) | Announced::Upkeep(slot) | Announced::Due((slot, _)),
            ) => Some(slot),
            Step::Listing | Step::Servers | Step::Rejects => None,
        }
    }
}

/// Returns the result of a step, or an error if it panics. The same panic has the same text.
pub async fn caught<T>(step: impl Future<Output = Result<T>>) -> Result<T> {
    let ended = AssertUnwindSafe(step).catch_unwind().await;
    ended.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let text = text.unwrap_or_default();
        let message = format!("a task panicked: {text}");
        Err(Error::new(ErrorKind::Closed, message))
    })
}
