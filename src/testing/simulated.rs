//! The time as a test says it, and clocks that are wrong. Without the feature `test-hooks` there is no such thing; with it
//! what is set holds for the whole process.

#[cfg(feature = "test-hooks")]
use std::sync::atomic::{AtomicI64, Ordering};
#[cfg(feature = "test-hooks")]
use std::sync::{Mutex, PoisonError};

#[cfg(feature = "test-hooks")]
static TIME: Mutex<Option<u64>> = Mutex::new(None);
#[cfg(feature = "test-hooks")]
static CLOCK_ERROR: AtomicI64 = AtomicI64::new(0);

/// Lets series, activity and visitors count at this time, in Unix milliseconds, and producers be known since it; `None` for
/// the server's clock again. When slices are closed and batches cut is still up to that.
#[cfg(feature = "test-hooks")]
pub fn set_time(now_ms: Option<u64>) {
    *TIME.lock().unwrap_or_else(PoisonError::into_inner) = now_ms;
}

/// Lets this machine's clock be ahead of the server's by so many milliseconds.
#[cfg(feature = "test-hooks")]
pub fn set_clock_error(ms: i64) {
    CLOCK_ERROR.store(ms, Ordering::Relaxed);
}

#[cfg(feature = "test-hooks")]
pub(crate) fn time() -> Option<u64> {
    *TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(feature = "test-hooks")]
pub(crate) fn clock_error() -> i64 {
    CLOCK_ERROR.load(Ordering::Relaxed)
}

#[cfg(not(feature = "test-hooks"))]
pub(crate) const fn time() -> Option<u64> {
    None
}

#[cfg(not(feature = "test-hooks"))]
pub(crate) const fn clock_error() -> i64 {
    0
}
