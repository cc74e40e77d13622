//! Interleavings of the cached kind. Clients that count and seed, a reader, workers that bring
//! batches to the database and mark counters as saved, deletions, and another program that writes
//! the rows are explicit steps. proptest picks their order, crashes, lost replies, and when Redis
//! forgets its scripts, crashes or is set back to an earlier state. The invariants of
//! docs/protocol.md, section 1, are checked after every step and at the end. A step may use an old
//! result of an earlier one.
//!
//! Every increment is a token: the k-th of a case adds 4^k. In base 4, each digit of a value is the
//! number of times that it contains that increment. The test controls the time.

use counterfoil::test_hooks::{CallReply, Seed, Ticket};

use crate::support::interleaving::*;
use crate::support::*;

const RETAIN: u64 = 1200;
/// A time longer than the life of a ticket.
const LONG: u64 = 31_000;
/// The counters. The first two share a partition.
const IDS: [&str; 3] = ["a", "b", "page/é"];
const CLIENTS: usize = 3;
/// The most increments of a case: a counter's value, below 2^53, cannot hold 4^26 twice.
const TOKENS: usize = 26;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The client counts one for the id, or for all ids of its partition. With an open call it
    /// continues: it reads the missing rows, seeds, or repeats a call whose reply is missing.
    Count {
        client: usize,
        id: usize,
        many: bool,
        fate: Fate,
    },
    /// An earlier call arrives again.
    Echo(usize),
    TurnEpoch,
    /// The client dies with its call, and another one replaces it.
    ClientDies(usize),
    Work(Work),
    /// A worker that never stalls brings the partition's batch to the database.
    Save(u32),
    WorkerDies(usize),
    /// Due counters are deleted, or this one, due or not.
    Delete {
        partition: u32,
        id: Option<usize>,
    },
    /// A reader of all ids begins, or continues to its next database query.
    Read,
    /// Another program adds to the row, or replaces its value.
    Outside {
        id: usize,
        replaces: bool,
    },
    Tick(u64),
    Mishap(Mishap),
    /// Keeps the state of Redis.
    Keep,
    /// Sets Redis back to a kept state.
    SetBack(usize),
    /// Reads the ledger; the next probe compares it with Redis.
    Probe,
}

/// The disturbances of a case.
#[derive(Clone, Copy, Debug)]
struct Disturbed {
    crashes: Crashes,
    outsider: bool,
    set_back: bool,
}

const fn by(crashes: Crashes) -> Disturbed {
    Disturbed {
        crashes,
        outsider: false,
        set_back: false,
    }
}

const fn with_outsider(crashes: Crashes) -> Disturbed {
    Disturbed {
        outsider: true,
        ..by(crashes)
    }
}

/// Set-backs of a Redis whose batches are never durable, so that its states can be of any age.
const BY_SET_BACKS: Disturbed = Disturbed {
    set_back: true,
    ..by(Crashes::Empty)
};

impl From<Disturbed> for Crashes {
    fn from(disturbed: Disturbed) -> Self {
        disturbed.crashes
    }
}

/// Picks one id more often than the others.
fn id() -> impl Strategy<Value = usize> {
    prop_oneof![4 => Just(0), 1 => Just(1), 1 => Just(2)]
}

/// Picks the partition of that id more often.
fn partition() -> impl Strategy<Value = u32> {
    prop_oneof![4 => Just(1), 1 => Just(0_u32)]
}

/// Cached counters.
struct Cached;

impl Kind for Cached {
    type Step = Step;
    type Disturbed = Disturbed;

    const STEPS: usize = 110;

    fn step(disturbed: Disturbed) -> impl Strategy<Value = Step> {
        let nothing = || Just(Step::Mishap(Mishap::ScriptFlush)).boxed();
        let or_nothing =
            |is_drawn, step: BoxedStrategy<Step>| if is_drawn { step } else { nothing() };
        let outside = (id(), any::<u8>()).prop_map(|(id, kind)| Step::Outside {
            id,
            replaces: kind < 80,
        });
        let set_back = prop_oneof![
            2 => Just(Step::Keep),
            2 => (0..1000_usize).prop_map(Step::SetBack),
            3 => Just(Step::Probe),
        ];
        let mishap = disturbed.crashes.mishap().prop_map(Step::Mishap);
        let count = (0..CLIENTS, id(), any::<u8>(), fate());
        let ticks =
            prop_oneof![4 => Just(100), 4 => Just(SETTLE), 4 => Just(2 * RETAIN), 1 => Just(LONG)];
        let delete = (partition(), prop::option::of(id()));
        prop_oneof![
            20 => count.prop_map(|(client, id, many, fate)| Step::Count { client, id, many: many < 100, fate }),
            3 => (0..1000_usize).prop_map(Step::Echo),
            1 => Just(Step::TurnEpoch),
            1 => (0..CLIENTS).prop_map(Step::ClientDies),
            18 => (Work::any(), partition()).prop_map(|(work, partition)| Step::Work(Work { partition, ..work })),
            6 => partition().prop_map(Step::Save),
            1 => (0..WORKERS).prop_map(Step::WorkerDies),
            8 => delete.prop_map(|(partition, id)| Step::Delete { partition, id }),
            4 => Just(Step::Read),
            8 => ticks.prop_map(Step::Tick),
            1 => nothing(),
            1 => or_nothing(!disturbed.set_back, mishap.boxed()),
            2 => or_nothing(disturbed.outsider, outside.boxed()),
            3 => or_nothing(disturbed.set_back, set_back.boxed()),
        ]
    }

