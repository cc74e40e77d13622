use counterfoil_model::Crash;
use counterfoil_model::cached::{Cached, Mistake};

use crate::{breaks, passes};

fn last_fsync() -> Cached {
    Cached::new(Crash::ToLastFsync)
}

fn set_back() -> Cached {
    Cached::new(Crash::SetBack)
}

#[test]
fn a_redis_that_returns_to_its_last_fsync() {
    passes(Cached {
        workers: 2,
        ..last_fsync()
    });
    passes(Cached {
        outside_writer: true,
        ..last_fsync()
    });
}

#[test]
fn a_redis_that_is_emptied() {
    passes(Cached {
        workers: 2,
        ..Cached::new(Crash::Emptied)
    });
    passes(Cached {
        outside_writer: true,
        ..Cached::new(Crash::Emptied)
    });
}

#[test]
fn a_redis_that_is_set_back() {
    passes(Cached {
        workers: 2,
        ..set_back()
    });
    passes(Cached {
        outside_writer: true,
        ..set_back()
    });
}

#[test]
fn a_ticket_that_ends_before_its_seed() {
    passes(Cached {
        expiries: 1,
        ..last_fsync()
    });
}

/// A stock that is sold out until another application refills it.
fn sold_out(crash: Crash) -> Cached {
    Cached {
        outside_writer: true,
        sold_out: true,
        ..Cached::new(crash)
    }
}

#[test]
fn a_counter_that_is_sold_out_and_refilled() {
    passes(sold_out(Crash::ToLastFsync));
    passes(sold_out(Crash::Emptied));
    passes(sold_out(Crash::SetBack));
}

#[test]
fn a_refusal_is_not_based_on_an_old_row() {
    breaks(
        Cached {
            mistake: Some(Mistake::RefuseFromOldRow),
            ..sold_out(Crash::ToLastFsync)
        },
        "a refusal is not based on an old row",
    );
}

#[test]
fn a_row_is_read_again_only_while_nothing_is_pending() {
    breaks(
        Cached {
            mistake: Some(Mistake::ReadAgainWhilePending),
            hits: 3,
            ..sold_out(Crash::ToLastFsync)
        },
        "a value contains no hit twice",
    );
}

fn two_counters(crash: Crash) -> Cached {
    Cached {
        counters: 2,
        hits: 3,
        clients: 1,
        expiries: 1,
        workers: 2,
        ..Cached::new(crash)
    }
}

#[test]
fn a_batch_of_two_counters_is_saved_in_parts() {
    passes(two_counters(Crash::ToLastFsync));
    passes(two_counters(Crash::Emptied));
    passes(Cached {
        workers: 1,
        ..two_counters(Crash::SetBack)
    });
    passes(Cached {
        outside_writer: true,
        crashes: 0,
        ..two_counters(Crash::ToLastFsync)
    });
}

#[test]
fn a_counter_that_left_the_batch_is_not_marked_again() {
    breaks(
        Cached {
            mistake: Some(Mistake::MarkTwice),
            outside_writer: true,
            ..two_counters(Crash::ToLastFsync)
        },
        "a save does not bring back an older row",
    );
}

#[test]
fn a_seed_needs_the_ticket_that_it_was_read_for() {
    let mistake = Some(Mistake::AcceptAnyTicket);
    breaks(
        Cached {
            mistake,
            ..last_fsync()
        },
        "a value contains every hit acknowledged before it",
    );
}

#[test]
fn a_counter_is_deleted_only_while_nothing_is_pending() {
    breaks(
        Cached {
            mistake: Some(Mistake::DeletePending),
            ..last_fsync()
        },
        "a value contains no hit twice",
    );
}

#[test]
fn a_save_needs_the_row_as_read_back() {
    let mistake = Some(Mistake::SaveWithoutReadingBack);
    let property = "a save brings the value up to date with the row";
    breaks(
        Cached {
            mistake,
            outside_writer: true,
            ..last_fsync()
        },
        property,
    );
    // It breaks without an outside writer, too. A worker adds its batch to the row after a crash
    // has emptied Redis and a client has seeded the counter again. The new base lacks that batch,
    // and a save must read it.
    breaks(
        Cached {
            mistake,
            ..Cached::new(Crash::Emptied)
        },
        property,
    );
}

#[test]
fn a_save_is_of_the_current_batch() {
    let mistake = Some(Mistake::SaveAnyBatch);
    breaks(
        Cached {
            mistake,
            workers: 2,
            ..last_fsync()
        },
        "no acknowledged hit is lost without a report",
    );
}

#[test]
fn a_partition_that_begins_anew_drops_bases_and_tickets() {
    let mistake = Some(Mistake::KeepEntryWhenBeginningAnew);
    breaks(
        Cached {
            mistake,
            ..set_back()
        },
        "a value contains every hit acknowledged before it",
    );
}

#[test]
fn a_batch_is_fetched_once_its_rotation_is_durable() {
    let mistake = Some(Mistake::FetchBeforeDurable);
    breaks(
        Cached {
            mistake,
            ..last_fsync()
        },
        "Redis is never behind the ledger, unless it was set back",
    );
}

#[test]
fn the_ledger_is_needed() {
    breaks(
        Cached {
            mistake: Some(Mistake::IgnoreLedger),
            ..last_fsync()
        },
        "no hit is stored twice",
    );
}
