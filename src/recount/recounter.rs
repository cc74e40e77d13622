//! A recount that runs again and again.

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::error::{Error, ErrorKind, Result};
use crate::recount::run::{Recounted, Recounting};
use crate::store::mysql::Begun;

/// How long after something failed it is tried again, and how often somebody else's run is looked at.
const LOOK: Duration = Duration::from_secs(30);

/// A recount that [runs](crate::RecountBuilder::start). It stops when this is dropped.
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
        Recounter { stop, task: tokio::spawn(run(recounting, every, stopping)), progress }
    }

    /// How far the current run of this process is, or what the last one did.
    pub fn progress(&self) -> Recounted {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends it at once. Another process, or the next start, goes on with the run.
    ///
    /// # Errors
    /// [`Closed`](ErrorKind::Closed) if it had ended before, by a panic.
    pub async fn shutdown(self) -> Result<()> {
        self.stop.send_replace(true);
        self.task.await.map_err(|error| Error::new(ErrorKind::Closed, "the recount had ended").with_source(error))
    }

    /// Lets it run until the tokio runtime ends, with nothing bound.
    pub fn detach(self) {
        // it stops when the sender is dropped
        std::mem::forget(self.stop);
    }
}

async fn run(recounting: Recounting, every: RangeInclusive<Duration>, mut stop: watch::Receiver<bool>) {
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
            Ok(Next::Look) => LOOK.min(first),
            Err(error) => {
                tracing::error!(family = recounting.family(), %error, "a recount failed");
                LOOK.min(first)
            }
        };
        tokio::select! {
            () = sleep(wait) => {}
            // whoever held the other end may be gone as well
            _ = stop.wait_for(|stop| *stop) => return,
        }
    }
}

/// When to begin the next run.
enum Next {
    /// When this one began so long ago as is to be.
    Begin,
    /// In so long.
    After(Duration),
    /// When somebody else's is over.
    Look,
}

async fn work(recounting: &Recounting, begun: Result<Begun>, stop: &watch::Receiver<bool>) -> Result<Next> {
    let next = match begun? {
        Begun::Run(run) => {
            recounting.run(run, stop.clone()).await?;
            return Ok(Next::Begin);
        }
        Begun::Early(left) => Next::After(left),
        Begun::Held => Next::Look,
    };
    recounting.tell_age().await?;
    Ok(next)
}

/// So that several processes do not all come at once.
fn at_random(longest: Duration) -> Duration {
    longest.mul_f64(f64::from(getrandom::u32().unwrap_or(0)) / f64::from(u32::MAX))
}
