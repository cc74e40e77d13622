//! A hit that the application itself may ask for again, in another process too, and that counts once.
//!
//! The request is a caller whose calls are numbered from 1. They name the epoch **before**, so that they are looked up in
//! both memories: who asks again an epoch later is told what was done. A buffered counter takes one call. A cached one that
//! is missed is seeded and asked for by the next number, so who comes later goes through the numbers up to the last one.
//! No call is sent whose predecessor may be forgotten: a late one never meets a memory that has begun anew.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use crate::connection::backoff::Backoff;
use crate::error::{Error, ErrorKind, Result};
use crate::family::{Family, Kind};
use crate::metrics;
use crate::scripts::bundle;
use crate::scripts::cached::Seed;
use crate::scripts::fence::{Epochs, Fence};
use crate::scripts::partition::{Change, Counted, PairResult, Part, Partition};
use crate::writer::Writer;
use crate::writer::opened::Announced;
use crate::writer::send::may_pass;
use crate::writer::terms::Until;

/// A hit with the application's own name for it.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    name: &'a str,
    id: &'a str,
    delta: i64,
}

impl<'a> Request<'a> {
    /// Refuses an id or a name that is not allowed. The name stands for the work together with the id.
    pub fn new(family: &Family, name: &'a str, id: &'a str, delta: i64) -> Result<Self> {
        family.check_id(id)?;
        match name.len() {
            1..=64 => Ok(Request { name, id, delta }),
            length => {
                Err(Error::invalid(format!("{family}: request {name:?} has {length} bytes, allowed are 1 to 64")))
            }
        }
    }

    /// The caller that it is: no writer's name begins like this, and no other request has it.
    fn caller(&self) -> String {
        format!("request:{}:{}:{}", self.name.len(), self.name, self.id)
    }
}

/// What became of a request, and whether an earlier arrival decided it.
type Settled = (PairResult, bool);

/// How far a request has come by what its calls were told.
#[derive(Debug, Default)]
pub struct Progress {
    /// The number of its last call that is known to have been executed.
    n: u64,
    known: Known,
    /// The current epoch of the first send of the next call that may have been executed.
    doubt: Option<Arc<str>>,
    /// The epoch that the application stored before it made the request for the first time.
    since: Option<Arc<str>>,
}

/// What is known of a request from the call before.
#[derive(Debug, Default)]
enum Known {
    #[default]
    Nothing,
    /// It missed the counter, and was the last one, in these epochs.
    Missed(Epochs),
    /// It was not the last one, and one of two epochs remembers that, of which this is the older.
    Passed(Arc<str>),
}

/// What one send of a call was told.
enum Told {
    Settled(Settled),
    /// The request has made a later call.
    Passed,
    /// Redis does not know the epoch any more.
    Expired,
    /// It may have been forgotten what an earlier call did.
    Forgotten,
}

impl Progress {
    /// Begins a request that the application may have made before, in this epoch or later.
    pub fn since(epoch: &str) -> Self {
        Progress { since: Some(epoch.into()), ..Progress::default() }
    }

    /// Whether what it rests on is remembered. Where only what was missed is not, it begins again.
    fn is_remembered(&mut self, epochs: &Epochs) -> bool {
        if let Known::Missed(then) = &self.known
            && !epochs.knows(&then.before)
        {
            self.n = 0;
        }
        let known = match &self.known {
            Known::Nothing => None,
            Known::Missed(then) => Some(&then.now),
            Known::Passed(epoch) => Some(epoch),
        };
        known.into_iter().chain(&self.doubt).chain(&self.since).all(|epoch| epochs.knows(epoch))
    }

    /// Goes on to the next call.
    fn next(&mut self, known: Known) {
        *self = Progress { n: self.n + 1, known, doubt: None, since: self.since.take() };
    }
}

impl Writer {
    /// Returns the epoch in which Redis remembers the request if it is made now.
    pub async fn request_epoch(&self, request: Request<'_>) -> Result<String> {
        let family = self.queue.family();
        Ok(self.queue.home(request.partition(family)).epochs(family).await?.now.as_ref().to_owned())
    }

    /// Counts the hit unless the request was executed before. Where the counter is missing it is to be called again with a
    /// seed and the same progress, which is a new one for each time that the application asks.
    pub async fn once(
        &self,
        request: Request<'_>,
        progress: &mut Progress,
        seed: Option<Seed>,
        timeout: Duration,
    ) -> Result<Settled> {
        let _under_way = self.queue.take_alone()?;
        let until = Until::new(Instant::now(), timeout);
        let done = timeout_at(until.deadline, self.repeat(request, seed, until, progress)).await;
        let done = done.unwrap_or_else(|_| Err(self.queue.error(ErrorKind::Redis, "no reply in time")));
        let done = done.map_err(|error| match progress.doubt {
            Some(_) => self.queue.error(ErrorKind::OutcomeUnknown, "a reply was lost").with_source(error),
            None if error.outcome_unknown() => error,
            None if may_pass(&error) => self.queue.error(ErrorKind::Redis, "not counted").with_source(error),
            None => error,
        });
        let measure = |result| self.queue.opened.measure([(1, result)]);
        match &done {
            // by somebody else, or by an earlier call of the application
            Ok((PairResult::Counted(_), true)) if progress.doubt.is_none() => {}
            Ok((PairResult::Missing(_), _)) => {}
            Ok((result, _)) => measure(Some(*result)),
            Err(error) if error.outcome_unknown() => measure(None),
            Err(_) => {}
        }
        done
    }

