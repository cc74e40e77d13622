//! Hits that no caller waits for: summed in the process, and sent every few milliseconds.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::metrics;
use crate::scripts::partition::PairResult;
use crate::writer::deadline::WriteOptions;
use crate::writer::queue::Queue;
use crate::writer::{Hit, Writer};

/// The time for which sums are kept before they are sent.
const PAUSE: Duration = Duration::from_millis(5);
/// The conditions of a send. Hits that were definitely not counted within the timeout are kept and
/// sent again.
const OPTIONS: WriteOptions = WriteOptions {
    timeout: Duration::from_secs(5),
    wait: true,
    accepted_before_close: true,
};
/// The number of ids kept for a family, divided equally among its partitions.
const IDS: usize = 131_072;

/// The hits that were recorded and not yet sent.
#[derive(Debug)]
pub struct Recorder {
    /// The runtime that sends for threads outside any runtime.
    home: Option<Handle>,
    sums: OnceLock<Box<[Mutex<Sums>]>>,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub enum Recorded {
    /// Redis counted all of them.
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

type Sums = HashMap<Box<[u8]>, Sum>;

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    delta: i64,
    hits: u64,
}

impl Recorder {
    pub fn new() -> Self {
        Recorder {
            home: Handle::try_current().ok(),
            sums: OnceLock::new(),
            running: AtomicBool::new(false),
            sending: tokio::sync::Mutex::default(),
            on_their_way: AtomicU64::new(0),
            lost: Mutex::default(),
            refused: Mutex::new(Recorded::Counted),
        }
    }

    /// Adds a hit to the sums.
    pub fn record(&self, queue: &Queue, partition: u32, id: &[u8], delta: i64) -> Result<()> {
        let family = queue.family();
        let all = self
            .sums
            .get_or_init(|| (0..family.partitions()).map(|_| Mutex::default()).collect());
        let mut sums = lock(&all[partition as usize]);
        // no hit is accepted that the final flush might have missed
        queue.check_open()?;
        if let Some(sum) = sums.get_mut(id) {
            let delta = sum.delta.checked_add(delta).ok_or_else(|| {
                let id = String::from_utf8_lossy(id);
                Error::new(
                    ErrorKind::Busy,
                    format!("{family}: the unsent sum of {id:?} would exceed the i64 range"),
                )
            })?;
            *sum = Sum {
                delta,
                hits: sum.hits + 1,
            };
        } else if sums.len() < IDS.div_ceil(all.len()) {
            sums.insert(id.into(), Sum { delta, hits: 1 });
        } else {
            return Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "{family}: {} ids of one partition are waiting to be sent",
                    sums.len()
                ),
            ));
        }
        Ok(())
    }

    /// Starts the task that sends everything soon, unless it runs already.
    pub fn begin(writer: &Arc<Writer>) {
        let this = &writer.recorder;
        if this.running.load(Ordering::Relaxed) {
            return;
        }
        let Some(runtime) = Handle::try_current().ok().or_else(|| this.home.clone()) else {
            return;
        };
        if !this.running.swap(true, Ordering::AcqRel) {
            runtime.spawn(
                RecordSender {
                    writer: writer.clone(),
                    on: true,
                }
                .run(),
            );
        }
    }

    /// Sends everything that was recorded before. Returns failures since the last call as an error;
    /// refusals are none.
    pub async fn send_now(writer: Arc<Writer>) -> Result<()> {
        // in its own task: the caller may be dropped, but hits taken for sending must not be lost
        let sending = tokio::spawn(async move {
            let sent = writer.recorder.send(&writer).await;
            lock(&writer.recorder.lost).take().map_or(sent, Err)
        });
        let ended = |error| {
            Error::new(
                ErrorKind::OutcomeUnknown,
                "the task that sends recorded hits ended early",
            )
            .with_source(error)
        };
        sending
            .await
            .unwrap_or_else(|error: tokio::task::JoinError| Err(ended(error)))
    }

    async fn send(&self, writer: &Writer) -> Result<()> {
        let _one = self.sending.lock().await;
        let Some(all) = self.sums.get() else {
            return Ok(());
        };
        let gauge =
            ::metrics::gauge!(metrics::RECORDED, "family" => writer.queue.opened.label.clone());
        let taken: Vec<_> = all
            .iter()
            .map(|sums| std::mem::take(&mut *lock(sums)))
            .collect();
        self.on_their_way
            .store(taken.iter().map(hits).sum(), Ordering::Relaxed);
        gauge.set(self.on_their_way.load(Ordering::Relaxed) as f64);
        let sent = self.send_all(writer, &taken).await;
        self.on_their_way.store(0, Ordering::Relaxed);
        gauge.set(if sent.is_ok() {
            0.0
        } else {
            self.hits() as f64
        });
        // kept hits are sent again; lost hits must be reported, whichever task was sending them
        if let Err(error) = &sent
            && !error.is_retryable()
        {
            *lock(&self.lost) = Some(error.clone());
        }
        sent
    }

    async fn send_all(&self, writer: &Writer, taken: &[Sums]) -> Result<()> {
        let mut hits = Vec::new();
        for (partition, sums) in (0..).zip(taken) {
            hits.extend(sums.iter().map(|(id, sum)| Hit {
                partition,
                id,
                delta: sum.delta,
                hits: sum.hits,
            }));
        }
        let family = writer.queue.family();
        let mut result = Ok(());
        for (hit, own) in hits.iter().zip(writer.add_all(&hits, OPTIONS).await) {
            let sum = Sum {
                delta: hit.delta,
                hits: hit.hits,
            };
            let settled = match own {
                Ok(PairResult::Counted(_)) => Ok(()),
                Ok(why @ (PairResult::Full | PairResult::OutOfRange(_))) => {
                    self.refuse(family, hit.id, sum, why);
                    Ok(())
                }
                Ok(other) => Err(other.corrupt(family, &String::from_utf8_lossy(hit.id))),
                Err(error) if error.is_retryable() => {
                    self.keep(family, hit.partition, hit.id, sum);
                    Err(error)
                }
                Err(error) => Err(error),
            };
            result = worse(result, settled);
        }
        result
    }

    /// Puts back a sum that was definitely not counted.
    fn keep(&self, family: &Family, partition: u32, id: &[u8], sum: Sum) {
        let Some(all) = self.sums.get() else { return };
        let mut sums = lock(&all[partition as usize]);
        let kept = sums.entry(id.into()).or_default();
        match kept.delta.checked_add(sum.delta) {
            Some(delta) => {
                *kept = Sum {
                    delta,
                    hits: kept.hits + sum.hits,
                }
            }
            None => self.refuse(family, id, sum, PairResult::OutOfRange(0)),
        }
    }

    fn refuse(&self, family: &Family, id: &[u8], sum: Sum, why: PairResult) {
        tracing::warn!(%family, id = %String::from_utf8_lossy(id), hits = sum.hits, delta = sum.delta, ?why, "recorded hits were refused");
        let (full, out_of_range) = if why == PairResult::Full {
            (sum.hits, 0)
        } else {
            (0, sum.hits)
        };
        let mut refused = lock(&self.refused);
        *refused = refused.and(full, out_of_range);
    }

    /// Returns the outcome of everything sent since the last call.
    pub fn outcome(&self) -> Recorded {
        std::mem::replace(&mut lock(&self.refused), Recorded::Counted)
    }

    /// Returns the number of hits that are kept or being sent.
    pub fn hits(&self) -> u64 {
        let kept = self
            .sums
            .get()
            .map_or(0, |all| all.iter().map(|sums| hits(&lock(sums))).sum());
        self.on_their_way.load(Ordering::Relaxed) + kept
    }

    fn is_empty(&self) -> bool {
        self.sums
            .get()
            .is_none_or(|all| all.iter().all(|sums| lock(sums).is_empty()))
    }
}

