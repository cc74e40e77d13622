use counterfoil_model::Crash;
use counterfoil_model::deltas::{Deltas, Incarnation, Mistake};

use crate::{breaks, passes};

fn last_fsync() -> Deltas {
    Deltas::new(Crash::ToLastFsync)
}

fn set_back() -> Deltas {
    Deltas::new(Crash::SetBack)
}

#[test]
fn a_redis_that_returns_to_its_last_fsync() {
    passes(last_fsync());
    passes(Deltas {
        repeats: true,
        ..last_fsync()
    });
    passes(Deltas {
        workers: 2,
        ..last_fsync()
    });
}

#[test]
fn a_redis_that_is_emptied() {
    passes(Deltas::new(Crash::Emptied));
    passes(Deltas {
        repeats: true,
        ..Deltas::new(Crash::Emptied)
    });
    passes(Deltas {
        workers: 2,
        ..Deltas::new(Crash::Emptied)
    });
}

#[test]
fn a_redis_that_is_set_back() {
    passes(set_back());
    passes(Deltas {
        repeats: true,
        reader: false,
        parts: false,
        ..set_back()
    });
    passes(Deltas {
        workers: 2,
        reader: false,
        ..set_back()
    });
}

#[test]
fn a_database_that_is_set_back() {
    for crash in [Crash::ToLastFsync, Crash::SetBack] {
        passes(Deltas {
            replica: true,
            failovers: 1,
            reader: crash == Crash::ToLastFsync,
            ..Deltas::new(crash)
        });
    }
}

/// The first hit may bring the incarnation if Redis is never set back.
#[test]
fn an_unconfigured_partition() {
    let model = Deltas {
        incarnation: Incarnation::FirstHit,
        repeats: true,
        ..last_fsync()
    };
    passes(model.clone());
    passes(Deltas {
        crash: Crash::Emptied,
        ..model
    });
}

#[test]
fn a_batch_is_fetched_once_its_rotation_is_durable() {
    let mistake = Some(Mistake::FetchBeforeDurable);
    breaks(
        Deltas {
            mistake,
            ..last_fsync()
        },
        "Redis is never behind the ledger, unless it was set back",
    );
}

#[test]
fn the_ledger_is_needed() {
    breaks(
        Deltas {
            mistake: Some(Mistake::IgnoreLedger),
            ..last_fsync()
        },
        "no hit is stored twice",
    );
}

#[test]
fn the_nonce_is_needed() {
    let mistake = Some(Mistake::IgnoreNonce);
    breaks(
        Deltas {
            mistake,
            ..set_back()
        },
        "no acknowledged hit is lost without a report",
    );
}

#[test]
fn the_position_is_needed() {
    breaks(
        Deltas {
            mistake: Some(Mistake::IgnorePosition),
            ..last_fsync()
        },
        "no hit is stored twice",
    );
}

#[test]
fn a_batch_is_released_once_it_is_complete() {
    let mistake = Some(Mistake::ReleaseBeforeComplete);
    breaks(
        Deltas {
            mistake,
            ..last_fsync()
        },
        "no acknowledged hit is lost without a report",
    );
}

#[test]
fn a_release_compares_the_nonce() {
    let mistake = Some(Mistake::ReleaseWithoutNonce);
    breaks(
        Deltas {
            mistake,
            workers: 2,
            ..set_back()
        },
        "no acknowledged hit is lost without a report",
    );
}

#[test]
fn the_incarnation_exists_before_the_first_hit() {
    let model = Deltas {
        incarnation: Incarnation::FirstHit,
        repeats: true,
        reader: false,
        ..set_back()
    };
    breaks(model, "no hit is stored twice");
}

#[test]
fn the_incarnation_exists_before_the_first_cut() {
    let model = Deltas {
        incarnation: Incarnation::FirstCut,
        reader: false,
        ..set_back()
    };
    breaks(model, "no hit is stored twice");
}

#[test]
fn a_partition_begins_anew_only_as_the_proof_saw_it() {
    let mistake = Some(Mistake::BeginAnewUnconditionally);
    breaks(
        Deltas {
            mistake,
            ..set_back()
        },
        "nothing is dropped without proof that Redis was set back",
    );
}

