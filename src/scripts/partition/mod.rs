//! One partition of a family in one Redis. Its calls of scripts are in the modules.

pub mod activity;
pub mod buffered;
pub mod cached;
pub mod epoch;
pub mod series;
pub mod settings;
mod visitors;

use crate::connection::Connection;
use crate::family::Family;
use crate::scripts::bundle::{Arg, borrowed, owned};
#[cfg(feature = "test-hooks")]
use crate::scripts::fence::Fence;
use crate::scripts::keys::Keys;
use crate::testing::simulated;

/// One partition of a family in one Redis.
#[derive(Clone, Debug)]
pub struct Partition {
    pub(crate) redis: Connection,
    pub(crate) keys: Keys,
    /// The simulated time in tests; empty for the server's clock.
    pub(crate) now_ms: String,
}

impl Partition {
    /// Returns the partition of that number. Sends nothing.
    pub fn new(redis: impl Into<Connection>, family: &Family, partition: u32) -> Self {
        Partition {
            redis: redis.into(),
            keys: Keys::new(family, partition),
            now_ms: String::new(),
        }
    }

    /// Returns the partition at the time that the caller gives.
    #[cfg(feature = "test-hooks")]
    pub fn at(mut self, now_ms: u64) -> Self {
        self.now_ms = now_ms.to_string();
        self
    }

    /// Returns the partition's keys: the home of a fence.
    #[cfg(feature = "test-hooks")]
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Returns the time argument of scripts that must use the server's clock: empty outside tests.
    pub(crate) fn time(&self) -> Arg<'_> {
        simulated::time().map_or_else(|| borrowed(&self.now_ms), owned)
    }

    /// Returns a fence without a caller: a repeated call counts again.
    #[cfg(feature = "test-hooks")]
    pub fn unfenced(&self) -> Fence<'_> {
        Fence {
            home: &self.keys,
            caller: "",
            n: 0,
            epoch: "",
        }
    }
}
