//! Interleavings of the cached kind: clients that count and seed, workers that save and delete, a reader and somebody who
//! writes the rows by hand, as explicit steps. proptest picks their order, where they die, which replies are lost, when
//! Redis forgets its scripts and when it crashes; the invariants of docs/protocol.md, section 1, are checked after every
//! step and at the end. Each step works on what an earlier one found, however long ago that was.
//!
//! Every increment is a token: the k-th of a case adds 4^k, so that in base 4 each digit of a value says how often that
//! increment is in it. Time is the test's own.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::support::interleaving::connect::Direct;
use crate::support::interleaving::database::Mortal;
use crate::support::interleaving::hunt::{cases, expect_exact, expect_failure, hunt, runtime};
use crate::support::interleaving::stage::{Gone, Stage};
use crate::support::interleaving::token::{delta, digit, fault};
use crate::support::interleaving::writer::{Key, Writer, turn_epoch};
use crate::support::interleaving::{Checked, Crashes, Fate, Mishap, PARTITIONS, SETTLE, failed, fate};
use counterfoil::test_hooks::{Change, Claim, Counted, Guard, PairResult, Rebased, Retention, Seed, Ticket, retention};
use counterfoil::{Family, MemoryStore, MysqlStore, Registered, Result, Row, Save, Saved, Store, Version};
use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestError};
use sqlx::MySqlPool;
use testkit::RedisServer;
use tokio::runtime::Runtime;

const SAVE_AFTER: u64 = 300;
const RETAIN: u64 = 1200;
/// Longer than any ticket lasts.
const LONG: u64 = 31_000;
/// No plan lies further ahead than a ticket.
const HORIZON: Duration = Duration::from_millis(2 * LONG);
/// The first two share a partition.
const IDS: [&str; 3] = ["a", "b", "page/é"];
const CLIENTS: usize = 3;
const WORKERS: usize = 2;
/// 4^31 is the first that does not fit.
const TOKENS: usize = 31;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The client counts one for the id, or for all ids of its partition; or goes on with what it has begun: reads the rows
    /// of what is missing, hands them in, asks again where a reply is missing.
    Count {
        client: usize,
        id: usize,
        many: bool,
        fate: Fate,
    },
    /// A call that was sent before arrives again, whoever resent it and whatever has happened since.
    Echo {
        call: usize,
    },
    TurnEpoch,
    /// The client dies with whatever it has begun, and another takes its place.
    ClientDies {
        client: usize,
    },
    /// The worker's next step: asks what is due, claims, writes to the database, marks, rebases, deletes.
    Work {
        worker: usize,
        partition: u32,
        fate: Fate,
    },
    /// Another worker, which never stalls, works until nothing is due.
    WorkOn {
        partition: u32,
    },
    WorkerDies {
        worker: usize,
    },
    /// The reader's next step: asks Redis, asks the database where the counter is missing, hands in the row.
    Read {
        id: usize,
    },
    /// Somebody else adds to the row.
    Outside {
        id: usize,
    },
    Tick {
        ms: u64,
    },
    Mishap(Mishap),
}

/// What disturbs a case.
#[derive(Clone, Copy, Debug)]
struct Disturbed {
    crashes: Crashes,
    outsider: bool,
}

/// One id is counted more often than the others.
fn id() -> impl Strategy<Value = usize> {
    prop_oneof![4 => Just(0), 1 => Just(1), 1 => Just(2)]
}

/// The partition of that one is looked at more often.
fn partition() -> impl Strategy<Value = u32> {
    prop_oneof![4 => Just(1), 1 => Just(0)]
}

fn step(disturbed: Disturbed) -> impl Strategy<Value = Step> {
    let outside = match disturbed.outsider {
        true => id().prop_map(|id| Step::Outside { id }).boxed(),
        false => Just(Step::Mishap(Mishap::ScriptFlush)).boxed(),
    };
    let count = (0..CLIENTS, id(), any::<u8>(), fate());
    let ticks = prop_oneof![
        4 => Just(100), 4 => Just(600), 8 => Just(SETTLE), 8 => Just(RETAIN + SAVE_AFTER), 2 => Just(3 * RETAIN),
        1 => Just(LONG)
    ];
    prop_oneof![
        20 => count.prop_map(|(client, id, many, fate)| Step::Count { client, id, many: many < 50, fate }),
        3 => (0..1000usize).prop_map(|call| Step::Echo { call }),
        1 => Just(Step::TurnEpoch),
        1 => (0..CLIENTS).prop_map(|client| Step::ClientDies { client }),
        12 => (0..WORKERS, partition(), fate())
            .prop_map(|(worker, partition, fate)| Step::Work { worker, partition, fate }),
        10 => partition().prop_map(|partition| Step::WorkOn { partition }),
        1 => (0..WORKERS).prop_map(|worker| Step::WorkerDies { worker }),
        5 => id().prop_map(|id| Step::Read { id }),
        12 => ticks.prop_map(|ms| Step::Tick { ms }),
        1 => Just(Step::Mishap(Mishap::ScriptFlush)),
        1 => disturbed.crashes.mishap().prop_map(Step::Mishap),
        2 => outside,
    ]
}

