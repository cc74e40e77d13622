//! The proof of a difference: the value of a counter before and after its rows were counted.

/// The result of comparing a counter with its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    Same,
    /// The proven difference: positive if hits are missing. No row can take one beyond i64.
    Off(i128),
    /// No proof, because the counter moved.
    Busy,
}

/// Compares a counter whose rows are only added. `rows` are found before the wait, so every one that
/// will ever be counted is in `after`: at least `rows - after` is missing. `caught_up` are found
/// once a replica has every row in `before`: at most `caught_up - before` is missing.
pub fn bounded(before: i64, rows: i64, caught_up: i64, after: i64) -> Proof {
    let [before, rows, caught_up, after] = [before, rows, caught_up, after].map(i128::from);
    match (rows - after, caught_up - before) {
        (least, _) if least > 0 => Proof::Off(least),
        (_, most) if most < 0 => Proof::Off(most),
        _ => Proof::Same,
    }
}

/// Compares a counter whose rows are also deleted, only if it did not move between the two reads.
/// Another program may have changed the row itself, which moves no counter but changes the value.
pub fn unmoved(before: i64, rows: i64, after: i64, moved: bool) -> Proof {
    if before == after && !moved {
        bounded(before, rows, rows, after)
    } else {
        Proof::Busy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_proven_is_corrected() {
        assert_eq!(bounded(5, 5, 5, 5), Proof::Same);
        assert_eq!(bounded(3, 5, 5, 3), Proof::Off(2));
        assert_eq!(bounded(7, 5, 5, 7), Proof::Off(-2));
        // two hits came meanwhile, and their rows may be among the five
        assert_eq!(bounded(3, 5, 5, 5), Proof::Same);
        assert_eq!(bounded(3, 5, 5, 4), Proof::Off(1));
        assert_eq!(bounded(6, 5, 5, 9), Proof::Off(-1));
        // a replica lacked a row that was counted
        assert_eq!(bounded(6, 5, 6, 6), Proof::Same);
        assert_eq!(bounded(8, 5, 6, 8), Proof::Off(-2));
        assert_eq!(
            bounded(i64::MIN, i64::MAX, i64::MAX, i64::MIN),
            Proof::Off(i128::from(u64::MAX))
        );
        assert_eq!(unmoved(3, 5, 3, false), Proof::Off(2));
        assert_eq!(unmoved(3, 5, 4, false), Proof::Busy);
        // +1 and -1
        assert_eq!(unmoved(3, 5, 3, true), Proof::Busy);
    }
}
