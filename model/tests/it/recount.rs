use counterfoil_model::recount::{AddedMistake, AddedRows, DeletedMistake, DeletedRows};

use crate::{breaks, passes};

const TOO_HIGH: &str = "a counter never exceeds its rows by more than what was counted twice";
const TOO_LOW_BY_ADDED: &str =
    "a counter never lacks more than the rows whose count never comes, and what was discarded";
const TOO_HIGH_BY_DELETED: &str =
    "a counter never exceeds its rows by more than the deletes whose count never comes";

fn added(mistake: AddedMistake) -> AddedRows {
    AddedRows {
        mistake: Some(mistake),
        ..AddedRows::new()
    }
}

fn deleted(mistake: DeletedMistake) -> DeletedRows {
    DeletedRows {
        mistake: Some(mistake),
        ..DeletedRows::new()
    }
}

#[test]
fn rows_that_are_only_added() {
    passes(AddedRows::new());
}

#[test]
fn rows_that_are_also_deleted() {
    passes(DeletedRows::new());
}

#[test]
fn the_wait_is_needed() {
    breaks(added(AddedMistake::NoWait), TOO_HIGH);
    breaks(deleted(DeletedMistake::NoWait), TOO_HIGH_BY_DELETED);
}

#[test]
fn rows_on_a_replica() {
    passes(AddedRows {
        replica: true,
        ..AddedRows::new()
    });
    passes(DeletedRows {
        replica: true,
        ..DeletedRows::new()
    });
}

#[test]
fn rows_that_a_replica_lacked_are_counted_again() {
    let once = AddedRows {
        replica: true,
        ..added(AddedMistake::CountOnce)
    };
    breaks(once, TOO_LOW_BY_ADDED);
}

#[test]
fn values_are_read_where_the_corrections_are() {
    breaks(added(AddedMistake::ReadReplica), TOO_HIGH);
}

#[test]
fn a_replica_is_waited_for_where_rows_are_deleted() {
    let at_once = DeletedRows {
        replica: true,
        ..deleted(DeletedMistake::NoWaitForReplica)
    };
    breaks(at_once, TOO_HIGH_BY_DELETED);
}

#[test]
fn the_fence_of_the_run_is_needed() {
    breaks(added(AddedMistake::NoFence), TOO_HIGH);
}

#[test]
fn a_correction_adds_a_delta() {
    breaks(added(AddedMistake::WriteValue), TOO_LOW_BY_ADDED);
}

#[test]
fn two_reads_bound_what_is_missing() {
    breaks(added(AddedMistake::OneDifference), TOO_HIGH);
}

#[test]
fn equal_values_prove_nothing_where_rows_are_deleted() {
    breaks(deleted(DeletedMistake::CompareValues), TOO_HIGH_BY_DELETED);
}

#[test]
fn a_cut_hides_a_movement() {
    breaks(deleted(DeletedMistake::IgnoreCuts), TOO_HIGH_BY_DELETED);
}

#[test]
fn a_field_in_the_buffer_is_a_movement() {
    breaks(deleted(DeletedMistake::IgnoreBuffer), TOO_HIGH_BY_DELETED);
}

/// Returns a model in which the database refuses a hit.
fn refused(mistake: Option<AddedMistake>) -> AddedRows {
    AddedRows {
        refusals: 1,
        deaths: 0,
        runs: 1,
        mistake,
        ..AddedRows::new()
    }
}

#[test]
fn rows_whose_hits_are_refused() {
    passes(refused(None));
}

#[test]
fn a_counter_with_rejects_is_left_out() {
    breaks(refused(Some(AddedMistake::IgnoreRejects)), TOO_HIGH);
}

#[test]
fn rejects_that_are_taken_are_noted_in_the_run() {
    breaks(refused(Some(AddedMistake::NoteNothing)), TOO_HIGH);
}