/// What the test knows of an increment.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    /// It was not counted yet.
    Waiting,
    /// Its effect was in the append-only file at this length.
    Counted { at: u64 },
    /// Redis forgot it in a crash before it was durable: it may be in the database or not.
    Forgotten,
    /// Somebody else wrote it to the row, which Redis may not know yet.
    Outside,
}

#[derive(Clone, Copy, Debug)]
struct Token {
    id: usize,
    state: State,
}

impl Token {
    /// How often it has to be in a value, and may be.
    fn bounds(self) -> (u8, u8) {
        match self.state {
            State::Waiting => (0, 0),
            State::Forgotten => (0, 1),
            State::Counted { .. } | State::Outside => (1, 1),
        }
    }

    /// The same in Redis.
    fn bounds_in_redis(self) -> (u8, u8) {
        match self.state {
            State::Outside => (0, 1),
            _ => self.bounds(),
        }
    }
}

fn in_redis(_: usize, token: Token) -> (u8, u8) {
    token.bounds_in_redis()
}

/// A call that has not returned yet; before it is sent, the rows of what is missing have to be read.
#[derive(Clone, Debug, Default)]
struct Call {
    tokens: Vec<usize>,
    missing: Vec<Ticket>,
    seeds: Vec<Seed>,
    /// What it returned when it was executed, and the length of the file with its effect.
    executed: Option<(Vec<PairResult>, u64)>,
}

/// A worker has a list of what it is going to do.
#[derive(Debug, Default)]
struct Worker {
    partition: u32,
    tasks: VecDeque<Task>,
}

#[derive(Clone, Debug)]
enum Task {
    Claim(Vec<Vec<u8>>),
    Save(Vec<Save>),
    Mark(Vec<(Vec<u8>, Version)>),
    Rebase(Vec<(Vec<u8>, Version, Row)>),
    Delete(Vec<Vec<u8>>),
}

impl Task {
    fn is_empty(&self) -> bool {
        match self {
            Task::Claim(ids) | Task::Delete(ids) => ids.is_empty(),
            Task::Save(saves) => saves.is_empty(),
            Task::Mark(versions) => versions.is_empty(),
            Task::Rebase(rows) => rows.is_empty(),
        }
    }
}

#[derive(Debug)]
struct Reader {
    id: usize,
    /// What had been counted when it began.
    before: Vec<Token>,
    has_crashed: bool,
    next: Next,
}

/// What a reader does next.
#[derive(Clone, Copy, Debug)]
enum Next {
    Look(Option<Seed>),
    AskTheDatabase(Ticket),
}

/// A counter as it is in Redis.
#[derive(Debug)]
struct Held {
    value: i64,
    base: i64,
    lineage: u64,
    n: u64,
    claim: Option<i64>,
    /// When something is next to be done about it.
    due: u64,
}

impl Held {
    fn new(value: &str, row: &str, due: &str) -> Option<Self> {
        let words: Vec<_> = row.split(' ').collect();
        let claim = words.get(5).map(|claim| claim.parse()).transpose().ok()?;
        let base = if words[0] == "-" { 0 } else { words[0].parse().ok()? };
        let lineage = u64::from_str_radix(words.get(2)?, 16).ok()?;
        let n = words.get(3)?.parse().ok()?;
        // "=" marks a counter that has not been changed since it was seeded or saved
        let unchanged = value.strip_prefix('=');
        let held =
            Held { value: unchanged.unwrap_or(value).parse().ok()?, base, lineage, n, claim, due: due.parse().ok()? };
        (unchanged.is_none() || (held.claim.is_none() && held.value == held.base)).then_some(held)
    }

    /// How far ahead its next plan may lie.
    fn longest(&self) -> u64 {
        match self.claim {
            Some(_) => SETTLE,
            None if self.value == self.base => RETAIN,
            None => SAVE_AFTER,
        }
    }

