//! The rule for rows that are also deleted: a correction needs proof that the counter did not move.
//!
//! Values prove nothing here, because +1 and -1 cancel. A counter moved between two reads if its
//! partition was cut in between, or if its id is in the buffer at the second read: a field
//! disappears from the buffer only with a cut.

use stateright::{Model, Property};

use crate::terms::Hits;

/// The model of one counter whose rows are inserted and deleted, and of one recounter.
#[derive(Clone, Debug)]
pub struct DeletedRows {
    /// The number of rows that are inserted or deleted. One row exists before.
    pub events: u8,
    /// The maximum number of events whose count never comes.
    pub uncounted: u8,
    /// The maximum number of times that the partition is cut.
    pub cuts: u8,
    /// The number of times that the recounter measures.
    pub rounds: u8,
    /// The rows are counted on a replica that lags.
    pub replica: bool,
    /// The guard that is left out.
    pub mistake: Option<Mistake>,
}

/// A guard of the protocol that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// The recounter assumes that a counter with the same value and the same number of rows did not
    /// move.
    CompareValues,
    /// The recounter does not check that the partition was not cut.
    IgnoreCuts,
    /// The recounter does not check that the id is absent from the buffer.
    IgnoreBuffer,
    /// The recounter does not wait for the counts of the rows that it saw.
    NoWait,
    /// The recounter does not wait for the replica before it counts the rows.
    NoWaitForReplica,
}

/// The source rows, the counter, and the recounter.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    rows: u8,
    /// The exact value: row, batch and buffer.
    value: i8,
    /// The buffer has a field for the counter, be it 0.
    in_buffer: bool,
    /// The number of the partition's last cut.
    cut: u8,
    events: u8,
    /// The number of events that the replica has. If it lags, these are the oldest.
    replicated: u8,
    /// The rows on the replica.
    shown: u8,
    /// The inserts that the replica lacks.
    behind: Hits,
    /// The inserted and the deleted rows that are not counted yet and will be.
    inserts: Hits,
    deletes: Hits,
    uncounted_inserts: u8,
    uncounted_deletes: u8,
    rounds: u8,
    recounter: Recounter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Recounter {
    Idle,
    /// Has read the counter for the first time.
    Started {
        value: i8,
        cut: u8,
        /// The number of events up to this read.
        events: u8,
    },
    /// Has counted the rows, and waits until the application has counted the events that it had not
    /// counted at that moment.
    Waiting {
        value: i8,
        cut: u8,
        rows: u8,
        due: Hits,
    },
    /// Has proof that the counter did not move.
    Quiet {
        delta: i8,
    },
    /// Has seen the counter move, or cannot tell.
    Busy,
}

/// A step of the application, of a worker or of the recounter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The application inserts a row.
    Insert,
    /// The application deletes a row.
    Delete,
    /// The replica receives the next event.
    Replicate,
    /// The application counts an event.
    Count(u8),
    /// The application dies before it counts an event.
    NeverCount(u8),
    /// A worker cuts the partition.
    Cut,
    /// The recounter reads the counter.
    ReadCounter,
    /// The recounter counts the rows.
    CountRows,
    /// The recounter has waited and reads the counter again.
    ReadCounterAgain,
    /// The recounter corrects the counter.
    Correct,
    /// The recounter leaves the counter for later.
    Leave,
}

impl DeletedRows {
    /// Returns a small model: three events, one of them never counted, two cuts, two rounds, and no
    /// replica.
    pub fn new() -> Self {
        Self {
            events: 3,
            uncounted: 1,
            cuts: 2,
            rounds: 2,
            replica: false,
            mistake: None,
        }
    }

    fn makes(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }
}

impl Default for DeletedRows {
    fn default() -> Self {
        Self::new()
    }
}

impl State {
    fn coming(&self) -> Hits {
        self.inserts.union(self.deletes)
    }

    /// Returns the number of rows according to the events that were counted or never will be.
    fn settled(&self) -> i8 {
        self.rows as i8 - self.inserts.iter().count() as i8 + self.deletes.iter().count() as i8
    }

    /// Removes an event from the coming ones and returns whether it is an insert.
    fn settle(&mut self, event: u8) -> bool {
        let is_insert = self.inserts.contains(event);
        self.inserts = self.inserts.without(Hits::one(event));
        self.deletes = self.deletes.without(Hits::one(event));
        is_insert
    }
}

