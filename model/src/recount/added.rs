//! The rule for rows that are only added: two reads of the counter bound what is missing.

use stateright::{Model, Property};

use crate::terms::Hits;

/// The model of one counter whose rows are only added, and of two recounters that share each run.
#[derive(Clone, Debug)]
pub struct AddedRows {
    /// The number of rows that are inserted.
    pub rows: u8,
    /// The maximum number of rows whose count never comes.
    pub uncounted: u8,
    /// The maximum number of rows that are counted twice.
    pub doubled: u8,
    /// The maximum number of hits that the database refuses: each waits as a reject, in no value, until
    /// it is added after all or discarded.
    pub refusals: u8,
    /// The maximum number of recounters that die.
    pub deaths: u8,
    /// The number of runs. Each run corrects the counter at most once.
    pub runs: u8,
    /// The rows are counted on a replica that lags.
    pub replica: bool,
    /// The guard that is left out.
    pub mistake: Option<Mistake>,
}

/// A guard of the protocol that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// A recounter does not wait for the counts of the rows that it saw.
    NoWait,
    /// A recounter does not count the rows again once the replica has those from before.
    CountOnce,
    /// A correction does not check that the run is current and has not corrected the counter.
    NoFence,
    /// A recounter reads the value on a replica, which has every batch that the ledger shows, but
    /// may lack a correction.
    ReadReplica,
    /// A correction writes the number of rows instead of adding a delta.
    WriteValue,
    /// A correction adds the number of rows minus the value before, whatever was counted in the
    /// meantime.
    OneDifference,
    /// A correction does not leave out a counter with rejects.
    IgnoreRejects,
    /// Rejects that are added or discarded are not noted in the run.
    NoteNothing,
}

/// The source rows, the counter, and the recounters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    rows: u8,
    /// The number of rows that a count finds. On a replica that lags, these are the oldest.
    shown: u8,
    value: i8,
    /// The sum of the corrections that the replica lacks, if recounters read the value there by
    /// mistake.
    lacking: i8,
    /// The rows that are not counted yet and will be.
    coming: Hits,
    uncounted: u8,
    doubled: u8,
    /// The number of hits that were refused so far. Of these hits, the numbers that wait as
    /// rejects, and that were discarded.
    refused: u8,
    rejected: u8,
    discarded: u8,
    deaths: u8,
    run: u8,
    /// The current run has the note that rejects of the counter were added or discarded.
    is_noted: bool,
    /// The current run is finished with this counter.
    is_done: bool,
    recounters: [Recounter; 2],
    /// A correction left a difference, although nothing was inserted or counted since the run read
    /// the value.
    drift_left: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Recounter {
    Idle,
    /// Has read the value for the first time.
    Started {
        run: u8,
        before: i8,
    },
    /// Has counted the rows, and waits for those among them that were not counted yet, and until
    /// the replica shows all rows that were `inserted`.
    Waiting {
        run: u8,
        before: i8,
        rows: u8,
        due: Hits,
        inserted: u8,
    },
    Measured(Measurement),
}

/// The figures of a recounter that has read the value again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Measurement {
    run: u8,
    before: i8,
    rows: u8,
    /// The rows after the wait.
    caught_up: u8,
    after: i8,
}

/// A step of the application or of a recounter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The application inserts a row.
    Insert,
    /// The replica receives the next row.
    Replicate,
    /// The application counts a row.
    Count(u8),
    /// The application dies before it counts a row.
    NeverCount(u8),
    /// The application counts a row twice.
    CountTwice(u8),
    /// The database refuses a hit.
    Refuse,
    /// The rejects are added.
    Add,
    /// The rejects are discarded.
    Discard,
    /// A recounter reads the value.
    ReadValue(usize),
    /// A recounter counts the rows.
    CountRows(usize),
    /// A recounter has waited and reads the value again.
    ReadValueAgain(usize),
    /// A recounter corrects the counter or leaves it.
    Correct(usize),
    /// A recounter dies and another takes its place.
    Die(usize),
    /// The next run begins.
    NextRun,
}

impl AddedRows {
    /// Returns a small model: two rows, one that is never counted, one that is counted twice, two
    /// runs, no refusal, and no replica.
    pub fn new() -> Self {
        Self {
            rows: 2,
            uncounted: 1,
            doubled: 1,
            refusals: 0,
            deaths: 1,
            runs: 2,
            replica: false,
            mistake: None,
        }
    }

