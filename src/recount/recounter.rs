//! A recount that runs repeatedly.

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::error::{Error, ErrorKind, Result};
use crate::recount::run::{Recounted, Recounting};
use crate::store::mysql::Begun;

/// The pause after a failure, and the interval at which the run of another process is checked.
const POLL_INTERVAL: Duration = Duration::from_secs(30);

/// A recount that [runs](crate::recount::RecountBuilder::start). Dropping this handle stops it.
#[derive(Debug)]
#[must_use = "a recount stops when its handle is dropped"]
pub struct Recounter {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
    progress: Arc<Mutex<Recounted>>,
}

impl Recounter {
    pub(crate) fn start(recounting: Recounting, every: RangeInclusive<Duration>) -> Self {
        let (stop, stopping) = watch::channel(false);
        let progress = recounting.progress();
        Recounter {
            stop,
            task: tokio::spawn(run(recounting, every, stopping)),
            progress,
        }
    }

    /// Returns the progress of this process's current run, or the result of its last one.
    pub fn progress(&self) -> Recounted {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops the recount at once. Another process, or the next start, continues the run.
    ///
    /// # Errors
    /// [`Closed`](ErrorKind::Closed) if the recount had already ended by a panic.
    pub async fn shutdown(self) -> Result<()> {
        self.stop.send_replace(true);
        self.task.await.map_err(|error| {
            Error::new(ErrorKind::Closed, "the recount ended early").with_source(error)
        })
    }

    /// Lets the recount run without the handle until the tokio runtime ends.
    pub fn detach(self) {
        // the task stops when the sender is dropped
        std::mem::forget(self.stop);
    }
}

async fn run(
    recounting: Recounting,
    every: RangeInclusive<Duration>,
    mut stop: watch::Receiver<bool>,
) {
    let (first, longer) = (*every.start(), every.end().saturating_sub(*every.start()));
    loop {
        let began = Instant::now();
        let begun = tokio::select! {
            begun = recounting.begin(Some(first)) => begun,
            _ = stop.wait_for(|stop| *stop) => return,
        };
        let wait = match work(&recounting, begun, &stop).await {
            Ok(Next::After(time)) => time + at_random(longer),
            Ok(Next::Begin) => (first + at_random(longer)).saturating_sub(began.elapsed()),
            Ok(Next::Poll) => POLL_INTERVAL.min(first),
            Err(error) => {
                tracing::error!(family = recounting.family(), error = %format_args!("{error:#}"), "a recount failed");
                POLL_INTERVAL.min(first)
            }
        };
        tokio::select! {
            () = sleep(wait) => {}
            // an error means that the sender was dropped, which stops the recount as well
            _ = stop.wait_for(|stop| *stop) => return,
        }
    }
}

/// The time of the next run.
enum Next {
    /// At the configured interval after the start of this one.
    Begin,
    /// After this time.
    After(Duration),
    /// After the run of another process.
    Poll,
}

async fn work(
    recounting: &Recounting,
    begun: Result<Begun>,
    stop: &watch::Receiver<bool>,
) -> Result<Next> {
    let next = match begun? {
        Begun::Run(run) => {
            recounting.run(run, stop.clone()).await?;
            return Ok(Next::Begin);
        }
        Begun::Early(left) => Next::After(left),
        Begun::Held => Next::Poll,
    };
    recounting.record_age().await?;
    Ok(next)
}

/// Returns a random time up to `longest`, so that several processes do not begin together.
fn at_random(longest: Duration) -> Duration {
    longest.mul_f64(f64::from(getrandom::u32().unwrap_or(0)) / f64::from(u32::MAX))
}
