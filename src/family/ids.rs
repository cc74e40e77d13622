//! The ids of batches, which scripts and stores share.

use std::fmt;

use serde::Serialize;

/// The random number that a partition's batches carry until Redis loses its memory or begins anew
/// (docs/protocol.md, section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Incarnation(pub u64);

impl fmt::Display for Incarnation {
    /// Writes 16 hexadecimal digits, as Redis holds it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The random number of one cut. A Redis that was set back reuses sequence numbers, but no nonce
/// (docs/protocol.md, section 3.9).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Nonce(pub u64);

impl fmt::Display for Nonce {
    /// Writes 16 hexadecimal digits, as Redis holds it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The id of a batch within its partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId {
    /// The incarnation of the partition when the batch was cut.
    pub incarnation: Incarnation,
    /// The sequence number, from 1 within an incarnation.
    pub seq: u64,
    /// The random number of the cut.
    pub nonce: Nonce,
}
