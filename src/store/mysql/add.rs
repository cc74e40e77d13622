//! The addition of deltas to the rows of one table: in bulk, and around the rows that the database
//! refuses.

use std::cmp::Reverse;

use sqlx::Arguments;
use sqlx::mysql::MySqlArguments;

use super::halves::{CHUNK, Halves};
use super::json::JsonRows;
use super::parts::Segment;
use super::positions;
use super::rejects::{Origin, Rejected};
use super::session::Transaction;
use super::statement::BULK;
use super::target::Target;

/// A delta with the row that it goes to.
pub(super) struct Delta<'b> {
    pub(super) key: Vec<Segment<'b>>,
    /// The batch that it came in.
    pub(super) origin: Origin,
    pub(super) id: &'b [u8],
    pub(super) delta: i64,
}

/// The addition to a row: the sum of several deltas if the row's counter came in several batches.
#[derive(Clone, Copy)]
struct RowDelta<'d, 'b> {
    deltas: &'d [Delta<'b>],
    sum: i64,
}

/// A bulk statement to run.
struct Bulk<'d, 'b> {
    way: Way,
    rows: Vec<RowDelta<'d, 'b>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Rows that are missing are inserted.
    Upsert,
    /// Rows are locked for an update; those that are missing are refused.
    Find,
    /// All rows exist and are locked.
    Update,
}

impl Way {
    /// Returns the way to add `sum`. An unsigned column refuses the INSERT of a negative number,
    /// even if the row exists and the sum would fit, so that is an update.
    fn of(target: &Target, sum: i64) -> Self {
        if target.inserts && !(target.unsigned && sum < 0) {
            Way::Upsert
        } else {
            Way::Find
        }
    }

    async fn write(
        self,
        transaction: &mut Transaction,
        target: &Target,
        rows: &[RowDelta<'_, '_>],
    ) -> Result<(), sqlx::Error> {
        let query = match (self, &target.bulk_upsert) {
            (Way::Upsert, Some(bulk)) if rows.len() == BULK => {
                let mut arguments = MySqlArguments::default();
                for row in rows {
                    row.key()
                        .try_for_each(|segment| segment.add_to(&mut arguments))?;
                    arguments.add(row.sum).map_err(sqlx::Error::Encode)?;
                }
                bulk.query_with(arguments)
            }
            (Way::Upsert, _) => target.upsert.query().bind(json(rows)),
            (Way::Find | Way::Update, _) => target.update.query().bind(json(rows)),
        };
        let changed = transaction.execute(query).await?;
        // an upsert counts 1 for an inserted row and 2 for an updated one, so the number of rows
        // cannot be checked
        match self {
            Way::Upsert => Ok(()),
            Way::Find | Way::Update => positions::all(rows.len(), changed),
        }
    }
}

/// Returns the sums and keys as a statement receives them.
fn json(rows: &[RowDelta<'_, '_>]) -> String {
    let mut json = JsonRows::default();
    for row in rows {
        row.write_key(json.row().number(row.sum));
    }
    json.finish()
}

/// Adds the deltas to their rows, appends those that the database refused, and returns how many
/// were added.
pub(super) async fn add<'b>(
    transaction: &mut Transaction,
    target: &Target,
    mut deltas: Vec<Delta<'b>>,
    rejected: &mut Vec<Rejected<'b>>,
) -> Result<u64, sqlx::Error> {
    // in key order, so that all transactions lock rows in one order; if a row's deltas are added
    // one by one, the positive ones go first, since they may insert the row that the others need
    deltas.sort_by(|one, other| {
        (&one.key, Reverse(one.delta)).cmp(&(&other.key, Reverse(other.delta)))
    });
    let mut added = 0;
    let mut steps = plan(target, &deltas);
    while let Some(step) = steps.pop() {
        let refused = if step.way == Way::Find {
            let (there, missing) = step.find(transaction, target).await?;
            steps.push(Bulk {
                way: Way::Update,
                rows: there,
            });
            missing
                .into_iter()
                .map(|row| (row, absent(target)))
                .collect()
        } else {
            let refused = step.write(transaction, target).await?;
            added += count(&step.rows) - count(refused.iter().map(|(row, _)| row));
            refused
        };
        for (row, reason) in refused {
            match row.deltas {
                [
                    Delta {
                        origin, id, delta, ..
                    },
                ] => {
                    rejected.push(Rejected {
                        origin: *origin,
                        id,
                        delta: *delta,
                        reason,
                    });
                }
                several => steps.extend(one_by_one(target, several)),
            }
        }
    }
    Ok(added)
}

