//! Simulated time and clock errors for tests. Without the feature `test-hooks` there are none. With
//! it, a setting applies to the whole process.

#[cfg(feature = "test-hooks")]
use std::sync::atomic::{AtomicI64, Ordering};

#[cfg(feature = "test-hooks")]
use parking_lot::Mutex;

#[cfg(feature = "test-hooks")]
static TIME: Mutex<Option<u64>> = Mutex::new(None);
#[cfg(feature = "test-hooks")]
static CLOCK_ERROR: AtomicI64 = AtomicI64::new(0);

/// Sets the time, in Unix milliseconds, at which series, activity and visitors count and epochs
/// begin. `None` restores the server's clock, which always decides when slices are closed and
/// batches are cut.
#[cfg(feature = "test-hooks")]
pub fn set_time(now_ms: Option<u64>) {
    *TIME.lock() = now_ms;
}

/// Sets how many milliseconds this machine's clock is ahead of the server's.
#[cfg(feature = "test-hooks")]
pub fn set_clock_error(ms: i64) {
    CLOCK_ERROR.store(ms, Ordering::Relaxed);
}

#[cfg(feature = "test-hooks")]
pub(crate) fn time() -> Option<u64> {
    *TIME.lock()
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
