//! The rules by which a ledger takes each delta of a batch once (docs/protocol.md, section 3).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::store::{Batch, Incarnation, Mark, Progress};
use crate::testing::ablation::{self, Guard};

/// The primary key of a ledger row: family, partition and incarnation. Rows are locked in this
/// order.
pub(crate) type LedgerKey = (u64, u32, Incarnation);

/// The length of the longest id that a ledger row can name, in bytes.
const POSITION_BYTES: usize = 255;

/// The work of one transaction.
pub(crate) struct Advance<'b> {
    /// The work on each batch, in the order in which the batches were given.
    pub(crate) steps: Vec<Step<'b>>,
    /// The ledger rows to write.
    pub(crate) marks: BTreeMap<LedgerKey, Mark>,
}

/// The work of one transaction on one batch.
pub(crate) struct Step<'b> {
    pub(crate) batch: &'b Batch,
    /// The deltas to add.
    pub(crate) deltas: &'b [(Vec<u8>, i64)],
    /// The progress of the batch once they are added.
    pub(crate) progress: Progress,
}

/// The guards that a test has taken out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Unguarded {
    ledger: bool,
    position: bool,
    nonce: bool,
}

impl Unguarded {
    /// Reads the switches of the calling thread.
    pub(crate) fn here() -> Self {
        Unguarded {
            ledger: ablation::is_out(Guard::Ledger),
            position: ablation::is_out(Guard::Position),
            nonce: ablation::is_out(Guard::Nonce),
        }
    }
}

impl<'b> Advance<'b> {
    /// Compares the batches with the ledger's rows and takes up to `max_rows` ids of them, at least
    /// one, in the order of the ledger. A row that is missing in `rows` does not exist yet.
    pub(crate) fn new(
        batches: &'b [Arc<Batch>],
        rows: &BTreeMap<LedgerKey, Mark>,
        max_rows: u64,
        unguarded: Unguarded,
    ) -> Self {
        let mut order: Vec<_> = batches.iter().map(|batch| &**batch).enumerate().collect();
        order.sort_by_key(|(_, batch)| (batch.ledger_key(), batch.id));
        let mut room = usize::try_from(max_rows).unwrap_or(usize::MAX).max(1);
        let (mut steps, mut marks) = (BTreeMap::new(), BTreeMap::new());
        for (index, batch) in order {
            let key = batch.ledger_key();
            let before = marks
                .get(&key)
                .or(rows.get(&key))
                .cloned()
                .unwrap_or_default();
            let (step, after) = before.step(batch, room, unguarded);
            room = room.saturating_sub(step.deltas.len());
            marks.extend(after.map(|mark| (key, mark)));
            steps.insert(index, step);
        }
        Advance {
            steps: steps.into_values().collect(),
            marks,
        }
    }
}

impl Mark {
    /// Decides what a transaction with room for that many ids does with the batch. Returns the next
    /// mark as well if the ledger row changes.
    fn step<'b>(
        &self,
        batch: &'b Batch,
        room: usize,
        unguarded: Unguarded,
    ) -> (Step<'b>, Option<Mark>) {
        let (start, room) = match self.start(batch, unguarded) {
            // taken at once, because a batch that begins anew with every part never ends
            _ if unguarded.ledger => (0, usize::MAX),
            Ok(_) if unguarded.position && self.position.is_some() => (0, usize::MAX),
            Ok(start) => (start, room),
            Err(progress) => {
                return (
                    Step {
                        batch,
                        deltas: &[],
                        progress,
                    },
                    None,
                );
            }
        };
        let open = &batch.deltas[start..];
        let deltas = &open[..end(open, room)];
        debug_assert!(
            deltas.is_sorted_by(|one, other| one.0 < other.0),
            "ids are not in order"
        );
        let left = (open.len() - deltas.len()) as u64;
        let last = deltas.last().filter(|_| left > 0);
        let mark = Mark {
            seq: batch.id.seq,
            nonce: batch.id.nonce,
            position: last.map(|(id, _)| id.clone()),
        };
        // only a test without the ledger adds a batch with a lower number
        let is_ahead = (left == 0 || last.is_some()) && batch.id.seq >= self.seq;
        let progress = if left == 0 {
            Progress::Complete
        } else {
            Progress::Partial { left }
        };
        (
            Step {
                batch,
                deltas,
                progress,
            },
            is_ahead.then_some(mark),
        )
    }

    /// Returns the index of the first delta that the database lacks, or the progress of a batch
    /// that is not added.
    fn start(&self, batch: &Batch, unguarded: Unguarded) -> Result<usize, Progress> {
        let is_same = batch.id.seq == self.seq && (batch.id.nonce == self.nonce || unguarded.nonce);
        match &self.position {
            None if batch.id.seq > self.seq => Ok(0),
            None if is_same => Err(Progress::Repeated),
            Some(position) if is_same => Ok(batch.deltas.partition_point(|(id, _)| id <= position)),
            _ => Err(Progress::SetBack),
        }
    }
}