    fn makes(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    /// Returns the delta that a recounter adds: the lack or the surplus that is proven. All rows of
    /// the first count were counted before the second read of the value, unless they never are. So
    /// if that value is below their number, at least the difference is missing. Only rows of the
    /// second count were counted before the first read of the value. So if that value is above
    /// their number, it is too high by at least the difference.
    fn delta(&self, measured: &Measurement) -> i8 {
        let at_least = measured.rows as i8 - measured.after;
        let at_most = measured.caught_up as i8 - measured.before;
        if self.makes(Mistake::OneDifference) || at_most < 0 {
            at_most
        } else {
            at_least.max(0)
        }
    }

    fn correct(&self, state: &mut State, recounter: usize) {
        let Recounter::Measured(measured) = state.recounters[recounter] else {
            return;
        };
        let Measurement {
            run,
            before,
            rows,
            after,
            ..
        } = measured;
        state.recounters[recounter] = Recounter::Idle;
        let is_current = run == state.run && !state.is_done;
        if !is_current && !self.makes(Mistake::NoFence) {
            return;
        }
        if state.has_rejects() && !self.makes(Mistake::IgnoreRejects) {
            state.is_done = true;
            return;
        }
        let is_quiet = before == after
            && after == state.value
            && rows == state.rows
            && state.coming.is_empty()
            && !state.has_rejects();
        let delta = self.delta(&measured);
        if self.makes(Mistake::WriteValue) && delta != 0 {
            state.value = rows as i8;
        } else {
            state.value += delta;
        }
        if self.makes(Mistake::ReadReplica) {
            state.lacking += delta;
        }
        state.is_done = true;
        state.drift_left |= is_quiet && state.value != state.rows as i8;
    }
}

impl Default for AddedRows {
    fn default() -> Self {
        Self::new()
    }
}

impl State {
    /// Returns the number of rows that were counted or never will be.
    fn settled(&self) -> i8 {
        self.rows as i8 - self.coming.iter().count() as i8
    }

    /// Returns whether rejects wait, or were added or discarded in this run.
    fn has_rejects(&self) -> bool {
        self.rejected > 0 || self.is_noted
    }

    /// Returns the hits that were counted and not discarded.
    fn counted(&self) -> i8 {
        self.value + self.rejected as i8
    }