    /// What the row comes to when this is brought there: the model's `final`.
    fn on_top_of(&self, row: Row) -> i128 {
        let (claimed, n) = self.claim.map_or((self.value, self.n + 1), |claim| (claim, self.n));
        let is_saved = row.version == Some(Version { lineage: self.lineage, n });
        let known = if is_saved { claimed } else { self.base };
        i128::from(row.value.unwrap_or(0)) + i128::from(self.value) - i128::from(known)
    }
}

/// The database: one in memory, which is fast and so tries more, or a real one.
enum Database {
    Plain(MemoryStore),
    Real { mysql: Box<Mortal>, pool: MySqlPool, store: MysqlStore },
}

impl Database {
    async fn real(mysql: Mortal) -> Self {
        let pool = mysql.database().await;
        let store = MysqlStore::new(pool.clone());
        Database::Real { mysql: Box::new(mysql), pool, store }
    }

    async fn register(&self, family: &Family) -> Result<u64> {
        match self {
            Database::Plain(store) => store.register(family).await,
            Database::Real { store, .. } => store.register(family).await,
        }
    }

    async fn rows(&self, family: &Registered, ids: &[&str]) -> Result<Vec<Row>> {
        match self {
            Database::Plain(store) => store.rows(family, ids).await,
            Database::Real { store, .. } => store.rows(family, ids).await,
        }
    }

    async fn save(&self, family: &Registered, saves: &[Save]) -> Result<Vec<Saved>> {
        match self {
            Database::Plain(store) => store.save(family, saves).await,
            Database::Real { store, .. } => store.save(family, saves).await,
        }
    }

    /// A save whose reply is lost. Now and then a real database is killed while it is at it.
    async fn save_unheard(&self, family: &Arc<Registered>, saves: &[Save]) -> Result<()> {
        let Database::Real { mysql, store, .. } = self else {
            return self.save(family, saves).await.map(drop);
        };
        let (store, family, saves) = (store.clone(), family.clone(), saves.to_vec());
        mysql.unheard(async move { store.save(&family, &saves).await }).await
    }

    /// Somebody else adds to the row, and knows nothing of versions.
    async fn add_from_outside(&self, family: &Registered, id: &str, delta: i64) {
        match self {
            Database::Plain(store) => {
                let row = store.rows(family, &[id]).await.expect("a row")[0];
                store.set(&family.family, id, row.value.unwrap_or(0) + delta);
            }
            Database::Real { pool, .. } => {
                let sql = "INSERT INTO counterfoil_values (family, id, value) VALUES (?, ?, ?) \
                           ON DUPLICATE KEY UPDATE value = value + VALUES(value)";
                let query = sqlx::query(sql).bind(family.number).bind(id.as_bytes()).bind(delta);
                query.execute(pool).await.expect("a row");
            }
        }
    }
}

struct World<'s> {
    stage: Stage<'s, Direct>,
    database: &'s Database,
    retention: Retention,
    disturbed: Disturbed,
    clients: Vec<Writer<Call>>,
    /// Every call that was ever sent.
    sent: Vec<(Key, Call)>,
    /// The last one never stalls.
    workers: Vec<Worker>,
    reader: Option<Reader>,
    tokens: Vec<Token>,
}

impl<'s> World<'s> {
    async fn new(server: &'s RedisServer, database: &'s Database, name: String, disturbed: Disturbed) -> Self {
        let cached = Family::cached(name, "votes")
            .partitions(PARTITIONS)
            .save_after(Duration::from_millis(SAVE_AFTER))
            .retain(Duration::from_millis(RETAIN))
            .durability(disturbed.crashes.durability())
            .build()
            .expect("a valid family");
        let family = cached.family().clone();
        let number = database.register(&family).await.expect("registered");
        let mut stage = Stage::new(server, disturbed.crashes, Registered { family, number }, 1_000_000).await;
        World {
            database,
            retention: retention(&cached).expect("cached").clone(),
            disturbed,
            clients: (0..CLIENTS).map(|_| Writer::new(stage.new_name())).collect(),
            sent: Vec::new(),
            workers: (0..=WORKERS).map(|_| Worker::default()).collect(),
            reader: None,
            tokens: Vec::new(),
            stage,
        }
    }

    /// A reconciler has written the family's settings, among them when a save is due.
    async fn configure(&self) -> Checked {
        self.stage.partition(0).configure(&self.stage.family.family).await.map_err(failed)
    }

    fn partition_of(&self, id: usize) -> u32 {
        self.stage.partition_of(IDS[id])
    }