    /// Sends the call, and those after it that were made before, until a reply settles it.
    async fn repeat(
        &self,
        request: Request<'_>,
        seed: Option<Seed>,
        until: Until,
        progress: &mut Progress,
    ) -> Result<Settled> {
        let number = request.partition(self.queue.family());
        let partition = self.queue.partition(number);
        let mut pause = Backoff::default();
        loop {
            let error = match self.send_alone(request, seed, (number, &partition), progress).await {
                Ok(Told::Settled(done)) => return Ok(done),
                Ok(Told::Passed) => continue,
                Ok(Told::Expired) => self.queue.error(ErrorKind::Redis, "its epoch has ended"),
                Ok(Told::Forgotten) => {
                    return Err(self
                        .queue
                        .error(ErrorKind::OutcomeUnknown, "Redis has forgotten the request meanwhile"));
                }
                Err(error) => error,
            };
            let is_in_vain =
                progress.doubt.is_some() && (bundle::may_be_half_done(&error) || bundle::crosses_slots(&error));
            let wait = pause.next();
            if is_in_vain || !may_pass(&error) || Instant::now() + wait >= until.begin {
                return Err(error);
            }
            metrics::retried("add");
            sleep(wait).await;
        }
    }

    /// One send of the next call.
    async fn send_alone(
        &self,
        request: Request<'_>,
        seed: Option<Seed>,
        (number, partition): (u32, &Partition),
        progress: &mut Progress,
    ) -> Result<Told> {
        let (queue, home) = (&self.queue, self.queue.home(number));
        let epochs = home.epochs(queue.family()).await?;
        if !progress.is_remembered(&epochs) {
            return Ok(Told::Forgotten);
        }
        let earlier = progress.doubt.clone();
        progress.doubt.get_or_insert_with(|| epochs.now.clone());
        let caller = request.caller();
        let fence = Fence { home: home.keys(), caller: &caller, n: progress.n + 1, epoch: &epochs.before };
        let counted = request.count(queue.family(), partition, fence, seed).await;
        // of a refusal only a connection that never sends a call again by itself tells that this was the only arrival
        let is_settled = match &counted {
            Ok(Counted::Executed { .. } | Counted::Passed) => true,
            Ok(Counted::Expired) => queue.redis.sends_once(),
            Err(error) => !error.outcome_unknown(),
        };
        if is_settled {
            progress.doubt = earlier;
        }
        match counted {
            Ok(Counted::Executed { results, due, repeated }) => {
                if !due.is_empty() {
                    queue.work.announce(Announced::Due(queue.opened.number, number));
                }
                let result = results.first().copied().ok_or_else(|| Error::corrupt("a request came to nothing"))?;
                if let PairResult::Missing(_) = result {
                    progress.next(Known::Missed(epochs));
                }
                Ok(Told::Settled((result, repeated)))
            }
            Ok(Counted::Expired) => {
                home.forget(&epochs.before);
                Ok(Told::Expired)
            }
            Ok(Counted::Passed) => {
                progress.next(Known::Passed(epochs.before));
                Ok(Told::Passed)
            }
            Err(error) => {
                if bundle::crosses_slots(&error) {
                    queue.topology.found_cluster();
                }
                Err(error)
            }
        }
    }
}

impl Request<'_> {
    /// Returns the partition that counts it: the same one in every process.
    fn partition(&self, family: &Family) -> u32 {
        // of a wide family any partition will do
        family.home_of(self.id.as_bytes()).unwrap_or_else(|| family.partition_of(self.name))
    }

    /// Calls the script of the family's kind.
    async fn count(
        self,
        family: &Family,
        partition: &Partition,
        fence: Fence<'_>,
        seed: Option<Seed>,
    ) -> Result<Counted> {
        let id = self.id.as_bytes();
        let (pairs, seeds) = ([(id, Change::Add(self.delta))], seed.map(|seed| (partition, vec![(id, seed)])));
        let parts = [Part { partition, hits: 1, pairs: &pairs }];
        match &family.kind {
            Kind::Cached(retention) => Partition::incr_in(retention, fence, seeds.as_slice(), &parts).await,
            _ => Partition::add_to(family, fence, &parts).await,
        }
    }
}
