//! A hit that the application itself may ask for again, in another process too, and that counts once.
//!
//! The request is a caller with the one number 1. Its call names the epoch **before**, so that it is looked up in both
//! memories: who asks again an epoch later is told what was done.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::ConnectionLike;
use tokio::time::{Instant, sleep, timeout_at};

use crate::connection::backoff::Backoff;
use crate::connection::link;
use crate::error::{Error, ErrorKind, Result};
use crate::metrics;
use crate::scripts::bundle;
use crate::scripts::fence::Fence;
use crate::scripts::partition::{Change, Counted, PairResult, Part, Partition};
use crate::writer::Writer;
use crate::writer::opened::Announced;
use crate::writer::send::may_pass;
use crate::writer::terms::Until;

/// A hit with the application's own name for it.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Names it together with the counter.
    pub name: &'a str,
    pub id: &'a str,
    pub delta: i64,
}

impl Request<'_> {
    /// The caller that it is: no writer's name begins like this, and no other request has it.
    fn caller(&self) -> String {
        format!("request:{}:{}:{}", self.name.len(), self.name, self.id)
    }
}

/// What became of a request, and whether an earlier arrival decided it.
type Done = (PairResult, bool);

impl<C> Writer<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    /// Counts the hit unless the request was executed before.
    pub async fn add_once(&self, request: Request<'_>, timeout: Duration) -> Result<Done> {
        let _under_way = self.queue.take_alone()?;
        let until = Until::new(Instant::now(), timeout);
        let mut doubt = None;
        let done = timeout_at(until.deadline, self.repeat(request, until, &mut doubt)).await;
        let done = done.unwrap_or_else(|_| Err(self.queue.error(ErrorKind::Redis, "no reply in time")));
        let label = || self.queue.opened.label.clone();
        match (&done, &doubt) {
            (Ok((PairResult::Counted(_), false)), _) | (Ok((PairResult::Counted(_), _)), Some(_)) => {
                ::metrics::counter!(metrics::HITS, "family" => label()).increment(1);
            }
            (Ok((PairResult::OutOfRange(_), _)), _) => {
                ::metrics::counter!(metrics::REFUSED, "family" => label(), "reason" => "range").increment(1);
            }
            (Ok((PairResult::Full, _)), _) => {
                ::metrics::counter!(metrics::REFUSED, "family" => label(), "reason" => "full").increment(1);
            }
            (Err(_), Some(_)) => ::metrics::counter!(metrics::UNKNOWN, "family" => label()).increment(1),
            _ => {}
        }
        done.map_err(|error| match doubt {
            Some(_) => self.queue.error(ErrorKind::OutcomeUnknown, "a reply was lost").with_source(error),
            None if may_pass(&error) => self.queue.error(ErrorKind::Redis, "not counted").with_source(error),
            None => error,
        })
    }

    /// Sends the call until a reply settles it. `doubt` is the current epoch of the first send that may have been executed.
    async fn repeat(&self, request: Request<'_>, until: Until, doubt: &mut Option<Arc<str>>) -> Result<Done> {
        let family = self.queue.family();
        // every process has to find the same home; of a wide family any partition will do
        let number = family.home_of(request.id.as_bytes()).unwrap_or_else(|| family.partition_of(request.name));
        let (caller, partition) = (request.caller(), self.queue.partition(number));
        let pairs = [(request.id.as_bytes(), Change::Add(request.delta))];
        let parts = [Part { partition: &partition, hits: 1, pairs: &pairs }];
        let mut pause = Backoff::default();
        loop {
            let error = match self.send_alone(&caller, number, &parts, doubt).await {
                Ok(Some(done)) => return Ok(done),
                Ok(None) => self.queue.error(ErrorKind::Redis, "its epoch has ended"),
                Err(error) => error,
            };
            let is_in_vain = doubt.is_some() && (bundle::may_be_half_done(&error) || bundle::crosses_slots(&error));
            let wait = pause.next();
            if is_in_vain || !may_pass(&error) || Instant::now() + wait >= until.begin {
                return Err(error);
            }
            metrics::retried("add");
            sleep(wait).await;
        }
    }

    /// One send of the call; `None` if Redis does not know the epoch any more.
    async fn send_alone(
        &self,
        caller: &str,
        number: u32,
        parts: &[Part<'_, C>],
        doubt: &mut Option<Arc<str>>,
    ) -> Result<Option<Done>> {
        let (queue, home) = (&self.queue, self.queue.home(number));
        let epochs = home.epochs(queue.family()).await?;
        if doubt.as_ref().is_some_and(|epoch| !epochs.knows(epoch)) {
            return Err(Error::corrupt("Redis has forgotten the epoch of the call"));
        }
        let earlier = doubt.clone();
        doubt.get_or_insert_with(|| epochs.now.clone());
        let fence = Fence { home: home.keys(), caller, n: 1, epoch: &epochs.before };
        let counted = Partition::add_to(queue.family(), fence, parts).await;
        // of a refusal only a connection that never sends a call again by itself tells that this was the only arrival
        let is_settled = match &counted {
            Ok(Counted::Executed { .. }) => true,
            Ok(Counted::Expired) => link::sends_once::<C>(),
            Err(error) => !error.outcome_unknown(),
        };
        if is_settled {
            *doubt = earlier;
        }
        match counted {
            Ok(Counted::Executed { results, due, repeated }) => {
                if !due.is_empty() {
                    queue.work.announce(Announced::Due(queue.opened.number, number));
                }
                Ok(results.first().map(|result| (*result, repeated)))
            }
            Ok(Counted::Expired) => {
                home.forget(&epochs.before);
                Ok(None)
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