    async fn step(&mut self, step: Step) -> Checked {
        match step {
            Step::Count { client, id, many, fate } => self.count(client, id, many, fate).await?,
            Step::Echo { call } => self.echo(call).await?,
            Step::TurnEpoch => turn_epoch(&mut self.stage, 0).await?,
            Step::ClientDies { client } => self.clients[client] = Writer::new(self.stage.new_name()),
            Step::Work { worker, partition, fate } => self.work(worker, partition, fate).await?,
            Step::WorkOn { partition } => self.work_on(WORKERS, partition).await?,
            Step::WorkerDies { worker } => self.workers[worker] = Worker::default(),
            Step::Read { id } => self.read(id).await?,
            Step::Outside { id } => self.add_from_outside(id).await,
            Step::Tick { ms } => self.stage.pass(ms),
            Step::Mishap(mishap) => {
                if let Some(gone) = self.stage.suffer(mishap).await? {
                    self.configure().await?;
                    // who was told what is missing counts it by another call: no copy of the first may outlive a crash
                    // that forgets it
                    self.sent.clear();
                    self.forget(&gone).await?;
                }
            }
        }
        self.stage.note_length();
        Ok(())
    }

    async fn count(&mut self, number: usize, id: usize, many: bool, fate: Fate) -> Checked {
        if self.clients[number].open.is_none() {
            let partition = self.partition_of(id);
            let ids = (0..IDS.len()).filter(|&other| other == id || (many && self.partition_of(other) == partition));
            let ids: Vec<_> = ids.take(TOKENS - self.tokens.len()).collect();
            self.open(number, ids);
        }
        let client = &mut self.clients[number];
        let Some(call) = client.open.take() else { return Ok(()) };
        if call.missing.is_empty() { self.send(number, call, fate).await } else { self.ask(number, call, fate).await }
    }

    /// A new call, with a token for each of the ids.
    fn open(&mut self, number: usize, ids: Vec<usize>) {
        if ids.is_empty() {
            return;
        }
        let first = self.tokens.len();
        self.tokens.extend(ids.into_iter().map(|id| Token { id, state: State::Waiting }));
        let tokens = (first..self.tokens.len()).collect();
        self.clients[number].begin(Call { tokens, ..Call::default() });
    }

    /// Reads the rows of what is missing.
    async fn ask(&mut self, number: usize, mut call: Call, fate: Fate) -> Checked {
        if fate == Fate::Delivered {
            let ids: Vec<_> = call.tokens.iter().map(|token| IDS[self.tokens[*token].id]).collect();
            let rows = self.database.rows(&self.stage.family, &ids).await.map_err(failed)?;
            call.seeds = call.missing.drain(..).zip(rows).map(|(ticket, row)| Seed { ticket, row }).collect();
        }
        self.clients[number].open = Some(call);
        Ok(())
    }

    async fn send(&mut self, number: usize, mut call: Call, fate: Fate) -> Checked {
        let key = self.clients[number].key(&self.stage, &self.stage.partition(0)).await?;
        self.sent.push((key.clone(), call.clone()));
        if fate == Fate::LostBefore {
            self.clients[number].open = Some(call);
            return Ok(());
        }
        let reply = self.arrive(&key, &call).await;
        let at = self.stage.note_length();
        let words = match reply.map_err(failed)? {
            Counted::Executed { results, .. } => results,
            Counted::Expired => {
                // the caller is told that the outcome is unknown
                self.clients[number] = Writer::new(self.stage.new_name());
                return Ok(());
            }
        };
        match &call.executed {
            None => self.executed(&call.tokens, &words, at)?,
            Some((then, _)) if *then != words => {
                return Err(failed(format!("REPEAT: {words:?} was returned to a repeat of {call:?}")));
            }
            Some(_) => {}
        }
        if fate == Fate::LostAfter {
            call.executed.get_or_insert((words, at));
            self.clients[number].open = Some(call);
        } else {
            self.returned(number, &call, &words);
        }
        Ok(())
    }

    /// Redis gets the call, whose ids all lie in one partition.
    async fn arrive(&self, key: &Key, call: &Call) -> counterfoil::Result<Counted> {
        let ids: Vec<_> = call.tokens.iter().map(|token| IDS[self.tokens[*token].id]).collect();
        let seeds = ids.iter().copied().zip(call.seeds.iter().copied());
        let changes = ids.iter().copied().zip(call.tokens.iter().map(|token| Change::Add(delta(*token))));
        let (partition, home) = (self.stage.partition(self.stage.partition_of(ids[0])), self.stage.partition(0));
        partition.incr(&self.retention, key.fence(&home), seeds, changes).await
    }

