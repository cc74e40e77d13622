//! Exact reads: what is in the database and what is not yet, put together without losing or doubling a batch that is
//! on its way (docs/protocol.md, section 3).

use crate::scripts::buffered::Pending;
use crate::testing::ablation::{self, Guard};

/// What the ledger says of the batch that Redis spoke of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is not in the value: add it.
    AddBatch,
    /// It is in the value already, or there is none: leave it out.
    LeaveOut,
    /// A newer batch landed between the two reads: start again.
    Again,
    /// That copy of the database has not got all the batches before it: ask the primary.
    Behind,
}

/// Compares what Redis said with the ledger as of the value.
///
/// A batch is cut only after the one before it was released, that is, applied: so on the primary the ledger stands at
/// `seq`, or at `seq - 1` while the batch is in flight. Anything lower is a copy that is behind, also with a batch in
/// flight.
pub fn judge(pending: &Pending, ledger: u64) -> Verdict {
    if ablation::is_out(Guard::Comparison) {
        return if pending.in_flight { Verdict::AddBatch } else { Verdict::LeaveOut };
    }
    match ledger {
        ledger if ledger > pending.seq => Verdict::Again,
        ledger if ledger == pending.seq => Verdict::LeaveOut,
        ledger if pending.in_flight && ledger + 1 == pending.seq => Verdict::AddBatch,
        _ => Verdict::Behind,
    }
}

/// What an id has pending beyond the value. Wide, since the two may have different signs and each be near an end.
pub fn beyond(deltas: (i64, i64), verdict: Verdict) -> i128 {
    let (batch, buffer) = deltas;
    i128::from(buffer) + if verdict == Verdict::AddBatch { i128::from(batch) } else { 0 }
}

/// Whether the incarnation may have been forgotten since Redis spoke of it. A batch reaches the ledger only after its
/// rotation is durable, and with it the incarnation; before the first one a crash can take the incarnation back, and
/// what is pending can reach the database under another one, unseen by [`judge`].
pub fn may_be_forgotten(pending: &Pending, ledger: u64) -> bool {
    ledger == 0 && pending.incarnation.is_some() && has_anything(pending)
}

/// Whether there is something pending and no incarnation to compare with the ledger: a batch cut since would go unseen,
/// also where Redis is emptied after that and has no incarnation again. The partition must be given one first.
pub fn lacks_incarnation(pending: &Pending) -> bool {
    pending.incarnation.is_none() && has_anything(pending)
}

fn has_anything(pending: &Pending) -> bool {
    pending.deltas.iter().any(|&(batch, buffer)| batch != 0 || buffer != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Incarnation;

    fn pending(seq: u64, in_flight: bool) -> Pending {
        Pending { incarnation: Some(Incarnation(7)), seq, in_flight, deltas: vec![(1, 2)] }
    }

    #[test]
    fn the_ledger_decides_about_the_batch() {
        assert_eq!(judge(&pending(5, true), 4), Verdict::AddBatch);
        assert_eq!(judge(&pending(5, true), 5), Verdict::LeaveOut);
        assert_eq!(judge(&pending(5, false), 5), Verdict::LeaveOut);
        assert_eq!(judge(&pending(5, true), 6), Verdict::Again);
        assert_eq!(judge(&pending(5, false), 4), Verdict::Behind);
        assert_eq!(judge(&pending(5, true), 3), Verdict::Behind);
        assert_eq!(judge(&pending(1, true), 0), Verdict::AddBatch);
    }
}
