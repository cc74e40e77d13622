//! Jobs: requests that are made again, by another process if need be, until their outcome is known or
//! Redis has forgotten them.

use std::time::Duration;

use tokio::time::sleep;

use super::journal::{Hit, Scribe, now};
use super::site::Site;
use crate::Result;

/// The pause before a call is made again, while Redis is unavailable or after a reply was lost.
const PAUSE: Duration = Duration::from_millis(5);

/// Counts a job in the epoch that an earlier process asked for, or in the current one. `repeats` is
/// `false` if a crash of Redis may forget a job whose hit MySQL has.
pub async fn count(
    site: &Site,
    scribe: &Scribe,
    job: &Hit,
    epoch: Option<String>,
    repeats: bool,
) -> Result<()> {
    let epoch = match epoch {
        Some(epoch) => epoch,
        None => current_epoch(site, scribe, job).await?,
    };
    loop {
        let begun = now();
        let known = match site.count_job(job, &epoch).await {
            Ok(()) => Some(true),
            Err(error) if is_forgotten(&error) => return Ok(()),
            // an earlier call may have counted it
            Err(_) if repeats => None,
            Err(error) if error.outcome_unknown() => return Ok(()),
            Err(_) => Some(false),
        };
        if let Some(is_counted) = known {
            return scribe.end(std::iter::once((job, is_counted)), begun, 1);
        }
        sleep(PAUSE).await;
    }
}

async fn current_epoch(site: &Site, scribe: &Scribe, job: &Hit) -> Result<String> {
    loop {
        if let Ok(epoch) = site.job_epoch(job).await {
            scribe.remember(job, &epoch)?;
            return Ok(epoch);
        }
        sleep(PAUSE).await;
    }
}

/// Returns whether the error says that Redis may have forgotten the request.
fn is_forgotten(error: &counterfoil::Error) -> bool {
    error.outcome_unknown() && error.to_string().contains("forgotten the request")
}
