//! Interleavings of writers, reconcilers and a reader as explicit steps. proptest picks their
//! order, their deaths, lost replies, and when Redis forgets its scripts or crashes. The invariants
//! of docs/protocol.md, section 1, are checked after every step and at the end. Redis is real. The
//! database is real in one test; the others use the plain reference, which is faster and so tries
//! more cases.
//!
//! Every increment is a token: the k-th of a case adds 4^k. In base 4, each digit of a value is the
//! number of times that it contains that increment.
//!
//! The test controls the time.

use std::convert::Infallible;

use counterfoil::test_hooks::{CallReply, Partition, PartitionCall};
use proptest::option;

use crate::support::interleaving::*;
use crate::support::*;

const IDS: [&str; 4] = ["a", "b", "c", "page/é"];

/// Buffered counters.
#[derive(Default)]
struct Buffered;

impl Counters for Buffered {
    type Handle = BufferedCounters;
    type Own = Infallible;
    type Found = Vec<i64>;

    const START: u64 = 1_000_000;
    /// An i64 cannot hold 4^31 twice.
    const TOKENS: usize = 31;

    fn family(name: String) -> FamilyBuilder<BufferedCounters> {
        Family::buffered(name, "hits")
    }

    /// Makes one call for all partitions of the node.
    async fn arrive<S: Store + Clone>(
        world: &mut World<'_, S, Self>,
        key: &Key,
        tokens: &[usize],
    ) -> Checked<CallReply> {
        let (stage, home) = (&world.stage, world.stage.partition(0));
        let calls = tokens.iter().map(|&token| {
            let id = IDS[world.tokens[token].id];
            (
                stage.partition(stage.partition_of(id)),
                (id.as_bytes(), Update::Add(delta(token))),
            )
        });
        let calls: Vec<_> = calls.collect();
        let calls: Vec<_> = calls
            .iter()
            .map(|(partition, pair)| PartitionCall {
                partition,
                hits: 1,
                pairs: std::iter::once(*pair),
                seeds: Vec::new(),
            })
            .collect();
        Ok(Partition::add_to(&stage.family.family, key.fence(&home), &calls, &[]).await?)
    }

    async fn own<S: Store + Clone>(_: &mut World<'_, S, Self>, step: Infallible) -> Checked {
        match step {}
    }

    fn read<S: Store + Clone>(
        world: &World<'_, S, Self>,
        _: usize,
    ) -> impl Future<Output = Result<Vec<i64>>> + Send + 'static {
        let counters = world.counters.clone();
        async move { counters.get_many(&IDS).await }
    }

    fn times(found: &Vec<i64>, number: usize, token: Token) -> Option<u8> {
        Some(digit(found[token.id].into(), number))
    }

    /// Checks docs/protocol.md, section 1: each acknowledged increment is in the sum once, no other
    /// twice.
    async fn check<S: Store + Clone>(world: &World<'_, S, Self>) -> Checked {
        let totals = world.database.sums(&world.stage, IDS).await?;
        for (number, token) in world.tokens.iter().enumerate() {
            let total = totals[IDS[token.id]];
            let times = digit(total, number);
            if let Some(word) = fault(times, token.state.bounds()) {
                return Err(failed(format!(
                    "{word}: increment {number} ({token:?}) is {times} times in {total}"
                )));
            }
        }
        Ok(())
    }
}

impl Kind for Buffered {
    type Step = Step<Infallible>;
    type Disturbed = Crashes;

    fn step(crashes: Crashes) -> impl Strategy<Value = Self::Step> {
        steps(crashes, (0..IDS.len(), option::of(0..IDS.len())))
    }

    async fn begin<'s, S: Store + Clone>(
        given: Given<'s, S, Crashes>,
    ) -> impl Case<Step = Self::Step> {
        World::<S, Buffered>::new(given).await
    }
}

#[test]
fn exact_whatever_redis_suffers() {
    exact::<Buffered>([
        (Crashes::None, 30),
        (Crashes::BackToTheLastFsync, 15),
        (Crashes::Empty, 30),
    ]);
}

#[test]
fn exact_with_the_real_database() {
    let crashes = [Crashes::None, Crashes::BackToTheLastFsync, Crashes::Empty];
    exact_in_the_real_database::<Buffered>(8, crashes.map(|crashes| (crashes, 8)));
}

const WRITE: Step<Infallible> = Step::Write {
    writer: 0,
    ids: (0, None),
    fate: Fate::Delivered,
};
const READ_BEGINS: Step<Infallible> = Step::ReadBegins(0);
const TICK: Step<Infallible> = Step::Tick(SETTLE);
/// Steps of two workers.
const ONE: Step<Infallible> = Step::Work(Work::delivered(0, 1));
const OTHER: Step<Infallible> = Step::Work(Work::delivered(1, 0));

/// A partition without an incarnation was read, and its batch was cut and applied. Redis was
/// emptied before the reader's second read: again there was no incarnation, and the value had the
/// batch twice.
#[test]
fn a_batch_that_is_cut_and_applied_between_two_reads_is_noticed() {
    let steps = [WRITE, READ_BEGINS, ONE, OTHER, TICK, ONE, OTHER, ONE, OTHER];
    let end = [Step::Mishap(Mishap::Emptied), Step::ReadGoesOn, WRITE];
    replay::<Buffered>(Crashes::Empty, &[&steps[..], &end].concat());
}

/// The reader gave the partition an incarnation. A crash took it back and left the hits, which
/// reached the database under another one before the reader's query.
#[test]
fn an_incarnation_that_a_crash_takes_back_is_not_compared_with() {
    let steps = [
        WRITE,
        TICK,
        READ_BEGINS,
        Step::Mishap(Mishap::Crash { kept: 0 }),
        ONE,
        OTHER,
        TICK,
    ];
    let end = [ONE, OTHER, ONE, OTHER, Step::ReadGoesOn, WRITE];
    replay::<Buffered>(Crashes::BackToTheLastFsync, &[&steps[..], &end].concat());
}

#[test]
fn each_guard_is_needed() {
    breaks::<Buffered>(&[
        // a repeat counts twice
        (Guard::Fence, Crashes::None, &["DOUBLE", "TORN"]),
        (Guard::NoMemory, Crashes::None, &["DOUBLE", "TORN"]),
        (Guard::OneMemory, Crashes::None, &["DOUBLE", "TORN"]),
        (Guard::AnyEpoch, Crashes::None, &["DOUBLE", "TORN"]),
        // a crash loses what is in the database
        (
            Guard::Settle,
            Crashes::BackToTheLastFsync,
            &["LOST", "DROPPED"],
        ),
        // a reader sees a batch twice
        (Guard::Incarnation, Crashes::Empty, &["TORN READ"]),
        (Guard::Comparison, Crashes::None, &["TORN READ"]),
        // a part counts twice
        (Guard::Ledger, Crashes::None, &["DOUBLE", "TORN"]),
        (Guard::Position, Crashes::None, &["DOUBLE", "TORN"]),
    ]);
}
