use counterfoil_model::fence::{Fence, Mistake};

use crate::{breaks, passes};

#[test]
fn a_redis_that_returns_to_its_last_fsync() {
    passes(Fence {
        calls: vec![2],
        epochs: 2,
        ..Fence::new(false)
    });
}

#[test]
fn a_redis_that_is_emptied() {
    passes(Fence::new(true));
    passes(Fence {
        calls: vec![2],
        epochs: 2,
        ..Fence::new(true)
    });
}

#[test]
fn copies_of_a_machine_need_different_numbers() {
    for emptied in [false, true] {
        let copies = Fence {
            copies: true,
            ..Fence::new(emptied)
        };
        passes(copies.clone());
        breaks(
            Fence {
                mistake: Some(Mistake::EqualNumbers),
                ..copies
            },
            "an acknowledged call was counted",
        );
    }
}

#[test]
fn the_memory_is_needed() {
    breaks(
        Fence {
            mistake: Some(Mistake::RememberNothing),
            ..Fence::new(false)
        },
        "no call is counted twice",
    );
}

#[test]
fn the_memory_of_the_previous_epoch_is_needed() {
    breaks(
        Fence {
            mistake: Some(Mistake::ForgetPreviousEpoch),
            ..Fence::new(false)
        },
        "no call is counted twice",
    );
}

#[test]
fn a_call_of_an_ended_epoch_does_not_execute() {
    let mistake = Some(Mistake::AcceptAnyEpoch);
    breaks(
        Fence {
            mistake,
            epochs: 2,
            ..Fence::new(false)
        },
        "no call is counted twice",
    );
}

#[test]
fn the_name_of_an_epoch_does_not_come_from_a_caller() {
    let mistake = Some(Mistake::EpochFromCaller);
    breaks(
        Fence {
            mistake,
            epochs: 2,
            ..Fence::new(false)
        },
        "no call is counted twice",
    );
    breaks(
        Fence {
            mistake,
            ..Fence::new(true)
        },
        "no call is counted twice",
    );
}

#[test]
fn an_emptied_redis_needs_a_new_name() {
    breaks(
        Fence {
            mistake: Some(Mistake::SameNameWhenEmptied),
            ..Fence::new(true)
        },
        "no call is counted twice",
    );
}

#[test]
fn an_expired_call_may_not_have_been_counted() {
    let mistake = Some(Mistake::ExpiredIsSuccess);
    breaks(
        Fence {
            mistake,
            ..Fence::new(false)
        },
        "an acknowledged call was counted",
    );
}

#[test]
fn a_caller_has_one_call_in_flight() {
    let mistake = Some(Mistake::TwoCallsInFlight);
    breaks(
        Fence {
            mistake,
            ..Fence::new(false)
        },
        "no caller waits for a call that is refused as late",
    );
}