    async fn begin<'s, S: Store + Clone>(given: Given<'s, S, Disturbed>) -> impl Case<Step = Step> {
        World::new(given).await
    }
}

/// The test's knowledge of an increment.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Counting {
    /// Not counted yet.
    Waiting,
    /// Counted; its effect was in the append-only file at this length.
    Counted { at: u64 },
    /// Lost by Redis in a crash or a reset; it may be in the database.
    Forgotten,
    /// Written to the row by another program.
    Outside,
    /// Part of a row value that another program replaced.
    Replaced,
}

#[derive(Clone, Copy, Debug)]
struct Token {
    id: usize,
    state: Counting,
}

impl Token {
    /// Returns how often the increment must and may be in the row plus what is pending.
    fn bounds(self) -> (u8, u8) {
        match self.state {
            Counting::Waiting | Counting::Replaced => (0, 0),
            Counting::Forgotten => (0, 1),
            Counting::Counted { .. } | Counting::Outside => (1, 1),
        }
    }

    /// Returns these bounds for a value in Redis, which shows other programs' writes after the next
    /// save.
    fn bounds_in_redis(self, is_fresh: bool) -> (u8, u8) {
        match self.state {
            Counting::Outside | Counting::Replaced if !is_fresh => (0, 1),
            _ => self.bounds(),
        }
    }
}

/// A call that has not returned yet. The missing rows are read before it is sent.
#[derive(Clone, Debug, Default)]
struct Call {
    tokens: Vec<usize>,
    missing: Vec<Ticket>,
    seeds: Vec<Seed>,
    /// The results of the execution, and the length of the file with its effect.
    executed: Option<(Vec<PairResult>, u64)>,
    /// True if an earlier call counted some of the increments, in a state that Redis then lost.
    is_second: bool,
}

/// A complete batch whose counters from `from` on are not yet marked as saved.
#[derive(Clone, Debug)]
struct Saving {
    batch: Arc<Batch>,
    from: usize,
    /// The rows of the next counters, once they are read.
    rows: Option<Vec<Option<i64>>>,
}

/// Workers that, instead of a release, read a batch's rows back and mark its counters as saved.
#[derive(Debug, Default)]
struct Savers {
    workers: Workers,
    saving: [Option<Saving>; WORKERS],
}

/// The index of the case's workers in `savers`. Those of `STEADY` never stall.
const STALLING: usize = 0;
const STEADY: usize = 1;

struct World<'s, S> {
    stage: Stage<'s, ConnectionManager>,
    database: Database<'s, S>,
    family: FamilyBuilder<CachedCounters>,
    without: Option<Guard>,
    clients: Vec<Writer<Call>>,
    /// Every call that was sent.
    sent: Vec<(Key, Call)>,
    savers: [Savers; 2],
    reader: Option<Reader<Vec<i64>>>,
    tokens: Vec<Token>,
    /// True for an id whose row no other program has written since Redis last received it by a seed
    /// or a save.
    is_fresh: [bool; IDS.len()],
    kept: Vec<State>,
    was_set_back: bool,
    /// The ledger as read by a probe.
    ledger: Option<Vec<LedgerRow>>,
}

/// Returns the row and the number of an increment's id as the number of times it is in the row.
fn is_in(rows: &[Option<i64>], number: usize, token: &Token) -> bool {
    digit(rows[token.id].unwrap_or(0).into(), number) > 0
}