    async fn echo(&mut self, call: usize) -> Checked {
        let Some((key, call)) = self.sent.get(call % self.sent.len().max(1)).cloned() else { return Ok(()) };
        let results = match self.arrive(&key, &call).await {
            Ok(Counted::Executed { results, .. }) => results,
            Ok(Counted::Expired) => return Ok(()),
            // of a caller that has called again since, nothing is kept
            Err(error) if error.outcome_unknown() => return Ok(()),
            Err(error) => return Err(failed(error)),
        };
        let at = self.stage.note_length();
        let open = self.clients.iter_mut().find(|client| client.made(&key)).and_then(|client| client.open.as_mut());
        match open {
            Some(open) if open.executed.is_none() => {
                open.executed = Some((results.clone(), at));
                self.executed(&call.tokens, &results, at)
            }
            Some(_) => Ok(()),
            // its client died, or a crash forgot what was replied to it
            None => {
                let unseen = |token: &&usize| matches!(self.tokens[**token].state, State::Waiting | State::Forgotten);
                let unseen = call.tokens.iter().filter(unseen).count();
                if unseen == call.tokens.len() { self.executed(&call.tokens, &results, at) } else { Ok(()) }
            }
        }
    }

    /// Each value that is returned has to be the running total.
    fn executed(&mut self, tokens: &[usize], words: &[PairResult], at: u64) -> Checked {
        for (&token, word) in tokens.iter().zip(words) {
            let id = self.tokens[token].id;
            match *word {
                PairResult::Missing(_) => continue,
                PairResult::Counted(value) => {
                    self.tokens[token].state = State::Counted { at };
                    self.check_digits(&format!("returned to increment {token}"), id, value.into(), in_redis)?;
                }
                refused => return Err(failed(format!("REFUSED: {} with {refused:?}", IDS[id]))),
            }
        }
        Ok(())
    }

    fn returned(&mut self, number: usize, call: &Call, words: &[PairResult]) {
        let missing = call.tokens.iter().zip(words).filter_map(|(token, word)| match word {
            PairResult::Missing(ticket) => Some((*token, *ticket)),
            _ => None,
        });
        let (tokens, missing): (Vec<_>, Vec<_>) = missing.unzip();
        if !tokens.is_empty() {
            self.clients[number].begin(Call { tokens, missing, ..Call::default() });
        }
    }

    async fn work(&mut self, number: usize, partition: u32, fate: Fate) -> Checked {
        if fate == Fate::LostBefore {
            return Ok(());
        }
        let worker = &mut self.workers[number];
        let task = worker.tasks.pop_front();
        if task.is_none() {
            worker.partition = partition;
        }
        let partition = worker.partition;
        let next = match &task {
            None => self.look_for_work(partition).await?,
            Some(Task::Claim(ids)) => self.claim(partition, ids).await?,
            Some(Task::Save(saves)) => self.save(saves, fate).await?,
            Some(Task::Mark(versions)) => {
                let versions: Vec<_> = versions.iter().map(|(id, version)| (&**id, *version)).collect();
                let family = &self.stage.family.family;
                self.stage.partition(partition).saved(family, &self.retention, &versions).await.map_err(failed)?;
                Vec::new()
            }
            Some(Task::Rebase(rows)) => {
                let rows: Vec<_> = rows.iter().map(|(id, version, row)| (&**id, *version, *row)).collect();
                let rebased = self.stage.partition(partition).rebase(&self.retention, &rows).await.map_err(failed)?;
                // whose rows nobody else writes has nothing to put on top of them
                let is_alone = self.disturbed.crashes == Crashes::None && !self.disturbed.outsider;
                if rebased.contains(&Rebased::OutOfRange) || (is_alone && rebased.contains(&Rebased::Done)) {
                    return Err(failed(format!("REBASE: {rebased:?} for {rows:?}")));
                }
                Vec::new()
            }
            Some(Task::Delete(ids)) => {
                self.stage.partition(partition).delete(&self.retention, ids).await.map_err(failed)?;
                Vec::new()
            }
        };
        let tasks = &mut self.workers[number].tasks;
        if fate == Fate::LostAfter {
            // whatever it did, it is done again
            task.into_iter().for_each(|task| tasks.push_front(task));
        } else {
            next.into_iter().filter(|task| !task.is_empty()).rev().for_each(|task| tasks.push_front(task));
        }
        Ok(())
    }

    async fn look_for_work(&self, partition: u32) -> Result<Vec<Task>, TestCaseError> {
        let (ids, _) = self.stage.partition(partition).due(100, HORIZON).await.map_err(failed)?;
        Ok(vec![Task::Claim(ids)])
    }

