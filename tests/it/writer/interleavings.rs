//! Interleavings of the buffered kind through the writer. Callers are futures that are polled,
//! ignored and dropped in random order. Each call on the connection waits until the test decides
//! its fate, and only the test moves the clock. The invariants are those of docs/protocol.md,
//! section 1, and that no caller waits forever.
//!
//! Every increment is a token: the k-th of a case adds 4^k. In base 4, each digit of a value is the
//! number of times that it contains that increment.

use std::pin::{Pin, pin};

use redis::Value;
use tokio::sync::oneshot;
use tokio::task::yield_now;
use tokio::time::Instant;

use crate::support::interleaving::*;
use crate::support::*;

const IDS: [&str; 3] = ["a", "b", "page/é"];
/// The most increments of a case: an i64 cannot hold 4^31 twice.
const TOKENS: usize = 31;
const PATIENCE: Duration = secs(2);
/// The tolerated delay of a caller: the writer checks the time every 50 ms.
const LATE: Duration = millis(300);

/// The fate of a call on the line.
#[derive(Clone, Copy, Debug)]
enum CallFate {
    Delivered,
    /// Redis replies that it cannot take the call now.
    Refused,
    /// The connection died before the call arrived.
    LostBefore,
    /// The connection died between execution and reply.
    LostAfter,
    /// The connection died, but the call arrives later.
    Delayed,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A new caller, which is not polled yet.
    Add {
        id: usize,
    },
    Poll {
        caller: usize,
    },
    Drop {
        caller: usize,
    },
    /// A waiting call arrives, or is lost.
    Call {
        which: usize,
        fate: CallFate,
    },
    /// The tasks of the writer run.
    Turn,
    Work(Work),
    WorkerDies {
        worker: usize,
    },
    TurnEpoch,
    Tick {
        ms: u64,
    },
    Mishap(Mishap),
}

/// Returns a worker's step, whose reply may be lost.
fn work() -> impl Strategy<Value = Work> {
    (0..WORKERS, 0..PARTITIONS, any::<u8>()).prop_map(|(worker, partition, lost)| {
        let fate = if lost < 50 {
            Fate::LostAfter
        } else {
            Fate::Delivered
        };
        Work {
            worker,
            partition,
            rows: 1,
            fate,
        }
    })
}

fn step(crashes: Crashes) -> impl Strategy<Value = Step> {
    let fate = prop_oneof![
        8 => Just(CallFate::Delivered),
        1 => Just(CallFate::Refused),
        1 => Just(CallFate::LostBefore),
        2 => Just(CallFate::LostAfter),
        1 => Just(CallFate::Delayed),
    ];
    prop_oneof![
        8 => (0..IDS.len()).prop_map(|id| Step::Add { id }),
        16 => any::<usize>().prop_map(|caller| Step::Poll { caller }),
        1 => any::<usize>().prop_map(|caller| Step::Drop { caller }),
        16 => (any::<usize>(), fate).prop_map(|(which, fate)| Step::Call { which, fate }),
        12 => Just(Step::Turn),
        10 => work().prop_map(Step::Work),
        1 => (0..WORKERS).prop_map(|worker| Step::WorkerDies { worker }),
        2 => Just(Step::TurnEpoch),
        8 => prop_oneof![3 => Just(6), 4 => Just(60), 1 => Just(700), 1 => Just(2100), 1 => Just(31_000)]
            .prop_map(|ms| Step::Tick { ms }),
        1 => Just(Step::Mishap(Mishap::ScriptFlush)),
        2 => crashes.mishap().prop_map(Step::Mishap),
    ]
}

/// The writer's connection, on which calls wait until the test releases them.
#[derive(Clone, Default)]
struct Line(Arc<Mutex<Vec<Sent>>>);

struct Sent {
    cmd: Cmd,
    /// `None` once the sender has received a connection error.
    reply: Option<oneshot::Sender<RedisResult<Value>>>,
}

