//! A hit that the application may request again, also from another process and hours later, and
//! that counts once.
//!
//! A request joins the group of other hits. Its pair carries the request's name and a generation,
//! under which Redis remembers it (docs/protocol.md, 3.10). So the same request may be sent in any
//! call: it counts in the first that arrives, and every other one receives the outcome of that one.

use std::sync::Arc;

use tokio::time::{Instant, sleep};

use crate::connection::backoff::Backoff;
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::metrics;
use crate::process::family::OpenFamily;
use crate::scripts::counting::{PairResult, Seed, Update};
use crate::writer::Writer;
use crate::writer::deadline::Deadline;
use crate::writer::group::{Group, Hit};

/// A hit with a name given by the application.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    name: &'a str,
    id: &'a str,
    delta: i64,
}

/// The progress of a request, as known from the replies so far.
#[derive(Clone, Debug, Default)]
pub struct RequestState {
    /// The generation that its calls name: the one that the application stored, or the current one
    /// of the first send.
    generation: Option<Arc<str>>,
    /// The application stored the generation before it first made the request, or a call that Redis
    /// executed has named it.
    is_fixed: bool,
    /// The error after which a call may have been executed.
    doubt: Option<Error>,
}

impl<'a> Request<'a> {
    /// Creates a request if its id and name are allowed. Name and id together identify the work.
    pub fn new(opened: &OpenFamily, name: &'a str, id: &'a str, delta: i64) -> Result<Self> {
        opened.check_given(id)?;
        match name.len() {
            1..=64 => Ok(Request { name, id, delta }),
            length => Err(Error::invalid(format!(
                "{}: request {name:?} has {length} bytes, allowed are 1 to 64",
                opened.family
            ))),
        }
    }

    /// Returns the partition that counts the request, the same one in every process.
    pub fn partition(&self, family: &Family) -> u32 {
        // in a wide family any partition may count the id, so the request's name decides
        family
            .home_of(self.id.as_bytes())
            .unwrap_or_else(|| family.partition_of(self.name))
    }
}

impl RequestState {
    /// Begins a request that the application may have made before, in this generation or a later
    /// one.
    pub fn since(generation: &str) -> Self {
        RequestState {
            generation: Some(generation.into()),
            is_fixed: true,
            doubt: None,
        }
    }

    /// Returns the error for a request whose outcome is `unknown` if a call may have been executed.
    pub fn doubtful(&self, family: &Family, error: Error) -> Error {
        if self.doubt.is_none() || error.outcome_unknown() {
            return error;
        }
        let what = format!("{family}: a reply was lost");
        Error::new(ErrorKind::OutcomeUnknown, what).with_source(error)
    }
}

impl Writer {
    /// Returns the generation in which Redis remembers the request if it is made now.
    pub async fn request_epoch(&self, request: Request<'_>) -> Result<String> {
        let route = &self.queue.route;
        let home = route.home(request.partition(route.family()));
        Ok(route.new_epoch(home).await?.generation.as_ref().to_owned())
    }

    /// Counts the hit unless the request was counted before. If the counter is missing, call again
    /// with a seed and the same progress. Each request by the application begins with a new
    /// progress.
    pub async fn once(
        &self,
        request: Request<'_>,
        progress: &mut RequestState,
        seed: Option<Seed>,
        deadline: Deadline,
    ) -> Result<PairResult> {
        let mut pause = Backoff::default();
        loop {
            let error = match self.send_request(request, progress, seed, deadline).await {
                Ok(Some(result)) => return Ok(result),
                Ok(None) => {
                    let what = "Redis may have forgotten the request";
                    let forgotten = self.queue.route.error(ErrorKind::OutcomeUnknown, what);
                    return Err(match progress.doubt.take() {
                        Some(doubt) => forgotten.with_source(doubt),
                        None => forgotten,
                    });
                }
                Err(error) => error,
            };
            if !error.outcome_unknown() {
                return Err(progress.doubtful(self.family(), error));
            }
            progress.doubt = Some(error.clone());
            let wait = pause.next();
            if Instant::now() + wait >= deadline.start_by {
                return Err(error);
            }
            metrics::retried("add");
            sleep(wait).await;
        }
    }

    /// Makes the request in one call with other hits. Returns `None` if Redis may have forgotten it.
    async fn send_request(
        &self,
        request: Request<'_>,
        progress: &mut RequestState,
        seed: Option<Seed>,
        deadline: Deadline,
    ) -> Result<Option<PairResult>> {
        let (route, partition) = (&self.queue.route, request.partition(self.family()));
        let home = route.home(partition);
        loop {
            let generation = match &progress.generation {
                Some(generation) => generation.clone(),
                None => route.epoch(home).await?.generation,
            };
            progress.generation = Some(generation.clone());
            let hit = Hit {
                partition,
                id: request.id.as_bytes(),
                update: Update::Add(request.delta),
                hits: 1,
                seed,
                request: Some((request.name, &generation)),
            };
            match self.count_one(&hit, deadline.into(), Group::push).await? {
                Some(PairResult::Expired) => {
                    if progress.is_fixed || progress.doubt.is_some() {
                        return Ok(None);
                    }
                    // No call of this request was executed in its generation, so it may begin again
                    // in the current one. If that is the same one, Redis knows the request from
                    // before a set-back, and its outcome is unknown.
                    let newer = route.new_epoch(route.home(partition)).await?.generation;
                    if newer == generation {
                        return Ok(None);
                    }
                    progress.generation = Some(newer);
                }
                // a late copy of an earlier call may still count
                Some(
                    PairResult::Full
                    | PairResult::Beyond
                    | PairResult::WrongType
                    | PairResult::NotAnInteger,
                ) if progress.doubt.is_some() => {
                    return Err(route.error(ErrorKind::OutcomeUnknown, "a reply was lost"));
                }
                Some(result) => {
                    progress.is_fixed = true;
                    return Ok(Some(result));
                }
                None => return Err(Error::corrupt("the reply to a request has no result")),
            }
        }
    }
}
