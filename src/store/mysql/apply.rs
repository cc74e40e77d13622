//! The write of batches, part by part: one transaction for ledger, values and rejects
//! (docs/protocol.md, section 3).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::MysqlStore;
use super::add::{self, Delta, Refused};
use super::fault;
use super::ledger::{self, Locked};
use super::rejects;
use super::session::{Session, UnitOfWork};
use super::target::{Segment, Target};
use crate::error::{Error, Result};
use crate::store::ledger::Advance;
use crate::store::{Applied, Batch, Registered};
use crate::testing::ablation::{self, Guard};

/// The default maximum number of ids in a transaction.
const MAX_ROWS: u64 = 10_000;
/// The default if one of the tables is the application's, whose own statements wait for each locked
/// row.
const MAX_ROWS_SHARED: u64 = 500;

/// Adds the next ids of the batches.
pub async fn apply(
    mysql: &MysqlStore,
    batches: &[Arc<Batch>],
    max_rows: Option<u64>,
) -> Result<Applied> {
    // read here, because the task may continue on another thread
    let out = ablation::out();
    let mut targets = Vec::with_capacity(batches.len());
    for batch in batches {
        targets.push(mysql.target(&batch.family.family).await?);
    }
    let is_shared = |batch: &Arc<Batch>| batch.family.family.table.is_some();
    let default = if batches.iter().any(is_shared) {
        MAX_ROWS_SHARED
    } else {
        MAX_ROWS
    };
    let apply = Apply {
        batches: batches.to_vec(),
        targets,
        max_rows: max_rows.unwrap_or(default),
        out,
    };
    let failed = "batches were not written";
    match mysql.primary.transact(failed, apply.clone()).await? {
        Outcome::PutOff => {
            let first = Apply {
                max_rows: 1,
                ..apply
            };
            mysql.primary.transact(failed, first).await?.applied()
        }
        done => done.applied(),
    }
}

/// The outcome of a transaction.
enum Outcome {
    Applied(Applied),
    /// Nothing was done, since another transaction has locked the first row.
    PutOff,
    /// Nothing was done, since the database does not have this family under its number.
    Unregistered(Arc<Registered>),
}

impl Outcome {
    fn applied(self) -> Result<Applied> {
        match self {
            Outcome::Applied(applied) => Ok(applied),
            Outcome::PutOff => Err(Error::corrupt("a transaction of one row was put off")),
            Outcome::Unregistered(registered) => {
                let Registered { family, number, .. } = &*registered;
                let why = "it was removed, or the database lost its registration";
                Err(Error::mismatch(format!(
                    "{family} is not registered as number {number}: {why}"
                )))
            }
        }
    }
}

/// A transaction that applies batches. It **never waits for a row of the application's tables while
/// it has locked others**, so it takes part in no deadlock with the application's transactions. It
/// locks the rows that are free, and takes the ids before the first one whose row is not. If that is
/// the very first id, it is done alone, which may wait.
#[derive(Clone)]
struct Apply {
    batches: Vec<Arc<Batch>>,
    /// The target of each batch.
    targets: Vec<Arc<Target>>,
    max_rows: u64,
    out: Option<Guard>,
}

/// The key of a row, and the place of its id in the order of the ledger.
type Place<'b> = (Vec<Segment<'b>>, u64);

impl Apply {
    /// Locks the rows of the application's tables without waiting. Returns how many ids, in the
    /// order of the ledger, come before the first one whose row another transaction has locked;
    /// `max_rows` if all are free.
    async fn lock_free(
        &self,
        transaction: &mut Session,
        advance: &Advance<'_>,
    ) -> Result<u64, sqlx::Error> {
        let mut by_table: BTreeMap<&str, (&Target, Vec<Place<'_>>)> = BTreeMap::new();
        let mut place = 0;
        for index in advance.order() {
            let (step, target) = (&advance.steps[index], &*self.targets[index]);
            if target.is_own {
                place += step.deltas.len() as u64;
                continue;
            }
            let new = || (target, Vec::new());
            let (_, rows) = by_table.entry(&target.label).or_insert_with(new);
            for (id, _) in step.deltas {
                // an id without a key goes to the rejects
                rows.extend(add::key(&step.batch.family, id).map(|key| (key, place)));
                place += 1;
            }
        }
        let mut free = self.max_rows;
        for (target, mut rows) in by_table.into_values() {
            rows.sort();
            let keys: Vec<_> = rows.iter().map(|(key, _)| &**key).collect();
            let locked = add::lock_free(transaction, target, &keys).await?;
            let locked = rows.iter().zip(locked).filter(|(_, locked)| *locked);
            let first = locked.map(|((_, place), _)| *place).min();
            free = free.min(first.unwrap_or(free));
        }
        Ok(free)
    }
}

impl UnitOfWork for Apply {
    type Output = Outcome;

    /// After a lock timeout others go first: the scheduler tries again later.
    fn is_repeated(error: &sqlx::Error) -> bool {
        fault::is_conflict(error) && !fault::is_locked(error)
    }

    async fn run(&self, transaction: &mut Session) -> Result<Outcome, sqlx::Error> {
        let Locked {
            known,
            unregistered,
        } = ledger::lock(transaction, &self.batches).await?;
        if let Some(family) = unregistered
            && self.out != Some(Guard::Registration)
        {
            return Ok(Outcome::Unregistered(family));
        }
        let advance = |rows| Advance::new(&self.batches, &known, rows, self.out);
        let free = match self.max_rows {
            1 => 1,
            rows => self.lock_free(transaction, &advance(rows)).await?,
        };
        if free == 0 {
            return Ok(Outcome::PutOff);
        }
        let Advance { steps, marks } = advance(free);
        ledger::write(transaction, &known, &marks).await?;
        let (mut taken, mut refused) = (Vec::new(), Refused::new());
        // all transactions write tables in this order
        let mut by_table: BTreeMap<&str, (&Target, Vec<Delta<'_>>)> = BTreeMap::new();
        for (step, target) in steps.iter().zip(&self.targets) {
            let ids = step.deltas.iter().zip(taken.len()..);
            let ids = ids.map(|((id, delta), index)| (index, &**id, *delta));
            let deltas = add::deltas(&step.batch.family, ids, &mut refused);
            let new = || (&**target, Vec::new());
            let table = by_table.entry(&target.label).or_insert_with(new);
            table.1.extend(deltas);
            taken.extend(step.deltas.iter().map(|delta| (step.batch, delta)));
        }
        let mut rows = 0;
        for (target, deltas) in by_table.into_values() {
            rows += add::add(transaction, target, deltas, &mut refused).await?;
        }
        let rejected = refused.iter();
        let rejected = rejected.map(|(index, reason)| {
            let (batch, delta) = taken[*index];
            (batch, delta, reason)
        });
        let is_dropped = |(batch, _, reason): &rejects::Rejected<'_>| {
            *reason == add::NO_ROW && batch.family.family.drops_without_row()
        };
        let (dropped, rejected): (Vec<_>, Vec<_>) = rejected.partition(is_dropped);
        rejects::write(transaction, &rejected).await?;
        let applied = Applied {
            progress: steps.iter().map(|step| step.progress).collect(),
            rows,
            rejected: rejected.len() as u64,
            dropped: dropped.len() as u64,
        };
        if taken.len() as u64 == applied.rows + applied.rejected + applied.dropped {
            Ok(Outcome::Applied(applied))
        } else {
            Err(sqlx::Error::Protocol(format!(
                "some deltas were neither added, rejected nor dropped: {applied:?}"
            )))
        }
    }
}