impl Model for DeletedRows {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            rows: 1,
            value: 1,
            in_buffer: false,
            cut: 0,
            events: 0,
            replicated: 0,
            shown: 1,
            behind: Hits::default(),
            inserts: Hits::default(),
            deletes: Hits::default(),
            uncounted_inserts: 0,
            uncounted_deletes: 0,
            rounds: 0,
            recounter: Recounter::Idle,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.events < self.events {
            steps.push(Step::Insert);
            if state.rows > 0 {
                steps.push(Step::Delete);
            }
        }
        if state.replicated < state.events {
            steps.push(Step::Replicate);
        }
        for event in state.coming().iter() {
            steps.push(Step::Count(event));
            if state.uncounted_inserts + state.uncounted_deletes < self.uncounted {
                steps.push(Step::NeverCount(event));
            }
        }
        if state.cut < self.cuts {
            steps.push(Step::Cut);
        }
        match state.recounter {
            Recounter::Idle if state.rounds < self.rounds => steps.push(Step::ReadCounter),
            Recounter::Idle => {}
            // This wait is longer than the replica's lag.
            Recounter::Started { events, .. } => {
                if state.replicated >= events || self.makes(Mistake::NoWaitForReplica) {
                    steps.push(Step::CountRows);
                }
            }
            // The wait is longer than the application takes from a row to its count.
            Recounter::Waiting { due, .. } => {
                if due.without(state.coming()) == due || self.makes(Mistake::NoWait) {
                    steps.push(Step::ReadCounterAgain);
                }
            }
            Recounter::Quiet { .. } => steps.push(Step::Correct),
            Recounter::Busy => steps.push(Step::Leave),
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        match step {
            Step::Insert => {
                state.inserts = state.inserts + Hits::one(state.events);
                if self.replica {
                    state.behind = state.behind + Hits::one(state.events);
                }
                state.events += 1;
                state.rows += 1;
            }
            Step::Delete => {
                state.deletes = state.deletes + Hits::one(state.events);
                state.events += 1;
                state.rows -= 1;
            }
            Step::Replicate => {
                match state.behind.contains(state.replicated) {
                    true => state.shown += 1,
                    false => state.shown -= 1,
                }
                state.behind = state.behind.without(Hits::one(state.replicated));
                state.replicated += 1;
            }
            Step::Count(event) => {
                state.value += if state.settle(event) { 1 } else { -1 };
                state.in_buffer = true;
            }
            Step::NeverCount(event) => {
                if state.settle(event) {
                    state.uncounted_inserts += 1;
                } else {
                    state.uncounted_deletes += 1;
                }
            }
            Step::Cut => {
                state.cut += 1;
                state.in_buffer = false;
            }
            Step::ReadCounter => {
                state.rounds += 1;
                state.recounter = Recounter::Started {
                    value: state.value,
                    cut: state.cut,
                    events: state.events,
                };
            }
            Step::CountRows => {
                let Recounter::Started { value, cut, .. } = state.recounter else {
                    return None;
                };
                state.recounter = Recounter::Waiting {
                    value,
                    cut,
                    rows: state.shown,
                    due: state.coming().among(Hits::first(state.replicated)),
                };
            }
            Step::ReadCounterAgain => {
                let Recounter::Waiting {
                    value, cut, rows, ..
                } = state.recounter
                else {
                    return None;
                };
                let is_quiet = if self.makes(Mistake::CompareValues) {
                    value == state.value && rows == state.rows
                } else {
                    (cut == state.cut || self.makes(Mistake::IgnoreCuts))
                        && (!state.in_buffer || self.makes(Mistake::IgnoreBuffer))
                };
                state.recounter = if is_quiet {
                    Recounter::Quiet {
                        delta: rows as i8 - value,
                    }
                } else {
                    Recounter::Busy
                };
            }
            Step::Correct => {
                let Recounter::Quiet { delta } = state.recounter else {
                    return None;
                };
                state.value += delta;
                state.recounter = Recounter::Idle;
            }
            Step::Leave => state.recounter = Recounter::Idle,
        }
        if !self.replica {
            (state.replicated, state.shown) = (state.events, state.rows);
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "a counter never lacks more than the inserts whose count never comes",
                |_, state: &State| state.value >= state.settled() - state.uncounted_inserts as i8,
            ),
            Property::always(
                "a counter never exceeds its rows by more than the deletes whose count never comes",
                |_, state: &State| state.value <= state.settled() + state.uncounted_deletes as i8,
            ),
            Property::sometimes(
                "a recounter finds that an insert was not counted",
                |_, state: &State| matches!(state.recounter, Recounter::Quiet { delta } if delta > 0),
            ),
            Property::sometimes(
                "a recounter finds that a delete was not counted",
                |_, state: &State| matches!(state.recounter, Recounter::Quiet { delta } if delta < 0),
            ),
            Property::sometimes(
                "a correction is right although rows change before it is made",
                |_, state: &State| {
                    matches!(state.recounter, Recounter::Quiet { delta } if delta > 0)
                        && state.in_buffer
                },
            ),
            Property::sometimes("a busy counter is left for later", |_, state: &State| {
                state.recounter == Recounter::Busy
            }),
            Property::sometimes("the drift ends", |model: &Self, state: &State| {
                let is_over = state.events == model.events && state.coming().is_empty();
                is_over && state.uncounted_inserts > 0 && state.value == state.rows as i8
            }),
        ]
    }
}
