//! Random runs that a seed replays.

use proptest::test_runner::{Config, RngSeed};
use rand::SeedableRng;
use rand::rngs::StdRng;

/// Returns `COUNTERFOIL_SEED`, by default a new seed, and prints it: a failed test shows it.
pub fn seed() -> u64 {
    let seed = match std::env::var("COUNTERFOIL_SEED") {
        Ok(seed) => seed.parse().expect("COUNTERFOIL_SEED is a number"),
        Err(_) => rand::random(),
    };
    println!("COUNTERFOIL_SEED={seed} replays this run");
    seed
}

/// Returns random numbers from [`seed`].
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

/// Returns proptest's settings for this number of cases, which begin at [`seed`].
pub fn config(cases: u32) -> Config {
    Config {
        cases,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(seed()),
        ..Config::default()
    }
}
