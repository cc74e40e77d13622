//! Interleavings on a Redis that is set back to older states of its own, as by restored backups
//! (docs/protocol.md, section 3.9). Writers, workers, probes and a reader are explicit steps.
//! proptest picks their order, the kept and restored states, and the calls that arrive again later.
//! After every step no hit is or will be in the database twice, none is missing without a report,
//! and none was dropped without proof.
//!
//! Every hit has its own id.

use crate::support::kinds::family;
use crate::support::{self};
use counterfoil::test_hooks::{CallReply, Scan, last_cuts};

use crate::support::interleaving::*;
use crate::support::*;

const HITS: usize = 24;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A new caller counts a hit.
    Hit(Fate),
    /// An earlier call arrives again.
    Echo(usize),
    TurnEpoch,
    /// The current state of Redis is kept.
    Keep,
    SetBack(usize),
    Work(Work),
    WorkerDies(usize),
    /// An application's drain flushes everything.
    Drain,
    /// A probe reads the ledger.
    ProbeBegins,
    /// The probe reads Redis, and resets partitions that are behind.
    ProbeGoesOn,
    /// A reader reads all hits from Redis, up to its database query.
    ReadBegins,
    /// The reader's database query runs.
    ReadGoesOn,
}

fn step() -> impl Strategy<Value = Step> {
    let fate = prop_oneof![6 => Just(Fate::Delivered), 1 => Just(Fate::LostBefore)];
    prop_oneof![
        8 => fate.prop_map(Step::Hit),
        4 => (0..1000_usize).prop_map(Step::Echo),
        1 => Just(Step::TurnEpoch),
        3 => Just(Step::Keep),
        3 => (0..1000_usize).prop_map(Step::SetBack),
        20 => Work::any().prop_map(Step::Work),
        1 => (0..WORKERS).prop_map(Step::WorkerDies),
        1 => Just(Step::Drain),
        2 => Just(Step::ProbeBegins),
        2 => Just(Step::ProbeGoesOn),
        2 => Just(Step::ReadBegins),
        4 => Just(Step::ReadGoesOn),
    ]
}

/// One partition in Redis.
#[derive(Clone, Debug)]
struct Pending {
    cut: LastCut,
    /// The hits in buffer and batch.
    hits: BTreeSet<usize>,
}

struct World<'s> {
    stage: Stage<'s, ConnectionManager>,
    database: Database<'s, MemoryStore>,
    guard: Option<Guard>,
    /// The reader's process, which is held before each database query.
    counterfoil: Counterfoil,
    counters: BufferedCounters,
    gate: Gate,
    /// The id of each hit.
    ids: Vec<String>,
    /// The calls, by hit.
    sent: Vec<Key>,
    workers: Workers,
    /// The ledger as read by a probe.
    probe: Option<Vec<LedgerRow>>,
    reader: Option<Reader<Vec<i64>>>,
    /// True if Redis was set back or a partition was reset since the reader began.
    is_disturbed: bool,
    kept: Vec<State>,
    /// The partitions after the last step.
    pending: Vec<Pending>,
    /// The hits that Redis executed.
    executed: BTreeSet<usize>,
    /// The executed hits that are reported: lost by a set-back, or dropped later.
    reported: BTreeSet<usize>,
}

