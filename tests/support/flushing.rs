//! What the interleaving tests share of all that is counted the buffered way: the workers that bring batches to the
//! database, the database, which may be killed meanwhile, the readers, and what is known of an increment.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use counterfoil::test_hooks::{Cut, CutBatch, FetchReply, Guard, Pending, RotateReply};
use counterfoil::{Batch, Durability, Incarnation, MysqlStore, ReadFrom, Result, Store};
use proptest::prelude::Strategy;
use proptest::test_runner::{TestCaseError, TestError};
use sqlx::MySqlPool;
use testkit::{MysqlServer, RedisServer};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use super::gated::Gated;
use super::interleaving::{
    Checked, Connect, Crashes, Fate, Gone, PARTITIONS, SETTLE, Stage, Writer, cases, expect_exact, expect_failure,
    failed, fate, hunt, runtime,
};
use super::reference::Reference;

pub const WORKERS: usize = 2;

/// A worker's next step. Whoever has nothing in hand looks at that partition.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    pub worker: usize,
    pub partition: u32,
    pub fate: Fate,
}

impl Work {
    pub const fn answered(worker: usize, partition: u32) -> Self {
        Work { worker, partition, fate: Fate::Answered }
    }

    pub fn any() -> impl Strategy<Value = Self> {
        (0..WORKERS, 0..PARTITIONS, fate()).prop_map(|(worker, partition, fate)| Work { worker, partition, fate })
    }
}

/// What a worker does next, and with which batch of which partition.
#[derive(Debug, Default)]
enum Task {
    #[default]
    Rotate,
    Fetch(u32, CutBatch),
    Apply(Batch, CutBatch),
    Release(u32, CutBatch),
}

/// Those who bring batches to the database: they rotate, fetch, apply and release.
#[derive(Debug, Default)]
pub struct Workers {
    tasks: [Task; WORKERS],
    /// How many batches they cut, also where they did not hear of it.
    pub cuts: u64,
}

impl Workers {
    pub fn die(&mut self, worker: usize) {
        self.tasks[worker] = Task::default();
    }

    pub async fn step<C: Connect, S: Store + Clone>(
        &mut self,
        work: Work,
        stage: &mut Stage<'_, C>,
        database: &Database<'_, S>,
    ) -> Checked {
        let task = std::mem::take(&mut self.tasks[work.worker]);
        self.tasks[work.worker] = match work.fate {
            Fate::LostBefore => task,
            Fate::Answered => self.execute(&task, work, stage, database).await?,
            // whatever it did, it is done again
            Fate::LostAfter => {
                self.execute(&task, work, stage, database).await?;
                task
            }
        };
        Ok(())
    }

    /// Answers what comes next.
    async fn execute<C: Connect, S: Store + Clone>(
        &mut self,
        task: &Task,
        work: Work,
        stage: &mut Stage<'_, C>,
        database: &Database<'_, S>,
    ) -> Result<Task, TestCaseError> {
        match task {
            Task::Rotate => self.rotate(work.partition, stage).await,
            Task::Fetch(number, cut) => fetch(*number, *cut, stage).await,
            Task::Apply(batch, cut) => {
                database.apply(batch.clone(), work.fate).await?;
                Ok(Task::Release(batch.partition, *cut))
            }
            Task::Release(number, cut) => {
                stage.partition(*number).release(cut).await.map_err(failed)?;
                Ok(Task::Rotate)
            }
        }
    }

    async fn rotate<C: Connect>(&mut self, number: u32, stage: &mut Stage<'_, C>) -> Result<Task, TestCaseError> {
        let incarnation = Incarnation(stage.new_name());
        match stage.partition(number).rotate(incarnation, None, Cut::Now).await.map_err(failed)? {
            RotateReply::Batch(cut) => {
                self.cuts += u64::from(cut.fresh);
                Ok(Task::Fetch(number, cut))
            }
            _ => Ok(Task::Rotate),
        }
    }

    /// Brings everything that waits in the partition to the database.
    pub async fn drain<C: Connect, S: Store + Clone>(
        &mut self,
        partition: u32,
        stage: &mut Stage<'_, C>,
        database: &Database<'_, S>,
    ) -> Checked {
        // one batch may be there, and the buffer behind it; then the workers' own
        for _ in 0..16 {
            for worker in 0..WORKERS {
                stage.pass(SETTLE);
                self.step(Work::answered(worker, partition), stage, database).await?;
            }
        }
        Ok(())
    }
}

async fn fetch<C: Connect>(number: u32, cut: CutBatch, stage: &Stage<'_, C>) -> Result<Task, TestCaseError> {
    let settle = match stage.family.family.durability() {
        Durability::Settle(time) => time,
        _ => Duration::ZERO,
    };
    match stage.partition(number).fetch(&cut, settle, 10).await.map_err(failed)? {
        FetchReply::Deltas(deltas) => {
            let (family, CutBatch { incarnation, seq, .. }) = (stage.family.clone(), cut);
            Ok(Task::Apply(Batch { family, partition: number, incarnation, seq, deltas }, cut))
        }
        FetchReply::Wait(_) => Ok(Task::Fetch(number, cut)),
        FetchReply::Stale => Ok(Task::Rotate),
    }
}

