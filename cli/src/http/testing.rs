//! Helpers for the tests of this folder: the state of a daemon without servers.

use std::sync::Arc;

use crate::daemon::live::{Live, LivePair};
use crate::status::{FamilyStatus, State};
use crate::view::FamilyView;

/// Returns one pair that was never connected.
pub fn live(pair: &str) -> Live {
    Live {
        pairs: [Arc::new(LivePair::new(pair))].into(),
    }
}

/// Returns an idle buffered family.
pub fn family(namespace: &str, family: &str) -> FamilyView {
    let status = FamilyStatus {
        namespace: namespace.to_owned(),
        family: family.to_owned(),
        kind: "buffered",
        pending: 0,
        oldest_seconds: None,
        open: 0,
        counted: Some(0),
        last_saved: None,
        rejects: 0,
        state: State::Ok,
        problem: None,
    };
    FamilyView {
        status,
        rate: None,
        history: Vec::new(),
    }
}
