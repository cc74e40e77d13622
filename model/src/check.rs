//! Runs the checker over a model.

use std::fmt::{Debug, Display, Formatter, Result};
use std::hash::Hash;
use std::thread::sleep;
use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model};

/// A model whose states and steps can be stored, compared and printed.
pub trait Checkable:
    Model<State: Clone + Debug + Hash + PartialEq + Send + Sync, Action: Clone + Debug + PartialEq>
    + Send
    + Sync
    + 'static
{
}

impl<M> Checkable for M where
    M: Model<
            State: Clone + Debug + Hash + PartialEq + Send + Sync,
            Action: Clone + Debug + PartialEq,
        > + Send
        + Sync
        + 'static
{
}

/// The result of checking a model.
#[derive(Debug)]
pub struct Outcome {
    /// The number of different states that were visited.
    pub states: usize,
    /// The time that the check took.
    pub time: Duration,
    /// The properties that do not hold; empty if the model passes.
    pub failures: Vec<Failure>,
}

/// A property that does not hold.
#[derive(Debug)]
pub struct Failure {
    /// The name of the property.
    pub property: &'static str,
    /// A path to a state that breaks an `always` property, or none if a `sometimes` property has no
    /// example.
    pub counterexample: Option<Counterexample>,
}

/// A path to a state that breaks a property.
#[derive(Debug)]
pub struct Counterexample {
    /// The steps of the path.
    pub steps: Vec<String>,
    /// The state at its end.
    pub state: String,
}

/// Visits all states of `model`, or those up to the first broken property.
///
/// Calls `progress` with the number of states so far about once a second.
pub fn check(model: impl Checkable, progress: impl FnMut(usize)) -> Outcome {
    run(model, HasDiscoveries::AnyFailures, progress)
}

/// Visits the states of `model` until `property` is broken, even if others are broken before it.
pub fn check_property(model: impl Checkable, property: &'static str) -> Outcome {
    run(model, HasDiscoveries::AnyOf([property].into()), |_| {})
}

fn run(
    model: impl Checkable,
    finish_when: HasDiscoveries,
    mut progress: impl FnMut(usize),
) -> Outcome {
    let start = Instant::now();
    let mut reported = start;
    // Breadth first, so that a counterexample is a short one.
    let running = model.checker().finish_when(finish_when).spawn_bfs();
    while !running.is_done() {
        sleep(Duration::from_millis(5));
        if reported.elapsed() >= Duration::from_secs(1) {
            progress(running.unique_state_count());
            reported = Instant::now();
        }
    }
    let checker = running.join();

    let mut discoveries = checker.discoveries();
    let mut failures = Vec::new();
    for property in checker.model().properties() {
        let discovery = discoveries.remove(property.name);
        if discovery.is_some() == property.expectation.discovery_is_failure() {
            let counterexample = discovery.map(|path| Counterexample {
                state: format!("{:?}", path.last_state()),
                steps: path
                    .into_actions()
                    .iter()
                    .map(|step| format!("{step:?}"))
                    .collect(),
            });
            failures.push(Failure {
                property: property.name,
                counterexample,
            });
        }
    }
    // A check that stops at a counterexample may not have reached the examples of `sometimes`
    // properties. They are no failures then.
    if failures
        .iter()
        .any(|failure| failure.counterexample.is_some())
    {
        failures.retain(|failure| failure.counterexample.is_some());
    }
    Outcome {
        states: checker.unique_state_count(),
        time: start.elapsed(),
        failures,
    }
}

impl Outcome {
    /// Returns whether every property holds.
    pub fn has_passed(&self) -> bool {
        self.failures.is_empty()
    }

    /// Panics with the failures unless every property holds.
    pub fn assert_passed(&self) {
        assert!(self.has_passed(), "after {} states:\n{self}", self.states);
    }

    /// Panics unless there is a counterexample to `property`.
    pub fn assert_broken(&self, property: &str) {
        let found = self
            .failures
            .iter()
            .any(|it| it.property == property && it.counterexample.is_some());
        assert!(
            found,
            "no counterexample to {property:?} in {} states; found:\n{self}",
            self.states
        );
    }
}

impl Display for Outcome {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> Result {
        for Failure {
            property,
            counterexample,
        } in &self.failures
        {
            let Some(Counterexample { steps, state }) = counterexample else {
                writeln!(formatter, "no example of: {property}")?;
                continue;
            };
            writeln!(formatter, "broken after {} steps: {property}", steps.len())?;
            for step in steps {
                writeln!(formatter, "  {step}")?;
            }
            writeln!(formatter, "  {state}")?;
        }
        Ok(())
    }
}
