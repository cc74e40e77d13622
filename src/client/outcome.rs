//! The outcome of counting, for handles of all kinds.

use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::scripts::counting::PairResult;

/// The outcome of one hit, increment or visit. The method that counts documents what its values
/// mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "a hit that was refused is not counted"]
pub enum Outcome {
    /// Counted by this call, and will reach the database.
    Counted(i64),
    /// Counted before, and not again: the request or the visitor is known.
    CountedBefore(i64),
    /// Not counted: the result would leave the family's bounds or the signed 64-bit range. Cached
    /// counters return their unchanged value.
    OutOfRange(Option<i64>),
    /// Not counted: the partition holds as many pending ids as the family's `max_pending` allows,
    /// and this one is new.
    Full,
    /// Not counted: the time that a hit of a series brought is more than a minute ahead, or has
    /// left every window, or a kept precision takes it no more: see
    /// [`late`](crate::FamilyBuilder::late).
    BadTime,
    /// Not counted: the id of a cached counter has no row, and only the application inserts rows
    /// ([`Table::update`](crate::Table::update)).
    NoRow,
}

/// Returns the error for a cached counter whose value Lua cannot represent: its numbers are
/// doubles, which are exact below 2^53.
pub(crate) fn beyond(family: &Family, id: &str) -> Error {
    let what = format!("{family}: the size of the value of {id:?} is not below 2^53");
    Error::new(ErrorKind::Range, what)
}

impl Outcome {
    /// Returns the value of a hit that this call counted, or `None`.
    #[must_use]
    pub fn counted(self) -> Option<i64> {
        match self {
            Outcome::Counted(value) => Some(value),
            _ => None,
        }
    }

    /// Returns the outcome of a pair of a call.
    pub(crate) fn of(result: PairResult, family: &Family, id: &str) -> Result<Outcome> {
        match result {
            PairResult::CountedBefore(value) => Ok(Outcome::CountedBefore(value)),
            PairResult::Counted(value) => Ok(Outcome::Counted(value)),
            PairResult::First => Ok(Outcome::Counted(1)),
            PairResult::Repeated => Ok(Outcome::CountedBefore(0)),
            PairResult::OutOfRange(value) => {
                Ok(Outcome::OutOfRange(family.is_cached().then_some(value)))
            }
            PairResult::Full => Ok(Outcome::Full),
            PairResult::Beyond => Err(beyond(family, id)),
            PairResult::BadTime => Ok(Outcome::BadTime),
            other => Err(other.corrupt(family, id)),
        }
    }
}
