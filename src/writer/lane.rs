//! One partition as this process writes it: hits gather while a call is under way, and go together into the next one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use redis::aio::ConnectionLike;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::backoff::Backoff;
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::metrics;
use crate::partition::Partition;
use crate::server_clock::ServerClock;
use crate::shared::{Announced, Opened, Work};
use crate::writer::answer::Answer;
use crate::writer::call::{Call, Outcome, Until};
use crate::writer::dispatch::{Dispatch, Permit, SLOW};
use crate::writer::group::Group;
use crate::writer::lead::Lead;
use crate::writer::producer::Producer;

/// However often Redis refused, it is asked again after so long.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// The write path to one partition.
#[derive(Debug)]
pub struct Lane<C> {
    opened: Arc<Opened>,
    number: u32,
    partition: Partition<C>,
    dispatch: Arc<Dispatch<C>>,
    work: Arc<Work>,
    state: Mutex<State>,
    /// Told when a full group has gone.
    room: Notify,
    /// About how many hits wait.
    waiting: AtomicU64,
}

#[derive(Debug)]
struct State {
    gathering: Group,
    /// The call for which they are gathered.
    next: Arc<Call>,
    stage: Stage,
    /// Counts who led a call: whoever led an earlier one has no say any more.
    term: u64,
    producer: Option<Producer>,
    refusals: Backoff,
    /// Why Redis did not take the last call, if it did not.
    refusal: Option<Error>,
}

#[derive(Debug)]
enum Stage {
    Idle,
    /// It has hits, and its turn comes.
    Ready,
    Calling {
        call: Arc<Call>,
        producer: Option<Producer>,
        since: Instant,
        /// Led by one of the callers, who may stop at any moment to do so.
        by_caller: bool,
    },
}

/// Hits that have joined a call.
enum Entered<C: ConnectionLike + Clone + Send + Sync + 'static, T> {
    /// The call is gathered for or waits for its turn.
    Waits { seats: T, call: Arc<Call>, place: usize },
    /// The caller is the first, and makes the call itself.
    Leads { seats: T, lead: Lead<C> },
    /// There is no room in what is gathered for this call.
    Full(Arc<Call>),
}

