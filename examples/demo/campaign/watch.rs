//! Reads of values during the faults, compared with the journals before and after each of them.

use std::cell::Cell;
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::sleep;

use super::journal::Journals;
use super::persistence::Persistence;
use super::site::Site;
use crate::Result;
use crate::families::{Place, patiently};

const PAUSE: Duration = Duration::from_millis(100);

/// The values that were read.
#[derive(Clone, Copy, Default)]
pub struct Reads {
    pub checked: u64,
    /// Those that lack an acknowledged hit, or have one too many.
    pub wrong: u64,
}

/// Reads the values of all counters again and again until `is_over` is set. Once Redis may have
/// crashed, a value may lack hits.
pub async fn watch(
    place: Place,
    persistence: Persistence,
    directory: PathBuf,
    is_over: &Cell<bool>,
) -> Result<Reads> {
    let site = patiently(async || Site::open(&place, persistence).await).await?;
    let (mut journals, mut reads) = (Journals::new(directory, Vec::new()), Reads::default());
    while !is_over.get() {
        sleep(PAUSE).await;
        journals.read()?;
        let before = journals.counters.clone();
        // a server may be unavailable, or a set-back not repaired yet
        let Ok(values) = site.values().await else {
            continue;
        };
        journals.read()?;
        for (counter, value) in values {
            let acknowledged = before
                .get(&counter)
                .map_or(0, |counted| counted.acknowledged);
            let least = if persistence == Persistence::Always {
                acknowledged
            } else {
                0
            };
            let most = journals
                .counters
                .get(&counter)
                .map_or(0, |counted| counted.most());
            reads.checked += 1;
            reads.wrong += u64::from(!(least..=most).contains(&value));
        }
    }
    Ok(reads)
}