    async fn claim(&self, number: u32, ids: &[Vec<u8>]) -> Result<Vec<Task>, TestCaseError> {
        let (mut saves, mut idle) = (Vec::new(), Vec::new());
        let partition = self.stage.partition(number);
        let claims =
            partition.claim(&self.stage.family.family, &self.retention, Duration::ZERO, ids).await.map_err(failed)?;
        for (id, claim) in ids.iter().cloned().zip(claims) {
            match claim {
                Claim::Save { known, value, version, .. } => {
                    saves.push(Save { id, partition: number, known, value, version });
                }
                Claim::Clean(Duration::ZERO) => idle.push(id),
                Claim::Bad(why) => return Err(failed(format!("BAD: {id:?}, {why}"))),
                Claim::Clean(_) | Claim::Wait { .. } | Claim::Gone => {}
            }
        }
        Ok(vec![Task::Save(saves), Task::Delete(idle)])
    }

    async fn save(&self, saves: &[Save], fate: Fate) -> Result<Vec<Task>, TestCaseError> {
        if fate == Fate::LostAfter {
            self.database.save_unheard(&self.stage.family, saves).await.map_err(failed)?;
            return Ok(Vec::new());
        }
        let (mut written, mut conflicts) = (Vec::new(), Vec::new());
        let outcomes = self.database.save(&self.stage.family, saves).await.map_err(failed)?;
        for (save, outcome) in saves.iter().zip(outcomes) {
            match outcome {
                Saved::Done => written.push((save.id.clone(), save.version)),
                Saved::Conflict(row) => conflicts.push((save.id.clone(), save.version, row)),
                refused => return Err(failed(format!("{refused:?}: {save:?}"))),
            }
        }
        Ok(vec![Task::Mark(written), Task::Rebase(conflicts)])
    }

    async fn work_on(&mut self, number: usize, partition: u32) -> Checked {
        for _ in 0..100 {
            let was_idle = self.workers[number].tasks.is_empty();
            self.work(number, partition, Fate::Delivered).await?;
            if was_idle && self.workers[number].tasks.is_empty() {
                return Ok(());
            }
        }
        Err(failed(format!("WEDGED: still {:?}", self.workers[number])))
    }

    async fn read(&mut self, id: usize) -> Checked {
        let begin = || Reader { id, before: self.tokens.clone(), has_crashed: false, next: Next::Look(None) };
        let mut reader = self.reader.take().unwrap_or_else(begin);
        let name = IDS[reader.id];
        match reader.next {
            Next::Look(seed) => {
                let partition = self.stage.partition(self.partition_of(reader.id));
                let results = match seed {
                    Some(seed) => partition.seed(&self.retention, &[(name.as_bytes(), seed)]).await,
                    None => partition.values(&[name]).await,
                };
                match results.map_err(failed)?[..] {
                    [PairResult::Counted(value)] => return self.check_read(&reader, value),
                    [PairResult::Missing(_)] if seed.is_some() => reader.next = Next::Look(None),
                    [PairResult::Missing(ticket)] => reader.next = Next::AskTheDatabase(ticket),
                    ref words => return Err(failed(format!("{words:?} was returned to a reader"))),
                }
            }
            Next::AskTheDatabase(ticket) => {
                let row = self.database.rows(&self.stage.family, &[name]).await.map_err(failed)?[0];
                if row.value.is_none() {
                    return self.check_read(&reader, 0);
                }
                reader.next = Next::Look(Some(Seed { ticket, row }));
            }
        }
        self.reader = Some(reader);
        Ok(())
    }

    fn check_read(&self, reader: &Reader, value: i64) -> Checked {
        self.check_digits("read", reader.id, value.into(), |number, token| {
            let was_counted = matches!(reader.before.get(number), Some(Token { state: State::Counted { .. }, .. }));
            let (least, most) = token.bounds_in_redis();
            (if was_counted && !reader.has_crashed { least } else { 0 }, most)
        })
    }

    async fn add_from_outside(&mut self, id: usize) {
        if self.tokens.len() < TOKENS {
            let delta = delta(self.tokens.len());
            self.tokens.push(Token { id, state: State::Outside });
            self.database.add_from_outside(&self.stage.family, IDS[id], delta).await;
        }
    }