impl<C> Lane<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    pub fn new(
        opened: Arc<Opened>,
        number: u32,
        partition: Partition<C>,
        dispatch: Arc<Dispatch<C>>,
        work: Arc<Work>,
    ) -> Self {
        let state = State {
            gathering: Group::default(),
            next: Arc::new(Call::new()),
            stage: Stage::Idle,
            term: 0,
            producer: None,
            refusals: Backoff::default(),
            refusal: None,
        };
        let (state, room, waiting) = (Mutex::new(state), Notify::new(), AtomicU64::new(0));
        Lane { opened, number, partition, dispatch, work, state, room, waiting }
    }

    /// About how many hits wait here.
    pub fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Counts what `push` puts into a group, which it does if there is room, and answers when Redis has done it: the call
    /// with its outcome, and the hits' seats in it. Without `wait` a full group is an error.
    pub async fn count<T>(
        self: &Arc<Self>,
        patience: Duration,
        wait: bool,
        mut push: impl FnMut(&mut Group) -> Option<T>,
    ) -> Result<(Arc<Call>, T)> {
        let mut until = None;
        loop {
            let entered = std::future::poll_fn(|cx| self.enter(cx.waker(), patience, until, &mut push).into()).await;
            let (call, seats, mut place) = match entered {
                Entered::Waits { seats, call, place } => (call, seats, Some(place)),
                Entered::Leads { seats, lead } => {
                    let call = lead.call().clone();
                    lead.run().await;
                    (call, seats, None)
                }
                Entered::Full(call) if wait => {
                    let until = until.get_or_insert_with(|| Until::new(Instant::now(), patience));
                    self.wait_for_room(&call, until.deadline).await?;
                    continue;
                }
                Entered::Full(_) => return Err(self.error(ErrorKind::Busy, "too many hits wait for Redis")),
            };
            let until = *until.get_or_insert(call.until(patience));
            // woken not before the end, in all but a few cases
            let mut first = place.is_some();
            std::future::poll_fn(|cx| match std::mem::take(&mut first) {
                true if call.outcome().is_none() => std::task::Poll::Pending,
                _ => call.poll_end(cx, &mut place, until.deadline),
            })
            .await?;
            match call.outcome() {
                Some(Outcome::NotExecuted(_)) if Instant::now() < until.begin => {}
                Some(Outcome::NotExecuted(error) | Outcome::Failed(error)) => return Err(error.again()),
                _ => return Ok((call, seats)),
            }
        }
    }

    fn enter<T>(
        self: &Arc<Self>,
        waker: &Waker,
        patience: Duration,
        until: Option<Until>,
        push: &mut impl FnMut(&mut Group) -> Option<T>,
    ) -> Entered<C, T> {
        let mut guard = self.state();
        let state = &mut *guard;
        if state.gathering.is_empty() {
            state.next = Arc::new(Call::new());
        }
        let Some(seats) = push(&mut state.gathering) else { return Entered::Full(state.next.clone()) };
        state.gathering.wait_until(until.unwrap_or_else(|| state.next.until(patience)));
        self.waiting.fetch_add(1, Ordering::Relaxed);
        if let Stage::Idle = state.stage {
            match self.dispatch.ask(self) {
                Some(permit) => return Entered::Leads { seats, lead: self.take_off(state, permit, true) },
                None => state.stage = Stage::Ready,
            }
        }
        let call = state.next.clone();
        let place = call.wake(waker);
        drop(guard);
        self.dispatch.watch();
        Entered::Waits { seats, call, place }
    }

    /// Returns when nothing is gathered for this call any more.
    async fn wait_for_room(&self, full: &Call, deadline: Instant) -> Result<()> {
        let late = || self.error(ErrorKind::Redis, "not counted: too many hits were waiting for Redis");
        let room = self.room.notified();
        tokio::pin!(room);
        room.as_mut().enable();
        if full.group().is_some() || full.outcome().is_some() {
            return Ok(());
        }
        timeout_at(deadline, room).await.map_err(|_| late())
    }

    /// The call of everything that was gathered, if it is this partition's turn and there is anything.
    pub fn lead(self: &Arc<Self>, permit: Permit<C>) -> Result<Lead<C>, Permit<C>> {
        let mut state = self.state();
        if !matches!(state.stage, Stage::Ready) {
            return Err(permit);
        }
        if state.gathering.until().is_some_and(|until| Instant::now() >= until.begin) {
            self.send_away(&mut state);
        }
        if state.gathering.is_empty() {
            state.stage = Stage::Idle;
            return Err(permit);
        }
        Ok(self.take_off(&mut state, permit, false))
    }

    fn take_off(self: &Arc<Self>, state: &mut State, permit: Permit<C>, by_caller: bool) -> Lead<C> {
        let call = state.next.clone();
        let next = Group::with_capacity(state.gathering.len());
        call.carry(std::mem::replace(&mut state.gathering, next));
        self.waiting.store(1, Ordering::Relaxed);
        self.room.notify_waiters();
        let producer = state.producer.take().and_then(Producer::next_call);
        state.term += 1;
        let stage = Stage::Calling { call: call.clone(), producer: producer.clone(), since: Instant::now(), by_caller };
        state.stage = stage;
        Lead::new(self.clone(), call, state.term, producer, permit)
    }

    /// Lets those who wait in a lane that cannot go on look at the time and come again.
    fn send_away(&self, state: &mut State) {
        if !state.gathering.is_empty() {
            state.gathering = Group::default();
            let silence = || self.error(ErrorKind::Redis, "not counted: Redis has not answered the calls before");
            let error = state.refusal.as_ref().map_or_else(silence, Error::again);
            state.next.end(Outcome::NotExecuted(error));
            self.room.notify_waiters();
        }
    }

    /// Nobody is there to make the call whose turn it is: whoever waits is woken to do it.
    pub fn stand_down(&self) {
        let mut state = self.state();
        if let Stage::Ready = state.stage {
            state.stage = Stage::Idle;
            self.send_away(&mut state);
        }
    }

    /// Whether its call is slow; those who wait for it are told to look at the time, and a call that a caller leads is
    /// taken over: that caller may be doing something else.
    pub fn is_slow(self: &Arc<Self>) -> bool {
        let mut guard = self.state();
        let state = &mut *guard;
        let Stage::Calling { call, producer, since, by_caller } = &mut state.stage else { return false };
        let is_over = call.outcome().is_some();
        if !is_over && since.elapsed() < SLOW {
            return false;
        }
        call.remind();
        let patience = if is_over { SLOW + LONGEST_PAUSE } else { SLOW };
        let successor = (*by_caller && since.elapsed() >= patience).then(|| {
            *by_caller = false;
            state.term += 1;
            Lead::take_over(self.clone(), call.clone(), state.term, producer.clone())
        });
        self.send_away(state);
        drop(guard);
        if let (Some(lead), Ok(runtime)) = (successor, Handle::try_current()) {
            runtime.spawn(lead.run());
        }
        true
    }

    /// Lets the call of this term go on under this producer, unless somebody else leads it by now.
    pub fn adopt(&self, term: u64, new: &Producer) -> bool {
        let mut state = self.state();
        let leads = state.term == term;
        if leads && let Stage::Calling { producer, .. } = &mut state.stage {
            *producer = Some(new.clone());
        }
        leads
    }

    /// Whether the call is still led in this term.
    pub fn is_led(&self, term: u64) -> bool {
        self.state().term == term
    }

    /// Redis did not take the call; answers how long to wait.
    pub fn refused(self: &Arc<Self>, refusal: Error) -> Duration {
        self.dispatch.look_after(self);
        let mut state = self.state();
        state.refusal = Some(refusal);
        state.refusals.next().min(LONGEST_PAUSE)
    }

    /// Says how the call ended, and answers whether that holds: whoever led it earlier can know no more than that it was
    /// counted. What it was refused, its successor may have been granted.
    pub fn settle(&self, term: u64, call: &Call, outcome: Outcome) -> bool {
        let state = self.state();
        (state.term == term || matches!(outcome, Outcome::Counted { .. })) && call.settle(outcome)
    }

    /// Ends the call of this term: the partition can have another one. Answers whether it waits for that.
    pub fn land(self: &Arc<Self>, term: u64, producer: Option<Producer>, outcome: &Outcome) -> Option<Arc<Self>> {
        let mut guard = self.state();
        let state = &mut *guard;
        if state.term != term {
            return None;
        }
        if !matches!(outcome, Outcome::NotExecuted(_)) {
            (state.refusals, state.refusal) = (Backoff::default(), None);
        }
        state.producer = producer;
        self.waiting.store(state.gathering.hits(), Ordering::Relaxed);
        state.stage = if state.gathering.is_empty() { Stage::Idle } else { Stage::Ready };
        matches!(state.stage, Stage::Ready).then(|| self.clone())
    }

    /// A sync is due.
    pub fn announce_due(&self) {
        self.work.announce(Announced::Due(self.opened.registered.number, self.number));
    }

    /// Measures what became of the call's hits.
    pub fn measure(&self, call: &Call) {
        let label = || self.opened.label.clone();
        match (call.outcome(), call.group()) {
            (Some(Outcome::Counted { answers, .. }), Some(group)) => {
                let (mut counted, mut range, mut full) = (0, 0, 0);
                for (hits, answer) in group.settled_hits(answers) {
                    match answer {
                        Answer::Counted(_) | Answer::First | Answer::Again => counted += hits,
                        Answer::OutOfRange(_) => range += hits,
                        Answer::Full => full += hits,
                        // it comes again with a seed
                        Answer::Missing(_) => {}
                    }
                }
                ::metrics::counter!(metrics::HITS, "family" => label()).increment(counted);
                for (reason, hits) in [("range", range), ("full", full)] {
                    if hits > 0 {
                        ::metrics::counter!(metrics::REFUSED, "family" => label(), "reason" => reason).increment(hits);
                    }
                }
            }
            (Some(Outcome::Failed(error)), Some(group)) if error.outcome_unknown() => {
                ::metrics::counter!(metrics::UNKNOWN, "family" => label()).increment(group.hits());
            }
            _ => {}
        }
    }

    pub fn partition(&self) -> &Partition<C> {
        &self.partition
    }

    /// Whether the group takes so many more pairs.
    pub fn has_room_for(&self, group: &Group, pairs: usize) -> bool {
        group.has_room_for(pairs, self.family().pairs_a_call())
    }

    pub fn family(&self) -> &Family {
        &self.opened.registered.family
    }

    /// What is known of the server's time.
    pub fn clock(&self) -> &ServerClock {
        &self.opened.clock
    }

    pub fn dispatch(&self) -> &Arc<Dispatch<C>> {
        &self.dispatch
    }

    fn error(&self, kind: ErrorKind, what: &'static str) -> Error {
        Error::new(kind, format!("{}: {what}", self.opened.registered.family))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
