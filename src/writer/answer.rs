//! What became of one pair of a call, whatever the family's kind.

use crate::buffered::Added;
use crate::cached::{Ticket, Word};
use crate::visitors::Visited;

/// What a caller is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// What is pending for a buffered counter, the value of a cached one.
    Counted(i64),
    /// Not counted: it would leave i64 or the bounds. With the value as it was, where the kind knows it.
    OutOfRange(i64),
    /// Not counted: too many ids are pending.
    Full,
    /// Not counted: the counter has to be seeded.
    Missing(Ticket),
    /// Counted: the visitor's first visit.
    First,
    /// A visitor who has been counted before.
    Again,
}

impl From<Added> for Answer {
    fn from(added: Added) -> Self {
        match added {
            Added::Counted { pending } => Answer::Counted(pending),
            Added::OutOfRange => Answer::OutOfRange(0),
            Added::Full => Answer::Full,
        }
    }
}

impl From<Word> for Answer {
    fn from(word: Word) -> Self {
        match word {
            Word::Value(value) => Answer::Counted(value),
            Word::OutOfRange(value) => Answer::OutOfRange(value),
            Word::Missing(ticket) => Answer::Missing(ticket),
        }
    }
}

impl From<Visited> for Answer {
    fn from(visited: Visited) -> Self {
        match visited {
            Visited::First => Answer::First,
            Visited::Again => Answer::Again,
            Visited::Full => Answer::Full,
        }
    }
}

impl Answer {
    /// As a caller of a buffered family is told.
    pub fn added(self) -> Added {
        match self {
            Answer::Counted(pending) => Added::Counted { pending },
            Answer::OutOfRange(_) => Added::OutOfRange,
            // no buffered counter is ever missing, and none has visitors
            Answer::Full | Answer::Missing(_) | Answer::First | Answer::Again => Added::Full,
        }
    }
}
