//! The hunt in kinds whose deltas are buffered.

use std::fmt::Debug;

use counterfoil::test_hooks::Guard;
use counterfoil::{MemoryStore, MysqlStore, Store};
use proptest::prelude::Strategy;
use proptest::test_runner::TestError;
use testkit::{MysqlServer, RedisServer};
use tokio::runtime::Runtime;

use super::database::{Database, Mortal};
use super::hunt::{cases, expect_exact, expect_failure, hunt, runtime};
use super::{Checked, Crashes};
use crate::support::database_on;

/// The environment of a case.
pub struct Given<'s, S> {
    pub server: &'s RedisServer,
    pub crashes: Crashes,
    /// The name of the family, which is unique.
    pub name: String,
    pub database: Database<'s, S>,
}

/// A kind of counter, in cases of random steps.
pub trait Kind {
    type Step: Debug;

    fn step(crashes: Crashes) -> impl Strategy<Value = Self::Step>;

    async fn play<S: Store + Clone>(given: Given<'_, S>, steps: Vec<Self::Step>) -> Checked;
}

/// Expects that no case fails.
pub fn exact<K: Kind>(crashes: Crashes, default: u32) {
    expect_exact(hunt_in::<K, _>(
        &runtime(),
        &Database::new(MemoryStore::new()),
        (crashes, cases(default), None),
    ));
}

/// Expects that no case fails with a MySQL that is killed in one of so many batches with a lost
/// reply.
pub fn exact_in_the_real_database<K: Kind>(one_in: u64, default: u32) {
    let runtime = runtime();
    let mysql = runtime.block_on(Mortal::one_in(one_in));
    let database = runtime.block_on(Database::mortal(&mysql));
    for crashes in [Crashes::None, Crashes::BackToTheLastFsync, Crashes::Empty] {
        expect_exact(hunt_in::<K, _>(
            &runtime,
            &database,
            (crashes, cases(default) / 3 + 1, None),
        ));
    }
}

/// Removes the guard and expects the failure that it prevents.
pub fn breaks<K: Kind>(guard: Guard, crashes: Crashes, expected: &[&str]) {
    breaks_in::<K, _>(
        &runtime(),
        &Database::new(MemoryStore::new()),
        (guard, crashes),
        expected,
    );
}

/// Removes a guard of the database and expects the failure that it prevents.
pub fn breaks_in_the_real_database<K: Kind>(guard: Guard, expected: &[&str]) {
    let runtime = runtime();
    let server = runtime.block_on(MysqlServer::start());
    let pool = runtime.block_on(database_on(&server));
    breaks_in::<K, _>(
        &runtime,
        &Database::new(MysqlStore::new(pool)),
        (guard, Crashes::None),
        expected,
    );
}

fn breaks_in<K: Kind, S: Store + Clone>(
    runtime: &Runtime,
    database: &Database<'_, S>,
    (guard, crashes): (Guard, Crashes),
    expected: &[&str],
) {
    expect_failure(
        hunt_in::<K, _>(runtime, database, (crashes, 2000, Some(guard))),
        guard,
        expected,
    );
}

fn hunt_in<K: Kind, S: Store + Clone>(
    runtime: &Runtime,
    database: &Database<'_, S>,
    (crashes, cases, guard): (Crashes, u32, Option<Guard>),
) -> Result<(), TestError<Vec<K::Step>>> {
    let steps = proptest::collection::vec(K::step(crashes), 10..70);
    hunt(
        runtime,
        (crashes, cases, guard),
        steps,
        |server, name, steps| {
            runtime.block_on(K::play(
                Given {
                    server,
                    crashes,
                    name,
                    database: database.clone(),
                },
                steps,
            ))
        },
    )
}