impl Line {
    fn calls(&self) -> MutexGuard<'_, Vec<Sent>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connection(&self) -> Connection {
        let line = self.clone();
        custom(move |cmd| {
            let (reply, replied) = oneshot::channel();
            let reply = Some(reply);
            line.calls().push(Sent { cmd, reply });
            async { replied.await.unwrap_or_else(|_| Err(cut_off())) }
        })
    }
}

/// The test's knowledge of an increment.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// Counted or not.
    InDoubt,
    Acknowledged,
    /// Acknowledged, but taken back by a crash before it was durable; it may be in the database.
    Forgotten,
    /// Definitely not counted, as reported to its caller.
    Refused,
}

#[derive(Clone, Copy, Debug)]
struct Increment {
    id: usize,
    state: State,
    /// The length of the append-only file with its effect.
    executed_at: Option<u64>,
}

impl Increment {
    /// Returns how often the increment must and may be in a value.
    fn bounds(self) -> (u8, u8) {
        match self.state {
            State::Acknowledged => (1, 1),
            State::InDoubt | State::Forgotten => (0, 1),
            State::Refused => (0, 0),
        }
    }
}

struct Caller {
    token: usize,
    /// The number of cuts plus memory losses at the caller's start.
    came: u64,
    future: Pin<Box<dyn Future<Output = Result<Outcome>>>>,
}

struct World<'s> {
    stage: Stage<'s, Direct>,
    database: Database<'s, MemoryStore>,
    line: Line,
    counters: BufferedCounters,
    callers: Vec<Caller>,
    workers: Workers,
    tokens: Vec<Increment>,
    /// The number of times Redis lost its memory.
    losses: u64,
    epochs: u64,
}

impl<'s> World<'s> {
    async fn new(server: &'s RedisServer, name: String, crashes: Crashes) -> Self {
        let (line, store) = (Line::default(), MemoryStore::new());
        let buffered = Family::buffered(name, "hits")
            .partitions(PARTITIONS)
            .durability(crashes.durability());
        let family = buffered.build().expect("a valid family");
        let registered = store.register(&family).await.expect("registered");
        let stage = Stage::<Direct>::new(server, crashes, registered, 1_000_000).await;
        let counterfoil = Counterfoil::new(line.connection(), store.clone());
        let mut open = pin!(counterfoil.open(buffered));
        let counters = loop {
            match poll_once(open.as_mut()) {
                Some(counters) => break counters.expect("opened").write_timeout(PATIENCE),
                None => {
                    let sent = line.calls().pop().expect("it waits for a call");
                    let _ = sent
                        .reply
                        .map(|reply| reply.send(stage.redis.run(&sent.cmd)));
                }
            }
        };
        World {
            stage,
            database: Database::new(store),
            line,
            counters,
            callers: Vec::new(),
            workers: Workers::default(),
            tokens: Vec::new(),
            losses: 0,
            epochs: 0,
        }
    }

    async fn tick(&mut self, ms: u64) {
        self.stage.pass(ms);
        tokio::time::sleep(millis(ms)).await;
    }

    /// Advances the time of the calls' home by a minute, which begins a new epoch.
    async fn turn_epoch(&mut self) -> Checked {
        self.epochs += 1;
        let now = now_ms().cast_unsigned() + 120_000 * self.epochs;
        let home = self.stage.partition(0).at(now);
        epoch(&home, &self.stage.family.family)
            .await
            .map(drop)
            .map_err(failed)
    }

    fn comes(&mut self, id: usize) {
        let token = self.tokens.len();
        self.tokens.push(Increment {
            id,
            state: State::InDoubt,
            executed_at: None,
        });
        let counters = self.counters.clone();
        let future = Box::pin(async move { counters.add(IDS[id], delta(token)).await });
        self.callers.push(Caller {
            token,
            came: self.losses_and_cuts(),
            future,
        });
    }