impl<'s> World<'s> {
    async fn new(server: &'s RedisServer, name: String, guard: Option<Guard>) -> Self {
        let database = Database::new(MemoryStore::new());
        let buffered = Family::buffered(name, "hits")
            .partitions(PARTITIONS)
            .at_once();
        let family = buffered.build().unwrap();
        let registered = database.store.register(&family).await.unwrap();
        let stage =
            Stage::<ConnectionManager>::new(server, Crashes::None, registered, 1_000_000).await;
        let empty = State::of(&stage.redis, &family).await;
        let gate = Gate::new();
        let store = Wrapped {
            store: database.store.clone(),
            between: gate.clone(),
        };
        let counterfoil = patient(Counterfoil::new(stage.redis.clone(), store));
        let counters = counterfoil.opened(buffered).await;
        // the second state has an epoch, so that calls can be executed there
        support::epoch(&stage.partition(0), &family).await.unwrap();
        let begun = State::of(&stage.redis, &family).await;
        let mut world = World {
            stage,
            database,
            guard,
            counterfoil,
            counters,
            gate,
            ids: (0..HITS).map(|hit| format!("hit/{hit}")).collect(),
            sent: vec![],
            workers: Workers::default(),
            probe: None,
            reader: None,
            is_disturbed: false,
            kept: vec![empty, begun],
            pending: vec![],
            executed: BTreeSet::new(),
            reported: BTreeSet::new(),
        };
        world.pending = world.look().await.unwrap();
        world
    }

    /// Returns the partitions as they are in Redis.
    async fn look(&self) -> Checked<Vec<Pending>> {
        let mut found = vec![];
        let partitions: Vec<_> = (0..PARTITIONS)
            .map(|number| self.stage.partition(number))
            .collect();
        let cuts = last_cuts(&self.stage.redis.clone().into(), &partitions).await?;
        for (partition, (cut, _)) in partitions.iter().zip(cuts) {
            let (mut ids, mut scan) = (vec![], Some(Scan::default()));
            while let Some(at) = scan {
                let (some, rest) = partition.scan(at, "hit/").await?;
                ids.extend(some);
                scan = rest;
            }
            let hit = |id: &String| self.ids.iter().position(|known| known == id).unwrap();
            found.push(Pending {
                cut,
                hits: ids.iter().map(hit).collect(),
            });
        }
        Ok(found)
    }

    async fn stored(&self) -> Checked<Vec<i64>> {
        let ids: Vec<_> = self.ids.iter().map(String::as_str).collect();
        Ok(self
            .database
            .rows(&self.stage, &ids)
            .await?
            .into_iter()
            .map(|value| value.unwrap_or(0))
            .collect())
    }

    async fn hit(&mut self, fate: Fate) -> Checked {
        let hit = self.sent.len();
        if hit == HITS {
            return Ok(());
        }
        let mut writer = Writer::new(self.stage.new_name());
        writer.begin(());
        self.sent
            .push(writer.key(&self.stage, &self.stage.partition(0)).await?);
        if fate == Fate::Delivered {
            self.arrive(hit).await
        } else {
            Ok(())
        }
    }

    /// Delivers the call, for the first time or again.
    async fn arrive(&mut self, hit: usize) -> Checked {
        let (id, home) = (&self.ids[hit], self.stage.partition(0));
        if matches!(
            self.stage
                .partition(self.stage.partition_of(id))
                .add(
                    &self.stage.family.family,
                    self.sent[hit].fence(&home),
                    1,
                    [(id, 1)],
                )
                .await?,
            CallReply::Executed {
                repeated: false,
                ..
            }
        ) {
            self.executed.insert(hit);
            self.reported.remove(&hit);
        }
        Ok(())
    }

    async fn set_back(&mut self, state: usize) -> Checked {
        self.kept[state % self.kept.len()]
            .restore(&self.stage.redis)
            .await;
        let there: BTreeSet<_> = self
            .look()
            .await?
            .into_iter()
            .flat_map(|pending| pending.hits)
            .collect();
        let stored = self.stored().await?;
        self.reported = self
            .executed
            .iter()
            .copied()
            .filter(|hit| !there.contains(hit) && stored[*hit] == 0)
            .collect();
        self.is_disturbed = true;
        Ok(())
    }

    async fn probe_goes_on(&mut self) -> Checked {
        let Some(ledger) = self.probe.take() else {
            return Ok(());
        };
        for (number, Pending { cut, .. }) in (0..).zip(self.look().await?) {
            if is_behind(&ledger, number, cut, self.guard) {
                self.stage.reset(number, cut).await?;
            }
        }
        Ok(())
    }

