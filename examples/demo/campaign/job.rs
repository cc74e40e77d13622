//! Jobs: requests that are made again, by another process if need be, until their outcome is known or
//! Redis has forgotten them.

use std::time::Duration;

use tokio::time::sleep;

use super::journal::{Hit, Scribe, now};
use super::site::Site;
use crate::Result;

/// The pause before a call is made again, while Redis is unavailable or after a reply was lost.
const PAUSE: Duration = Duration::from_millis(5);

/// Counts a job in the epoch that an earlier process asked for, or in the current one.
pub async fn count(site: &Site, scribe: &Scribe, job: &Hit, epoch: Option<String>) -> Result<()> {
    let epoch = match epoch {
        Some(epoch) => epoch,
        None => current_epoch(site, scribe, job).await?,
    };
    loop {
        let begun = now();
        match site.count_job(job, &epoch).await {
            Ok(()) => return scribe.end(std::iter::once((job, true)), begun, 1),
            Err(error) if is_forgotten(&error) => return Ok(()),
            // an earlier call may have counted it
            Err(_) => sleep(PAUSE).await,
        }
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
