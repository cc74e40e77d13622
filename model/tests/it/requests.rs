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

#[test]
fn of_buffered_counters() {
    for since in [false, true] {
        passes(Requests {
            since,
            ..Requests::new(false)
        });
    }
    for emptied in [false, true] {
        passes(Requests {
            emptied,
            crashes: 1,
            ..small(false)
        });
    }
}

#[test]
fn of_cached_counters() {
    for since in [false, true] {
        passes(Requests {
            since,
            sends_once: true,
            ..small(true)
        });
    }
    passes(Requests {
        deletions: 0,
        ..small(true)
    });
    passes(Requests {
        epochs: 1,
        deletions: 0,
        sends_once: true,
        crashes: 1,
        ..small(true)
    });
}

#[test]
fn the_memory_of_two_epochs_is_needed() {
    breaks(
        Requests {
            mistake: Some(Mistake::NameCurrentEpoch),
            ..small(false)
        },
        ONCE,
    );
}

#[test]
fn an_attempt_ends_with_the_epochs_that_it_began_in() {
    for cached in [false, true] {
        breaks(
            Requests {
                since: false,
                mistake: Some(Mistake::OutliveEpochs),
                ..small(cached)
            },
            ONCE,
        );
    }
}

#[test]
fn the_epoch_that_the_application_stored_is_needed() {
    breaks(
        Requests {
            mistake: Some(Mistake::IgnoreSince),
            ..Requests::new(false)
        },
        ONCE,
    );
}

#[test]
fn a_call_is_executed_only_after_its_predecessor() {
    breaks(
        Requests {
            crashes: 1,
            epochs: 0,
            mistake: Some(Mistake::AcceptGaps),
            ..small(true)
        },
        ONCE,
    );
}

#[test]
fn a_request_that_begins_again_may_have_counted() {
    breaks(
        Requests {
            since: false,
            mistake: Some(Mistake::ForgetDoubt),
            ..small(true)
        },
        "no attempt counts that was reported as not counted",
    );
}

#[test]
fn an_expired_call_may_have_been_counted() {
    breaks(
        Requests {
            mistake: Some(Mistake::ExpiredIsProof),
            ..small(false)
        },
        "no attempt counts that was reported as not counted",
    );
}
