//! The hunt in kinds of counters.

use super::*;
use crate::support::*;

/// The environment of a case.
pub struct Given<'s, S, D> {
    pub server: &'s RedisServer,
    pub disturbed: D,
    /// The removed guard.
    pub without: Option<Guard>,
    /// The name of the family, which is unique.
    pub name: String,
    pub database: Database<'s, S>,
}

/// A kind of counter, in cases of random steps.
pub trait Kind {
    type Step: Clone + Debug;
    /// The disturbances of a case.
    type Disturbed: Copy + Debug + Into<Crashes>;

    /// The most steps of a case.
    const STEPS: usize = 70;

    fn step(disturbed: Self::Disturbed) -> impl Strategy<Value = Self::Step>;

    /// Begins a case.
    async fn begin<'s, S: Store + Clone>(
        given: Given<'s, S, Self::Disturbed>,
    ) -> impl Case<Step = Self::Step>;
}

/// Expects that no case fails, in this number of cases for each of the disturbances.
pub fn exact<K: Kind>(disturbed: impl IntoIterator<Item = (K::Disturbed, u32)>) {
    exact_in::<K, _>(&runtime(), &Database::new(MemoryStore::new()), disturbed);
}

/// Expects that no case fails with a MySQL that is killed while it applies a batch whose reply is
/// lost: one of every `one_in` such batches.
pub fn exact_in_the_real_database<K: Kind>(
    one_in: u64,
    disturbed: impl IntoIterator<Item = (K::Disturbed, u32)>,
) {
    let runtime = runtime();
    let mysql = runtime.block_on(Mortal::one_in(one_in));
    exact_in::<K, _>(
        &runtime,
        &runtime.block_on(Database::mortal(&mysql)),
        disturbed,
    );
}

fn exact_in<K: Kind, S: Store + Clone>(
    runtime: &Runtime,
    database: &Database<'_, S>,
    all: impl IntoIterator<Item = (K::Disturbed, u32)>,
) {
    for (disturbed, default) in all {
        if let Err(error) = hunt_in::<K, _>(runtime, database, disturbed, cases(default), None) {
            panic!("{disturbed:?}: {error}");
        }
    }
}

/// Removes each guard, and expects the failure that it prevents.
pub fn breaks<K: Kind>(guards: &[(Guard, K::Disturbed, &[&str])]) {
    let database = Database::new(MemoryStore::new());
    for (guard, disturbed, expected) in guards {
        expect_failure(
            hunt_in::<K, _>(&runtime(), &database, *disturbed, 2000, Some(*guard)),
            *guard,
            expected,
        );
    }
}

/// Replays a case that found a bug.
pub fn replay<K: Kind>(disturbed: K::Disturbed, steps: &[K::Step]) {
    runtime().block_on(async {
        let server = RedisServer::start(disturbed.into().options()).await;
        let given = Given {
            server: &server,
            disturbed,
            without: None,
            name: "regression".to_owned(),
            database: Database::new(MemoryStore::new()),
        };
        let mut case = K::begin(given).await;
        case.play(steps.iter().cloned()).await.unwrap();
    });
}

fn hunt_in<K: Kind, S: Store + Clone>(
    runtime: &Runtime,
    database: &Database<'_, S>,
    disturbed: K::Disturbed,
    cases: u32,
    without: Option<Guard>,
) -> Result<(), TestError<Vec<K::Step>>> {
    let steps = proptest::collection::vec(K::step(disturbed), 10..K::STEPS);
    let run = |server: &RedisServer, name: String, steps: Vec<K::Step>| -> Checked {
        let given = Given {
            server,
            disturbed,
            without,
            name,
            database: database.clone(),
        };
        runtime.block_on(async { K::begin(given).await.play(steps).await })
    };
    hunt(runtime, (disturbed.into(), cases, without), steps, run)
}