    /// After a crash: what was counted at a length of the file that is not there any more may be gone, unless it is in the
    /// database.
    async fn forget(&mut self, gone: &Gone) -> Checked {
        let rows = self.database.rows(&self.stage.family, &IDS).await.map_err(failed)?;
        for (number, token) in self.tokens.iter_mut().enumerate() {
            let is_saved = digit(rows[token.id].value.unwrap_or(0).into(), number) > 0;
            if matches!(token.state, State::Counted { at } if gone.contains(&at)) && !is_saved {
                token.state = State::Forgotten;
            }
        }
        for call in self.clients.iter_mut().filter_map(|client| client.open.as_mut()) {
            call.executed = call.executed.take().filter(|(_, at)| !gone.contains(at));
        }
        if let Some(reader) = &mut self.reader {
            reader.has_crashed = true;
        }
        Ok(())
    }

    /// The counters as they are in Redis.
    fn held(&self) -> Result<Vec<Option<Held>>, TestCaseError> {
        let mut ask = redis::pipe();
        for partition in 0..PARTITIONS {
            let [values, rows, schedule] = ["values", "rows", "schedule"].map(|kind| self.stage.key(partition, kind));
            ask.hmget(values, &IDS).hmget(rows, &IDS).zscore_multiple(schedule, &IDS);
        }
        let all: Vec<Vec<Option<String>>> = self.stage.redis.run_all(&ask).map_err(failed)?;
        let held = |id: usize| {
            let at = 3 * self.partition_of(id) as usize;
            let [value, row, due] = [0, 1, 2].map(|key| all[at + key][id].as_deref());
            let held = |value| Held::new(value, row?, due?);
            let torn = || failed(format!("TORN: {value:?} with {row:?}, on the schedule for {due:?}"));
            value.map(|value| held(value).ok_or_else(torn)).transpose()
        };
        (0..IDS.len()).map(held).collect()
    }

    /// docs/protocol.md, section 1: every increment that was counted comes to the row once, no other twice, and is seen
    /// in Redis.
    async fn check(&self) -> Checked {
        let held = self.held()?;
        let rows = self.database.rows(&self.stage.family, &IDS).await.map_err(failed)?;
        for (id, (held, row)) in held.iter().zip(rows).enumerate() {
            let total = held.as_ref().map_or(row.value.unwrap_or(0).into(), |held| held.on_top_of(row));
            self.check_digits("in all", id, total, |_, token| token.bounds())?;
            if let Some(held) = held {
                self.check_digits("in Redis", id, held.value.into(), in_redis)?;
                let longest = held.longest();
                if held.due > self.stage.now + longest {
                    return Err(failed(format!("LATE: {}, at {}: {held:?}", IDS[id], self.stage.now)));
                }
            }
        }
        Ok(())
    }

    /// Each increment of the id has to be in the value as often as is said, and nothing else.
    fn check_digits(&self, what: &str, id: usize, value: i128, bounds: impl Fn(usize, Token) -> (u8, u8)) -> Checked {
        for number in 0..TOKENS {
            let times = digit(value, number);
            let token = self.tokens.get(number).filter(|token| token.id == id);
            let bounds = token.map_or((0, 0), |token| bounds(number, *token));
            if let Some(word) = fault(times, bounds) {
                let (state, id) = (token.map(|token| token.state), IDS[id]);
                return Err(failed(format!(
                    "{word}: increment {number} ({state:?}) is {times} times in {id}, which is {value:#x} {what}"
                )));
            }
        }
        Ok(())
    }

    /// Ends every call, brings everything to the database, and lets every counter leave Redis.
    async fn finish(&mut self) -> Checked {
        // a seed may be too late a few times
        for _ in 0..20 {
            for number in 0..CLIENTS {
                if self.clients[number].open.is_some() {
                    self.count(number, 0, false, Fate::Delivered).await?;
                }
            }
            if let Some(Reader { id, .. }) = self.reader {
                self.read(id).await?;
            }
        }
        if self.reader.is_some() || self.clients.iter().any(|client| client.open.is_some()) {
            return Err(failed(format!("WEDGED: still {:?}, {:?}", self.clients, self.reader)));
        }
        self.check().await?;
        for number in 0..WORKERS {
            self.work_on(number, 0).await?;
        }
        // claimed, saved, put on top of another row, claimed and saved again, deleted
        for ms in [SETTLE, SETTLE, SETTLE, SETTLE, RETAIN, LONG] {
            self.stage.pass(ms);
            for partition in 0..PARTITIONS {
                self.work_on(WORKERS, partition).await?;
            }
        }
        self.check().await?;
        for partition in 0..PARTITIONS {
            let left = self.stage.partition(partition).cached_ids().await.map_err(failed)?;
            let keys = ["values", "rows", "schedule"].map(|kind| self.stage.key(partition, kind));
            let [keys]: [u64; 1] = self.stage.redis.run_all(redis::pipe().exists(&keys)).map_err(failed)?;
            if !left.is_empty() || keys > 0 {
                return Err(failed(format!("WEDGED: {keys} keys are still in Redis, {left:?} on the schedule")));
            }
        }
        Ok(())
    }
}