/// Returns the number of deltas of the rows.
fn count<'r>(rows: impl IntoIterator<Item = &'r RowDelta<'r, 'r>>) -> u64 {
    rows.into_iter().map(|row| row.deltas.len() as u64).sum()
}

/// Returns the reason for refusing a row that does not exist.
fn absent(target: &Target) -> String {
    if target.inserts {
        format!("no such row, and {} takes no number below 0", target.value)
    } else {
        "no such row".to_owned()
    }
}

/// Returns the statements to run, the first one last.
fn plan<'d, 'b>(target: &Target, deltas: &'d [Delta<'b>]) -> Vec<Bulk<'d, 'b>> {
    let (mut upserts, mut finds, mut steps) = (Vec::new(), Vec::new(), Vec::new());
    for deltas in deltas.chunk_by(|one, other| one.key == other.key) {
        let sum: i128 = deltas.iter().map(|delta| i128::from(delta.delta)).sum();
        match i64::try_from(sum) {
            Ok(sum) if Way::of(target, sum) == Way::Upsert => {
                upserts.push(RowDelta { deltas, sum })
            }
            Ok(sum) => finds.push(RowDelta { deltas, sum }),
            Err(_) => steps.extend(one_by_one(target, deltas)),
        }
    }
    let upserts_of = if target.bulk_upsert.is_some() {
        BULK
    } else {
        CHUNK
    };
    for (way, rows, size) in [
        (Way::Find, finds, CHUNK),
        (Way::Upsert, upserts, upserts_of),
    ] {
        steps.extend(rows.chunks(size).rev().map(|rows| Bulk {
            way,
            rows: rows.to_vec(),
        }));
    }
    steps
}

/// Returns a statement for each delta, the first one last.
fn one_by_one<'d, 'b>(target: &Target, deltas: &'d [Delta<'b>]) -> Vec<Bulk<'d, 'b>> {
    let single = |delta: &'d Delta<'b>| {
        let row = RowDelta {
            deltas: std::slice::from_ref(delta),
            sum: delta.delta,
        };
        Bulk {
            way: Way::of(target, row.sum),
            rows: vec![row],
        }
    };
    deltas.iter().rev().map(single).collect()
}

impl<'d, 'b> Bulk<'d, 'b> {
    /// Locks the rows that exist, and returns them and the others. Without the lock a row could
    /// appear or vanish before it is updated.
    async fn find(
        self,
        transaction: &mut Transaction,
        target: &Target,
    ) -> Result<(Vec<RowDelta<'d, 'b>>, Vec<RowDelta<'d, 'b>>), sqlx::Error> {
        let mut json = JsonRows::default();
        for row in &self.rows {
            row.write_key(json.row());
        }
        let found = transaction
            .fetch(target.lock.query().bind(json.finish()))
            .await?;
        let mut there = positions::flags(&found, self.rows.len())?.into_iter();
        Ok(self
            .rows
            .into_iter()
            .partition(|_| there.next() == Some(true)))
    }

    /// Returns the rows that the database refused, with its messages.
    async fn write(
        &self,
        transaction: &mut Transaction,
        target: &Target,
    ) -> Result<Vec<(RowDelta<'d, 'b>, String)>, sqlx::Error> {
        let mut halves = Halves::of(&self.rows);
        while let Some(rows) = halves.next() {
            let result = self.way.write(transaction, target, rows).await;
            halves.made(rows, result)?;
        }
        Ok(halves
            .refused()
            .into_iter()
            .map(|(row, reason)| (*row, reason))
            .collect())
    }
}

impl RowDelta<'_, '_> {
    fn write_key(&self, cells: &mut JsonRows) {
        self.key().for_each(|segment| segment.write(cells));
    }

    /// Returns the key, which all deltas of a row share.
    fn key(&self) -> impl Iterator<Item = &Segment<'_>> {
        self.deltas.iter().take(1).flat_map(|delta| &delta.key)
    }
}
