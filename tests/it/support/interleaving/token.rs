//! Distinct increments: the k-th of a case adds 4^k. In base 4, each digit of a value is the number
//! of times that it contains that increment.

use super::*;

/// Returns the delta of the increment with this number.
pub fn delta(token: usize) -> i64 {
    4i64.pow(u32::try_from(token).unwrap())
}

/// Returns how often the increment with this number is in the value.
pub fn digit(value: i128, token: usize) -> u8 {
    u8::try_from((value >> (2 * token)) & 3).unwrap()
}

/// Returns the fault if an increment is in a value less often than it must be, or more often than
/// it may.
pub fn fault(times: u8, (least, most): (u8, u8)) -> Option<&'static str> {
    match times {
        times if times < least => Some("LOST"),
        times if times > most => Some("DOUBLE"),
        _ => None,
    }
}

/// The test's knowledge of an increment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TokenState {
    /// Counted or not.
    InDoubt,
    /// Acknowledged; its effect was in the append-only file at this length.
    Acknowledged { at: u64 },
    /// Acknowledged, but lost in a crash before it was durable; it may be in the database.
    Forgotten,
}

impl TokenState {
    pub fn is_acknowledged(self) -> bool {
        matches!(self, TokenState::Acknowledged { .. })
    }

    /// Returns how often the increment must and may be in a value.
    pub fn bounds(self) -> (u8, u8) {
        match self {
            TokenState::Acknowledged { .. } => (1, 1),
            TokenState::InDoubt | TokenState::Forgotten => (0, 1),
        }
    }

    /// Handles a crash: an increment counted at a lost length of the file may be gone.
    pub fn forget(&mut self, gone: &Gone) {
        if matches!(self, TokenState::Acknowledged { at } if gone.contains(at)) {
            *self = TokenState::Forgotten;
        }
    }
}
