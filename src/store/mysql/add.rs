//! The addition of deltas to the rows of one table: in bulk, and around the rows that the database
//! refuses.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use sqlx::Row as _;

use super::fault;
use super::json;
use super::session::Session;
use super::statement::Statement;
use super::target::{self, BULK, Segment, Target};
use crate::store::Registration;

/// The maximum number of rows in a statement. With ids of 255 bytes it then has about 5 MB.
const CHUNK: usize = 10_000;

/// The reason for refusing an id that a client in another language wrote.
const NOT_UTF8: &str = "the id is not UTF-8";

/// The reason for refusing a delta whose row only the application creates.
const NO_ROW: &str = "no such row";

/// A delta with the row that it goes to.
pub struct Delta<'b> {
    /// The index of the delta in the caller's list.
    index: usize,
    key: Vec<Segment<'b>>,
    delta: i64,
}

/// The refusal of a delta.
#[derive(Clone)]
pub struct Refusal {
    pub reason: String,
    pub cause: Cause,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// No row can ever have the id.
    Never,
    /// The row does not exist, and only the application creates it; or a foreign key of the row refers
    /// to one that does not exist.
    Missing,
    /// Anything else that the row or its table does not accept.
    Row,
}

impl Refusal {
    fn new(cause: Cause, reason: impl Into<String>) -> Self {
        Refusal {
            reason: reason.into(),
            cause,
        }
    }

    fn of(error: &sqlx::Error) -> Self {
        let cause = if fault::is_orphan(error) {
            Cause::Missing
        } else {
            Cause::Row
        };
        Refusal::new(cause, fault::message(error))
    }
}

/// The refused deltas, each by its index in the caller's list.
pub type Refused = BTreeMap<usize, Refusal>;

/// Finds the rows of the ids, which clients in other languages may have written. Refuses an id that
/// matches no row.
pub fn deltas<'b>(
    family: &Registration,
    ids: impl IntoIterator<Item = (usize, &'b [u8], i64)>,
    refused: &mut Refused,
) -> Vec<Delta<'b>> {
    let mut deltas = Vec::new();
    for (index, id, delta) in ids {
        match row_key(family, id) {
            Ok(key) => deltas.push(Delta { index, key, delta }),
            Err(reason) => drop(refused.insert(index, Refusal::new(Cause::Never, reason))),
        }
    }
    deltas
}

/// Returns the key of an id's row, or the reason why the id matches none.
fn row_key<'b>(family: &Registration, id: &'b [u8]) -> Result<Vec<Segment<'b>>, String> {
    let text = std::str::from_utf8(id).map_err(|_| NOT_UTF8.to_owned())?;
    let segments = target::segments(family, text)?;
    Ok(target::family_segment(family)
        .into_iter()
        .chain(segments)
        .collect())
}

/// Adds deltas of one family to their rows, unless it refuses them. Leaves out those whose rows
/// another transaction has locked, and returns their indexes.
pub async fn add_unlocked<'b>(
    transaction: &mut Session,
    family: &Registration,
    target: &Target,
    ids: impl IntoIterator<Item = (usize, &'b [u8], i64)>,
    refused: &mut Refused,
) -> Result<BTreeSet<usize>, sqlx::Error> {
    let mut deltas = deltas(family, ids, refused);
    let locked = lock_free(transaction, target, &deltas).await?;
    deltas.retain(|delta| !locked.contains(&delta.index));
    add(transaction, target, deltas, refused).await?;
    Ok(locked)
}

