//! Reads of values during the faults, compared with the journals before and after each of them.

use std::cell::Cell;
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::sleep;

use super::journal::Journals;
use super::persistence::Persistence;
use super::site::{READABLE, Site};
use crate::Result;
use crate::families::{Place, patiently};

const PAUSE: Duration = Duration::from_millis(30);
/// The number of counters read at a time: those of the last seconds.
const RECENT: usize = 100;

/// The values that were read.
#[derive(Clone, Copy, Default)]
pub struct Reads {
    pub checked: u64,
    /// Those that lack an acknowledged hit, or have one too many.
    pub wrong: u64,
}

/// Reads the values of counters in use again and again until `is_over` is set. Once Redis may have
/// crashed, a value may lack hits.
pub async fn watch(
    place: Place,
    persistence: Persistence,
    directory: PathBuf,
    is_over: &Cell<bool>,
) -> Result<Reads> {
    let site = patiently(async || Site::open(&place, persistence).await).await?;
    let (mut journals, mut reads) = (Journals::new(directory, Vec::new()), Reads::default());
    for family in READABLE.iter().cycle() {
        if is_over.get() {
            break;
        }
        sleep(PAUSE).await;
        journals.read()?;
        let all = journals.counters.range((*family, 0)..(family + 1, 0));
        let recent = all.rev().take(RECENT);
        let (ids, acknowledged): (Vec<_>, Vec<_>) = recent
            .map(|((_, id), counted)| (*id, counted.acknowledged))
            .unzip();
        // a server may be unavailable, or a set-back not repaired yet
        let Ok(values) = site.values(*family, &ids).await else {
            continue;
        };
        journals.read()?;
        for ((id, acknowledged), value) in ids.iter().zip(acknowledged).zip(values) {
            let least = if persistence == Persistence::Always {
                acknowledged
            } else {
                0
            };
            let most = journals.counters[&(*family, *id)].most();
            reads.checked += 1;
            reads.wrong += u64::from(!(least..=most).contains(&value));
        }
    }
    Ok(reads)
}
