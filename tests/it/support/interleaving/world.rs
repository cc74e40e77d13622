//! Cases of kinds whose deltas are buffered: writers, workers and a reader take steps.

use counterfoil::test_hooks::CallReply;

use super::*;
use crate::support::*;

const WRITERS: usize = 3;

/// The ids that a call counts for.
type Ids = (usize, Option<usize>);

#[derive(Clone, Copy, Debug)]
pub enum Step<Own> {
    /// The writer counts one for each id in one call, or repeats its call whose reply is missing.
    Write {
        writer: usize,
        ids: Ids,
        fate: Fate,
    },
    /// An earlier call arrives again, from any sender and at any time.
    Echo(usize),
    /// The writer's epoch is old: it requests the epoch before its next call.
    Ask(usize),
    TurnEpoch,
    /// The writer dies with its call in flight, and another one replaces it.
    WriterDies(usize),
    Work(Work),
    WorkerDies(usize),
    /// A reader begins to read, up to its database query.
    ReadBegins(usize),
    /// The reader's database query runs.
    ReadGoesOn,
    Tick(u64),
    Mishap(Mishap),
    /// A step that only this kind takes.
    Own(Own),
}

/// Draws the steps that all kinds take.
pub fn steps<Own: Copy + Debug + 'static>(
    crashes: Crashes,
    ids: impl Strategy<Value = Ids> + Clone + 'static,
) -> impl Strategy<Value = Step<Own>> {
    let writer = 0..WRITERS;
    let read = ids.clone().prop_map(|(id, _)| Step::ReadBegins(id));
    let tick = prop_oneof![Just(100), Just(600), Just(1000), Just(1500)];
    prop_oneof![
        12 => (writer.clone(), ids, fate())
            .prop_map(|(writer, ids, fate)| Step::Write { writer, ids, fate }),
        4 => (0..1000usize).prop_map(Step::Echo),
        2 => writer.clone().prop_map(Step::Ask),
        1 => Just(Step::TurnEpoch),
        1 => writer.prop_map(Step::WriterDies),
        16 => Work::any().prop_map(Step::Work),
        1 => (0..WORKERS).prop_map(Step::WorkerDies),
        4 => read,
        6 => Just(Step::ReadGoesOn),
        6 => tick.prop_map(Step::Tick),
        1 => Just(Step::Mishap(Mishap::ScriptFlush)),
        1 => crashes.mishap().prop_map(Step::Mishap),
    ]
}

/// The part of a case that differs between kinds.
pub trait Counters: Default {
    type Handle: FamilyHandle + Clone;
    type Own: Copy + Debug;
    /// The result of a reader.
    type Found: Debug + Send + 'static;

    /// The first time in Unix milliseconds.
    const START: u64;
    /// The most increments of a case.
    const TOKENS: usize;

    fn family(name: String) -> FamilyBuilder<Self::Handle>;

    /// Delivers a call to Redis.
    async fn arrive<S: Store + Clone>(
        world: &mut World<'_, S, Self>,
        key: &Key,
        tokens: &[usize],
    ) -> Checked<CallReply>;