    /// Polls a caller. The result that it returns must be true.
    fn poll(&mut self, number: usize) -> Checked {
        let Some(told) = poll_once(self.callers[number].future.as_mut()) else {
            return Ok(());
        };
        let Caller { token, came, .. } = self.callers.swap_remove(number);
        let now = self.losses_and_cuts();
        let increment = &mut self.tokens[token];
        match told {
            Ok(Counted(pending)) => {
                increment.state = match increment.state {
                    State::Forgotten => State::Forgotten,
                    _ => State::Acknowledged,
                };
                let pending = i128::from(pending);
                let twice = (0..TOKENS).find(|token| digit(pending, *token) > 1);
                if let Some(twice) = twice {
                    return Err(failed(format!(
                        "DOUBLE: increment {twice} in {pending:#x}, told to increment {token}"
                    )));
                }
                // a repeat returns the current pending value, which may be that of the next batch
                if digit(pending, token) == 0 && came == now {
                    return Err(failed(format!(
                        "WRONG VALUE: {pending:#x} was told to increment {token}"
                    )));
                }
            }
            Ok(refused) => return Err(failed(format!("{refused:?}"))),
            Err(error) if error.is_retryable() => increment.state = State::Refused,
            Err(error) if error.outcome_unknown() => {}
            Err(error) => return Err(failed(error)),
        }
        Ok(())
    }

    fn call(&mut self, which: usize, fate: CallFate) -> Checked {
        let mut sent = self.line.calls().remove(which);
        let mut tell = |result| drop(sent.reply.take().map(|reply| reply.send(result)));
        match fate {
            CallFate::Delivered => {
                let result = self.execute(&sent.cmd);
                tell(result);
            }
            CallFate::Refused => {
                let loading = redis::make_extension_error(
                    "LOADING".to_owned(),
                    Some("the test says so".to_owned()),
                );
                tell(Err(loading));
            }
            CallFate::LostBefore => tell(Err(cut_off())),
            CallFate::LostAfter => {
                let _ = self.execute(&sent.cmd);
                tell(Err(cut_off()));
            }
            CallFate::Delayed => {
                tell(Err(cut_off()));
                self.line.calls().push(sent);
            }
        }
        Ok(())
    }

    /// Executes a call, and notes the increments that it counted.
    fn execute(&mut self, cmd: &Cmd) -> RedisResult<Value> {
        let result = self.stage.redis.run(cmd);
        let at_length = self.stage.note_length();
        let is_ok = matches!(&result, Ok(Value::Array(words)) if matches!(&words[0], Value::BulkString(word) if word == b"OK"));
        let args: Vec<_> = cmd.args_iter().collect();
        let text = |place: usize| match args.get(place) {
            Some(redis::Arg::Simple(bytes)) => std::str::from_utf8(bytes).unwrap_or_default(),
            _ => "",
        };
        let keys: usize = text(2).parse().unwrap_or(0);
        if is_ok && keys >= 4 && text(3).ends_with(":calls") && text(4).ends_with(":calls_before") {
            // after the fence, the time and the number of requests: hits, number of pairs and pairs of
            // each partition
            let mut at = 3 + keys + 5;
            while at < args.len() {
                let pairs: usize = text(at + 1).parse().expect("a number of pairs");
                for pair in 0..pairs {
                    let sum: i64 = text(at + 3 + 2 * pair).parse().expect("a delta");
                    let counted =
                        (0..self.tokens.len()).filter(|token| digit(sum.into(), *token) > 0);
                    counted
                        .collect::<Vec<_>>()
                        .into_iter()
                        .for_each(|token| self.tokens[token].executed_at = Some(at_length));
                }
                at += 2 + 2 * pairs;
            }
        }
        result
    }

    fn losses_and_cuts(&self) -> u64 {
        self.losses + self.workers.cuts
    }

    async fn suffer(&mut self, mishap: Mishap) -> Checked {
        if mishap != Mishap::ScriptFlush {
            self.disconnect();
        }
        if let Some(gone) = self.stage.suffer(mishap).await? {
            self.losses += 1;
            self.forget(&gone);
        }
        Ok(())
    }

    /// Fails all waiting calls, so that none of them reaches the restarted Redis.
    fn disconnect(&mut self) {
        let calls = std::mem::take(&mut *self.line.calls());
        calls
            .into_iter()
            .filter_map(|sent| sent.reply)
            .for_each(|reply| drop(reply.send(Err(cut_off()))));
    }

