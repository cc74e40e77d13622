//! Random runs, which a seed replays.

use proptest::test_runner::{Config, RngSeed};
use testkit::seed;

use crate::support::*;

/// Returns random numbers from a seed that is printed.
pub fn numbers() -> StdRng {
    StdRng::seed_from_u64(seed())
}

/// Returns `COUNTERFOIL_CASES`, or the default number of cases to try.
pub fn cases(default: u32) -> u32 {
    match std::env::var("COUNTERFOIL_CASES") {
        Ok(cases) => cases.parse().expect("COUNTERFOIL_CASES is a number"),
        Err(_) => default,
    }
}

/// Returns proptest's settings for this number of cases from a seed that is printed.
pub fn config(cases: u32) -> Config {
    Config {
        cases,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(seed()),
        ..Config::default()
    }
}