#[test]
fn a_partition_that_begins_anew_ends_its_epoch() {
    let model = Deltas {
        mistake: Some(Mistake::KeepEpoch),
        repeats: true,
        reader: false,
        ..set_back()
    };
    breaks(model, "no hit is stored twice");
}

#[test]
fn the_ledger_is_completed_once_the_batch_was_released() {
    let mistake = Some(Mistake::CompleteInFlight);
    breaks(
        Deltas {
            mistake,
            ..last_fsync()
        },
        "only a database that was set back is reported",
    );
}

#[test]
fn a_worker_that_finds_the_ledger_behind_the_batch_before_its_own_reports_it() {
    breaks(
        Deltas {
            replica: true,
            failovers: 1,
            reader: false,
            mistake: Some(Mistake::ApplyWithoutReport),
            ..last_fsync()
        },
        "a database that lost a batch is always reported",
    );
}

#[test]
fn a_reader_compares_the_position() {
    let model = Deltas {
        mistake: Some(Mistake::ReadPartAsWhole),
        ..last_fsync()
    };
    breaks(
        model,
        "a value read contains every hit acknowledged before it",
    );
    let model = Deltas {
        mistake: Some(Mistake::ReadPartAsNothing),
        ..last_fsync()
    };
    breaks(model, "a value read contains no hit twice");
}

#[test]
fn a_reader_starts_again_when_a_newer_batch_landed() {
    let mistake = Some(Mistake::ReadPastNewerBatch);
    breaks(
        Deltas {
            mistake,
            ..last_fsync()
        },
        "a value read contains no hit twice",
    );
}

#[test]
fn a_reader_compares_the_nonce() {
    let mistake = Some(Mistake::ReadWithoutNonce);
    breaks(
        Deltas {
            mistake,
            ..set_back()
        },
        "a value read contains every hit acknowledged before it",
    );
    // If calls are repeated, it breaks even with crashes to the last fsync.
    let model = Deltas {
        mistake,
        repeats: true,
        ..last_fsync()
    };
    breaks(
        model,
        "a value read contains every hit acknowledged before it",
    );
}

#[test]
fn a_reader_that_asks_the_database_first() {
    for crash in [Crash::ToLastFsync, Crash::Emptied, Crash::SetBack] {
        passes(Deltas {
            database_first: true,
            ..Deltas::new(crash)
        });
    }
    breaks(
        Deltas {
            database_first: true,
            mistake: Some(Mistake::ReadAcrossCrash),
            ..set_back()
        },
        "a value read contains every hit acknowledged before it",
    );
}

#[test]
fn a_reader_of_a_replica() {
    for crash in [Crash::ToLastFsync, Crash::Emptied] {
        passes(Deltas {
            replica: true,
            ..Deltas::new(crash)
        });
    }
}

/// This is a known limit, see docs/protocol.md, section 3.7.
#[test]
fn a_replica_that_lags_does_not_show_that_redis_was_set_back() {
    breaks(
        Deltas {
            replica: true,
            ..set_back()
        },
        "a value read contains every hit acknowledged before it",
    );
}

#[test]
fn a_replica_is_asked_once_a_batch_was_released() {
    breaks(
        Deltas {
            replica: true,
            mistake: Some(Mistake::ReadReplicaBeforeRelease),
            ..Deltas::new(Crash::Emptied)
        },
        "a value read contains every hit acknowledged before it",
    );
}

#[test]
fn a_replica_that_is_behind_is_noticed() {
    breaks(
        Deltas {
            replica: true,
            mistake: Some(Mistake::ReadReplicaBehind),
            ..last_fsync()
        },
        "a value read contains every hit acknowledged before it",
    );
}

#[test]
fn a_reader_checks_an_incarnation_without_a_ledger_row_again() {
    let mistake = Some(Mistake::ReadWithoutRecheck);
    let model = Deltas {
        mistake,
        incarnation: Incarnation::FirstHit,
        repeats: true,
        ..last_fsync()
    };
    breaks(model, "a value read contains no hit twice");
}