impl<'s, S: Store + Clone> World<'s, S> {
    async fn new(given: Given<'s, S, Disturbed>) -> Self {
        let Given {
            server,
            disturbed: Disturbed { crashes, .. },
            without,
            name,
            database,
        } = given;
        let cached = Family::cached(name, "votes")
            .partitions(PARTITIONS)
            .retain(millis(RETAIN))
            .durability(crashes.durability());
        let family = cached.build().unwrap();
        let registered = database.store.register(&family).await.unwrap();
        // the reader's calls use the server's clock
        let now = u64::try_from(unix(SystemTime::now()) * 1000).unwrap();
        let mut stage = Stage::new(server, crashes, registered, now).await;
        epoch(&stage.partition(0), &stage.family.family)
            .await
            .unwrap();
        stage.note_length();
        World {
            database,
            family: cached,
            without,
            clients: stage.writers(CLIENTS),
            sent: vec![],
            savers: Default::default(),
            reader: None,
            tokens: vec![],
            is_fresh: Default::default(),
            kept: vec![stage.state().await],
            was_set_back: false,
            ledger: None,
            stage,
        }
    }

    fn partition_of(&self, id: usize) -> u32 {
        self.stage.partition_of(IDS[id])
    }

    /// Returns the id of each token.
    fn ids(&self, tokens: &[usize]) -> Vec<&'static str> {
        let tokens = tokens.iter();
        tokens.map(|token| IDS[self.tokens[*token].id]).collect()
    }

    async fn rows(&self, ids: &[&str]) -> Checked<Vec<Option<i64>>> {
        self.database.rows(&self.stage, ids).await
    }

    async fn row(&self, id: usize) -> Checked<i64> {
        Ok(self.rows(&[IDS[id]]).await?[0].unwrap_or(0))
    }

    /// Replaces a client.
    fn client_dies(&mut self, number: usize) {
        self.clients[number] = Writer::new(self.stage.new_name());
    }

    async fn count(&mut self, number: usize, id: usize, many: bool, fate: Fate) -> Checked {
        if self.clients[number].open.is_none() {
            let partition = self.partition_of(id);
            let is_counted =
                |other: &usize| *other == id || (many && self.partition_of(*other) == partition);
            let ids = (0..IDS.len()).filter(is_counted);
            let ids: Vec<_> = ids.take(TOKENS - self.tokens.len()).collect();
            self.open(number, ids);
        }
        match self.clients[number].open.take() {
            None => Ok(()),
            Some(call) if call.missing.is_empty() => self.send(number, call, fate).await,
            Some(call) => self.seed(number, call, fate).await,
        }
    }

    /// Begins a call with a token for each id.
    fn open(&mut self, number: usize, ids: Vec<usize>) {
        if ids.is_empty() {
            return;
        }
        let (first, state) = (self.tokens.len(), Counting::Waiting);
        let tokens = ids.into_iter().map(|id| Token { id, state });
        self.tokens.extend(tokens);
        self.clients[number].begin(Call {
            tokens: (first..self.tokens.len()).collect(),
            ..Call::default()
        });
    }

    /// Reads the missing rows.
    async fn seed(&mut self, number: usize, mut call: Call, fate: Fate) -> Checked {
        if fate == Fate::Delivered {
            let rows = self.rows(&self.ids(&call.tokens)).await?;
            let seed = |(ticket, row): (Ticket, Option<i64>)| Seed {
                ticket,
                value: row.unwrap_or(0),
            };
            call.seeds = call.missing.drain(..).zip(rows).map(seed).collect();
        }
        self.clients[number].open = Some(call);
        Ok(())
    }

    async fn send(&mut self, number: usize, mut call: Call, fate: Fate) -> Checked {
        let key = self.clients[number]
            .key(&self.stage, &self.stage.partition(0))
            .await?;
        self.sent.push((key.clone(), call.clone()));
        if fate == Fate::LostBefore {
            self.clients[number].open = Some(call);
            return Ok(());
        }
        let before = if call.seeds.is_empty() {
            [None; IDS.len()]
        } else {
            self.values().await?
        };
        let reply = self.arrive(&key, &call).await?;
        let at = self.stage.note_length();
        self.note_seeded(&call, before).await?;
        let words = match reply {
            CallReply::Executed { results, .. } => results,
            // the caller receives an error: the outcome is unknown
            CallReply::Expired | CallReply::Outdated => {
                self.client_dies(number);
                return Ok(());
            }
            CallReply::Passed => return Err(failed("PASSED: the client made no later call")),
        };
        match &call.executed {
            None => self.executed(&call.tokens, &words, at)?,
            Some((then, _)) => prop_assert!(
                *then == words,
                "REPEAT: {words:?} was returned to a repeat of {call:?}"
            ),
        }
        if fate == Fate::LostAfter {
            call.executed.get_or_insert((words, at));
            self.clients[number].open = Some(call);
        } else {
            self.returned(number, &call, &words);
        }
        Ok(())
    }

    /// Notes which counters were seeded with a row that is still current.
    async fn note_seeded(&mut self, call: &Call, before: [Option<i128>; IDS.len()]) -> Checked {
        let after = self.values().await?;
        for (token, seed) in call.tokens.iter().zip(&call.seeds) {
            let id = self.tokens[*token].id;
            let is_current = self.row(id).await? == seed.value;
            self.is_fresh[id] |= before[id].is_none() && after[id].is_some() && is_current;
        }
        Ok(())
    }

    /// Delivers the call to Redis. All its ids are in one partition.
    async fn arrive(&self, key: &Key, call: &Call) -> Checked<CallReply> {
        let ids = self.ids(&call.tokens);
        let seeds = ids.iter().copied().zip(call.seeds.iter().copied());
        let deltas = call.tokens.iter().map(|token| Update::Add(delta(*token)));
        let partition = self.stage.partition(self.stage.partition_of(ids[0]));
        let home = self.stage.partition(0);
        Ok(partition
            .incr(
                &self.stage.family.family,
                key.fence(&home),
                seeds,
                ids.iter().copied().zip(deltas),
            )
            .await?)
    }

    async fn echo(&mut self, call: usize) -> Checked {
        let Some((key, call)) = self.sent.get(call % self.sent.len().max(1)).cloned() else {
            return Ok(());
        };
        let CallReply::Executed { results, .. } = self.arrive(&key, &call).await? else {
            return Ok(());
        };
        let at = self.stage.note_length();
        let sender = self
            .clients
            .iter_mut()
            .find(|client| client.is_of_open_call(&key));
        let is_first = match sender.and_then(|client| client.open.as_mut()) {
            Some(open) => {
                let is_first = open.executed.is_none();
                open.executed.get_or_insert((results.clone(), at));
                is_first
            }
            // its client died, or a crash took the reply
            None => call.tokens.iter().all(|token| {
                matches!(
                    self.tokens[*token].state,
                    Counting::Waiting | Counting::Forgotten
                )
            }),
        };
        if is_first {
            self.executed(&call.tokens, &results, at)?;
        }
        Ok(())
    }

    /// Notes the counted increments. Each returned value must be the running total.
    fn executed(&mut self, tokens: &[usize], words: &[PairResult], at: u64) -> Checked {
        for (&token, word) in tokens.iter().zip(words) {
            let id = self.tokens[token].id;
            match *word {
                PairResult::Missing(_) => continue,
                PairResult::Counted(value) => {
                    self.tokens[token].state = Counting::Counted { at };
                    self.check_value(&format!("returned to increment {token}"), id, value.into())?;
                }
                refused => return Err(failed(format!("REFUSED: {} with {refused:?}", IDS[id]))),
            }
        }
        Ok(())
    }

    fn returned(&mut self, number: usize, call: &Call, words: &[PairResult]) {
        let missing = call
            .tokens
            .iter()
            .zip(words)
            .filter_map(|(token, word)| match word {
                PairResult::Missing(ticket) => Some((*token, *ticket)),
                _ => None,
            });
        let (tokens, missing): (Vec<_>, Vec<_>) = missing.unzip();
        if !tokens.is_empty() {
            let was_counted = |token: &usize| self.tokens[*token].state != Counting::Waiting;
            self.clients[number].begin(Call {
                is_second: call.is_second || tokens.iter().any(was_counted),
                tokens,
                missing,
                ..Call::default()
            });
        }
    }

    async fn work(&mut self, set: usize, work: Work) -> Checked {
        let savers = &mut self.savers[set];
        if let Some(saving) = savers.saving[work.worker].clone() {
            // after a lost reply the worker repeats the step
            if work.fate != Fate::LostBefore {
                let next = self.save(saving, &work).await?;
                if work.fate == Fate::Delivered {
                    self.savers[set].saving[work.worker] = next;
                }
            }
            return Ok(());
        }
        let before = savers.workers.tasks[work.worker].clone();
        let dropped = savers
            .workers
            .advance(work, &self.stage, &self.database)
            .await?;
        let task = &mut savers.workers.tasks[work.worker];
        match (before, &task) {
            (Task::Apply(batch), Task::Release(..)) if self.without != Some(Guard::ReadBack) => {
                *task = Task::Rotate;
                savers.saving[work.worker] = Some(Saving {
                    batch,
                    from: 0,
                    rows: None,
                });
            }
            (Task::Reset(number, _), _) => self.note_dropped(number, dropped).await?,
            _ => {}
        }
        Ok(())
    }

    /// Reads the next rows back, or marks their counters as saved. Returns the next step.
    async fn save(&mut self, saving: Saving, work: &Work) -> Checked<Option<Saving>> {
        let Saving { batch, from, rows } = saving;
        let left = batch.deltas[from..].iter().take(work.rows as usize);
        let ids = left.map(|(id, _)| std::str::from_utf8(id));
        let ids = ids.collect::<Result<Vec<_>, _>>()?;
        let Some(rows) = rows else {
            let rows = Some(self.rows(&ids).await?);
            return Ok(Some(Saving { batch, from, rows }));
        };
        let marks: Vec<_> = ids
            .iter()
            .map(|id| id.as_bytes())
            .zip(rows.iter().copied())
            .collect();
        let mut unsaved = pipe();
        unsaved.hmget(self.stage.key(batch.partition, "batch"), &ids);
        let [unsaved]: [Vec<Option<i64>>; 1] = self.stage.ask(&unsaved).await?;
        if self
            .stage
            .partition(batch.partition)
            .saved(batch.id, &marks)
            .await?
            .is_none()
        {
            return Ok(None);
        }
        let (now, values) = (self.rows(&ids[..marks.len()]).await?, self.values().await?);
        for (at, (id, row)) in ids.iter().zip(&rows).enumerate() {
            let id = IDS.iter().position(|one| one == id).unwrap();
            let is_saved = unsaved[at].is_some() && values[id].is_some();
            self.is_fresh[id] |= is_saved && *row == now[at];
        }
        let from = from + marks.len();
        let rows = None;
        Ok((from < batch.deltas.len()).then(|| Saving {
            batch: batch.clone(),
            from,
            rows,
        }))
    }

    /// Brings the partition's batch, if any, to the database.
    async fn save_all(&mut self, partition: u32) -> Checked {
        for _ in 0..100 {
            self.work(STEADY, Work::delivered(0, partition)).await?;
            self.stage.note_length();
            let savers = &self.savers[STEADY];
            match savers.workers.tasks[0] {
                Task::Rotate if savers.saving[0].is_none() => return Ok(()),
                Task::Fetch(..) => self.stage.pass(SETTLE),
                _ => {}
            }
        }
        Err(failed(format!("WEDGED: still {:?}", self.savers[STEADY])))
    }

    async fn delete(&self, number: u32, id: Option<usize>) -> Checked {
        let (partition, home) = (self.stage.partition(number), self.stage.partition(0));
        match id.filter(|&id| self.partition_of(id) == number) {
            Some(id) => drop(partition.delete(home.keys(), &[IDS[id]]).await?),
            None => drop(partition.delete_due(home.keys(), 0, 1000).await?),
        }
        Ok(())
    }

    async fn read(&mut self) -> Checked {
        if self.reader.is_none() {
            let gate = Gate::new();
            let votes = reading(&self.stage, &self.database, &gate)
                .open(self.family.clone())
                .await?;
            let is_counted = |token: &Token| matches!(token.state, Counting::Counted { .. });
            let before = self.tokens.iter().map(is_counted).collect();
            let peeks = self.tokens.len() % 2 == 1;
            let read = async move {
                match peeks {
                    true => votes.peek_many(IDS).await,
                    false => votes.get_many(IDS).await,
                }
            };
            self.reader = Some(Reader::begin(gate, read, before).await);
            return Ok(());
        }
        let Some(seen) = Reader::go_on(&mut self.reader).await? else {
            return Ok(());
        };
        for (number, token) in self
            .tokens
            .iter()
            .enumerate()
            .filter(|_| !self.was_set_back)
        {
            let value = seen.found[token.id];
            let state = match token.state {
                Counting::Forgotten | Counting::Replaced => TokenState::Forgotten,
                _ => TokenState::InDoubt,
            };
            if let Some(word) = fault(digit(value.into(), number), seen.bounds(number, state)) {
                return Err(failed(format!(
                    "{word}: increment {number} ({token:?}) in {value:#x} as it was read"
                )));
            }
        }
        Ok(())
    }

    /// Writes to the row like another program: with a batch of its own that no partition of Redis
    /// knows.
    async fn write_from_outside(&mut self, id: usize, replaces: bool) -> Checked {
        if self.tokens.len() == TOKENS {
            return Ok(());
        }
        let mut added = delta(self.tokens.len());
        if replaces {
            let row = self.row(id).await?;
            added -= row;
            for (number, token) in self.tokens.iter_mut().enumerate() {
                if token.id == id && digit(row.into(), number) > 0 {
                    token.state = Counting::Replaced;
                }
            }
        }
        let state = Counting::Outside;
        self.tokens.push(Token { id, state });
        self.is_fresh[id] = false;
        let batch = Batch {
            family: self.stage.family.clone(),
            partition: PARTITIONS,
            id: BatchId {
                incarnation: Incarnation(self.stage.new_name()),
                seq: 1,
                nonce: Nonce(0),
            },
            deltas: vec![(IDS[id].as_bytes().to_vec(), added)],
            is_lost: false,
        };
        self.database.store.apply(&[Arc::new(batch)], None).await?;
        Ok(())
    }

    /// Handles a crash: increments counted at a lost length of the file may be gone, unless the
    /// database has them.
    async fn forget(&mut self, gone: &Gone) -> Checked {
        // a client that knows its misses counts them with a new call: an echo of the first one
        // would count them twice
        self.sent.clear();
        self.is_fresh = Default::default();
        let rows = self.rows(&IDS).await?;
        for (number, token) in self.tokens.iter_mut().enumerate() {
            let is_gone = matches!(token.state, Counting::Counted { at } if gone.contains(&at));
            if is_gone && !is_in(&rows, number, token) {
                token.state = Counting::Forgotten;
            }
        }
        for call in self
            .clients
            .iter_mut()
            .filter_map(|client| client.open.as_mut())
        {
            call.executed = call.executed.take().filter(|(_, at)| !gone.contains(at));
        }
        if let Some(reader) = &mut self.reader {
            reader.has_crashed = true;
        }
        Ok(())
    }

    async fn set_back(&mut self, state: usize) -> Checked {
        // the state may contain what the earlier call counted: docs/protocol.md, 3.9
        for number in 0..CLIENTS {
            if self.clients[number]
                .open
                .as_ref()
                .is_some_and(|call| call.is_second)
            {
                self.client_dies(number);
            }
        }
        let kept = &self.kept[state % self.kept.len()];
        kept.restore(&self.stage.redis).await;
        self.was_set_back = true;
        self.forget(&(0..)).await?;
        // what is still pending must be counted, unless the database proves that it never will be
        for (id, name) in IDS.iter().enumerate() {
            let number = self.partition_of(id);
            let (batch, buffer) = self.stage.partition(number).read(&[name]).await?.deltas[0];
            let pending = i128::from(batch) + i128::from(buffer);
            let is_behind = self.is_behind(number).await?;
            for (number, token) in self.tokens.iter_mut().enumerate() {
                let is_pending = token.id == id && digit(pending, number) > 0;
                if token.state == Counting::Forgotten && is_pending && !is_behind {
                    token.state = Counting::Counted { at: 0 };
                }
            }
        }
        Ok(())
    }

    /// Returns whether the ledger proves that the partition was set back.
    async fn is_behind(&self, partition: u32) -> Checked<bool> {
        Ok(self
            .proof(partition, &self.database.ledger(&self.stage).await?)
            .await?
            .is_some())
    }

    /// Returns the last cut of a partition if it is behind the ledger.
    async fn proof(&self, number: u32, ledger: &[LedgerRow]) -> Checked<Option<LastCut>> {
        let last = self.stage.partition(number).read(&[IDS[0]]).await?.last;
        Ok(is_behind(ledger, number, last, self.without).then_some(last))
    }

    async fn probe(&mut self) -> Checked {
        let Some(ledger) = self.ledger.take() else {
            self.ledger = Some(self.database.ledger(&self.stage).await?);
            return Ok(());
        };
        for number in 0..PARTITIONS {
            if let Some(proven) = self.proof(number, &ledger).await? {
                self.note_dropped(number, self.stage.reset(number, proven).await?)
                    .await?;
            }
        }
        Ok(())
    }

    /// Handles a reset: pending increments may be gone, and must be reported.
    async fn note_dropped(&mut self, partition: u32, dropped: Option<ResetReply>) -> Checked {
        let Some(dropped) = dropped else {
            return Ok(());
        };
        prop_assert!(self.was_set_back, "DROPPED: {dropped:?}");
        let rows = self.rows(&IDS).await?;
        for (number, token) in self.tokens.iter_mut().enumerate() {
            if self.stage.partition_of(IDS[token.id]) == partition
                && matches!(token.state, Counting::Counted { .. })
                && !is_in(&rows, number, token)
            {
                token.state = Counting::Forgotten;
                prop_assert!(
                    dropped.ids > 0 && dropped.hits > 0,
                    "LOST: increment {number} without a report: {dropped:?}"
                );
            }
        }
        Ok(())
    }

    /// Returns the values in Redis, `None` for a counter without a base.
    async fn values(&self) -> Checked<[Option<i128>; IDS.len()]> {
        let mut ask = pipe();
        for partition in 0..PARTITIONS {
            for kind in ["base", "buffer", "batch"] {
                ask.hmget(self.stage.key(partition, kind), &IDS);
            }
        }
        let all: Vec<Vec<Option<String>>> = self.stage.ask(&ask).await?;
        let mut values = [None; IDS.len()];
        for (id, value) in values.iter_mut().enumerate() {
            let at = 3 * self.partition_of(id) as usize;
            let [base, buffer, batch] = [0, 1, 2].map(|key| all[at + key][id].as_deref());
            let base = base.and_then(|base| base.split_once(' '));
            let base = base.map(|(_due, row)| row);
            let number = |text: Option<&str>| text.map_or(Ok(0), str::parse::<i128>);
            if base.is_some_and(|base| !base.starts_with("ticket ")) {
                *value = Some(number(base)? + number(buffer)? + number(batch)?);
            }
        }
        Ok(values)
    }

    fn check_value(&self, what: &str, id: usize, value: i128) -> Checked {
        if self.was_set_back {
            return Ok(());
        }
        self.check_digits(what, id, value, |token| {
            token.bounds_in_redis(self.is_fresh[id])
        })
    }

    /// Checks that the value holds each increment of the id as often as its bounds allow, and
    /// nothing else.
    fn check_digits(
        &self,
        what: &str,
        id: usize,
        value: i128,
        bounds: impl Fn(Token) -> (u8, u8),
    ) -> Checked {
        for number in 0..TOKENS {
            let times = digit(value, number);
            let token = self.tokens.get(number).filter(|token| token.id == id);
            if let Some(word) = fault(times, token.map_or((0, 0), |token| bounds(*token))) {
                let (state, id) = (token.map(|token| token.state), IDS[id]);
                return Err(failed(format!(
                    "{word}: increment {number} ({state:?}) is {times} times in {id}, which is {value:#x} {what}"
                )));
            }
        }
        Ok(())
    }
}

