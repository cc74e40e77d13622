//! Random names and numbers from the operating system.

use crate::error::{Error, ErrorKind, Result};

/// Returns a random text. Scripts make names of it and the time.
pub fn random_name() -> Result<String> {
    random().map(|number| format!("{number:016x}"))
}

/// Returns a random number for the names of callers and owners.
pub fn random() -> Result<u64> {
    getrandom::u64().map_err(|error| {
        Error::new(
            ErrorKind::Unsafe,
            "the operating system provides no random numbers",
        )
        .with_source(error.to_string())
    })
}
