//! Another program that writes the column of a cached counter.

use std::cell::Cell;
use std::path::PathBuf;
use std::time::Duration;

use sqlx::MySqlPool;
use tokio::time::sleep;

use super::journal::{Hit, Scribe, now};
use super::site::{OUTSIDE, draw_id};
use crate::Result;
use crate::zipf::Random;

const PAUSE: Duration = Duration::from_millis(40);

/// Adds to the votes of counters in use until `is_over` is set, with a journal of this number.
pub async fn write(
    mysql: MySqlPool,
    directory: PathBuf,
    number: usize,
    is_over: &Cell<bool>,
) -> Result<()> {
    let (scribe, mut random) = (Scribe::create(&directory, number)?, Random(now()));
    for drawn in 0.. {
        sleep(PAUSE).await;
        if is_over.get() {
            break;
        }
        let (id, name) = (draw_id(OUTSIDE, &mut random), format!("{number}-{drawn}"));
        let hit = Hit {
            family: OUTSIDE,
            id,
            name,
        };
        scribe.begin(std::slice::from_ref(&hit))?;
        let begun = now();
        let add = "INSERT INTO votes VALUES (?, 1) ON DUPLICATE KEY UPDATE votes = votes + 1";
        let added = sqlx::query(add).bind(id).execute(&mysql).await;
        // after an error the outcome is unknown
        if added.is_ok() {
            scribe.end(std::iter::once((&hit, true)), begun, 1)?;
        }
    }
    Ok(())
}