/// Locks the rows of these deltas in a table of the application, without waiting. Returns the
/// indexes of the deltas whose rows another transaction has locked. Counterfoil's own rows are
/// locked when they are written.
pub async fn lock_free(
    transaction: &mut Session,
    target: &Target,
    deltas: &[Delta<'_>],
) -> Result<BTreeSet<usize>, sqlx::Error> {
    if target.is_own {
        return Ok(BTreeSet::new());
    }
    let keys: Vec<_> = deltas.iter().map(|delta| &*delta.key).collect();
    let are_free = find(transaction, &target.lock_free, &keys).await?;
    // these rows are missing, or another transaction has locked them
    let (others, other_keys): (Vec<_>, Vec<_>) = deltas
        .iter()
        .zip(&keys)
        .zip(are_free)
        .filter(|(_, is_free)| !is_free)
        .map(|((delta, key), _)| (delta, *key))
        .unzip();
    let exist = find(transaction, &target.exists, &other_keys).await?;
    Ok(others
        .iter()
        .zip(exist)
        .filter(|(_, exists)| *exists)
        .map(|(delta, _)| delta.index)
        .collect())
}

/// Returns for each key whether the statement finds its row.
async fn find(
    transaction: &mut Session,
    select: &Statement,
    keys: &[&[Segment<'_>]],
) -> Result<Vec<bool>, sqlx::Error> {
    let mut found = Vec::with_capacity(keys.len());
    for some in keys.chunks(CHUNK) {
        let rows = transaction.fetch(select.clone().bind_rows(some)).await?;
        found.extend(json::by_position::<bool>(rows, some.len())?);
    }
    Ok(found)
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
    /// Rows are locked for an update; those that are missing are refused, or inserted if the table
    /// is numbered.
    Find,
    /// All rows exist and are locked.
    Update,
}

/// Adds the deltas to their rows, except those that the database refuses, and returns how many were
/// added.
///
/// If a statement fails because of one of its rows, InnoDB undoes it. An upsert fails if a new row
/// could not hold the delta, even if the row exists and can hold the sum, so the rows that exist
/// are then updated. Of the others, those whose foreign keys refer to missing rows are skipped
/// together. If there are other reasons, they are bisected, down to the single row: among 10,000
/// rows, one bad row costs about 42 more statements.
pub async fn add(
    transaction: &mut Session,
    target: &Target,
    mut deltas: Vec<Delta<'_>>,
    refused: &mut Refused,
) -> Result<u64, sqlx::Error> {
    if target.inserts {
        // An id that is too long for its column is refused here. The server would refuse most of
        // them, but a VARCHAR column drops excess spaces, and the delta would count in the row of
        // another id.
        deltas.retain(|delta| {
            let column = target.too_short(&delta.key);
            if let Some(column) = column {
                let reason = format!("the id is too long for column {column}");
                refused.insert(delta.index, Refusal::new(Cause::Row, reason));
            }
            column.is_none()
        });
    }
    // in key order, so that all transactions lock rows in one order; if a row's deltas are added
    // one by one, the positive ones go first, since they may insert the row that the others need
    deltas.sort_by(|one, other| {
        (&one.key, Reverse(one.delta)).cmp(&(&other.key, Reverse(other.delta)))
    });
    let (mut steps, mut added) = (plan(target, &deltas), 0);
    while let Some(step) = steps.pop() {
        if step.rows.is_empty() {
            continue;
        }
        let refusal = match step.way {
            Way::Find if target.inserts => {
                let reason = format!("no such row, and {} takes no negative number", target.value);
                Refusal::new(Cause::Row, reason)
            }
            Way::Find => Refusal::new(Cause::Missing, NO_ROW),
            Way::Upsert | Way::Update => match step.write(transaction, target).await {
                Ok(()) => {
                    added += step.rows.iter().map(RowDelta::count).sum::<u64>();
                    continue;
                }
                Err(error) if fault::blames_row(&error) => Refusal::of(&error),
                Err(error) => return Err(error),
            },
        };
        let (way, is_single) = (step.way, step.rows.len() == 1);
        let (found, mut rows) = match way {
            Way::Update => (Vec::new(), step.rows),
            Way::Find | Way::Upsert => step.find(transaction, target).await?,
        };
        if way == Way::Upsert && refusal.cause == Cause::Missing && !is_single {
            let bulk = Bulk { way, rows };
            let inserted = bulk.insert_children(transaction, target).await?;
            rows = bulk.rows;
            if let Some(inserted) = inserted {
                for (row, is_inserted) in rows.drain(..).zip(inserted) {
                    if is_inserted {
                        added += row.count();
                    } else {
                        let indexes = row.deltas.iter().map(|delta| delta.index);
                        refused.extend(indexes.map(|index| (index, refusal.clone())));
                    }
                }
            }
        }
        match way {
            Way::Find if target.is_numbered => steps.push(Bulk {
                way: Way::Upsert,
                rows,
            }),
            Way::Upsert | Way::Update if !is_single => {
                let mut first = rows;
                let second = first.split_off(first.len() / 2);
                steps.extend([second, first].map(|rows| Bulk { way, rows }));
            }
            _ => {
                for row in rows {
                    match row.deltas {
                        [one] => drop(refused.insert(one.index, refusal.clone())),
                        several => steps.extend(one_by_one(target, several)),
                    }
                }
            }
        }
        steps.push(Bulk {
            way: Way::Update,
            rows: found,
        });
    }
    Ok(added)
}

/// Returns the statements to run, in reverse order: the caller takes them off the end.
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
    let bulk = target.bulk_upsert.as_ref().map_or(CHUNK, |_| BULK);
    for (way, rows, size) in [(Way::Find, finds, CHUNK), (Way::Upsert, upserts, bulk)] {
        steps.extend(rows.chunks(size).rev().map(|rows| Bulk {
            way,
            rows: rows.to_vec(),
        }));
    }
    steps
}

/// Returns a statement for each delta, in reverse order like [`plan`].
fn one_by_one<'d, 'b>(target: &Target, deltas: &'d [Delta<'b>]) -> Vec<Bulk<'d, 'b>> {
    deltas
        .iter()
        .rev()
        .map(|delta| Bulk {
            way: Way::of(target, delta.delta),
            rows: vec![RowDelta {
                deltas: std::slice::from_ref(delta),
                sum: delta.delta,
            }],
        })
        .collect()
}

impl Way {
    /// Returns the way to add `sum`. An unsigned column refuses the INSERT of a negative number,
    /// even if the row exists and the sum would fit, so that is an update.
    fn of(target: &Target, sum: i64) -> Self {
        if target.inserts && !target.is_numbered && !(target.unsigned && sum < 0) {
            Way::Upsert
        } else {
            Way::Find
        }
    }
}

impl<'d, 'b> Bulk<'d, 'b> {
    /// Locks the rows that exist, and returns them and the others. Without the lock a row could
    /// appear or vanish before it is updated.
    async fn find(
        self,
        transaction: &mut Session,
        target: &Target,
    ) -> Result<(Vec<RowDelta<'d, 'b>>, Vec<RowDelta<'d, 'b>>), sqlx::Error> {
        let keys: Vec<_> = self.rows.iter().map(RowDelta::key).collect();
        let mut is_found = find(transaction, &target.lock, &keys).await?.into_iter();
        Ok(self
            .rows
            .into_iter()
            .partition(|_| is_found.next() == Some(true)))
    }

    /// Upserts the rows whose foreign keys refer to existing rows. Returns for each row whether it was
    /// upserted, or `None`, without an effect, if rows were refused for other reasons too.
    ///
    /// INSERT IGNORE skips a row that it cannot insert, with a warning. But it also clips values that
    /// do not fit, with a warning. So every row that is missing afterwards must account for one
    /// warning, and there must be no other.
    async fn insert_children(
        &self,
        transaction: &mut Session,
        target: &Target,
    ) -> Result<Option<Vec<bool>>, sqlx::Error> {
        const SAVEPOINT: &str = "SAVEPOINT counterfoil_children";
        const ROLLBACK: &str = "ROLLBACK TO SAVEPOINT counterfoil_children";
        const WARNINGS: &str = "SHOW WARNINGS; SELECT CAST(@@warning_count AS SIGNED)";
        if self.rows.is_empty() {
            return Ok(Some(Vec::new()));
        }
        transaction.packet(SAVEPOINT.to_owned(), 1).await?;
        let insert = target.upsert_some.clone().bind_rows(self.given());
        match transaction.execute(insert).await {
            Ok(_) => {}
            // IGNORE does not ignore an error of a trigger, which undoes the statement
            Err(error) if fault::blames_row(&error) => return Ok(None),
            Err(error) => return Err(error),
        }
        let mut warnings = transaction.packet(WARNINGS.to_owned(), 2).await?;
        let count: i64 = warnings.pop().map_or(Ok(-1), |count| count.try_get(0))?;
        let mut are_orphans = true;
        for warning in &warnings {
            let number: u32 = warning.try_get(1)?;
            are_orphans &= u16::try_from(number).is_ok_and(fault::is_orphan_number);
        }
        let keys: Vec<_> = self.rows.iter().map(RowDelta::key).collect();
        let is_inserted = find(transaction, &target.lock, &keys).await?;
        let skipped = is_inserted.iter().filter(|inserted| !**inserted).count();
        if are_orphans && i64::try_from(skipped) == Ok(count) {
            return Ok(Some(is_inserted));
        }
        transaction.packet(ROLLBACK.to_owned(), 1).await?;
        Ok(None)
    }

    /// Returns the rows as a statement takes them: the delta and the key.
    fn given(&self) -> impl Iterator<Item = Vec<Segment<'b>>> {
        self.rows.iter().map(|row| {
            let sum = Segment::Number(row.sum.into());
            [&[sum], row.key()].concat()
        })
    }

    async fn write(&self, transaction: &mut Session, target: &Target) -> Result<(), sqlx::Error> {
        let rows = &self.rows;
        let statement = match (self.way, &target.bulk_upsert) {
            (Way::Upsert, Some(bulk)) if rows.len() == BULK => {
                rows.iter().fold(bulk.clone(), |bulk, row| {
                    target::bind(bulk, row.key().iter().copied()).bind(row.sum)
                })
            }
            (Way::Upsert, _) => target.upsert.clone().bind_rows(self.given()),
            (Way::Find | Way::Update, _) => target.update.clone().bind_rows(self.given()),
        };
        let changed = transaction.execute(statement).await?;
        // an upsert counts 1 for an inserted row and 2 for an updated one, so the number of rows
        // cannot be checked
        if self.way == Way::Upsert {
            Ok(())
        } else {
            json::check_all(rows.len(), changed)
        }
    }
}

impl<'d, 'b> RowDelta<'d, 'b> {
    /// Returns the key, which all deltas of a row share.
    fn key(&self) -> &'d [Segment<'b>] {
        self.deltas.first().map_or(&[], |delta| &delta.key)
    }

    /// Returns the number of deltas.
    fn count(&self) -> u64 {
        self.deltas.len() as u64
    }
}
