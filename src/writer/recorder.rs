//! Hits that nobody waits for: summed in the process, and sent every few milliseconds.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use redis::aio::ConnectionLike;
use tokio::time::{Instant, sleep};

use crate::buffered::Added;
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::metrics;
use crate::writer::group::Group;
use crate::writer::{CHUNK, Writer};

/// How long sums are kept before they are sent.
const PAUSE: Duration = Duration::from_millis(5);
/// How long Redis is waited for; what it then surely has not counted is kept, and sent again.
const PATIENCE: Duration = Duration::from_secs(5);
/// How many ids are kept for one partition.
const IDS: usize = 16_384;

/// What was recorded and not yet sent.
#[derive(Debug, Default)]
pub struct Recorder {
    sums: OnceLock<Box<[Mutex<Sums>]>>,
    running: AtomicBool,
    sending: tokio::sync::Mutex<()>,
    /// What went wrong since the last flush.
    trouble: Mutex<Option<Error>>,
}

type Sums = HashMap<Box<str>, Sum>;

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    delta: i64,
    hits: u64,
}

impl Recorder {
    /// Adds a hit to the sums.
    pub fn record(&self, family: &Family, partition: u32, id: &str, delta: i64) -> Result<()> {
        let all = self.sums.get_or_init(|| (0..family.partitions()).map(|_| Mutex::default()).collect());
        let mut sums = lock(&all[partition as usize]);
        if let Some(sum) = sums.get_mut(id) {
            let delta = sum.delta.checked_add(delta).ok_or_else(|| {
                Error::new(ErrorKind::Range, format!("{family}: the recorded sum of {id:?} would leave i64"))
            })?;
            *sum = Sum { delta, hits: sum.hits + 1 };
        } else if sums.len() < IDS {
            sums.insert(id.into(), Sum { delta, hits: 1 });
        } else {
            return Err(Error::new(ErrorKind::Busy, format!("{family}: {IDS} ids of a partition wait to be sent")));
        }
        Ok(())
    }

    /// Whether nobody sees to the sending.
    pub fn is_idle(&self) -> bool {
        !self.running.load(Ordering::Relaxed)
    }

    /// Whether the caller is the one to see to the sending from now on.
    pub fn begin(&self) -> bool {
        !self.running.swap(true, Ordering::AcqRel)
    }

    /// Sends until nothing is left. It holds the writer, so what was recorded is also sent where its last handle is
    /// dropped.
    pub async fn run<C>(writer: Arc<Writer<C>>)
    where
        C: ConnectionLike + Clone + Send + Sync + 'static,
    {
        let this = &writer.recorder;
        let mut running = Running { flag: &this.running, on: true };
        let mut pause = PAUSE;
        while running.on {
            sleep(pause).await;
            let started = Instant::now();
            if let Err(error) = this.send(&writer).await {
                tracing::warn!(%error, "recorded hits");
                *lock(&this.trouble) = Some(error);
            }
            // under load half of the time, so that each send carries the more
            pause = PAUSE.max(started.elapsed());
            if this.is_empty() {
                this.running.store(false, Ordering::Release);
                // who recorded just before left the sending to us
                running.on = !this.is_empty() && this.begin();
            }
        }
    }

    /// Sends everything that was recorded before, and says what went wrong since the last time.
    pub async fn flush<C>(&self, writer: &Writer<C>) -> Result<()>
    where
        C: ConnectionLike + Clone + Send + Sync + 'static,
    {
        let sent = self.send(writer).await;
        let before = lock(&self.trouble).take();
        sent.and(before.map_or(Ok(()), Err))
    }

    async fn send<C>(&self, writer: &Writer<C>) -> Result<()>
    where
        C: ConnectionLike + Clone + Send + Sync + 'static,
    {
        let _one = self.sending.lock().await;
        let Some(all) = self.sums.get() else { return Ok(()) };
        let taken: Vec<_> = all.iter().map(|sums| std::mem::take(&mut *lock(sums))).collect();
        let hits: u64 = taken.iter().flat_map(Sums::values).map(|sum| sum.hits).sum();
        ::metrics::gauge!(metrics::RECORDED, "family" => writer.opened.label.clone()).set(hits as f64);
        let parts = (0..).zip(taken).filter(|(_, sums)| !sums.is_empty());
        let sent = join_all(parts.map(|(partition, sums)| self.send_part(writer, partition, sums))).await;
        ::metrics::gauge!(metrics::RECORDED, "family" => writer.opened.label.clone()).set(0.0);
        sent.into_iter().collect()
    }

    async fn send_part<C>(&self, writer: &Writer<C>, partition: u32, sums: Sums) -> Result<()>
    where
        C: ConnectionLike + Clone + Send + Sync + 'static,
    {
        let mut result = Ok(());
        let sums: Vec<_> = sums.into_iter().collect();
        let lane = writer.lane(partition);
        for some in sums.chunks(CHUNK) {
            let push = |group: &mut Group| {
                let fits = group.has_room_for(some.len());
                fits.then(|| some.iter().map(|(id, sum)| group.push(id, sum.delta, sum.hits)).collect::<Vec<_>>())
            };
            let (call, seats) = match lane.count(PATIENCE, true, push).await {
                Ok(counted) => counted,
                Err(error) => {
                    if error.is_retryable() {
                        result = some.iter().try_for_each(|(id, sum)| self.keep(writer, partition, id, *sum));
                    }
                    result = result.and(Err(error));
                    continue;
                }
            };
            for (seat, (id, sum)) in seats.into_iter().zip(some) {
                let added = match call.own(seat)? {
                    Some(added) => added,
                    None => Writer::add_alone(lane, id, sum.delta, sum.hits, PATIENCE).await?,
                };
                if !matches!(added, Added::Counted { .. }) {
                    result = Err(refused(writer, id, *sum, &format!("{added:?}")));
                }
            }
        }
        result
    }

    /// Puts a sum back that was surely not counted.
    fn keep<C>(&self, writer: &Writer<C>, partition: u32, id: &str, sum: Sum) -> Result<()> {
        let Some(all) = self.sums.get() else { return Ok(()) };
        let mut sums = lock(&all[partition as usize]);
        let kept = sums.entry(id.into()).or_default();
        let delta = kept.delta.checked_add(sum.delta).ok_or_else(|| refused(writer, id, sum, "beyond i64"))?;
        *kept = Sum { delta, hits: kept.hits + sum.hits };
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.sums.get().is_none_or(|all| all.iter().all(|sums| lock(sums).is_empty()))
    }
}

fn refused<C>(writer: &Writer<C>, id: &str, sum: Sum, why: &str) -> Error {
    let family = &writer.opened.registered.family;
    Error::new(ErrorKind::Range, format!("{family}: {} recorded hits on {id:?} are not counted: {why}", sum.hits))
}

struct Running<'a> {
    flag: &'a AtomicBool,
    on: bool,
}

/// Also where its runtime ends: another one may go on.
impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.on {
            self.flag.store(false, Ordering::Release);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