/// Runs a case.
async fn run(
    server: &RedisServer,
    database: &Database,
    name: String,
    disturbed: Disturbed,
    steps: Vec<Step>,
) -> Checked {
    let mut world = World::new(server, database, name, disturbed).await;
    world.configure().await?;
    for step in steps {
        world.step(step).await?;
        // time alone changes nothing
        if !matches!(step, Step::Tick { .. }) {
            world.check().await?;
        }
    }
    world.finish().await
}

fn hunt_in(
    runtime: &Runtime,
    database: &Database,
    disturbed: Disturbed,
    cases: u32,
    guard: Option<Guard>,
) -> Result<(), TestError<Vec<Step>>> {
    let steps = proptest::collection::vec(step(disturbed), 10..110);
    hunt(runtime, (disturbed.crashes, cases, guard), steps, |server, name, steps| {
        runtime.block_on(run(server, database, name, disturbed, steps))
    })
}

fn exact(crashes: Crashes, outsider: bool, default: u32) {
    let database = Database::Plain(MemoryStore::new());
    expect_exact(hunt_in(&runtime(), &database, Disturbed { crashes, outsider }, cases(default), None));
}

#[test]
fn exact_without_crashes_of_redis() {
    exact(Crashes::None, false, 400);
}

#[test]
fn exact_when_redis_goes_back_to_its_last_fsync() {
    exact(Crashes::BackToTheLastFsync, false, 250);
}

#[test]
fn exact_when_redis_is_emptied() {
    exact(Crashes::Empty, false, 300);
}

#[test]
fn exact_when_somebody_else_writes_the_rows() {
    exact(Crashes::None, true, 150);
}

#[test]
fn exact_when_redis_goes_back_and_somebody_else_writes_the_rows() {
    exact(Crashes::BackToTheLastFsync, true, 100);
}

#[test]
fn exact_when_redis_is_emptied_and_somebody_else_writes_the_rows() {
    exact(Crashes::Empty, true, 150);
}

#[test]
fn exact_with_the_real_database() {
    let runtime = runtime();
    let database = runtime.block_on(async { Database::real(Mortal::one_in(8).await).await });
    for crashes in [Crashes::None, Crashes::BackToTheLastFsync, Crashes::Empty] {
        for outsider in [false, true] {
            let disturbed = Disturbed { crashes, outsider };
            expect_exact(hunt_in(&runtime, &database, disturbed, cases(120) / 6 + 1, None));
        }
    }
}

/// Takes the guard out and expects the failure that it prevents.
fn breaks(guard: Guard, crashes: Crashes, expected: &[&str]) {
    breaks_in(&runtime(), &Database::Plain(MemoryStore::new()), guard, crashes, expected);
}

fn breaks_in(runtime: &Runtime, database: &Database, guard: Guard, crashes: Crashes, expected: &[&str]) {
    let disturbed = Disturbed { crashes, outsider: false };
    expect_failure(hunt_in(runtime, database, disturbed, 2000, Some(guard)), guard, expected);
}

#[test]
fn without_the_fence_a_repeat_counts_twice() {
    breaks(Guard::Fence, Crashes::None, &["DOUBLE", "REPEAT"]);
}

#[test]
fn without_the_ticket_a_late_seed_hides_what_was_counted() {
    breaks(Guard::Ticket, Crashes::None, &["LOST"]);
}

#[test]
fn without_the_version_a_late_save_overwrites() {
    breaks(Guard::Version, Crashes::None, &["LOST"]);
}

#[test]
fn without_the_version_a_late_save_overwrites_in_the_real_database() {
    let runtime = runtime();
    let database = runtime.block_on(async { Database::real(Mortal::never().await).await });
    breaks_in(&runtime, &database, Guard::Version, Crashes::None, &["LOST"]);
}

#[test]
fn without_settle_a_crash_loses_or_counts_twice() {
    breaks(Guard::Settle, Crashes::BackToTheLastFsync, &["LOST", "DOUBLE"]);
}

#[test]
fn without_the_look_at_what_is_saved_a_deletion_loses() {
    breaks(Guard::Clean, Crashes::None, &["LOST"]);
}

#[test]
fn without_the_look_at_the_claim_a_late_mark_loses() {
    breaks(Guard::Unchanged, Crashes::None, &["LOST", "REBASE"]);
}
