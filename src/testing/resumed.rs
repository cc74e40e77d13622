//! Machines that were resumed from one snapshot, for tests: their writers begin with the callers that
//! the snapshot has. Without the feature `test-hooks` there are none.

#[cfg(feature = "test-hooks")]
use parking_lot::Mutex;

#[cfg(feature = "test-hooks")]
static SNAPSHOT: Mutex<Option<String>> = Mutex::new(None);

/// Makes writers that have not counted yet begin with the callers of a snapshot, in the whole process.
#[cfg(feature = "test-hooks")]
pub fn resume_from(snapshot: &str) {
    *SNAPSHOT.lock() = Some(snapshot.to_owned());
}

/// Returns the name of the caller that each writer had in the snapshot.
#[cfg(feature = "test-hooks")]
pub(crate) fn caller() -> Option<String> {
    SNAPSHOT.lock().clone()
}

#[cfg(not(feature = "test-hooks"))]
pub(crate) const fn caller() -> Option<String> {
    None
}
