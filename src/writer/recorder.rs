//! Hits that no caller waits for: summed in the process, and sent every few milliseconds.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep, timeout};

use crate::connection::failures::Failures;
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::metrics;
use crate::scripts::counting::{PairResult, Update, no_calendar};
use crate::writer::Writer;
use crate::writer::deadline::{Deadline, WriteOptions};
use crate::writer::group::{Group, Hit};
use crate::writer::queue::Queue;

/// The time for which sums are kept before they are sent.
const PAUSE: Duration = Duration::from_millis(5);
/// The time limit of a send. Hits that were definitely not counted within it are kept and sent
/// again.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The longest time that a flush waits. It is longer than an earlier send and the flush's own send
/// take together.
const LONGEST_FLUSH: Duration = Duration::from_secs(12);
/// The pause after a send that did not count all of its hits. These are kept, and sent again.
const RETRY: Duration = Duration::from_secs(1);
/// The number of ids kept for a family.
const IDS: usize = 131_072;
/// The number of threads that record without sharing sums, and so without waiting for each other.
const THREADS: usize = 16;

thread_local! {
    /// The number of this thread among those that record.
    static THREAD: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed) % THREADS
    };
}

/// The hits that were recorded and not yet sent.
#[derive(Debug, Default)]
pub struct Recorder {
    /// The sums of each thread, and behind them those that are sent again. The first hit allocates
    /// them.
    sums: OnceLock<Box<[Sums]>>,
    /// The number of ids in all sums, where one that several threads recorded counts several times.
    ids: AtomicUsize,
    running: AtomicBool,
    sending: tokio::sync::Mutex<()>,
    /// The number of hits being sent.
    on_their_way: AtomicU64,
    /// The error of hits with an unknown outcome since the last flush.
    lost: Mutex<Option<Error>>,
    /// The refusals since the last flush.
    refused: Mutex<Recorded>,
}

/// Hits summed by id. They have partition 0 until they are sent. The alignment keeps the sums of
/// other threads off the same cache lines, which would slow these threads down.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Sums(Mutex<Group>);

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
        /// Events of a series whose [time](crate::Outcome::BadTime) no slice takes.
        bad_time: u64,
    },
}

impl Recorded {
    /// Returns this with more refused hits.
    fn refuse(self, why: PairResult, hits: u64) -> Self {
        let (mut full, mut out_of_range, mut bad_time) = match self {
            Recorded::Counted => (0, 0, 0),
            Recorded::Refused {
                full,
                out_of_range,
                bad_time,
            } => (full, out_of_range, bad_time),
        };
        match why {
            PairResult::Full => full += hits,
            PairResult::BadTime => bad_time += hits,
            _ => out_of_range += hits,
        }
        Recorded::Refused {
            full,
            out_of_range,
            bad_time,
        }
    }

    /// Returns the number of refused hits.
    pub(crate) fn refused(self) -> u64 {
        match self {
            Recorded::Counted => 0,
            Recorded::Refused {
                full,
                out_of_range,
                bad_time,
            } => full + out_of_range + bad_time,
        }
    }
}

impl Recorder {
    /// Adds a hit to the sums.
    pub fn record(&self, queue: &Queue, id: &[u8], delta: i64) -> Result<()> {
        let hit = Hit {
            partition: 0,
            id,
            update: Update::Add(delta),
            hits: 1,
            seed: None,
            request: None,
        };
        let none = || (0..=THREADS).map(|_| Sums::default()).collect();
        let all = self.sums.get_or_init(none);
        let mut sums = all[THREAD.with(|number| *number)].0.lock();
        if self.ids.load(Ordering::Relaxed) >= IDS && !sums.has_sum_of(&hit) {
            drop(sums);
            sums = self.unite(all);
        }
        // checked under the lock of the sums, so that no hit is accepted after the final flush took
        // them
        queue.check_open()?;
        if sums.len() >= IDS && !sums.has_sum_of(&hit) {
            let what = "too many ids are waiting to be sent";
            return Err(queue.route.error(ErrorKind::Busy, what));
        }
        self.add(&mut sums, &hit);
        Ok(())
    }

    /// Adds a hit to these sums, and counts its id if it is new to them.
    fn add(&self, sums: &mut Group, hit: &Hit<'_>) {
        let known = sums.len();
        sums.push(hit);
        if sums.len() > known {
            self.ids.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Moves the sums of all threads to those that are sent again, where each id counts once.
    fn unite<'s>(&self, all: &'s [Sums]) -> MutexGuard<'s, Group> {
        let mut united = all[THREADS].0.lock();
        for Sums(sums) in &all[..THREADS] {
            let moved = std::mem::take(&mut *sums.lock());
            self.ids.fetch_sub(moved.len(), Ordering::Relaxed);
            moved.summed().for_each(|hit| self.add(&mut united, &hit));
        }
        united
    }

    /// Starts the task that sends everything soon, unless it runs already.
    pub fn begin(writer: &Arc<Writer>) {
        let running = &writer.recorder.running;
        if !running.load(Ordering::Relaxed) && !running.swap(true, Ordering::AcqRel) {
            writer.queue.spawn(send_soon(writer.clone()));
        }
    }

    /// Sends everything that was recorded before. Returns failures since the last call as an error;
    /// refusals are none.
    pub async fn send_now(writer: Arc<Writer>) -> Result<()> {
        let sender = writer.clone();
        // in its own task: the caller may be dropped, but hits taken for sending must not be lost
        let sending = writer.queue.runtime.spawn(async move {
            let sent = sender.recorder.send(&sender).await;
            if sent.is_err() {
                // kept hits are sent again; the task for that may have just ended
                Recorder::begin(&sender);
            }
            sender.recorder.lost.lock().take().map_or(sent, Err)
        });
        match timeout(LONGEST_FLUSH, sending).await {
            Ok(sent) => sent.unwrap_or_else(|_| Err(writer.recorder.ended(&writer.queue))),
            Err(_) => {
                let what = "the runtime of the pair does not send recorded hits";
                Err(writer.queue.route.error(ErrorKind::Redis, what))
            }
        }
    }

