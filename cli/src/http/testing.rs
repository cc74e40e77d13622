//! What the tests of this folder share: a daemon's state as they say, without servers.

use std::sync::Arc;

use crate::daemon::live::{Live, LivePair};
use crate::status::{FamilyStatus, State};
use crate::view::FamilyView;

/// One pair that was not connected.
pub fn live(pair: &str) -> Live {
    Live { pairs: [Arc::new(LivePair::new(pair))].into() }
}

/// A buffered family that is idle.
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
    FamilyView { status, rate: None, history: Vec::new() }
}
