//! Redis is set back to states of its own that were kept, as by restoring a backup, in any order with hits and flushes
//! (docs/protocol.md, section 3.9): no hit counts twice, and after the next flush each counts.

use std::time::Duration;

use crate::support::interleaving::hunt::{cases, expect_exact, expect_failure, hunt, runtime};
use crate::support::interleaving::{Checked, Crashes};
use crate::support::{Pair, PlainCounters, eventually, family, pause};
use counterfoil::test_hooks::Guard;
use counterfoil::{Counterfoil, Durability, Family, MemoryStore, Precision, Script, SeriesAdded};
use proptest::prelude::*;
use proptest::test_runner::TestError;
use redis::aio::ConnectionManager;
use redis::{Cmd, FromRedisValue, Value, cmd};
use testkit::{RedisOptions, RedisServer};

const STATES: usize = 3;

#[derive(Clone, Copy, Debug)]
enum Step {
    Add,
    /// A reconciler cuts a batch and dies.
    Cut,
    Flush,
    Keep {
        state: usize,
    },
    SetBack {
        state: usize,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => Just(Step::Add),
        2 => Just(Step::Cut),
        4 => Just(Step::Flush),
        2 => (0..STATES).prop_map(|state| Step::Keep { state }),
        2 => (0..STATES).prop_map(|state| Step::SetBack { state }),
    ];
    prop::collection::vec(step, 1..60)
}

/// The keys of a partition and what they hold.
type State = Vec<(String, Vec<u8>)>;

/// A partition, by its keys.
struct Partition {
    redis: ConnectionManager,
    prefix: String,
}

impl Partition {
    fn key(&self, kind: &str) -> String {
        format!("{}{kind}", self.prefix)
    }

    async fn run<T: FromRedisValue>(&self, command: &Cmd) -> T {
        command.query_async(&mut self.redis.clone()).await.unwrap()
    }

    /// Whether it has a buffer, a batch or both.
    async fn pending(&self) -> i64 {
        self.run(cmd("EXISTS").arg(&["buffer", "batch"].map(|kind| self.key(kind)))).await
    }

    async fn state(&self) -> State {
        let keys: Vec<String> = self.run(cmd("KEYS").arg(self.key("*"))).await;
        let mut state = State::new();
        for key in keys {
            let content = self.run(cmd("DUMP").arg(&key)).await;
            state.push((key, content));
        }
        state
    }

    async fn set_back(&self, state: &State) {
        for (key, _) in self.state().await {
            let _: i64 = self.run(cmd("DEL").arg(key)).await;
        }
        for (key, content) in state {
            let _: () = self.run(cmd("RESTORE").arg(key).arg(0).arg(content)).await;
        }
    }
}

struct Play {
    counterfoil: Counterfoil<ConnectionManager, MemoryStore>,
    views: PlainCounters,
    partition: Partition,
    kept: [State; STATES],
    /// Of each hit, which has an id of its own, whether it may be lost.
    hits: Vec<bool>,
    /// Redis was set back, and nothing was flushed since.
    exposed: bool,
}

impl Play {
    async fn new(server: &RedisServer, name: &str) -> Self {
        let redis = server.manager().await;
        let counterfoil = Counterfoil::new(redis.clone(), MemoryStore::new());
        let views = counterfoil.open(family(name).partitions(1).build().unwrap()).await.unwrap();
        let partition = Partition { redis, prefix: format!("cf1:{{test/{name}/0}}:") };
        let (kept, hits, exposed) = (<[State; STATES]>::default(), Vec::new(), false);
        let mut play = Play { counterfoil, views, partition, kept, hits, exposed };
        // a partition of which the ledger knows nothing cannot be told from a new one
        play.step(Step::Add).await.unwrap();
        play.step(Step::Flush).await.unwrap();
        play.kept.fill(play.partition.state().await);
        play
    }

    async fn step(&mut self, step: Step) -> Checked {
        match step {
            Step::Add => {
                let _ = self.views.add(&format!("hit/{}", self.hits.len()), 1).await.unwrap();
                self.hits.push(self.exposed);
            }
            Step::Cut => {
                let mut rotate = cmd("EVAL");
                rotate.arg(Script::named("buffered_rotate").unwrap().source).arg(3);
                rotate.arg(&["buffer", "batch", "meta"].map(|kind| self.partition.key(kind)));
                let _: Value = self.partition.run(rotate.arg(&["0123456789abcdef", "", "0", "0", "0", ""])).await;
            }
            Step::Flush => {
                let pending = self.partition.pending().await;
                self.counterfoil.drain().await.unwrap();
                self.exposed &= pending == 0;
                self.check().await?;
            }
            Step::Keep { state } => self.kept[state] = self.partition.state().await,
            Step::SetBack { state } => {
                self.partition.set_back(&self.kept[state]).await;
                let ids = (0..self.hits.len()).map(|hit| format!("hit/{hit}"));
                let stored = self.views.stored(ids).await.unwrap();
                self.hits.iter_mut().zip(stored).for_each(|(may_be_lost, stored)| *may_be_lost |= stored.is_none());
                self.exposed = true;
            }
        }
        Ok(())
    }