impl<S: Store + Clone> Case for World<'_, S> {
    type Step = Step;

    async fn step(&mut self, step: Step) -> Checked {
        match step {
            Step::Count {
                client,
                id,
                many,
                fate,
            } => self.count(client, id, many, fate).await?,
            Step::Echo(call) => self.echo(call).await?,
            Step::TurnEpoch => turn_epoch(&mut self.stage, 0).await?,
            Step::ClientDies(client) => self.client_dies(client),
            Step::Work(work) => self.work(STALLING, work).await?,
            Step::Save(partition) => self.save_all(partition).await?,
            Step::WorkerDies(worker) => {
                self.savers[STALLING].workers.die(worker);
                self.savers[STALLING].saving[worker] = None;
            }
            Step::Delete { partition, id } => self.delete(partition, id).await?,
            Step::Read => self.read().await?,
            Step::Outside { id, replaces } => self.write_from_outside(id, replaces).await?,
            Step::Tick(ms) => self.stage.pass(ms),
            Step::Mishap(mishap) => {
                if let Some(gone) = self.stage.suffer(mishap).await? {
                    self.forget(&gone).await?;
                }
            }
            Step::Keep => self.kept.push(self.stage.state().await),
            Step::SetBack(state) => self.set_back(state).await?,
            Step::Probe => self.probe().await?,
        }
        self.stage.note_length();
        Ok(())
    }

    /// Checks docs/protocol.md, section 1: each counted increment is once in the row or pending, no
    /// other is there twice, and Redis shows it.
    async fn check(&self) -> Checked {
        let totals = self.database.sums(&self.stage, IDS).await?;
        for (id, value) in self.values().await?.into_iter().enumerate() {
            let is_behind = self.was_set_back && self.is_behind(self.partition_of(id)).await?;
            self.check_digits("in all", id, totals[IDS[id]], |token| {
                match token.bounds() {
                    (_, most) if is_behind => (0, most),
                    bounds => bounds,
                }
            })?;
            value.map_or(Ok(()), |value| self.check_value("in Redis", id, value))?;
        }
        Ok(())
    }

    /// Ends every call, brings everything to the database, and lets every counter leave Redis.
    async fn finish(&mut self) -> Checked {
        // a seed can be late a few times
        for _ in 0..20 {
            for number in 0..CLIENTS {
                if self.clients[number].open.is_some() {
                    self.count(number, 0, false, Fate::Delivered).await?;
                }
            }
            if self.reader.is_some() {
                self.read().await?;
            }
        }
        prop_assert!(
            self.reader.is_none() && self.clients.iter().all(|one| one.open.is_none()),
            "WEDGED: still {:?}",
            self.clients
        );
        self.check().await?;
        for partition in 0..PARTITIONS {
            // the batch in flight, and the buffer behind it
            for _ in 0..2 {
                self.save_all(partition).await?;
                self.check().await?;
            }
        }
        self.stage.expect_nothing_pending().await?;
        self.stage.pass(LONG);
        for partition in 0..PARTITIONS {
            self.delete(partition, None).await?;
        }
        let left = (0..PARTITIONS).map(|partition| self.stage.key(partition, "base"));
        let left: Vec<_> = left.collect();
        let [left]: [u64; 1] = self.stage.ask(pipe().exists(&left)).await?;
        prop_assert_eq!(left, 0, "WEDGED: keys are still in Redis");
        Ok(())
    }
}

