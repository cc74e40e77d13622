//! The guards of the protocol that a run can remove.

use std::sync::OnceLock;

use counterfoil::test_hooks::{self, Guard};

use crate::Result;

/// The guard that is removed, for the processes that this one starts. They get it in the environment
/// variable of this name.
pub const WITHOUT: &str = "COUNTERFOIL_DEMO_WITHOUT";
static REMOVED: OnceLock<String> = OnceLock::new();

/// Guards whose removal loses or doubles hits, or makes values wrong, under the faults of the campaign.
const GUARDS: [Guard; 35] = [
    Guard::Ledger,
    Guard::Registration,
    Guard::Fence,
    Guard::Step,
    Guard::AnyEpoch,
    Guard::OneMemory,
    Guard::NoMemory,
    Guard::AnyGeneration,
    Guard::OneGeneration,
    Guard::EndOfGenerations,
    Guard::Tag,
    Guard::Database,
    Guard::Settle,
    Guard::Position,
    Guard::Nonce,
    Guard::Incarnation,
    Guard::LostBatch,
    Guard::SetBack,
    Guard::Reset,
    Guard::EndOfEpochs,
    Guard::Release,
    Guard::Comparison,
    Guard::Ticket,
    Guard::OldRow,
    Guard::ReadBack,
    Guard::Clean,
    Guard::Unchanged,
    Guard::Begun,
    Guard::Trim,
    Guard::Ahead,
    Guard::Expiry,
    Guard::RecountRun,
    Guard::RecountBounds,
    Guard::RecountMoved,
    Guard::RecountRejects,
];

/// Removes a guard, by its name in ARCHITECTURE.md.
pub fn take_out(name: &str) -> Result<()> {
    let named = GUARDS
        .into_iter()
        .find(|guard| format!("{guard:?}") == name);
    let Some(guard) = named else {
        let names: Vec<_> = GUARDS.iter().map(|guard| format!("{guard:?}")).collect();
        return Err(format!("no guard {name}; there are {}", names.join(", ")).into());
    };
    test_hooks::take_out(Some(guard));
    // an error means that it is set already, to the same
    let _ = REMOVED.set(name.to_owned());
    Ok(())
}

/// Returns the guard that this process removed.
pub fn removed() -> Option<&'static str> {
    REMOVED.get().map(String::as_str)
}
