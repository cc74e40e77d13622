//! Deltas into the rows of one table: in bulk, and around the rows that the database refuses.

use std::cmp::Reverse;

use super::answer;
use super::fault;
use super::json::JsonRows;
use super::rejects::Rejected;
use super::session::Transaction;
use super::target::{Segment, Target};
use crate::store::Batch;

/// Most rows of a statement. At 255 bytes an id it then has about 5 MB.
const CHUNK: usize = 10_000;

/// A delta with the row that it goes to.
pub(super) struct Delta<'b> {
    pub(super) key: Vec<Segment<'b>>,
    pub(super) batch: &'b Batch,
    pub(super) id: &'b str,
    pub(super) delta: i64,
}

/// What is added to a row: the sum of several deltas where the row's counter came in several batches.
#[derive(Clone, Copy)]
struct Row<'d, 'b> {
    deltas: &'d [Delta<'b>],
    sum: i64,
}

/// A bulk statement to be made.
struct Step<'d, 'b> {
    way: Way,
    rows: Vec<Row<'d, 'b>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Rows that are missing are inserted.
    Upsert,
    /// Rows are locked, to be updated; those that are missing are refused.
    Find,
    /// All rows are there, and locked.
    Update,
}

impl Way {
    /// A negative number cannot be inserted into an unsigned column, not even where the row exists and the sum would
    /// fit: then it is an update.
    fn of(target: &Target, sum: i64) -> Self {
        match target.inserts && !(target.unsigned && sum < 0) {
            true => Way::Upsert,
            false => Way::Find,
        }
    }
}

/// Adds the deltas to their rows, appends those that the database refused, and answers how many were added.
///
/// A statement that fails because of one of its rows is undone by InnoDB and made again in halves, down to the single
/// delta: among 10,000 rows one bad row costs some 28 statements more.
pub(super) async fn add<'b>(
    transaction: &mut Transaction,
    target: &Target,
    mut deltas: Vec<Delta<'b>>,
    rejected: &mut Vec<Rejected<'b>>,
) -> Result<u64, sqlx::Error> {
    // in the key's order, so that everybody locks rows in one order; where a row's deltas go one by one, the positive
    // ones go first and may make the row that the others need
    deltas.sort_by(|one, other| (&one.key, Reverse(one.delta)).cmp(&(&other.key, Reverse(other.delta))));
    let mut added = 0;
    let mut steps = plan(target, &deltas);
    while let Some(mut step) = steps.pop() {
        let (refused, reason) = if step.way == Way::Find {
            let (there, missing) = step.find(transaction, target).await?;
            steps.push(Step { way: Way::Update, rows: there });
            (missing, absent(target))
        } else {
            match step.write(transaction, target).await {
                Ok(()) => {
                    added += step.rows.iter().map(|row| row.deltas.len() as u64).sum::<u64>();
                    continue;
                }
                Err(error) if !fault::blames_row(&error) => return Err(error),
                Err(_) if step.rows.len() > 1 => {
                    let rows = step.rows.split_off(step.rows.len() / 2);
                    steps.push(Step { way: step.way, rows });
                    steps.push(step);
                    continue;
                }
                Err(error) => (step.rows, fault::message(&error)),
            }
        };
        for row in refused {
            match row.deltas {
                [Delta { batch, id, delta, .. }] => {
                    rejected.push(Rejected { batch, id, delta: *delta, reason: reason.clone() });
                }
                several => steps.extend(one_by_one(target, several)),
            }
        }
    }
    Ok(added)
}

/// Why a row is refused that is not there.
fn absent(target: &Target) -> String {
    match target.inserts {
        true => format!("no such row, and {} takes no number below 0", target.value),
        false => "no such row".to_owned(),
    }
}

/// The statements to make, the first one last.
fn plan<'d, 'b>(target: &Target, deltas: &'d [Delta<'b>]) -> Vec<Step<'d, 'b>> {
    let (mut upserts, mut finds, mut steps) = (Vec::new(), Vec::new(), Vec::new());
    for deltas in deltas.chunk_by(|one, other| one.key == other.key) {
        let sum: i128 = deltas.iter().map(|delta| i128::from(delta.delta)).sum();
        match i64::try_from(sum) {
            Ok(sum) if Way::of(target, sum) == Way::Upsert => upserts.push(Row { deltas, sum }),
            Ok(sum) => finds.push(Row { deltas, sum }),
            Err(_) => steps.extend(one_by_one(target, deltas)),
        }
    }
    for (way, rows) in [(Way::Find, finds), (Way::Upsert, upserts)] {
        steps.extend(rows.chunks(CHUNK).rev().map(|rows| Step { way, rows: rows.to_vec() }));
    }
    steps
}

/// A statement for each delta, the first one last.
fn one_by_one<'d, 'b>(target: &Target, deltas: &'d [Delta<'b>]) -> Vec<Step<'d, 'b>> {
    let single = |delta: &'d Delta<'b>| {
        let row = Row { deltas: std::slice::from_ref(delta), sum: delta.delta };
        Step { way: Way::of(target, row.sum), rows: vec![row] }
    };
    deltas.iter().rev().map(single).collect()
}

impl<'d, 'b> Step<'d, 'b> {
    /// Locks the rows that are there, and answers those and the others. Without the lock a row could appear or vanish
    /// before it is updated.
    async fn find(
        self,
        transaction: &mut Transaction,
        target: &Target,
    ) -> Result<(Vec<Row<'d, 'b>>, Vec<Row<'d, 'b>>), sqlx::Error> {
        let mut json = JsonRows::default();
        for row in &self.rows {
            row.write_key(json.row());
        }
        let answer = transaction.fetch(target.lock.query().bind(json.finish())).await?;
        let mut there = answer::flags(&answer, self.rows.len())?.into_iter();
        Ok(self.rows.into_iter().partition(|_| there.next() == Some(true)))
    }

    async fn write(&self, transaction: &mut Transaction, target: &Target) -> Result<(), sqlx::Error> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let mut json = JsonRows::default();
        for row in &self.rows {
            let cells = json.row();
            row.write_key(cells);
            cells.number(row.sum);
        }
        let text = match self.way {
            Way::Upsert => &target.upsert,
            Way::Find | Way::Update => &target.update,
        };
        let changed = transaction.execute(text.query().bind(json.finish())).await?;
        // an upsert counts 1 for a row inserted and 2 for one updated, so it cannot be checked to the row
        let exact = self.way == Way::Upsert || changed == self.rows.len() as u64;
        match exact {
            true => Ok(()),
            false => Err(answer::unexpected(self.rows.len(), usize::try_from(changed).unwrap_or(usize::MAX))),
        }
    }
}

impl Row<'_, '_> {
    fn write_key(&self, cells: &mut JsonRows) {
        // the deltas of a row have one key
        for segment in self.deltas.iter().take(1).flat_map(|delta| &delta.key) {
            segment.write(cells);
        }
    }
}