/// Two workers read a row back. The first one marks it, and the counter is deleted and seeded again
/// from a row that another program wrote since. Then the second worker marks it.
#[test]
fn a_late_mark_of_a_counter_that_has_left_the_batch_changes_nothing() {
    // the first worker reads the row back, and the second one marks it
    let marked = [[work(0); 5], [work(1); 5]].concat();
    replay::<Cached>(
        with_outsider(Crashes::Empty),
        &[
            &counted()[..],
            &marked,
            &[OUTSIDE, DELETE],
            &[count(false); 3],
            &[work(0)],
        ]
        .concat(),
    );
}

/// The second worker marks a counter, which is deleted. A client reads its row, another program
/// writes the row, and the client seeds. Then the first worker reads the row back and marks it.
#[test]
fn a_late_mark_brings_no_other_programs_write_to_redis() {
    let marked = [&[work(0); 4][..], &[work(1); 5]].concat();
    replay::<Cached>(
        with_outsider(Crashes::Empty),
        &[
            &counted()[..],
            &marked,
            &[DELETE],
            &[count(false); 2],
            &[OUTSIDE, count(false)],
            &[work(0); 2],
        ]
        .concat(),
    );
}

const OUTSIDE: Step = Step::Outside {
    id: 0,
    replaces: false,
};
const DELETE: Step = Step::Delete {
    partition: 1,
    id: Some(0),
};

