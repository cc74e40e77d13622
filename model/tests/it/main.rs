//! Checks of small cases of every model, and of the need for every guard.

mod cached;
mod deltas;
mod fence;
mod recount;
mod requests;

use counterfoil_model::{Checkable, check, check_property};

/// Panics unless every property of `model` holds.
fn passes(model: impl Checkable) {
    let outcome = check(model, |_| {});
    println!("passed: {} states in {:.1?}", outcome.states, outcome.time);
    outcome.assert_passed();
}

/// Panics unless `model` breaks `property`.
fn breaks(model: impl Checkable, property: &'static str) {
    let outcome = check_property(model, property);
    println!("broken: {} states in {:.1?}", outcome.states, outcome.time);
    outcome.assert_broken(property);
}