    async fn read_begins(&mut self) {
        if self.reader.is_some() {
            return;
        }
        let (counters, ids) = (self.counters.clone(), self.ids.clone());
        let read = async move { counters.get_many(&ids).await };
        self.is_disturbed = false;
        self.reader = Some(
            Reader::begin(
                self.gate.clone(),
                read,
                (0..HITS)
                    .map(|hit| self.executed.contains(&hit) && !self.reported.contains(&hit))
                    .collect(),
            )
            .await,
        );
    }

    async fn read_goes_on(&mut self) -> Checked {
        let Some(seen) = Reader::go_on(&mut self.reader).await? else {
            return Ok(());
        };
        for (hit, times) in seen.found.iter().enumerate() {
            let state = if self.is_disturbed {
                TokenState::Forgotten
            } else {
                TokenState::InDoubt
            };
            let (least, most) = seen.bounds(hit, state);
            if !(i64::from(least)..=i64::from(most)).contains(times) {
                return Err(failed(format!(
                    "TORN READ: hit {hit} is {times} times in what was read"
                )));
            }
        }
        Ok(())
    }

    /// Reports the hits that a reset partition dropped, and requires a proof.
    async fn note_resets(&mut self, before: Vec<Pending>) -> Checked {
        let ledger = self.database.ledger(&self.stage).await?;
        for ((number, before), after) in (0..).zip(before).zip(self.pending.clone()) {
            if before.cut.incarnation.is_none() || before.cut.incarnation == after.cut.incarnation {
                continue;
            }
            if !before.hits.is_empty() && !is_behind(&ledger, number, before.cut, self.guard) {
                return Err(failed(format!(
                    "DROPPED WITHOUT PROOF: {before:?} of partition {number}"
                )));
            }
            self.reported.extend(before.hits.difference(&after.hits));
            self.is_disturbed = true;
        }
        Ok(())
    }

    async fn take(&mut self, step: Step) -> Checked {
        match step {
            Step::Hit(fate) => self.hit(fate).await?,
            Step::Echo(call) if !self.sent.is_empty() => {
                self.arrive(call % self.sent.len()).await?
            }
            Step::Echo(_) => {}
            Step::TurnEpoch => turn_epoch(&mut self.stage, 0).await?,
            Step::Keep => self.kept.push(self.stage.state().await),
            Step::SetBack(state) => self.set_back(state).await?,
            Step::Work(work) => {
                let dropped = self
                    .workers
                    .advance(work, &self.stage, &self.database)
                    .await?;
                if let Some(dropped) = dropped {
                    let hits: BTreeSet<_> = self
                        .pending
                        .iter()
                        .flat_map(|pending| &pending.hits)
                        .collect();
                    prop_assert!(
                        dropped.hits == dropped.ids && dropped.ids <= hits.len() as u64,
                        "WRONG REPORT: {:?} of {:?}",
                        dropped,
                        hits
                    );
                }
            }
            Step::WorkerDies(worker) => self.workers.die(worker),
            Step::Drain => self.counterfoil.drain().await?,
            Step::ProbeBegins => self.probe = Some(self.database.ledger(&self.stage).await?),
            Step::ProbeGoesOn => self.probe_goes_on().await?,
            Step::ReadBegins => self.read_begins().await,
            Step::ReadGoesOn => self.read_goes_on().await?,
        }
        Ok(())
    }
}

