//! What is proven about a counter by its value before and after its rows were counted.

/// What is to be done about a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    Same,
    /// So much is missing, or too much. Where it is no i64 no row can take it.
    Off(i128),
    /// It moved too much to tell.
    Busy,
}

/// Of rows that are only added, each counted within the time between the count of the rows and `after`. What is missing is
/// at least `rows - after`, since every row that will ever be counted is in `after`, and at most `rows - before`.
pub fn bounded(before: i64, rows: i64, after: i64) -> Proof {
    let [before, rows, after] = [before, rows, after].map(i128::from);
    match (rows - after, rows - before) {
        (least, _) if least > 0 => Proof::Off(least),
        (_, most) if most < 0 => Proof::Off(most),
        _ => Proof::Same,
    }
}

/// Of rows that are deleted as well: only where nothing moved.
pub fn still(before: i64, rows: i64, after: i64, rows_after: i64) -> Proof {
    if before == after && rows == rows_after { bounded(before, rows, after) } else { Proof::Busy }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_proven_is_corrected() {
        assert_eq!(bounded(5, 5, 5), Proof::Same);
        assert_eq!(bounded(3, 5, 3), Proof::Off(2));
        assert_eq!(bounded(7, 5, 7), Proof::Off(-2));
        // two came meanwhile: the row of one may have been there
        assert_eq!(bounded(3, 5, 5), Proof::Same);
        assert_eq!(bounded(3, 5, 4), Proof::Off(1));
        assert_eq!(bounded(6, 5, 9), Proof::Off(-1));
        assert_eq!(bounded(i64::MIN, i64::MAX, i64::MIN), Proof::Off(i128::from(u64::MAX)));
        assert_eq!(still(3, 5, 3, 5), Proof::Off(2));
        assert_eq!(still(3, 5, 4, 5), Proof::Busy);
        assert_eq!(still(3, 5, 3, 4), Proof::Busy);
    }
}