    async fn check(&self) -> Checked {
        let ids: Vec<_> = (0..self.hits.len()).map(|hit| format!("hit/{hit}")).collect();
        let stored = self.views.stored(&ids).await.unwrap();
        for ((hit, may_be_lost), stored) in self.hits.iter().enumerate().zip(stored) {
            let stored = stored.unwrap_or(0);
            prop_assert!(stored <= 1, "DOUBLE: hit {} counts {} times", hit, stored);
            prop_assert!(stored == 1 || *may_be_lost, "LOST: hit {}", hit);
        }
        Ok(())
    }

    async fn play(&mut self, steps: Vec<Step>) -> Checked {
        for step in steps {
            self.step(step).await?;
        }
        // whatever is left, and then as at any time
        for step in [Step::Add, Step::Flush, Step::Add, Step::Flush] {
            self.step(step).await?;
        }
        Ok(())
    }
}

fn hunted(cases: u32, guard: Option<Guard>) -> Result<(), TestError<Vec<Step>>> {
    hunt(&runtime(), (Crashes::None, cases, guard), steps(), |server, name, steps| {
        runtime().block_on(async { Play::new(server, &name).await.play(steps).await })
    })
}

#[test]
fn exact_from_the_next_flush_on() {
    expect_exact(hunted(cases(150), None));
}

/// Of two batches the older one is there again, and proves it; the other waits behind it, not cut yet.
#[tokio::test]
async fn what_waits_behind_the_batch_is_in_the_database_too() {
    let server = RedisServer::start(RedisOptions::volatile()).await;
    let kept = [Step::Add, Step::Cut, Step::Add, Step::Keep { state: 0 }, Step::Flush];
    let steps = [&kept[..], &[Step::Add, Step::Flush, Step::SetBack { state: 0 }, Step::Flush]].concat();
    Play::new(&server, "behind").await.play(steps).await.unwrap();
}

#[test]
fn without_the_discard_hits_are_lost_until_the_numbers_are_new_again() {
    let guard = Guard::SetBack;
    expect_failure(hunted(400, Some(guard)), guard, &["LOST"]);
}

/// The slices that a series keeps are set back as well. So the numbers go on: they tell what the database has.
#[tokio::test]
async fn slices_that_are_kept_count_once() {
    let pair = Pair::new().await;
    let series = Family::series("test", "hits")
        .windows([(Precision::SECOND, 300), (Precision::Day, 3)])
        .keep([Precision::SECOND, Precision::Day])
        .partitions(1)
        .durability(Durability::Immediate)
        .sync_after(Duration::from_millis(50));
    let series = pair.counterfoil.open(series.build().unwrap()).await.unwrap();
    let add = async || assert_eq!(series.add("page", 1).await.unwrap(), SeriesAdded::Counted);
    let total = async || pair.number("SELECT CAST(SUM(value) AS SIGNED) FROM counterfoil_values").await;
    let partition = Partition { redis: pair.redis.manager().await, prefix: "cf1:{test/hits/0}:".to_owned() };
    add().await;
    pair.counterfoil.drain_all().await.unwrap();
    add().await;
    // the second will be over, the day is not
    let before = partition.state().await;
    for _ in 0..3 {
        pair.counterfoil.drain_all().await.unwrap();
        add().await;
    }
    pair.counterfoil.drain_all().await.unwrap();
    assert_eq!(total().await, 2 * 5);
    pause(1100).await;

    partition.set_back(&before).await;
    let reconciler = pair.counterfoil.reconciler().start().await.unwrap();
    let open = cmd("HLEN").arg(partition.key("open")).to_owned();
    eventually("the second is closed", async || partition.run::<i64>(&open).await == 1).await;
    eventually("and flushed", async || partition.pending().await == 0).await;
    reconciler.shutdown().await.unwrap();
    pair.counterfoil.drain_all().await.unwrap();
    assert_eq!(total().await, 2 * 5, "what the database had was counted again");
}