/// The first worker's steps are rotate, fetch, two parts to apply, read back and mark; the second
/// one repeats the last part only.
fn work(worker: usize) -> Step {
    Step::Work(Work::delivered(worker, 1))
}

fn count(many: bool) -> Step {
    Step::Count {
        client: 0,
        id: 0,
        many,
        fate: Fate::Delivered,
    }
}

/// Counts for both ids, twice: a call misses, reads the rows and counts, and the very first one
/// finds that Redis lacks the scripts.
fn counted() -> [Step; 6] {
    [count(true); 6]
}

#[test]
fn exact_whatever_redis_suffers() {
    exact::<Cached>([
        (by(Crashes::None), 25),
        (by(Crashes::BackToTheLastFsync), 15),
        (by(Crashes::Empty), 10),
    ]);
}

#[test]
fn exact_when_redis_is_set_back() {
    exact::<Cached>([(BY_SET_BACKS, 30)]);
}

#[test]
fn exact_when_another_program_writes_the_rows() {
    exact::<Cached>([
        (with_outsider(Crashes::None), 20),
        (with_outsider(Crashes::BackToTheLastFsync), 10),
        (with_outsider(Crashes::Empty), 10),
    ]);
}

#[test]
fn exact_with_the_real_database() {
    let disturbed = [Crashes::None, Crashes::BackToTheLastFsync, Crashes::Empty]
        .map(with_outsider)
        .into_iter()
        .chain([BY_SET_BACKS]);
    exact_in_the_real_database::<Cached>(8, disturbed.map(|disturbed| (disturbed, 4)));
}