    /// Handles a crash: increments counted at a lost length of the file may be gone.
    fn forget(&mut self, gone: &Gone) {
        for increment in &mut self.tokens {
            if increment.executed_at.is_some_and(|at| gone.contains(&at))
                && increment.state != State::Refused
            {
                // even if its caller learns only later that it was counted
                increment.state = State::Forgotten;
            }
        }
    }
}

impl Case for World<'_> {
    type Step = Step;

    async fn step(&mut self, step: Step) -> Checked {
        let at = |which: usize, many: usize| (many > 0).then(|| which % many);
        match step {
            Step::Add { id } if self.tokens.len() < TOKENS => self.comes(id),
            Step::Add { .. } => {}
            Step::Poll { caller } => {
                if let Some(caller) = at(caller, self.callers.len()) {
                    self.poll(caller)?;
                }
            }
            Step::Drop { caller } => {
                if let Some(caller) = at(caller, self.callers.len()) {
                    drop(self.callers.swap_remove(caller));
                }
            }
            Step::Call { which, fate } => {
                let which = at(which, self.line.calls().len());
                if let Some(which) = which {
                    self.call(which, fate)?;
                }
            }
            Step::Turn => turn().await,
            Step::Work(work) => self.workers.step(work, &self.stage, &self.database).await?,
            Step::WorkerDies { worker } => self.workers.die(worker),
            Step::TurnEpoch => self.turn_epoch().await?,
            Step::Tick { ms } => self.tick(ms).await,
            Step::Mishap(mishap) => self.suffer(mishap).await?,
        }
        self.stage.note_length();
        Ok(())
    }

    /// Checks docs/protocol.md, section 1: each acknowledged increment is in the sum once, no other
    /// twice.
    async fn check(&self) -> Checked {
        for (id, name) in IDS.iter().enumerate() {
            let total = self.database.sums(&self.stage, [*name]).await?[name];
            for (token, increment) in self
                .tokens
                .iter()
                .enumerate()
                .filter(|(_, increment)| increment.id == id)
            {
                let times = digit(total, token);
                if let Some(word) = fault(times, increment.bounds()) {
                    return Err(failed(format!(
                        "{word}: increment {token} ({increment:?}) is {times} times in {total:#x}"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Delivers every call: all callers end in time, another one is counted, and everything reaches
    /// the database.
    async fn finish(&mut self) -> Checked {
        if self.tokens.len() < TOKENS {
            self.comes(0);
        }
        let began = Instant::now();
        while !self.callers.is_empty() {
            while !self.line.calls().is_empty() {
                self.call(0, CallFate::Delivered)?;
                turn().await;
            }
            for caller in (0..self.callers.len()).rev() {
                self.poll(caller)?;
            }
            self.check().await?;
            if self.line.calls().is_empty() && !self.callers.is_empty() {
                self.tick(5).await;
            }
            if began.elapsed() > PATIENCE + LATE {
                return Err(failed(format!(
                    "WEDGED: {} callers still wait",
                    self.callers.len()
                )));
            }
        }
        while !self.line.calls().is_empty() {
            self.call(0, CallFate::Delivered)?;
            turn().await;
        }
        for partition in 0..PARTITIONS {
            self.workers
                .drain(partition, &mut self.stage, &self.database)
                .await?;
        }
        self.check().await?;
        self.stage.expect_nothing_pending().await
    }
}

/// Lets the tasks of the writer run until they wait for something.
async fn turn() {
    for _ in 0..6 {
        yield_now().await;
    }
}

/// Returns a runtime whose clock only the test moves.
fn paused() -> Runtime {
    let mut paused = Builder::new_current_thread();
    paused.enable_all().start_paused(true).build().unwrap()
}

/// Runs random cases.
fn hunt_in(crashes: Crashes, cases: u32, guard: Option<Guard>) -> Result<(), TestError<Vec<Step>>> {
    let steps = proptest::collection::vec(step(crashes), 20..120);
    hunt(
        &runtime(),
        (crashes, cases, guard),
        steps,
        |server, name, steps| {
            paused().block_on(async {
                let mut world = World::new(server, name, crashes).await;
                world.play(steps).await
            })
        },
    )
}

fn exact(crashes: Crashes, default: u32) {
    expect_exact(hunt_in(crashes, cases(default), None));
}

#[test]
fn exact_without_crashes_of_redis() {
    exact(Crashes::None, 50);
}

#[test]
fn exact_when_redis_goes_back_to_its_last_fsync() {
    exact(Crashes::BackToTheLastFsync, 20);
}

#[test]
fn exact_when_redis_is_emptied() {
    exact(Crashes::Empty, 50);
}

/// Replays a case after one delivered increment, so that the epoch and the scripts are known.
fn replay(crashes: Crashes, steps: &[Step]) {
    let first = [Step::Poll { caller: 0 }, DELIVERED, Step::Turn].repeat(8);
    let steps = [&[Step::Add { id: 0 }], &first[..], steps].concat();
    let server = runtime().block_on(new_redis());
    paused().block_on(async {
        let mut world = World::new(&server, "regression".to_owned(), crashes).await;
        world.play(steps).await.expect("exact");
    });
}

const DELIVERED: Step = Step::Call {
    which: 0,
    fate: CallFate::Delivered,
};

/// A lone caller was not polled for a while, and others overtook it. It then saw that its own send
/// had been refused.
#[test]
fn a_lone_caller_that_was_overtaken_knows_the_outcome_of_its_own_send() {
    let (first, second) = (Step::Poll { caller: 0 }, Step::Poll { caller: 1 });
    let refused = Step::Call {
        which: 0,
        fate: CallFate::Refused,
    };
    let begin = [
        Step::Add { id: 0 },
        first,
        Step::Add { id: 0 },
        second,
        Step::Tick { ms: 60 },
        Step::Turn,
    ];
    replay(
        Crashes::None,
        &[
            &begin[..],
            &[
                refused,
                first,
                DELIVERED,
                Step::Turn,
                first,
                DELIVERED,
                Step::Turn,
            ],
        ]
        .concat(),
    );
}

/// An overtaken lone caller continued after Redis had lost its memory of calls that were in the
/// database. It saw that Redis had not known the script's hash, and sent the whole script.
#[test]
fn a_lone_caller_that_was_overtaken_counts_once() {
    let (first, second) = (Step::Poll { caller: 0 }, Step::Poll { caller: 1 });
    let work = [
        Step::Work(Work::delivered(0, 0)),
        Step::Work(Work::delivered(1, 1)),
    ];
    let begin = [
        Step::Mishap(Mishap::ScriptFlush),
        Step::Add { id: 0 },
        first,
        DELIVERED,
        Step::Add { id: 0 },
        second,
    ];
    let succeed = [
        Step::Tick { ms: 60 },
        Step::Turn,
        DELIVERED,
        Step::Turn,
        DELIVERED,
        Step::Turn,
    ];
    let end = [
        &work.repeat(3)[..],
        &[Step::Mishap(Mishap::Emptied), first, DELIVERED],
    ]
    .concat();
    replay(Crashes::Empty, &[&begin[..], &succeed, &end].concat());
}

/// A call was executed, its reply was lost, its hits reached the database, and Redis lost its
/// memory before the call was repeated.
#[test]
fn a_repeat_that_meets_an_emptied_redis_is_not_executed() {
    let (poll, work) = (Step::Poll { caller: 0 }, Step::Work(Work::delivered(0, 0)));
    let other = Step::Work(Work::delivered(1, 1));
    let lost = Step::Call {
        which: 0,
        fate: CallFate::LostAfter,
    };
    let begin = [
        Step::Add { id: 0 },
        poll,
        lost,
        work,
        other,
        work,
        other,
        work,
        other,
        Step::Mishap(Mishap::Emptied),
        poll,
    ];
    replay(
        Crashes::Empty,
        &[&begin[..], &[Step::Tick { ms: 6 }, poll]].concat(),
    );
}

#[test]
fn without_the_fence_a_repeat_counts_twice() {
    let guard = Guard::Fence;
    expect_failure(
        hunt_in(Crashes::None, 2000, Some(guard)),
        guard,
        &["DOUBLE"],
    );
}
