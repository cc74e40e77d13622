//! Compares what Redis has pending with the ledger, so that an exact read neither loses nor doubles
//! a batch in flight (docs/protocol.md, section 3).

use std::cmp::Ordering;

use crate::error::Result;
use crate::scripts::partition::buffered::ReadReply;
use crate::scripts::partition::settings::check_database;
use crate::store::{Mark, Registration};
use crate::testing::ablation::{self, Guard};

/// The conclusion from the ledger about the batch that Redis named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The values do not contain it: add it.
    AddBatch,
    /// The values contain it up to this id: add it for the ids after it.
    AddAfter(Vec<u8>),
    /// The values contain it, or there is none: leave it out.
    LeaveOut,
    /// A newer batch landed between the two reads: start again.
    Again,
    /// That copy of the database lacks batches that Redis has released: ask the primary.
    Behind,
    /// The ledger has another batch under this number: Redis was set back to an older state.
    SetBack,
}

/// Compares the last cut of a partition with the ledger as of the values.
///
/// A batch is cut only after the one before it was complete and released. So on the primary the
/// ledger is at `seq`, or complete at `seq - 1` while the batch is in flight. Anything lower is a
/// copy that is behind.
///
/// # Errors
/// [`Mismatch`](crate::ErrorKind::Mismatch) if what is pending belongs to another database than the
/// family's.
pub fn judge(family: &Registration, pending: &ReadReply, ledger: &Mark) -> Result<Verdict> {
    check_database(&family.family, &pending.database, &family.database)?;
    if ablation::is_out(Guard::Comparison) {
        return Ok(if pending.in_flight {
            Verdict::AddBatch
        } else {
            Verdict::LeaveOut
        });
    }
    let last = pending.last;
    Ok(match (ledger.seq.cmp(&last.seq), &ledger.position) {
        (Ordering::Greater, _) => Verdict::Again,
        (Ordering::Equal, _) if last.seq > 0 && last.nonce != Some(ledger.nonce) => {
            Verdict::SetBack
        }
        (Ordering::Equal, None) => Verdict::LeaveOut,
        (Ordering::Equal, Some(position)) if pending.in_flight => {
            Verdict::AddAfter(position.clone())
        }
        (Ordering::Less, None) if pending.in_flight && ledger.seq + 1 == last.seq => {
            Verdict::AddBatch
        }
        _ => Verdict::Behind,
    })
}

/// Returns whether the ledger has a row of the incarnation on every copy of the database that is
/// not behind. Before its first batch, a copy that lacks batches of the incarnation before it looks
/// like one that has them.
pub fn has_ledger(pending: &ReadReply) -> bool {
    pending.last.seq > u64::from(pending.in_flight)
}

/// Returns what an id has pending beyond the value in the database. The result is wider than i64,
/// because the two deltas may each be near an end of i64.
pub fn beyond(id: &str, (batch, buffer): (i64, i64), verdict: &Verdict) -> i128 {
    let adds = match verdict {
        Verdict::AddBatch => true,
        Verdict::AddAfter(position) => id.as_bytes() > position.as_slice(),
        _ => false,
    };
    i128::from(buffer) + if adds { i128::from(batch) } else { 0 }
}

/// Returns whether Redis may have forgotten the incarnation since it returned it. A batch reaches
/// the ledger only after its rotation, and with it the incarnation, is durable. Before the first
/// batch a crash can revert the incarnation. Pending deltas can then reach the database under
/// another one, undetected by [`judge`].
pub fn may_be_forgotten(pending: &ReadReply, ledger: &Mark) -> bool {
    let has_anything = pending
        .deltas
        .iter()
        .any(|&(batch, buffer)| batch != 0 || buffer != 0);
    ledger.seq == 0 && pending.last.incarnation.is_some() && has_anything
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::family::Family;
    use crate::scripts::partition::buffered::LastCut;
    use crate::store::{FamilyNumber, Incarnation, Nonce};

    fn registered() -> Registration {
        Registration {
            family: Family::buffered("shop", "views").build().unwrap(),
            number: FamilyNumber(1),
            database: "shop's".into(),
            columns: None,
        }
    }

    fn pending(seq: u64, in_flight: bool) -> ReadReply {
        let last = LastCut {
            incarnation: Some(Incarnation(7)),
            seq,
            nonce: Some(Nonce(9)),
        };
        ReadReply {
            last,
            database: "shop's".into(),
            in_flight,
            deltas: vec![(1, 2)],
        }
    }

    #[test]
    fn the_ledger_decides_about_the_batch() {
        let mark = |seq, nonce, position: Option<&[u8]>| Mark {
            seq,
            nonce: Nonce(nonce),
            position: position.map(<[u8]>::to_vec),
        };
        let complete = |seq| mark(seq, 9, None);
        let partly = |seq| mark(seq, 9, Some(b"m"));
        let after = Verdict::AddAfter(b"m".to_vec());
        for (seq, in_flight, ledger, verdict) in [
            (5, true, complete(4), Verdict::AddBatch),
            (1, true, Mark::default(), Verdict::AddBatch),
            (5, true, partly(5), after.clone()),
            (5, true, complete(5), Verdict::LeaveOut),
            (5, false, complete(5), Verdict::LeaveOut),
            (0, false, Mark::default(), Verdict::LeaveOut),
            (5, true, complete(6), Verdict::Again),
            (5, false, complete(4), Verdict::Behind),
            (5, true, complete(3), Verdict::Behind),
            (5, false, partly(5), Verdict::Behind),
            (5, true, partly(4), Verdict::Behind),
            (5, true, mark(5, 8, None), Verdict::SetBack),
        ] {
            let judged = judge(&registered(), &pending(seq, in_flight), &ledger);
            assert_eq!(judged.unwrap(), verdict, "{seq} {in_flight} {ledger:?}");
        }
        let sums = ["m", "n"].map(|id| beyond(id, (1, 2), &after));
        assert_eq!(sums, [2, 3]);
        let released = [(0, false), (1, true), (1, false), (2, true)];
        let released = released.map(|(seq, in_flight)| has_ledger(&pending(seq, in_flight)));
        assert_eq!(released, [false, false, true, true]);
    }

    #[test]
    fn rows_are_combined_only_with_the_hits_of_their_database() {
        let judged = |known: &str, own: &str| {
            let (mut family, mut pending) = (registered(), pending(5, false));
            (family.database, pending.database) = (own.into(), known.into());
            let judged = judge(&family, &pending, &Mark::default());
            judged.map(drop).map_err(|error| error.kind())
        };
        assert_eq!(judged("shop's", "staging's"), Err(ErrorKind::Mismatch));
        // a store without an id, and a Redis that no database has configured yet
        assert_eq!(judged("shop's", ""), Ok(()));
        assert_eq!(judged("", "shop's"), Ok(()));
    }
}