    fn measurements(&self) -> impl Iterator<Item = &Measurement> {
        self.recounters
            .iter()
            .filter_map(|recounter| match recounter {
                Recounter::Measured(measured) => Some(measured),
                _ => None,
            })
    }
}

impl Model for AddedRows {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            rows: 0,
            shown: 0,
            value: 0,
            lacking: 0,
            coming: Hits::default(),
            uncounted: 0,
            doubled: 0,
            refused: 0,
            rejected: 0,
            discarded: 0,
            deaths: 0,
            run: 1,
            is_noted: false,
            is_done: false,
            recounters: [Recounter::Idle; 2],
            drift_left: false,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.rows < self.rows {
            steps.push(Step::Insert);
        }
        if state.shown < state.rows {
            steps.push(Step::Replicate);
        }
        for row in state.coming.iter() {
            steps.push(Step::Count(row));
            if state.uncounted < self.uncounted {
                steps.push(Step::NeverCount(row));
            }
            if state.doubled < self.doubled {
                steps.push(Step::CountTwice(row));
            }
        }
        if state.refused < self.refusals && state.value > 0 {
            steps.push(Step::Refuse);
        }
        if state.rejected > 0 {
            steps.extend([Step::Add, Step::Discard]);
        }
        for (number, recounter) in state.recounters.iter().enumerate() {
            match recounter {
                Recounter::Idle => steps.push(Step::ReadValue(number)),
                Recounter::Started { .. } => steps.push(Step::CountRows(number)),
                // The wait is longer than the application takes from a row to its count, and than
                // the replica's lag.
                Recounter::Waiting { due, inserted, .. } => {
                    let has_waited = due.without(state.coming) == *due && state.shown >= *inserted;
                    if has_waited || self.makes(Mistake::NoWait) {
                        steps.push(Step::ReadValueAgain(number));
                    }
                }
                Recounter::Measured(_) => steps.push(Step::Correct(number)),
            }
            if *recounter != Recounter::Idle && state.deaths < self.deaths {
                steps.push(Step::Die(number));
            }
        }
        if state.is_done && state.run < self.runs {
            steps.push(Step::NextRun);
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        match step {
            Step::Insert => {
                state.coming = state.coming + Hits::one(state.rows);
                state.rows += 1;
            }
            Step::Replicate => {
                state.shown += 1;
            }
            Step::Count(row) => {
                state.coming = state.coming.without(Hits::one(row));
                state.value += 1;
            }
            Step::NeverCount(row) => {
                state.coming = state.coming.without(Hits::one(row));
                state.uncounted += 1;
            }
            Step::CountTwice(row) => {
                state.coming = state.coming.without(Hits::one(row));
                state.doubled += 1;
                state.value += 2;
            }
            Step::Refuse => {
                state.value -= 1;
                state.refused += 1;
                state.rejected += 1;
            }
            Step::Add => {
                state.value += state.rejected as i8;
                state.rejected = 0;
                state.is_noted = !self.makes(Mistake::NoteNothing);
            }
            Step::Discard => {
                state.discarded += state.rejected;
                state.rejected = 0;
                state.is_noted = !self.makes(Mistake::NoteNothing);
            }
            Step::ReadValue(number) => {
                state.recounters[number] = Recounter::Started {
                    run: state.run,
                    before: state.value - state.lacking,
                };
            }
            Step::CountRows(number) => {
                let Recounter::Started { run, before } = state.recounters[number] else {
                    return None;
                };
                state.recounters[number] = Recounter::Waiting {
                    run,
                    before,
                    rows: state.shown,
                    due: state.coming.among(Hits::first(state.shown)),
                    inserted: state.rows,
                };
            }
            Step::ReadValueAgain(number) => {
                let Recounter::Waiting {
                    run, before, rows, ..
                } = state.recounters[number]
                else {
                    return None;
                };
                let counts_again = self.replica && !self.makes(Mistake::CountOnce);
                let measured = Measurement {
                    run,
                    before,
                    rows,
                    caught_up: if counts_again { state.shown } else { rows },
                    after: state.value - state.lacking,
                };
                state.recounters[number] = Recounter::Measured(measured);
            }
            Step::Correct(number) => self.correct(&mut state, number),
            Step::Die(number) => {
                state.recounters[number] = Recounter::Idle;
                state.deaths += 1;
            }
            Step::NextRun => {
                state.run += 1;
                state.is_done = false;
                state.is_noted = false;
            }
        }
        if !self.replica {
            state.shown = state.rows;
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "a counter never lacks more than the rows whose count never comes, and what was discarded",
                |_, state: &State| {
                    let given_up = (state.uncounted + state.discarded) as i8;
                    state.counted() >= state.settled() - given_up
                },
            ),
            Property::always(
                "a counter never exceeds its rows by more than what was counted twice",
                |_, state: &State| state.counted() <= state.settled() + state.doubled as i8,
            ),
            Property::always(
                "a run in which nothing moves ends the drift",
                |_, state: &State| !state.drift_left,
            ),
            Property::sometimes(
                "a recounter finds that a count is missing",
                |model: &Self, state: &State| {
                    state
                        .measurements()
                        .any(|measured| model.delta(measured) > 0)
                },
            ),
            Property::sometimes(
                "a recounter finds a count too many",
                |model: &Self, state: &State| {
                    state
                        .measurements()
                        .any(|measured| model.delta(measured) < 0)
                },
            ),
            Property::sometimes(
                "a recounter cannot tell a missing count from a late one",
                |model: &Self, state: &State| {
                    state.uncounted > 0
                        && state.measurements().any(|measured| {
                            measured.before < measured.after && model.delta(measured) == 0
                        })
                },
            ),
            Property::sometimes("a recounter is too late for its run", |_, state: &State| {
                state
                    .measurements()
                    .any(|measured| measured.run != state.run || state.is_done)
            }),
            Property::sometimes(
                "a counter with rejects is left",
                |model: &Self, state: &State| {
                    model.refusals == 0 || state.is_done && state.has_rejects()
                },
            ),
            Property::sometimes("the drift ends", |model: &Self, state: &State| {
                let is_over = state.rows == model.rows && state.coming.is_empty();
                is_over
                    && state.uncounted > 0
                    && state.doubled == 0
                    && state.value == state.rows as i8
            }),
        ]
    }
}