#[test]
fn each_guard_is_needed() {
    const CALM: Disturbed = by(Crashes::None);
    breaks::<Cached>(&[
        // a repeat counts twice
        (Guard::Fence, CALM, &["DOUBLE", "REPEAT"]),
        // a late seed hides what was counted
        (Guard::Ticket, CALM, &["LOST"]),
        // a deletion hides what was counted
        (Guard::Clean, CALM, &["LOST"]),
        // a value lacks what was saved
        (Guard::ReadBack, CALM, &["LOST"]),
        // a late mark drops the next batch
        (Guard::Unchanged, CALM, &["LOST"]),
        // a batch counts twice
        (Guard::Ledger, CALM, &["DOUBLE"]),
        // a part counts twice
        (Guard::Position, CALM, &["DOUBLE"]),
        (
            Guard::Settle,
            by(Crashes::BackToTheLastFsync),
            &["LOST", "DOUBLE", "DROPPED"],
        ),
        // a batch of a Redis that was set back is lost, or counts twice
        (Guard::Nonce, BY_SET_BACKS, &["LOST"]),
        // ... or the partition looks as if nothing was counted in it
        (Guard::Incarnation, BY_SET_BACKS, &["DOUBLE", "LOST"]),
        // a late reset drops what was counted since
        (Guard::Reset, BY_SET_BACKS, &["LOST", "DROPPED"]),
        // a repeat after a reset counts twice, or is acknowledged and gone
        (Guard::EndOfEpochs, BY_SET_BACKS, &["DOUBLE", "LOST"]),
    ]);
}