/// Where batches end: the plain reference, which is fast and so tries more, or a real store.
#[derive(Clone)]
pub struct Database<'s, S> {
    pub store: S,
    /// The store's server, where it is killed now and then.
    mysql: Option<&'s Mortal>,
}

impl<S> Database<'_, S> {
    pub fn new(store: S) -> Self {
        Database { store, mysql: None }
    }
}

impl<'s> Database<'s, MysqlStore> {
    pub async fn mortal(mysql: &'s Mortal) -> Self {
        Database { store: MysqlStore::new(mysql.database().await), mysql: Some(mysql) }
    }
}

impl<S: Store + Clone> Database<'_, S> {
    async fn apply(&self, batch: Batch, fate: Fate) -> Checked {
        let store = self.store.clone();
        let applying = async move { store.apply(&[batch]).await };
        let applied = match self.mysql {
            Some(mysql) if fate == Fate::LostAfter => mysql.unheard(applying).await,
            _ => applying.await.map(drop),
        };
        applied.map_err(failed)
    }

    /// What there is of the id in the database, in the batch and in the buffer together.
    pub async fn total<C: Connect>(&self, stage: &Stage<'_, C>, id: &str) -> Result<i128, TestCaseError> {
        let number = stage.partition_of(id);
        let pending = stage.partition(number).read(&[id]).await.map_err(failed)?;
        Ok(self.totals(stage, (number, pending), &[id]).await?[0])
    }

    /// The same of ids of one partition, of which Redis has just said what is pending.
    pub async fn totals<C: Connect>(
        &self,
        stage: &Stage<'_, C>,
        (number, pending): (u32, Pending),
        ids: &[&str],
    ) -> Result<Vec<i128>, TestCaseError> {
        let mark: Vec<_> = pending.incarnation.map(|incarnation| (number, incarnation)).into_iter().collect();
        let snapshot = self.store.read(&stage.family, ids, &mark, ReadFrom::Primary).await.map_err(failed)?;
        let is_beside = pending.in_flight && snapshot.ledger.first().copied().unwrap_or(0) < pending.seq;
        let total = |(value, (batch, buffer)): (&Option<i64>, &(i64, i64))| {
            let beside = if is_beside { i128::from(*batch) } else { 0 };
            i128::from(value.unwrap_or(0)) + i128::from(*buffer) + beside
        };
        Ok(snapshot.values.iter().zip(&pending.deltas).map(total).collect())
    }
}

/// A MySQL that is killed now and then while it is at something of which nobody hears.
pub struct Mortal {
    server: MysqlServer,
    one_in: u64,
    unheard: AtomicU64,
}

impl Mortal {
    /// Of so many things of which nobody hears one kills it.
    pub async fn one_in(one_in: u64) -> Self {
        Mortal { server: MysqlServer::start().await, one_in, unheard: AtomicU64::new(0) }
    }

    /// A database with counterfoil's tables.
    pub async fn database(&self) -> MySqlPool {
        super::database_on(&self.server).await
    }

    /// Does what is to be done, whose answer is lost. Now and then the server is killed meanwhile.
    pub async fn unheard<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<()> {
        let number = self.unheard.fetch_add(1, Ordering::Relaxed);
        if !number.is_multiple_of(self.one_in) {
            return work.await.map(drop);
        }
        let working = tokio::spawn(work);
        tokio::time::sleep(Duration::from_micros(number * 97 % 3000)).await;
        self.server.kill();
        self.server.start_again().await;
        let _either_way = working.await;
        Ok(())
    }
}

/// What the test knows of an increment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum State {
    /// It may be counted or not.
    InDoubt,
    /// Redis acknowledged it; its effect was in the append-only file at this length.
    Acknowledged { at: u64 },
    /// Redis acknowledged it and forgot it in a crash before it was durable: it may be in the database or not.
    Forgotten,
    /// It was surely not counted.
    Refused,
}

impl State {
    pub fn is_acknowledged(self) -> bool {
        matches!(self, State::Acknowledged { .. })
    }

    /// How often it has to be in a value, and may be.
    pub fn bounds(self) -> (u8, u8) {
        match self {
            State::Acknowledged { .. } => (1, 1),
            State::InDoubt | State::Forgotten => (0, 1),
            State::Refused => (0, 0),
        }
    }

    /// After a crash: what was counted at a length of the file that is not there any more may be gone.
    pub fn forget(&mut self, gone: &Gone) {
        if matches!(self, State::Acknowledged { at } if gone.contains(at)) {
            *self = State::Forgotten;
        }
    }
}

/// A call that counts one increment.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub token: usize,
    pub is_repeat: bool,
}

impl Call {
    pub fn new(token: usize) -> Self {
        Call { token, is_repeat: false }
    }
}

