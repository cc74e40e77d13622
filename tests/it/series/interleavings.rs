//! Interleavings of series whose slices are kept. Writers, reconcilers and a reader are explicit steps, on a clock that also steps back. proptest picks their order, their deaths, lost
//! replies and crashes of Redis. After every step each acknowledged hit is in its slice once
//! (docs/protocol.md, sections 1 and 5).
//!
//! Every hit is a token: the k-th of a case adds 4^k. In base 4, each digit of a slice is the
//! number of times that it contains that hit.

use counterfoil::test_hooks::{CallReply, timed};

use crate::support::interleaving::*;
use crate::support::*;

const NAMES: [&str; 2] = ["a", "page/é"];

#[derive(Clone, Copy, Debug)]
enum Own {
    /// The server's clock is set back.
    SetBack(u64),
}

/// Series whose slices are kept.
#[derive(Default)]
struct Slices {
    /// The slices that were current at an execution of each token's call.
    current: BTreeMap<usize, BTreeSet<i64>>,
}

type World<'s, S> = world::World<'s, S, Slices>;

impl Slices {
    /// Returns all possible slices of the token.
    fn of(&self, token: usize) -> impl Iterator<Item = i64> {
        self.current.get(&token).into_iter().flatten().copied()
    }
}

impl Counters for Slices {
    type Handle = Series;
    type Own = Own;
    type Found = (usize, Vec<Slice>);

    /// Five seconds before a day begins in Berlin.
    const START: u64 = 1_414_364_395_000;
    /// Each adds a power of 4, and their sum must stay far within i64.
    const TOKENS: usize = 25;

    fn family(name: String) -> FamilyBuilder<Series> {
        Family::series(name, "hits")
            .windows([(Precision::SECOND, 3), (Precision::Day, 2)])
            .time_zone("Europe/Berlin")
            .keep([Precision::SECOND])
    }

    async fn arrive<S: Store + Clone>(
        world: &mut World<'_, S>,
        key: &Key,
        tokens: &[usize],
    ) -> Checked<CallReply> {
        let (token, stage) = (tokens[0], &world.stage);
        world
            .kind
            .current
            .entry(token)
            .or_default()
            .insert((stage.now / 1000).cast_signed());
        let name = NAMES[world.tokens[token].id];
        let (partition, home) = (
            stage.partition(stage.partition_of(name)),
            stage.partition(0),
        );
        let family = &stage.family.family;
        // as a reconciler does, at the time of the stage
        home.write_calendars(family).await?;
        let (labels, hit) = (family.precisions(), timed::key(name, None));
        let pair = (hit.as_slice(), delta(token));
        Ok(partition
            .add_to_series(family, &labels, key.fence(&home), [pair])
            .await?)
    }

    async fn own<S: Store + Clone>(world: &mut World<'_, S>, step: Own) -> Checked {
        let Own::SetBack(ms) = step;
        world.stage.set_back(ms);
        Ok(())
    }

    /// Reads all slices of a name.
    fn read<S: Store + Clone>(
        world: &World<'_, S>,
        name: usize,
    ) -> impl Future<Output = Result<Self::Found>> + Send + 'static {
        let slices = world.kind.current.values().flatten();
        let first = slices.clone().min().copied().unwrap_or(0);
        let last = slices.max().copied().unwrap_or(first);
        let (series, range) = (world.counters.clone(), times(first - 1..last + 2));
        async move {
            Ok((
                name,
                series
                    .get_range(NAMES[name], Precision::SECOND, range)
                    .await?,
            ))
        }
    }

    fn times((name, slices): &Self::Found, number: usize, token: Token) -> Option<u8> {
        let times = slices.iter().map(|slice| digit(slice.count.into(), number));
        (token.id == *name).then(|| times.sum())
    }

    /// Checks that each acknowledged hit is once in one of its slices, and no other hit twice.
    async fn check<S: Store + Clone>(world: &World<'_, S>) -> Checked {
        let all = slices(world).await?;
        for (number, token) in world.tokens.iter().enumerate() {
            let name = NAMES[token.id];
            let in_its_own = world.kind.of(number);
            let (its_own, anywhere): (u8, u8) = (
                in_its_own
                    .map(|slice| digit(all[&format!("{slice}/{name}")], number))
                    .sum(),
                all.values().map(|value| digit(*value, number)).sum(),
            );
            let least = u8::from(token.state.is_acknowledged());
            let word = match (its_own, anywhere) {
                (_, 2..) => "DOUBLE",
                (its_own, _) if its_own < least => "LOST",
                (0, 1) => "MISPLACED",
                _ => continue,
            };
            let slices: Vec<_> = world.kind.of(number).collect();
            return Err(failed(format!(
                "{word}: hit {number}, {token:?} of {slices:?}, in {all:?}"
            )));
        }
        Ok(())
    }

    async fn check_rows<S: Store + Clone>(world: &World<'_, S>) -> Checked {
        let mut expected = slices(world).await?;
        expected.retain(|_, value| *value != 0);
        let (store, family) = (&world.database.store, &world.stage.family);
        let stored = store.list(family, "", None, 10_000).await?.into_iter();
        let stored: BTreeMap<_, _> = stored.map(|(id, value)| (id, i128::from(value))).collect();
        prop_assert_eq!(stored, expected, "ROWS");
        Ok(())
    }
}

/// Returns the values, stored and pending, of all possible slices by their kept ids.
async fn slices<S: Store + Clone>(world: &World<'_, S>) -> Checked<BTreeMap<String, i128>> {
    let mut all = BTreeMap::new();
    for (id, name) in NAMES.into_iter().enumerate() {
        let tokens = (0..world.tokens.len()).filter(|token| world.tokens[*token].id == id);
        let slices: BTreeSet<_> = tokens.flat_map(|token| world.kind.of(token)).collect();
        let ids: Vec<_> = slices
            .iter()
            .map(|slice| format!("{slice}/{name}"))
            .collect();
        if ids.is_empty() {
            continue;
        }
        let id_refs: Vec<_> = ids.iter().map(String::as_str).collect();
        let number = world.stage.partition_of(name);
        let totals = world
            .database
            .totals(
                &world.stage,
                (number, world.stage.partition(number).read(&id_refs).await?),
                &id_refs,
            )
            .await?;
        all.extend(ids.into_iter().zip(totals));
    }
    Ok(all)
}

impl Kind for Slices {
    type Step = world::Step<Own>;
    type Disturbed = Crashes;

    fn step(crashes: Crashes) -> impl Strategy<Value = Self::Step> {
        let name = (0..NAMES.len()).prop_map(|name| (name, None));
        prop_oneof![
            55 => steps(crashes, name),
            1 => prop_oneof![Just(300), Just(2500)].prop_map(Own::SetBack).prop_map(world::Step::Own),
        ]
    }

    async fn begin<'s, S: Store + Clone>(
        given: Given<'s, S, Crashes>,
    ) -> impl Case<Step = Self::Step> {
        World::new(given).await
    }
}

#[test]
fn exact_whatever_redis_suffers() {
    exact::<Slices>([
        (Crashes::None, 25),
        (Crashes::BackToTheLastFsync, 15),
        (Crashes::Empty, 25),
    ]);
}

#[test]
fn exact_with_the_real_database() {
    let crashes = [Crashes::None, Crashes::BackToTheLastFsync, Crashes::Empty];
    exact_in_the_real_database::<Slices>(2, crashes.map(|crashes| (crashes, 8)));
}