impl Case for World<'_> {
    type Step = Step;

    async fn step(&mut self, step: Step) -> Checked {
        // no two cuts, epochs or incarnations begin at the same time
        self.stage.pass(1);
        self.take(step).await?;
        let after = self.look().await?;
        let before = std::mem::replace(&mut self.pending, after);
        if matches!(step, Step::SetBack(_)) {
            Ok(())
        } else {
            self.note_resets(before).await
        }
    }

    async fn check(&self) -> Checked {
        let ids = self.ids.iter().map(String::as_str);
        for (id, total) in self.database.sums(&self.stage, ids).await? {
            prop_assert!(
                total <= 1,
                "DOUBLE: {id} is {total} times in database, batch and buffer"
            );
        }
        let stored = self.stored().await?;
        let mut there: BTreeSet<_> = self
            .pending
            .iter()
            .flat_map(|pending| &pending.hits)
            .copied()
            .collect();
        for task in &self.workers.tasks {
            if let Task::Apply(batch) = task {
                there.extend(batch.deltas.iter().filter_map(|(id, _)| {
                    self.ids.iter().position(|known| known.as_bytes() == id)
                }));
            }
        }
        let is_gone = |hit: &&usize| {
            stored[**hit] == 0 && !there.contains(hit) && !self.reported.contains(hit)
        };
        match self.executed.iter().find(is_gone) {
            Some(hit) => Err(failed(format!("LOST: hit {hit}, without a report"))),
            None => Ok(()),
        }
    }

    /// Ends everything in progress. After a probe, a new hit counts exactly.
    async fn finish(&mut self) -> Checked {
        while self.reader.is_some() {
            self.step(Step::ReadGoesOn).await?;
        }
        for worker in 0..WORKERS {
            for _ in 0..8 {
                self.step(Step::Work(Work::delivered(worker, 0))).await?;
                self.check().await?;
            }
        }
        for step in [
            Step::ProbeBegins,
            Step::ProbeGoesOn,
            Step::Hit(Fate::Delivered),
            Step::Drain,
        ] {
            self.step(step).await?;
            self.check().await?;
        }
        self.stage.expect_nothing_pending().await?;
        let stored = self.stored().await?;
        let is_stored = |hit: &usize| stored[*hit] == 1 || self.reported.contains(hit);
        prop_assert!(
            self.executed.iter().all(is_stored),
            "LOST: {:?} of {:?}",
            stored,
            self.executed
        );
        let is_last_stored = stored[self.sent.len() - 1] == 1 || self.sent.len() == HITS;
        prop_assert!(is_last_stored, "LOST: the hit after the probe");
        Ok(())
    }
}

/// Returns the incarnations of the family's partitions.
async fn incarnations(pair: &Pair, family: &Family) -> Vec<String> {
    let mut all = Vec::new();
    for partition in 0..family.partitions() {
        let get = format!("HGET cf1:{{{family}/{partition}}}:meta incarnation");
        all.push(pair.command(&get).await);
    }
    all
}

/// For each kind, a hit is flushed, Redis is set back to a state in which it is pending, and it is
/// flushed again. The next flush or a probe finds the set-back.
#[tokio::test]
async fn no_kind_counts_twice() {
    let pair = Pair::new().await;
    for (kind, probes) in KINDS
        .into_iter()
        .flat_map(|kind| [(kind, false), (kind, true)])
    {
        let counters = OfKind::open(&pair.counterfoil, kind).await.unwrap();
        let redis = pair.redis.manager().await;
        let hit = async |number: i64| match &counters {
            OfKind::Visitors(visitors) => {
                assert_eq!(
                    visitors
                        .first_visit("page", day("2014-09-20"), format!("{probes} {number}"))
                        .await
                        .unwrap(),
                    Outcome::Counted(1)
                );
            }
            others => others.hit().await.unwrap(),
        };
        let flush = async |expected| {
            pair.drain().await;
            let stored = "SELECT CAST(SUM(value) AS SIGNED) FROM counterfoil_values WHERE id NOT LIKE 'visitors/%'";
            assert_eq!(pair.number(stored).await, expected, "{kind}");
        };
        hit(1).await;
        flush(1).await;
        hit(2).await;
        let before = State::of(&redis, &family(kind)).await;
        flush(2).await;
        hit(3).await;
        flush(3).await;
        before.restore(&redis).await;
        if probes {
            let reverted = incarnations(&pair, &family(kind)).await;
            let reconciler = pair.reconcile().await;
            let is_new = async || incarnations(&pair, &family(kind)).await != reverted;
            eventually("a new start", is_new).await;
            reconciler.stop().await;
        }
        flush(3).await;
        if ["buffered", "cached"].contains(&kind) {
            assert_eq!(counters.shown().await.unwrap(), 3, "{kind}");
        }
        hit(4).await;
        flush(4).await;
        pair.sql("DELETE FROM counterfoil_values").await;
    }
}