fn hits(sums: &Sums) -> u64 {
    sums.values().map(|sum| sum.hits).sum()
}

/// Returns the worse of two results: lost hits before kept ones.
fn worse(one: Result<()>, other: Result<()>) -> Result<()> {
    match (&one, &other) {
        (Ok(()), _) => other,
        (Err(error), Err(lost)) if error.is_retryable() && !lost.is_retryable() => other,
        _ => one,
    }
}

/// The task that sends until nothing is left. It holds the writer, so it also sends after the last
/// handle is dropped.
struct RecordSender {
    writer: Arc<Writer>,
    on: bool,
}

impl RecordSender {
    async fn run(mut self) {
        let writer = self.writer.clone();
        let recorder = &writer.recorder;
        let mut pause = PAUSE;
        while self.on {
            sleep(pause).await;
            let started = Instant::now();
            if let Err(error) = recorder.send(&writer).await {
                tracing::warn!(error = %format_args!("{error:#}"), "sending recorded hits failed");
            }
            // under load it pauses half of the time, so that each send carries more
            pause = PAUSE.max(started.elapsed());
            if recorder.is_empty() {
                recorder.running.store(false, Ordering::Release);
                // a caller that recorded just before has left the sending to this task
                self.on = !recorder.is_empty() && !recorder.running.swap(true, Ordering::AcqRel);
            }
        }
    }
}

/// Also runs when the task's runtime ends: another task may take over.
impl Drop for RecordSender {
    fn drop(&mut self) {
        if self.on {
            self.writer.recorder.running.store(false, Ordering::Release);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
