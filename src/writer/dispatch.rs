//! How many calls are under way on one connection.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::ConnectionLike;
use tokio::runtime::Handle;
use tokio::time::{Instant, sleep};

use crate::error::Result;
use crate::family::Family;
use crate::partition::Partition;
use crate::resend::ResendProbe;
use crate::writer::lane::Lane;

/// How many calls are under way at a time. Few, so that under load hits gather and calls carry many of them.
const CALLS: usize = 4;

/// A call that takes longer does not count any more: whatever it waits for, another partition may lie elsewhere.
pub const SLOW: Duration = Duration::from_millis(50);

/// Gives the partitions of one connection their turn.
#[derive(Debug)]
pub struct Dispatch<C> {
    redis: C,
    resend: ResendProbe,
    state: Mutex<State<C>>,
    watched: AtomicBool,
}

#[derive(Debug)]
struct State<C> {
    held: Vec<Held<C>>,
    /// Partitions that wait for their turn.
    ready: VecDeque<Arc<Lane<C>>>,
    /// Partitions whose call is slow, or was refused and is to be made again.
    slow: Vec<Arc<Lane<C>>>,
    permits: u64,
}

#[derive(Debug)]
struct Held<C> {
    permit: u64,
    lane: Arc<Lane<C>>,
    since: Instant,
}

impl<C> State<C> {
    fn add_slow(&mut self, lane: Arc<Lane<C>>) {
        if !self.slow.iter().any(|slow| Arc::ptr_eq(slow, &lane)) {
            self.slow.push(lane);
        }
    }
}

/// A partition, and the permit to make its call.
pub type Turn<C> = (Arc<Lane<C>>, Permit<C>);

/// The right to have a call under way. It lapses when the call is slow.
#[derive(Debug)]
pub struct Permit<C: ConnectionLike + Clone + Send + Sync + 'static> {
    dispatch: Arc<Dispatch<C>>,
    lane: Arc<Lane<C>>,
    number: u64,
}

impl<C> Dispatch<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    pub fn new(redis: C) -> Self {
        let state = State { held: Vec::new(), ready: VecDeque::new(), slow: Vec::new(), permits: 0 };
        Dispatch { redis, resend: ResendProbe::default(), state: Mutex::new(state), watched: AtomicBool::new(false) }
    }

    /// One partition over this connection.
    pub fn partition(&self, family: &Family, number: u32) -> Partition<C> {
        Partition::new(self.redis.clone(), family, number)
    }

    /// Returns where the connection is known to send a call once; to be asked before a producer is registered.
    pub async fn refuse_resending(&self, family: &Family) -> Result<()> {
        self.resend.refuse(&self.redis, family).await
    }

    /// A permit for a call to the partition, if one is free and nobody waits for it; else its turn comes.
    pub fn ask(self: &Arc<Self>, lane: &Arc<Lane<C>>) -> Option<Permit<C>> {
        let mut state = self.state();
        if state.held.len() < CALLS && state.ready.is_empty() {
            return Some(self.permit(&mut state, lane.clone()));
        }
        state.ready.push_back(lane.clone());
        None
    }

    /// Gives a permit back, lets a partition come again later, and answers whose turn it is.
    pub fn turn(self: &Arc<Self>, done: u64, again: Option<Arc<Lane<C>>>) -> Option<Turn<C>> {
        let mut guard = self.state();
        let state = &mut *guard;
        state.held.retain(|held| held.permit != done);
        state.ready.extend(again);
        self.free_turn(state)
    }

    fn free_turn(self: &Arc<Self>, state: &mut State<C>) -> Option<Turn<C>> {
        if state.held.len() >= CALLS {
            return None;
        }
        let lane = state.ready.pop_front()?;
        Some((lane.clone(), self.permit(state, lane)))
    }

    /// Looks after a partition whose call was refused, until that is over.
    pub fn look_after(self: &Arc<Self>, lane: &Arc<Lane<C>>) {
        self.state().add_slow(lane.clone());
        self.watch();
    }

    /// Sees to it that nobody who waits for a call is forgotten, whatever happens to who makes it.
    pub fn watch(self: &Arc<Self>) {
        if !self.watched.load(Ordering::Relaxed)
            && !self.watched.swap(true, Ordering::AcqRel)
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(Watch { dispatch: self.clone(), on: true }.run());
        }
    }

    fn permit(self: &Arc<Self>, state: &mut State<C>, lane: Arc<Lane<C>>) -> Permit<C> {
        state.permits += 1;
        let number = state.permits;
        state.held.push(Held { permit: number, lane: lane.clone(), since: Instant::now() });
        Permit { dispatch: self.clone(), lane, number }
    }

    /// Lets permits of slow calls lapse. Answers whether there is anything to watch.
    fn look(self: &Arc<Self>) -> bool {
        let now = Instant::now();
        let (slow, started) = {
            let mut guard = self.state();
            let state = &mut *guard;
            let lapsed: Vec<_> = state.held.extract_if(.., |held| now - held.since >= SLOW).collect();
            lapsed.into_iter().for_each(|held| state.add_slow(held.lane));
            let started: Vec<_> = std::iter::from_fn(|| self.free_turn(state)).collect();
            (std::mem::take(&mut state.slow), started)
        };
        started.into_iter().for_each(start);
        let slow: Vec<_> = slow.into_iter().filter(Lane::is_slow).collect();
        let mut state = self.state();
        slow.into_iter().for_each(|lane| state.add_slow(lane));
        !state.held.is_empty() || !state.slow.is_empty() || !state.ready.is_empty()
    }

    fn state(&self) -> MutexGuard<'_, State<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C> Permit<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    /// Gives it back, and answers whose turn it is, with a permit.
    pub fn next(mut self, again: Option<Arc<Lane<C>>>) -> Option<Turn<C>> {
        let number = std::mem::take(&mut self.number);
        self.dispatch.turn(number, again)
    }
}

/// Also where who was to make the call ends with its runtime, or there is none: whoever waits has one.
impl<C> Drop for Permit<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    fn drop(&mut self) {
        if self.number == 0 {
            return;
        }
        self.lane.stand_down();
        if let Some(turn) = self.dispatch.turn(self.number, None) {
            start(turn);
        }
    }
}

/// Makes the calls of one partition after the other, as long as any is waiting.
pub fn start<C>((lane, permit): Turn<C>)
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    if let Ok(runtime) = Handle::try_current() {
        runtime.spawn(drive(lane, permit));
    }
}

async fn drive<C>(lane: Arc<Lane<C>>, permit: Permit<C>)
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    let mut turn = Some((lane, permit));
    while let Some((lane, permit)) = turn {
        // those who were just answered come again first: the next call carries more
        tokio::task::yield_now().await;
        turn = match lane.lead(permit) {
            Ok(lead) => lead.make().await,
            Err(permit) => permit.next(None),
        };
    }
}

/// Looks after the calls as long as there are any.
struct Watch<C> {
    dispatch: Arc<Dispatch<C>>,
    on: bool,
}

impl<C> Watch<C>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    async fn run(mut self) {
        while self.on {
            sleep(SLOW).await;
            if !self.dispatch.look() {
                self.dispatch.watched.store(false, Ordering::Release);
                // who came just before believed to be watched
                self.on = self.dispatch.look() && !self.dispatch.watched.swap(true, Ordering::AcqRel);
            }
        }
    }
}

/// Also where its runtime ends: another one may go on.
impl<C> Drop for Watch<C> {
    fn drop(&mut self) {
        if self.on {
            self.dispatch.watched.store(false, Ordering::Release);
        }
    }
}