#[tokio::test]
async fn a_reader_names_the_set_back_unless_it_has_the_time_to_repeat() {
    let (plain, views) = Plain::of(support::family("views").partitions(1)).await;
    let redis = plain.redis.manager().await;
    let mut named = None;
    for round in 1..=20 {
        let count = async || {
            let _ = views.add("page", 1).await.unwrap();
            plain.counterfoil.drained().await;
        };
        count().await;
        let before = State::of(&redis, views.family()).await;
        count().await;
        before.restore(&redis).await;
        if named.is_none() {
            let hasty = views.clone().read_timeout(Duration::ZERO);
            let error = hasty.get("page").await.unwrap_err();
            // on a busy machine there may be no time for the first reply either
            named = Some(error).filter(|error| !error.to_string().contains("no reply"));
        }
        assert_eq!(views.value("page").await, 2 * round);
        if named.is_some() && round > 2 {
            break;
        }
    }
    let error = named.expect("a reply in time");
    assert!(
        error.is_retryable()
            && error
                .to_string()
                .contains("Redis was set back to an older state"),
        "{error}"
    );
}

/// A read waits for a new connection. Meanwhile a batch is stored, and Redis is set back to before
/// it: what the database held before that does not count.
#[tokio::test]
async fn a_read_that_waits_for_a_redis_that_is_set_back() {
    let plain = Plain::new().await;
    let (redis, proxy) = (plain.redis.manager().await, Proxy::to(&plain.redis));
    let primary = Primary::connect(proxy.url()).await.unwrap();
    let views = support::family("views").partitions(1);
    let reader = plain.over(primary).opened(views.clone()).await;
    let views = plain.open(views).await;
    let _ = views.add("page", 1).await.unwrap();
    plain.counterfoil.drained().await;
    assert_eq!(reader.value("page").await, 1);
    let before = State::of(&redis, views.family()).await;
    let _ = views.add("page", 1).await.unwrap();
    proxy.black_hole();
    proxy.heal(Held::Lost);
    proxy.black_hole();
    let reading = tokio::spawn(async move { reader.value("page").await });
    pause(500).await;
    plain.counterfoil.drained().await;
    before.restore(&redis).await;
    proxy.heal(Held::Delivered);
    assert_eq!(reading.await.unwrap(), 2);
}

fn hunted(cases: u32, guard: Option<Guard>) -> Result<(), TestError<Vec<Step>>> {
    let steps = prop::collection::vec(step(), 10..90);
    hunt(
        &runtime(),
        (Crashes::None, cases, guard),
        steps,
        |server, name, steps| {
            runtime().block_on(async { World::new(server, name, guard).await.play(steps).await })
        },
    )
}

#[test]
fn nothing_counts_twice_and_nothing_is_lost_without_a_report() {
    expect_exact(hunted(cases(25), None));
}

#[test]
fn each_guard_is_needed() {
    for (guard, expected) in [
        // hits are lost without a report
        (Guard::Nonce, "LOST"),
        (Guard::SetBack, "LOST"),
        (Guard::Release, "LOST"),
        // an incarnation from the first cut, and epochs that go on after a reset
        (Guard::Incarnation, "DOUBLE"),
        (Guard::EndOfEpochs, "DOUBLE"),
        (Guard::Reset, "DROPPED WITHOUT PROOF"),
    ] {
        expect_failure(hunted(3000, Some(guard)), guard, &[expected]);
    }
}
