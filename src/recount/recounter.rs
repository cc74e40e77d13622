//! A recount that runs again and again.

use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::aio::ConnectionLike;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::error::{Error, ErrorKind, Result};
use crate::recount::run::{Recounted, Recounting};
use crate::store::mysql::Begun;

/// How long after something failed it is tried again, and how often somebody else's run is looked at.
const LOOK: Duration = Duration::from_secs(30);

/// A recount that [runs](crate::RecountBuilder::start). It stops when this is dropped, after the page that it is at.
#[derive(Debug)]
#[must_use = "a recount stops when its handle is dropped"]
pub struct Recounter {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
    progress: Arc<Mutex<Recounted>>,
}

impl Recounter {
    pub(crate) fn start<C>(recounting: Recounting<C>, every: RangeInclusive<Duration>) -> Self
    where
        C: ConnectionLike + Clone + Send + Sync + 'static,
    {
        let (stop, stopping) = watch::channel(false);
        let progress = recounting.progress();
        Recounter { stop, task: tokio::spawn(run(recounting, every, stopping)), progress }
    }

    /// How far the current run of this process is, or what the last one did.
    pub fn progress(&self) -> Recounted {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends it after the page that it is at. Another process, or the next start, goes on with the run from there.
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

async fn run<C>(recounting: Recounting<C>, every: RangeInclusive<Duration>, mut stop: watch::Receiver<bool>)
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    let first = *every.start();
    while !*stop.borrow() {
        let wait = match once(&recounting, first, &stop).await {
            Ok(Begun::Early(left)) => left + at_random(every.end().saturating_sub(first)),
            Ok(Begun::Run(_)) => first + at_random(every.end().saturating_sub(first)),
            Ok(Begun::Held) => LOOK.min(first),
            Err(error) => {
                tracing::error!(family = recounting.family(), %error, "a recount failed");
                LOOK.min(first)
            }
        };
        tokio::select! {
            () = sleep(wait) => {}
            changed = stop.changed() => if changed.is_err() { return },
        }
    }
}

async fn once<C>(recounting: &Recounting<C>, every: Duration, stop: &watch::Receiver<bool>) -> Result<Begun>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    let begun = recounting.begin(Some(every)).await?;
    if let Begun::Run(run) = &begun {
        recounting.run(run.clone(), stop.clone()).await?;
    } else {
        recounting.tell_age().await?;
    }
    Ok(begun)
}

/// So that several processes do not all come at once.
fn at_random(longest: Duration) -> Duration {
    longest.mul_f64(f64::from(getrandom::u32().unwrap_or(0)) / f64::from(u32::MAX))
}