impl Writer<Call> {
    /// The open call, which is a repeat whenever it is sent again.
    pub fn send(&mut self) -> Option<Call> {
        let call = self.open?;
        self.open = Some(Call { is_repeat: true, ..call });
        Some(call)
    }
}

/// A reader that stands still before each question to the database.
pub struct Reader<S, T> {
    task: JoinHandle<Result<T>>,
    store: Gated<S>,
    /// Which increments were acknowledged before it began.
    before: Vec<bool>,
    pub has_crashed: bool,
}

impl<S, T: Send + 'static> Reader<S, T> {
    /// Begins to read, and comes to its first question.
    pub async fn begin(
        store: Gated<S>,
        read: impl Future<Output = Result<T>> + Send + 'static,
        before: Vec<bool>,
    ) -> Self {
        let task = tokio::spawn(read);
        store.reach(&task).await;
        Reader { task, store, before, has_crashed: false }
    }

    /// Lets the question of the reader through, if there is one. Answers what it has read once it is through; in a crash
    /// it may fail.
    pub async fn go_on(reader: &mut Option<Self>) -> Result<Option<Seen<T>>, TestCaseError> {
        let Some(asking) = reader.take() else { return Ok(None) };
        asking.store.let_in(&asking.task).await;
        if !asking.task.is_finished() {
            *reader = Some(asking);
            return Ok(None);
        }
        let Reader { task, before, has_crashed, .. } = asking;
        match task.await.map_err(failed)? {
            Ok(answer) => Ok(Some(Seen { answer, before, has_crashed })),
            Err(_) if has_crashed => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }
}

/// What a reader has read.
pub struct Seen<T> {
    pub answer: T,
    before: Vec<bool>,
    has_crashed: bool,
}

impl<T> Seen<T> {
    /// How often the increment of that number has to be in it, and may be.
    pub fn bounds(&self, token: usize, state: State) -> (u8, u8) {
        let was_acknowledged = self.before.get(token) == Some(&true);
        (u8::from(was_acknowledged && state != State::Forgotten && !self.has_crashed), 1)
    }
}

/// What a case is given.
pub struct Given<'s, S> {
    pub server: &'s RedisServer,
    pub crashes: Crashes,
    /// No other case's family has it.
    pub name: String,
    pub database: Database<'s, S>,
}

/// What is counted, as cases of random steps.
pub trait Kind {
    type Step: Debug;

    fn step(crashes: Crashes) -> impl Strategy<Value = Self::Step>;

    async fn play<S: Store + Clone>(given: Given<'_, S>, steps: Vec<Self::Step>) -> Checked;
}

/// No case may fail.
pub fn exact<K: Kind>(crashes: Crashes, default: u32) {
    expect_exact(hunt_in::<K, _>(&runtime(), &Database::new(Reference::default()), (crashes, cases(default), None)));
}

/// Nor one with a MySQL that is killed at one in so many batches whose answer is lost, however Redis crashes.
pub fn exact_in_the_real_database<K: Kind>(one_in: u64, default: u32) {
    let runtime = runtime();
    let mysql = runtime.block_on(Mortal::one_in(one_in));
    let database = runtime.block_on(Database::mortal(&mysql));
    for crashes in [Crashes::None, Crashes::BackToTheLastFsync, Crashes::Empty] {
        expect_exact(hunt_in::<K, _>(&runtime, &database, (crashes, cases(default) / 3 + 1, None)));
    }
}

/// Takes the guard out and expects the failure that it prevents.
pub fn breaks<K: Kind>(guard: Guard, crashes: Crashes, expected: &[&str]) {
    breaks_in::<K, _>(&runtime(), &Database::new(Reference::default()), (guard, crashes), expected);
}

/// The same of a guard that is the database's.
pub fn breaks_in_the_real_database<K: Kind>(guard: Guard, expected: &[&str]) {
    let runtime = runtime();
    let server = runtime.block_on(MysqlServer::start());
    let pool = runtime.block_on(super::database_on(&server));
    breaks_in::<K, _>(&runtime, &Database::new(MysqlStore::new(pool)), (guard, Crashes::None), expected);
}

fn breaks_in<K: Kind, S: Store + Clone>(
    runtime: &Runtime,
    database: &Database<'_, S>,
    (guard, crashes): (Guard, Crashes),
    expected: &[&str],
) {
    expect_failure(hunt_in::<K, _>(runtime, database, (crashes, 2000, Some(guard))), guard, expected);
}

fn hunt_in<K: Kind, S: Store + Clone>(
    runtime: &Runtime,
    database: &Database<'_, S>,
    (crashes, cases, guard): (Crashes, u32, Option<Guard>),
) -> Result<(), TestError<Vec<K::Step>>> {
    let steps = proptest::collection::vec(K::step(crashes), 10..70);
    hunt(runtime, (crashes, cases, guard), steps, |server, name, steps| {
        runtime.block_on(K::play(Given { server, crashes, name, database: database.clone() }, steps))
    })
}
