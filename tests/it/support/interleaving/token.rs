//! Increments that are told apart: the k-th of a case adds 4^k, so that in base 4 each digit of a value says how often
//! that increment is in it.

use super::stage::Gone;

/// What the increment of that number adds.
pub fn delta(token: usize) -> i64 {
    4i64.pow(u32::try_from(token).expect("few tokens"))
}

/// How often the increment of that number is in the value: the k-th of a case adds 4^k.
pub fn digit(value: i128, token: usize) -> u8 {
    u8::try_from((value >> (2 * token)) & 3).expect("two bits")
}

/// The word for an increment that is in a value less often than it has to be, or more often than it may.
pub fn fault(times: u8, (least, most): (u8, u8)) -> Option<&'static str> {
    match times {
        times if times < least => Some("LOST"),
        times if times > most => Some("DOUBLE"),
        _ => None,
    }
}

/// What the test knows of an increment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum State {
    /// It may be counted or not.
    InDoubt,
    /// Redis acknowledged it; its effect was in the append-only file at this length.
    Acknowledged { at: u64 },
    /// Redis acknowledged it and forgot it in a crash before it was durable: it may be in the database or not.
    Forgotten,
    /// It was surely not counted.
    Refused,
}

impl State {
    pub fn is_acknowledged(self) -> bool {
        matches!(self, State::Acknowledged { .. })
    }

    /// How often it has to be in a value, and may be.
    pub fn bounds(self) -> (u8, u8) {
        match self {
            State::Acknowledged { .. } => (1, 1),
            State::InDoubt | State::Forgotten => (0, 1),
            State::Refused => (0, 0),
        }
    }

    /// After a crash: what was counted at a length of the file that is not there any more may be gone.
    pub fn forget(&mut self, gone: &Gone) {
        if matches!(self, State::Acknowledged { at } if gone.contains(at)) {
            *self = State::Forgotten;
        }
    }
}
