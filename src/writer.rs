//! The write path: an idempotent producer that repeats a call whose reply was lost until it knows what became of it.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use redis::aio::ConnectionLike;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout_at};

use crate::buffered::{AddReply, Added, Fence, Partition, random};
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;

/// A producer is forgotten by Redis after a day of idleness; long before that it is not used any more.
const LANE_LIFE: Duration = Duration::from_secs(12 * 3600);

/// How many calls to one partition are under way at a time. Each needs a producer, which Redis remembers for a day.
const LANES: usize = 8;

/// The producers of one partition. A producer has one call in flight, so concurrent calls take one each, and give it
/// back when they know what became of their call; further calls wait for one. A call that is dropped half-way takes its
/// producer with it.
#[derive(Debug)]
pub struct Lanes {
    free: Mutex<Vec<Lane>>,
    permits: Semaphore,
}

impl Default for Lanes {
    fn default() -> Self {
        Lanes { free: Mutex::default(), permits: Semaphore::new(LANES) }
    }
}

#[derive(Debug)]
struct Lane {
    producer: String,
    /// The number of the last call.
    seq: u64,
    used: Instant,
}

impl Lanes {
    /// Counts the pairs, repeating the call until its outcome is known or the time is over. Answers what became of
    /// each pair, and whether a sync is due.
    ///
    /// # Errors
    /// [`OutcomeUnknown`](ErrorKind::OutcomeUnknown) if the call may have been executed,
    /// [`Redis`](ErrorKind::Redis) if it surely was not.
    pub async fn add<C>(
        &self,
        partition: &Partition<C>,
        family: &Family,
        pairs: &[(&str, i64)],
        patience: Duration,
    ) -> Result<(Vec<Added>, bool)>
    where
        C: ConnectionLike + Clone + 'static,
    {
        let deadline = Instant::now() + patience;
        let Ok(_permit) = timeout_at(deadline, self.permits.acquire()).await else {
            return Err(Error::new(ErrorKind::Redis, format!("{family}: the calls before it took {patience:?}")));
        };
        let mut lane = match self.take() {
            Some(lane) => lane,
            None => Lane::register(partition, deadline).await?,
        };
        lane.seq += 1;
        let mut pause = Backoff::default();
        let mut repeat = false;
        loop {
            let fence = Fence { producer: &lane.producer, seq: lane.seq, repeat };
            let call = partition.add(family, Some(fence), pairs);
            let error = match timeout_at(deadline, call).await {
                Ok(Ok(AddReply::Counted { due, added })) => {
                    self.give_back(lane);
                    return Ok((added, due));
                }
                Ok(Ok(AddReply::Unknown)) => {
                    return Err(Error::new(
                        ErrorKind::OutcomeUnknown,
                        format!("{family}: Redis lost its memory while the reply was missing"),
                    ));
                }
                Ok(Err(error)) => error,
                Err(_) => Error::new(ErrorKind::OutcomeUnknown, format!("{family}: no reply within {patience:?}")),
            };
            match error.kind() {
                ErrorKind::Redis => {}
                ErrorKind::OutcomeUnknown => repeat = true,
                _ => {
                    self.give_back(lane);
                    return Err(error);
                }
            }
            tracing::debug!(%family, %error, repeat, "add failed");
            let wait = pause.next();
            if Instant::now() + wait >= deadline {
                if !repeat {
                    self.give_back(lane);
                    return Err(error);
                }
                return Err(match error.kind() {
                    ErrorKind::OutcomeUnknown => error,
                    _ => {
                        Error::new(ErrorKind::OutcomeUnknown, format!("{family}: a reply was lost")).with_source(error)
                    }
                });
            }
            metrics::counter!(crate::metrics::RETRIES, "what" => "add").increment(1);
            sleep(wait).await;
        }
    }

    fn take(&self) -> Option<Lane> {
        let lane = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        lane.filter(|lane| lane.used.elapsed() < LANE_LIFE)
    }

    fn give_back(&self, mut lane: Lane) {
        lane.used = Instant::now();
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push(lane);
    }
}

impl Lane {
    /// A new producer, known to Redis. Until it is, nothing was counted, so whatever happens can be tried again.
    async fn register<C: ConnectionLike + Clone + 'static>(
        partition: &Partition<C>,
        deadline: Instant,
    ) -> Result<Self> {
        let producer = format!("{:016x}", random()?);
        let mut pause = Backoff::default();
        loop {
            let error = match timeout_at(deadline, partition.register(&producer)).await {
                Ok(Ok(())) => return Ok(Lane { producer, seq: 0, used: Instant::now() }),
                Ok(Err(error)) => error,
                Err(_) => Error::new(ErrorKind::Redis, "Redis did not answer in time; nothing was counted"),
            };
            let wait = pause.next();
            match error.kind() {
                ErrorKind::Redis if Instant::now() + wait < deadline => sleep(wait).await,
                _ => return Err(error),
            }
        }
    }
}

/// Pauses that double from 5 ms to a second, each somewhere between the half and the whole of it, so that callers who
/// failed together do not come back together.
#[derive(Debug)]
pub struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Backoff(Duration::from_millis(5))
    }
}

impl Backoff {
    pub fn next(&mut self) -> Duration {
        let whole = self.0;
        self.0 = (whole * 2).min(Duration::from_secs(1));
        let share = random().unwrap_or(0) % 1000;
        whole / 2 + whole / 2 * u32::try_from(share).unwrap_or(0) / 1000
    }
}