    /// Returns the error of hits that were being sent when the runtime ended. Their calls may have
    /// been executed, so that their outcome is unknown.
    fn ended(&self, queue: &Queue) -> Error {
        let hits = self.on_their_way.swap(0, Ordering::Relaxed);
        if hits == 0 {
            return queue.runtime_ended();
        }
        queue.route.opened.measure([(hits, None)]);
        let what = "the runtime that sent recorded hits has ended";
        queue.route.error(ErrorKind::OutcomeUnknown, what)
    }

    async fn send(&self, writer: &Writer) -> Result<()> {
        let route = &writer.queue.route;
        let _one = self.sending.lock().await;
        let Some(all) = self.sums.get() else {
            return Ok(());
        };
        let take = |Sums(sums): &Sums| {
            let mut sums = sums.lock();
            self.ids.fetch_sub(sums.len(), Ordering::Relaxed);
            // as a rule, as many ids are recorded until the next send
            let next = Group::with_capacity(sums.len());
            std::mem::replace(&mut *sums, next)
        };
        // the sums to which `unite` moves hits come last, so that none is missed
        let taken: Vec<_> = all.iter().map(take).collect();
        let on_their_way = taken.iter().map(Group::hits).sum();
        if on_their_way == 0 {
            return Ok(());
        }
        self.on_their_way.store(on_their_way, Ordering::Relaxed);
        let family = route.opened.label.clone();
        let gauge = ::metrics::gauge!(metrics::RECORDED, "family" => family);
        gauge.set(on_their_way as f64);
        let sent = self.send_all(writer, &all[THREADS], &taken).await;
        self.on_their_way.store(0, Ordering::Relaxed);
        gauge.set(sent.as_ref().map_or_else(|_| self.hits(), |()| 0) as f64);
        // kept hits are sent again; lost hits must be reported, whichever task was sending them
        if let Err(error) = &sent
            && !error.is_retryable()
        {
            *self.lost.lock() = Some(error.clone());
        }
        sent
    }

    /// Sends the hits, and keeps those that were definitely not counted. Returns an error of lost
    /// hits before one of kept hits.
    async fn send_all(&self, writer: &Writer, again: &Sums, taken: &[Group]) -> Result<()> {
        let family = writer.family();
        let mut sums = Group::with_capacity(taken.iter().map(Group::len).sum());
        for hit in taken.iter().flat_map(Group::summed) {
            let home = family.home_of(hit.id);
            let partition = home.unwrap_or_else(|| family.partition_by(hit.id));
            sums.push(&Hit { partition, ..hit });
        }
        let hits: Vec<_> = sums.summed().collect();
        let options = WriteOptions {
            accepted_before_close: true,
            ..Deadline::within(TIMEOUT).into()
        };
        let (mut kept, mut lost) = (Ok(()), Ok(()));
        for (hit, result) in hits.iter().zip(writer.add_all(&hits, options).await) {
            match result {
                Ok(PairResult::Counted(_) | PairResult::First | PairResult::Repeated) => {}
                Ok(why @ (PairResult::Full | PairResult::OutOfRange(_) | PairResult::BadTime)) => {
                    self.refuse(family, hit, why);
                }
                Ok(PairResult::NoCalendar) => {
                    let partition = 0;
                    self.add(&mut again.0.lock(), &Hit { partition, ..*hit });
                    kept = kept.and(Err(no_calendar()));
                }
                Ok(other) => {
                    let id = String::from_utf8_lossy(family.id_of(hit.id));
                    lost = lost.and(Err(other.corrupt(family, &id)));
                }
                Err(error) if error.is_retryable() => {
                    let partition = 0;
                    self.add(&mut again.0.lock(), &Hit { partition, ..*hit });
                    kept = kept.and(Err(error));
                }
                Err(error) => lost = lost.and(Err(error)),
            }
        }
        lost.and(kept)
    }

    fn refuse(&self, family: &Family, hit: &Hit<'_>, why: PairResult) {
        let (id, hits) = (String::from_utf8_lossy(hit.id), hit.hits);
        tracing::warn!(%family, %id, hits, delta = hit.update.amount(), ?why, "recorded hits were refused");
        let mut refused = self.refused.lock();
        *refused = refused.refuse(why, hits);
    }

    /// Returns the outcome of everything sent since the last call.
    pub fn outcome(&self) -> Recorded {
        std::mem::take(&mut self.refused.lock())
    }

    /// Returns the number of hits that are kept or being sent.
    pub fn hits(&self) -> u64 {
        let all = self.sums.get().into_iter().flatten();
        let kept: u64 = all.map(|Sums(sums)| sums.lock().hits()).sum();
        self.on_their_way.load(Ordering::Relaxed) + kept
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
        // under load it pauses half of the time, so that each send carries more
        pause = match recorder.send(&writer).await {
            Ok(()) => {
                failures.succeeded(&());
                PAUSE.max(started.elapsed())
            }
            Err(error) => {
                failures.failed((), "sending recorded hits", &error);
                RETRY
            }
        };
        if recorder.hits() == 0 {
            recorder.running.store(false, Ordering::Release);
            // a caller that recorded just before has left the sending to this task
            if recorder.hits() == 0 || recorder.running.swap(true, Ordering::AcqRel) {
                return;
            }
        }
    }
}
