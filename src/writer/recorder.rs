//! Hits that no caller waits for: summed in the process, and sent every few milliseconds.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, sleep, timeout};

use crate::connection::failures::Failures;
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::metrics;
use crate::scripts::partition::PairResult;
use crate::writer::Writer;
use crate::writer::deadline::{Limit, WriteOptions};
use crate::writer::group::{Group, Hit};
use crate::writer::queue::Queue;

/// The time for which sums are kept before they are sent.
const PAUSE: Duration = Duration::from_millis(5);
/// The conditions of a send. Hits that were definitely not counted within the timeout are kept and
/// sent again.
const OPTIONS: WriteOptions = WriteOptions {
    limit: Limit::Within(Duration::from_secs(5)),
    wait: true,
    accepted_before_close: true,
};
/// The time after which a send no longer waits for an earlier one. It is longer than a send takes.
const STUCK: Duration = Duration::from_secs(10);
/// The number of ids kept for a family, divided equally among its partitions.
const IDS: usize = 131_072;

/// The hits that were recorded and not yet sent.
#[derive(Debug, Default)]
pub struct Recorder {
    /// By partition.
    sums: OnceLock<Box<[Mutex<Group>]>>,
    running: AtomicBool,
    sending: tokio::sync::Mutex<()>,
    /// The number of hits being sent.
    on_their_way: AtomicU64,
    /// The error of hits with an unknown outcome since the last flush.
    lost: Mutex<Option<Error>>,
    /// The refusals since the last flush.
    refused: Mutex<Recorded>,
}

/// The outcome of the hits recorded since the last [`flush`](crate::BufferedCounters::flush).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub enum Recorded {
    /// Redis counted all of them.
    #[default]
    Counted,
    /// Redis counted the others and refused this many. The log has a line for each refused id.
    Refused {
        /// Hits refused because the buffer is [full](crate::Outcome::Full).
        full: u64,
        /// Hits refused because the sum would leave the [signed 64-bit
        /// range](crate::Outcome::OutOfRange).
        out_of_range: u64,
    },
}

impl Recorded {
    fn and(self, more_full: u64, more_out_of_range: u64) -> Self {
        let (full, out_of_range) = match self {
            Recorded::Counted => (0, 0),
            Recorded::Refused { full, out_of_range } => (full, out_of_range),
        };
        Recorded::Refused {
            full: full + more_full,
            out_of_range: out_of_range + more_out_of_range,
        }
    }

    /// Returns the number of refused hits.
    pub(crate) fn refused(self) -> u64 {
        match self {
            Recorded::Counted => 0,
            Recorded::Refused { full, out_of_range } => full + out_of_range,
        }
    }
}

impl Recorder {
    /// Adds a hit to the sums.
    pub fn record(&self, queue: &Queue, hit: &Hit<'_>) -> Result<()> {
        let family = queue.family();
        let all = self
            .sums
            .get_or_init(|| (0..family.partitions()).map(|_| Mutex::default()).collect());
        let mut sums = all[hit.partition as usize].lock();
        // no hit is accepted that the final flush might have missed
        queue.check_open()?;
        if sums.len() >= IDS.div_ceil(all.len()) && sums.sum_of(hit).is_none() {
            let message = format!(
                "{family}: {} ids of one partition are waiting to be sent",
                sums.len()
            );
            return Err(Error::new(ErrorKind::Busy, message));
        }
        sums.push(hit);
        Ok(())
    }

    /// Starts the task that sends everything soon, unless it runs already.
    pub fn begin(writer: &Arc<Writer>) {
        let running = &writer.recorder.running;
        if !running.load(Ordering::Relaxed) && !running.swap(true, Ordering::AcqRel) {
            writer.queue.runtime.spawn(send_soon(writer.clone()));
        }
    }

    /// Sends everything that was recorded before. Returns failures since the last call as an error;
    /// refusals are none.
    pub async fn send_now(writer: Arc<Writer>) -> Result<()> {
        // in its own task: the caller may be dropped, but hits taken for sending must not be lost
        let sending = tokio::spawn(async move {
            let sent = writer.recorder.send(&writer).await;
            writer.recorder.lost.lock().take().map_or(sent, Err)
        });
        sending.await.unwrap_or_else(|error| {
            let message = "the task that sends recorded hits ended early";
            Err(Error::new(ErrorKind::OutcomeUnknown, message).with_source(error))
        })
    }