    /// Takes a step of this kind.
    async fn own<S: Store + Clone>(world: &mut World<'_, S, Self>, step: Self::Own) -> Checked;

    /// Returns an exact read of this id, or of all.
    fn read<S: Store + Clone>(
        world: &World<'_, S, Self>,
        id: usize,
    ) -> impl Future<Output = Result<Self::Found>> + Send + 'static;

    /// Returns how often the result contains the increment; `None` if it was not read.
    fn times(found: &Self::Found, number: usize, token: Token) -> Option<u8>;

    /// Checks what must be true after every step.
    async fn check<S: Store + Clone>(world: &World<'_, S, Self>) -> Checked;

    /// Checks that the rows hold everything.
    async fn check_rows<S: Store + Clone>(_world: &World<'_, S, Self>) -> Checked {
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Token {
    pub id: usize,
    pub state: TokenState,
}

pub struct World<'s, S, K: Counters> {
    pub stage: Stage<'s, ConnectionManager>,
    pub database: Database<'s, S>,
    pub kind: K,
    /// The reader's counters, which are held before each database query.
    pub counters: K::Handle,
    gate: Gate,
    /// The writers, each with the tokens of its open call.
    writers: Vec<Writer<Vec<usize>>>,
    /// Every call that was sent.
    sent: Vec<(Key, Vec<usize>)>,
    workers: Workers,
    reader: Option<Reader<K::Found>>,
    pub tokens: Vec<Token>,
}

impl<'s, S: Store + Clone, K: Counters> World<'s, S, K> {
    pub async fn new(given: Given<'s, S, Crashes>) -> Self {
        let Given {
            server,
            disturbed: crashes,
            name,
            database,
            ..
        } = given;
        let builder = K::family(name)
            .partitions(PARTITIONS)
            .durability(Durability::Settle(millis(SETTLE)));
        let family = builder.build().unwrap();
        let family = database.store.register(&family).await.unwrap();
        let mut stage = Stage::<ConnectionManager>::new(server, crashes, family, K::START).await;
        let gate = Gate::new();
        let counterfoil = reading(&stage, &database, &gate);
        World {
            counters: counterfoil.opened(builder).await,
            gate,
            database,
            kind: K::default(),
            writers: stage.writers(WRITERS),
            sent: vec![],
            workers: Workers::default(),
            reader: None,
            tokens: vec![],
            stage,
        }
    }

    async fn write(&mut self, number: usize, ids: Ids, fate: Fate) -> Checked {
        let writer = &mut self.writers[number];
        let ids = std::iter::once(ids.0).chain(ids.1);
        let first = self.tokens.len();
        if writer.open.is_none() && first + ids.clone().count() <= K::TOKENS {
            let state = TokenState::InDoubt;
            self.tokens.extend(ids.map(|id| Token { id, state }));
            writer.begin((first..self.tokens.len()).collect());
        }
        let Some(tokens) = writer.open.clone() else {
            return Ok(());
        };
        let key = writer.key(&self.stage, &self.stage.partition(0)).await?;
        self.sent.push((key.clone(), tokens.clone()));
        if fate == Fate::LostBefore {
            return Ok(());
        }
        let reply = K::arrive(self, &key, &tokens).await?;
        let at = self.stage.note_length();
        match reply {
            _ if fate == Fate::LostAfter => {}
            CallReply::Executed { results, .. } => {
                self.writers[number].open = None;
                for (token, result) in tokens.into_iter().zip(results) {
                    if !matches!(result, PairResult::Counted(_)) {
                        return Err(failed(format!("REFUSED: {result:?}")));
                    }
                    self.tokens[token].state = TokenState::Acknowledged { at };
                }
            }
            // the caller receives an error of unknown outcome, and its name is not used again
            CallReply::Expired | CallReply::Outdated => {
                self.writers[number] = Writer::new(self.stage.new_name())
            }
            CallReply::Passed => return Err(failed("PASSED: the writer made no later call")),
        }
        Ok(())
    }

    async fn read_begins(&mut self, id: usize) {
        if self.reader.is_none() {
            let before = self
                .tokens
                .iter()
                .map(|token| token.state.is_acknowledged());
            let (before, read) = (before.collect(), K::read(self, id));
            self.reader = Some(Reader::begin(self.gate.clone(), read, before).await);
        }
    }

    async fn read_goes_on(&mut self) -> Checked {
        let Some(seen) = Reader::go_on(&mut self.reader).await? else {
            return Ok(());
        };
        let Seen { found, .. } = &seen;
        for (number, token) in self.tokens.iter().enumerate() {
            let times = K::times(found, number, *token);
            let bounds = seen.bounds(number, token.state);
            if let Some(times) = times.filter(|times| fault(*times, bounds).is_some()) {
                return Err(failed(format!(
                    "TORN READ: increment {number} ({token:?}) is {times} times in {found:?}"
                )));
            }
        }
        Ok(())
    }

    fn forget(&mut self, gone: &Gone) {
        self.tokens
            .iter_mut()
            .for_each(|token| token.state.forget(gone));
        if let Some(reader) = &mut self.reader {
            reader.has_crashed = true;
        }
    }
}

impl<S: Store + Clone, K: Counters> Case for World<'_, S, K> {
    type Step = Step<K::Own>;

    async fn step(&mut self, step: Self::Step) -> Checked {
        match step {
            Step::Write { writer, ids, fate } => self.write(writer, ids, fate).await?,
            Step::Echo(call) => {
                if let Some((key, tokens)) = self.sent.get(call % self.sent.len().max(1)).cloned() {
                    K::arrive(self, &key, &tokens).await?;
                }
            }
            Step::Ask(writer) => self.writers[writer].ask(),
            Step::TurnEpoch => turn_epoch(&mut self.stage, 0).await?,
            Step::WriterDies(writer) => self.writers[writer] = Writer::new(self.stage.new_name()),
            Step::Work(work) => self.workers.step(work, &self.stage, &self.database).await?,
            Step::WorkerDies(worker) => self.workers.die(worker),
            Step::ReadBegins(id) => self.read_begins(id).await,
            Step::ReadGoesOn => self.read_goes_on().await?,
            Step::Tick(ms) => self.stage.pass(ms),
            Step::Mishap(mishap) => {
                if let Some(gone) = self.stage.suffer(mishap).await? {
                    self.forget(&gone);
                }
            }
            Step::Own(step) => K::own(self, step).await?,
        }
        self.stage.note_length();
        Ok(())
    }

    async fn check(&self) -> Checked {
        K::check(self).await
    }

    /// Ends every call and brings everything to the database.
    async fn finish(&mut self) -> Checked {
        while self.reader.is_some() {
            self.read_goes_on().await?;
        }
        for number in 0..WRITERS {
            if self.writers[number].open.is_some() {
                self.write(number, (0, None), Fate::Delivered).await?;
            }
        }
        for partition in 0..PARTITIONS {
            self.workers
                .drain(partition, &mut self.stage, &self.database)
                .await?;
        }
        self.check().await?;
        K::check_rows(self).await?;
        self.stage.expect_nothing_pending().await
    }
}
