//! The hunt for an order of steps that breaks an invariant.

use std::cell::RefCell;
use std::rc::Rc;

use proptest::test_runner::{Config, RngAlgorithm, TestRng};

use super::*;
use crate::support::*;

pub use crate::support::random::cases;

/// A case under way.
pub trait Case {
    type Step;

    async fn step(&mut self, step: Self::Step) -> Checked;

    /// Checks what must be true after every step.
    async fn check(&self) -> Checked;

    /// Ends everything in progress. Nothing may be left of it.
    async fn finish(&mut self) -> Checked;

    async fn play(&mut self, steps: impl IntoIterator<Item = Self::Step>) -> Checked {
        for step in steps {
            self.step(step).await?;
            self.check().await?;
        }
        self.finish().await
    }
}

/// The number of the program's next case, so that no two cases share a family.
static CASE: AtomicUsize = AtomicUsize::new(0);

/// Runs random cases, with or without a guard. Each case gets a Redis and a unique name.
pub fn hunt<T: Debug>(
    servers: &Runtime,
    (crashes, cases, guard): (Crashes, u32, Option<Guard>),
    steps: impl Strategy<Value = T>,
    run: impl Fn(&RedisServer, String, T) -> Checked,
) -> Result<(), TestError<T>> {
    take_out(guard);
    let start = || Rc::new(servers.block_on(RedisServer::start(crashes.options())));
    let server = RefCell::new(start());
    // an expected failure is not shrunk
    let max_shrink_iters = if guard.is_some() { 0 } else { 500 };
    let config = Config {
        max_shrink_iters,
        ..random::config(cases)
    };
    // a removed guard must lead to a failure in every run of the test, so its random numbers are
    // always the same
    let mut runner = match guard {
        Some(guard) => TestRunner::new_with_rng(config, early_without(guard)),
        None => TestRunner::new(config),
    };
    let case = AtomicUsize::new(0);
    let outcome = runner.run(&steps, |steps| {
        // all cases append to one file, which a restart after a crash loads. Now and then a new
        // server takes over, so that restarts stay fast
        if case.fetch_add(1, Ordering::Relaxed) % 200 == 199 {
            server.replace(start());
        }
        let server = server.borrow().clone();
        run(
            &server,
            format!("case-{}", CASE.fetch_add(1, Ordering::Relaxed)),
            steps,
        )
    });
    take_out(None);
    println!(
        "{} cases, {crashes:?}, without {guard:?}",
        case.load(Ordering::Relaxed)
    );
    outcome
}

/// Returns random numbers that soon lead to a case that fails without the guard. With other numbers
/// a case fails as well, but later.
fn early_without(guard: Guard) -> TestRng {
    let seed = match guard {
        Guard::Settle | Guard::EndOfEpochs => 11,
        Guard::Ticket => 6,
        Guard::Unchanged => 3,
        Guard::Comparison => 1,
        _ => 10,
    };
    TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32])
}

/// Expects that no case failed.
pub fn expect_exact<T: Debug>(outcome: Result<(), TestError<T>>) {
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

/// Expects the failure that the guard prevents.
pub fn expect_failure<T: Debug>(
    outcome: Result<(), TestError<T>>,
    guard: Guard,
    expected: &[&str],
) {
    match outcome {
        Err(TestError::Fail(reason, steps)) => {
            let reason = reason.to_string();
            assert!(
                expected.iter().any(|word| reason.contains(word)),
                "{reason}"
            );
            println!("without {guard:?}: {reason}, after {steps:?}");
        }
        other => panic!("without {guard:?} nothing failed: {other:?}"),
    }
}
