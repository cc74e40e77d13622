use counterfoil_model::Crash;
use counterfoil_model::requests::{Mistake, Requests};

use crate::{breaks, passes};

const ONCE: &str = "a request counts once";

/// Returns a smaller model, in which each of the two processes makes the request once.
fn small(cached: bool) -> Requests {
    Requests {
        attempts: vec![1, 1],
        ..Requests::new(cached)
    }
}

/// Returns a small model in which Redis crashes.
fn crashing(crash: Crash) -> Requests {
    Requests {
        crash,
        crashes: 1,
        generations: 1,
        ..small(false)
    }
}

#[test]
fn of_buffered_counters() {
    for since in [false, true] {
        passes(Requests {
            since,
            ..Requests::new(false)
        });
    }
}

#[test]
fn of_cached_counters() {
    for since in [false, true] {
        for refused in [false, true] {
            passes(Requests {
                since,
                refused,
                sends_once: true,
                ..small(true)
            });
        }
    }
    passes(small(true));
}

#[test]
fn with_a_crash_of_redis() {
    for crash in [Crash::ToLastFsync, Crash::Emptied, Crash::SetBack] {
        for since in [false, true] {
            passes(Requests {
                since,
                batches: 2,
                ..crashing(crash)
            });
        }
    }
    for crash in [Crash::ToLastFsync, Crash::Emptied] {
        passes(Requests {
            cached: true,
            refused: true,
            sends_once: true,
            ..crashing(crash)
        });
    }
}

#[test]
fn a_call_without_a_generation_counts_again() {
    for since in [false, true] {
        breaks(
            Requests {
                since,
                mistake: Some(Mistake::NoGeneration),
                ..small(false)
            },
            ONCE,
        );
    }
}

#[test]
fn the_memory_of_two_generations_is_needed() {
    for since in [false, true] {
        breaks(
            Requests {
                since,
                mistake: Some(Mistake::OneMemory),
                ..small(false)
            },
            ONCE,
        );
    }
}

#[test]
fn the_generation_that_the_application_stored_is_needed() {
    breaks(
        Requests {
            mistake: Some(Mistake::IgnoreSince),
            ..Requests::new(false)
        },
        ONCE,
    );
}

#[test]
fn an_expired_call_may_have_been_counted() {
    for since in [false, true] {
        breaks(
            Requests {
                since,
                mistake: Some(Mistake::ExpiredIsProof),
                ..small(false)
            },
            "no attempt counts that was reported as not counted",
        );
    }
}

#[test]
fn redis_makes_the_names_of_generations() {
    breaks(
        Requests {
            mistake: Some(Mistake::NamesOfCallers),
            ..crashing(Crash::Emptied)
        },
        ONCE,
    );
}

#[test]
fn a_reset_ends_the_generations() {
    breaks(
        Requests {
            batches: 2,
            mistake: Some(Mistake::ResetKeepsNames),
            ..crashing(Crash::SetBack)
        },
        ONCE,
    );
}

#[test]
fn a_reset_makes_decisions_unknown() {
    breaks(
        Requests {
            since: false,
            batches: 2,
            mistake: Some(Mistake::ResetKeepsDecisions),
            ..crashing(Crash::SetBack)
        },
        "no reply invents a hit",
    );
}

#[test]
fn a_refusal_is_a_decision() {
    breaks(
        Requests {
            refused: true,
            mistake: Some(Mistake::RefusalNotStored),
            ..small(true)
        },
        "a request is decided once",
    );
}

#[test]
fn a_miss_is_no_decision() {
    breaks(
        Requests {
            mistake: Some(Mistake::MissStored),
            ..small(true)
        },
        "a missed request is executed after its seed",
    );
}
