//! A recount that runs repeatedly.

use std::ops::RangeInclusive;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::connection::failures::Failures;
use crate::error::{Error, Result};
use crate::process::tasks::Background;
use crate::reconciler::step::caught;
use crate::recount::recounting::{RecountProgress, Recounting};
use crate::store::mysql::RunStart;

/// The pause after a failure, and the interval at which the run of another process is checked.
const POLL_INTERVAL: Duration = Duration::from_secs(30);

/// A recount that [runs](crate::recount::RecountBuilder::start). Dropping this handle stops it.
#[derive(Debug)]
#[must_use = "a recount stops when its handle is dropped"]
pub struct Recounter {
    task: Background,
    progress: watch::Receiver<RecountProgress>,
    error: watch::Receiver<Option<Error>>,
}

impl Recounter {
    pub(crate) fn start(recounting: Recounting, every: RangeInclusive<Duration>) -> Self {
        let progress = recounting.progress.subscribe();
        let (failed, error) = watch::channel(None);
        let task = Background::start(|stop| run(recounting, every, failed, stop));
        Recounter {
            task,
            progress,
            error,
        }
    }

    /// Returns the progress of this process's current run, or the result of its last one.
    pub fn progress(&self) -> RecountProgress {
        *self.progress.borrow()
    }

    /// Returns the error of the last attempt if it failed; the recount retries it.
    pub fn error(&self) -> Option<Error> {
        self.error.borrow().clone()
    }

    /// Stops the recount at once. Another process, or the next start, continues the run.
    ///
    /// # Errors
    /// [`Closed`](crate::ErrorKind::Closed) if the recount had already ended by a panic.
    pub async fn shutdown(self) -> Result<()> {
        self.task.shutdown("the recount ended early").await
    }

    /// Lets the recount run without the handle until the tokio runtime ends.
    pub fn detach(self) {
        self.task.detach();
    }
}

async fn run(
    recounting: Recounting,
    every: RangeInclusive<Duration>,
    failed: watch::Sender<Option<Error>>,
    stop: watch::Receiver<bool>,
) {
    let mut failures = Failures::default();
    loop {
        // a source of the application may panic
        let wait = match caught(work(&recounting, &every, &stop)).await {
            Ok(wait) => {
                failures.succeeded(&());
                failed.send_replace(None);
                wait
            }
            Err(error) => {
                failures.failed((), recounting.name(), &error);
                failed.send_replace(Some(error));
                POLL_INTERVAL.min(*every.start())
            }
        };
        tokio::select! {
            () = sleep(wait) => {}
            () = stopped(&stop) => return,
        }
    }
}

/// Works on a run if one is due, and returns the time until the next attempt.
async fn work(
    recounting: &Recounting,
    every: &RangeInclusive<Duration>,
    stop: &watch::Receiver<bool>,
) -> Result<Duration> {
    let (began, first) = (Instant::now(), *every.start());
    let longer = at_random(every.end().saturating_sub(first));
    let begun = tokio::select! {
        begun = recounting.begin(recounting.lease(), first) => begun?,
        () = stopped(stop) => return Ok(first),
    };
    let wait = match begun {
        RunStart::Run(run) => {
            recounting.run(run, stopped(stop)).await?;
            return Ok((first + longer).saturating_sub(began.elapsed()));
        }
        RunStart::Early(left) => left + longer,
        RunStart::Held => POLL_INTERVAL.min(first),
    };
    recounting.record_age().await?;
    Ok(wait)
}

/// Waits for the stop. Without a sender the handle was dropped, which stops the recount as well.
async fn stopped(stop: &watch::Receiver<bool>) {
    let _ = stop.clone().wait_for(|stop| *stop).await;
}

/// Returns a random time up to `longest`, so that several processes do not begin together.
fn at_random(longest: Duration) -> Duration {
    longest.mul_f64(f64::from(getrandom::u32().unwrap_or(0)) / f64::from(u32::MAX))
}