    async fn send(&self, writer: &Writer) -> Result<()> {
        let stuck = |_| {
            let message = format!("{}: an earlier send has not ended", writer.queue.family());
            Error::redis(message)
        };
        let sending = timeout(STUCK, self.sending.lock());
        let _one = sending.await.map_err(stuck)?;
        let Some(all) = self.sums.get() else {
            return Ok(());
        };
        let taken: Vec<_> = all
            .iter()
            .map(|sums| std::mem::take(&mut *sums.lock()))
            .collect();
        let gauge =
            ::metrics::gauge!(metrics::RECORDED, "family" => writer.queue.opened.label.clone());
        let on_their_way = taken.iter().map(Group::hits).sum();
        self.on_their_way.store(on_their_way, Ordering::Relaxed);
        gauge.set(on_their_way as f64);
        let unsettled = Unsettled(writer);
        let sent = self.send_all(writer, &taken).await;
        self.on_their_way.store(0, Ordering::Relaxed);
        drop(unsettled);
        // kept hits are sent again; lost hits must be reported, whichever task was sending them
        let kept = sent.as_ref().map_or_else(|_| self.hits(), |()| 0);
        gauge.set(kept as f64);
        if let Err(error) = &sent
            && !error.is_retryable()
        {
            *self.lost.lock() = Some(error.clone());
        }
        sent
    }

    async fn send_all(&self, writer: &Writer, taken: &[Group]) -> Result<()> {
        let hits: Vec<_> = taken.iter().flat_map(Group::summed).collect();
        let family = writer.queue.family();
        let mut result = Ok(());
        for (hit, own) in hits.iter().zip(writer.add_all(&hits, OPTIONS).await) {
            let settled = match own {
                Ok(PairResult::Counted(_)) => Ok(()),
                Ok(why @ (PairResult::Full | PairResult::OutOfRange(_))) => {
                    self.refuse(family, hit, why);
                    Ok(())
                }
                Ok(other) => Err(other.corrupt(family, &String::from_utf8_lossy(hit.id))),
                Err(error) => {
                    // definitely not counted: it is sent again
                    if let (true, Some(all)) = (error.is_retryable(), self.sums.get()) {
                        all[hit.partition as usize].lock().push(hit);
                    }
                    Err(error)
                }
            };
            result = worse(result, settled);
        }
        result
    }

    fn refuse(&self, family: &Family, hit: &Hit<'_>, why: PairResult) {
        let (id, hits) = (String::from_utf8_lossy(hit.id), hit.hits);
        tracing::warn!(%family, %id, hits, delta = hit.update.amount(), ?why, "recorded hits were refused");
        let (full, out_of_range) = if why == PairResult::Full {
            (hits, 0)
        } else {
            (0, hits)
        };
        let mut refused = self.refused.lock();
        *refused = refused.and(full, out_of_range);
    }

    /// Returns the outcome of everything sent since the last call.
    pub fn outcome(&self) -> Recorded {
        std::mem::replace(&mut self.refused.lock(), Recorded::Counted)
    }

    /// Returns the number of hits that are kept or being sent.
    pub fn hits(&self) -> u64 {
        let all = self.sums.get().into_iter().flatten();
        let kept: u64 = all.map(|sums| sums.lock().hits()).sum();
        self.on_their_way.load(Ordering::Relaxed) + kept
    }

    fn is_empty(&self) -> bool {
        let mut all = self.sums.get().into_iter().flatten();
        all.all(|sums| sums.lock().is_empty())
    }
}

/// The hits being sent. If their task is dropped, because its runtime ends, the next flush reports
/// that their outcome is unknown.
struct Unsettled<'w>(&'w Writer);

impl Drop for Unsettled<'_> {
    fn drop(&mut self) {
        let Writer {
            queue, recorder, ..
        } = self.0;
        let hits = recorder.on_their_way.swap(0, Ordering::Relaxed);
        if hits > 0 {
            let what = "the runtime that sent recorded hits has ended";
            *recorder.lost.lock() = Some(queue.error(ErrorKind::OutcomeUnknown, what));
            queue.opened.measure([(hits, None)]);
        }
    }
}

/// Returns the worse of two results: lost hits before kept ones.
fn worse(one: Result<()>, other: Result<()>) -> Result<()> {
    match (&one, &other) {
        (Ok(()), _) => other,
        (Err(error), Err(lost)) if error.is_retryable() && !lost.is_retryable() => other,
        _ => one,
    }
}

/// Sends until nothing is left. Holds the writer, so it also sends after the last handle is
/// dropped.
async fn send_soon(writer: Arc<Writer>) {
    let recorder = &writer.recorder;
    let (mut pause, mut failures) = (PAUSE, Failures::default());
    loop {
        sleep(pause).await;
        let started = Instant::now();
        match recorder.send(&writer).await {
            Ok(()) => failures.succeeded(&()),
            Err(error) => failures.failed((), "sending recorded hits", &error),
        }
        // under load it pauses half of the time, so that each send carries more
        pause = PAUSE.max(started.elapsed());
        if recorder.is_empty() {
            recorder.running.store(false, Ordering::Release);
            // a caller that recorded just before has left the sending to this task
            if recorder.is_empty() || recorder.running.swap(true, Ordering::AcqRel) {
                return;
            }
        }
    }
}
