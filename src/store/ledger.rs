//! The rules by which each delta of a batch is added once. A ledger row has the sequence number and
//! nonce of a partition's last batch, and the position in it (docs/protocol.md, section 3).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::store::{Batch, FamilyNumber, Incarnation, Mark, Progress};
use crate::testing::ablation::Guard;

/// The primary key of a ledger row: family, partition and incarnation. Rows are locked in this
/// order.
pub type LedgerKey = (FamilyNumber, u32, Incarnation);

/// The length of the longest id that a ledger row can name, in bytes.
const POSITION_BYTES: usize = 255;

/// The work of one transaction.
pub struct Advance<'b> {
    /// The work on each batch, in the order of the ledger, in which ids are taken.
    pub steps: Vec<BatchPart<'b>>,
    /// The ledger rows to write.
    pub marks: BTreeMap<LedgerKey, Mark>,
    /// The progress of each batch once they are written, in the order in which the batches were
    /// given.
    pub progress: Vec<Progress>,
}

/// The work of one transaction on one batch.
pub struct BatchPart<'b> {
    /// The index of the batch in the caller's list.
    pub index: usize,
    pub batch: &'b Batch,
    /// The deltas to add.
    pub deltas: &'b Deltas,
    /// The number of batches that the database has lost.
    pub lost: u64,
}

impl<'b> Advance<'b> {
    /// Compares the batches with the ledger's rows and takes up to `max_rows` ids of them, at least
    /// one. A row that is missing in `rows` does not exist yet.
    pub fn new(
        batches: &'b [Arc<Batch>],
        rows: &BTreeMap<LedgerKey, Mark>,
        max_rows: u64,
        out: Option<Guard>,
    ) -> Self {
        let mut order: Vec<_> = batches.iter().map(|batch| &**batch).enumerate().collect();
        order.sort_by_key(|(_, batch)| (batch.ledger_key(), batch.id));
        let mut room = usize::try_from(max_rows).unwrap_or(usize::MAX).max(1);
        let mut advance = Advance {
            steps: Vec::new(),
            marks: BTreeMap::new(),
            progress: vec![Progress::Repeated; batches.len()],
        };
        for (index, batch) in order {
            let key = batch.ledger_key();
            let before = advance
                .marks
                .get(&key)
                .or(rows.get(&key))
                .cloned()
                .unwrap_or_default();
            let (deltas, progress, after) = before.step(batch, room, out);
            let lost = match &after {
                Some(_) if out != Some(Guard::LostBatch) => before.lost(batch),
                _ => 0,
            };
            room = room.saturating_sub(deltas.len());
            advance.progress[index] = progress;
            advance.marks.extend(after.map(|mark| (key, mark)));
            advance.steps.push(BatchPart {
                index,
                batch,
                deltas,
                lost,
            });
        }
        advance
    }

    /// Returns the batches that found other batches lost: the index of each, and the number of lost
    /// ones.
    pub fn database_set_back(&self) -> Vec<(usize, u64)> {
        let losses = self.steps.iter().filter(|step| step.lost > 0);
        losses.map(|step| (step.index, step.lost)).collect()
    }
}

impl Mark {
    /// Decides what a transaction with room for that many ids does with the batch. Returns the
    /// deltas to add, the progress of the batch once they are added, and the next mark if the
    /// ledger row changes.
    fn step<'b>(
        &self,
        batch: &'b Batch,
        room: usize,
        out: Option<Guard>,
    ) -> (&'b Deltas, Progress, Option<Mark>) {
        let (start, room) = match self.start(batch, out) {
            // Tests remove this guard. The whole batch is then taken at once, because a batch that
            // begins again with every part never ends.
            _ if out == Some(Guard::Ledger) => (0, usize::MAX),
            Ok(_) if out == Some(Guard::Position) && self.position.is_some() => (0, usize::MAX),
            Ok(start) => (start, room),
            Err(progress) => return (&[], progress, None),
        };
        let (deltas, left) = split(&batch.deltas[start..], room);
        debug_assert!(
            deltas.is_sorted_by(|one, other| one.0 < other.0),
            "ids are not in order"
        );
        let last = deltas.last().filter(|_| !left.is_empty());
        let progress = match left.len() as u64 {
            0 => Progress::Complete,
            left => Progress::Partial { left },
        };
        let mark = Mark {
            seq: batch.id.seq,
            nonce: batch.id.nonce,
            position: last.map(|(id, _)| id.clone()),
        };
        // only a test without the ledger adds a batch with a lower number
        let is_ahead = (left.is_empty() || last.is_some()) && batch.id.seq >= self.seq;
        (deltas, progress, is_ahead.then_some(mark))
    }

    /// Returns the number of batches that Redis has released, up to this one, and that the ledger
    /// lacks or lacks a part of.
    fn lost(&self, batch: &Batch) -> u64 {
        let released = batch.id.seq + u64::from(batch.is_lost);
        let is_partial = u64::from(self.position.is_some());
        (released + is_partial).saturating_sub(self.seq + 1)
    }

    /// Returns the index of the first delta that the database lacks, or the progress of a batch
    /// that is not added.
    fn start(&self, batch: &Batch, out: Option<Guard>) -> Result<usize, Progress> {
        let is_same =
            batch.id.seq == self.seq && (batch.id.nonce == self.nonce || out == Some(Guard::Nonce));
        match &self.position {
            // A batch also begins while the one before it is partial in the ledger. That one was
            // complete before Redis cut this one, so the database was set back.
            _ if batch.id.seq > self.seq => Ok(0),
            None if is_same => Err(Progress::Repeated),
            Some(position) if is_same => Ok(batch.deltas.partition_point(|(id, _)| id <= position)),
            _ => Err(Progress::SetBack),
        }
    }
}

/// A part of the deltas of a batch.
pub type Deltas = [(Vec<u8>, i64)];

/// Splits off the deltas to take: `room`, and more until the last id fits into a ledger row.
fn split(deltas: &Deltas, room: usize) -> (&Deltas, &Deltas) {
    let mut end = room.min(deltas.len());
    while (1..deltas.len()).contains(&end) && deltas[end - 1].0.len() > POSITION_BYTES {
        end += 1;
    }
    deltas.split_at(end)
}