/// Returns the number of deltas to take: `room`, and more until the last id fits into a ledger row.
fn end(deltas: &[(Vec<u8>, i64)], room: usize) -> usize {
    let mut end = room.min(deltas.len());
    while (1..deltas.len()).contains(&end) && deltas[end - 1].0.len() > POSITION_BYTES {
        end += 1;
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::Family;
    use crate::store::{BatchId, Nonce, Registered};

    fn batch(partition: u32, seq: u64, nonce: u64, ids: &[&[u8]]) -> Arc<Batch> {
        let family = Family::buffered("shop", "views").build().expect("valid");
        let deltas = ids.iter().map(|id| (id.to_vec(), 1)).collect();
        let id = BatchId {
            incarnation: Incarnation(1),
            seq,
            nonce: Nonce(nonce),
        };
        Arc::new(Batch {
            family: Arc::new(Registered { family, number: 1 }),
            partition,
            id,
            deltas,
        })
    }

    fn row(partition: u32, seq: u64, nonce: u64, position: Option<&[u8]>) -> (LedgerKey, Mark) {
        (
            (1, partition, Incarnation(1)),
            Mark {
                seq,
                nonce: Nonce(nonce),
                position: position.map(<[u8]>::to_vec),
            },
        )
    }

    /// Applies the batch to a ledger with that row, with room for two ids.
    fn step(
        batch: &Arc<Batch>,
        row: &(LedgerKey, Mark),
    ) -> (usize, Progress, Option<(LedgerKey, Mark)>) {
        let advance = Advance::new(
            std::slice::from_ref(batch),
            &[row.clone()].into(),
            2,
            Unguarded::default(),
        );
        let marks: Vec<_> = advance.marks.into_iter().collect();
        (
            advance.steps[0].deltas.len(),
            advance.steps[0].progress,
            marks.into_iter().next(),
        )
    }

    #[test]
    fn a_batch_is_added_in_parts() {
        let abc = batch(0, 2, 7, &[b"a", b"b", b"c"]);
        let begun = row(0, 2, 7, Some(b"b"));
        assert_eq!(
            step(&abc, &row(0, 1, 6, None)),
            (2, Progress::Partial { left: 1 }, Some(begun.clone()))
        );
        assert_eq!(
            step(&abc, &begun),
            (1, Progress::Complete, Some(row(0, 2, 7, None)))
        );
        assert_eq!(
            step(&abc, &row(0, 2, 7, None)),
            (0, Progress::Repeated, None)
        );
    }

    #[test]
    fn a_ledger_ahead_proves_that_redis_was_set_back() {
        let cut = batch(0, 2, 7, &[b"a"]);
        for ahead in [
            row(0, 3, 9, None),
            row(0, 2, 8, None),
            row(0, 2, 8, Some(b"a")),
            row(0, 1, 6, Some(b"a")),
        ] {
            assert_eq!(
                step(&cut, &ahead),
                (0, Progress::SetBack, None),
                "{ahead:?}"
            );
        }
    }

    #[test]
    fn ids_are_taken_in_the_order_of_the_ledger() {
        let batches = [
            batch(2, 1, 7, &[b"x"]),
            batch(1, 1, 7, &[b"a", b"b"]),
            batch(3, 1, 7, &[]),
        ];
        let advance = Advance::new(&batches, &BTreeMap::new(), 2, Unguarded::default());
        let taken: Vec<_> = advance
            .steps
            .iter()
            .map(|step| (step.deltas.len(), step.progress))
            .collect();
        assert_eq!(
            taken,
            [
                (0, Progress::Partial { left: 1 }),
                (2, Progress::Complete),
                (0, Progress::Complete)
            ]
        );
        assert_eq!(
            advance.marks,
            [row(1, 1, 7, None), row(3, 1, 7, None)].into()
        );
    }

    #[test]
    fn a_batch_that_is_given_twice_is_added_once() {
        let cut = batch(0, 1, 7, &[b"a", b"b", b"c"]);
        let twice = [cut.clone(), cut];
        let advance = Advance::new(&twice, &BTreeMap::new(), 9, Unguarded::default());
        let progress: Vec<_> = advance.steps.iter().map(|step| step.progress).collect();
        assert_eq!(progress, [Progress::Complete, Progress::Repeated]);
    }

    #[test]
    fn no_part_ends_with_an_id_that_the_ledger_cannot_hold() {
        let long = [b'b'; 256];
        let cut = batch(0, 1, 7, &[b"a", &long, b"c", b"d"]);
        let begun = row(0, 1, 7, Some(b"c"));
        assert_eq!(
            step(&cut, &row(0, 0, 0, None)),
            (3, Progress::Partial { left: 1 }, Some(begun))
        );
    }
}
