//! The write of batches, part by part: one transaction for ledger, values and rejects
//! (docs/protocol.md, section 3).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::MysqlStore;
use super::add::{self, Cause, Delta, Refused};
use super::families;
use super::fault;
use super::ledger::{self, LockedRows};
use super::rejects::{self, Limit};
use super::session::{Session, UnitOfWork};
use super::target::Target;
use crate::error::{Error, Result};
use crate::store::ledger::Advance;
use crate::store::{ApplyReply, Batch};
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
) -> Result<ApplyReply> {
    // a test removes a guard for its own thread, so this is read before the work moves to a task
    let out = ablation::out();
    let mut targets = Vec::with_capacity(batches.len());
    for batch in batches {
        targets.push(mysql.target(&batch.family.family).await?);
    }
    let default = if targets.iter().all(|target| target.is_own) {
        MAX_ROWS
    } else {
        MAX_ROWS_SHARED
    };
    let apply = BatchTransaction {
        batches: batches.to_vec(),
        targets,
        max_rows: max_rows.unwrap_or(default),
        max_rejects: mysql.max_rejects.clone(),
        out,
    };
    let failed = "batches were not written";
    if let Some(applied) = mysql.primary.transact(failed, apply.clone()).await? {
        return Ok(applied);
    }
    let first = BatchTransaction {
        max_rows: 1,
        ..apply
    };
    mysql
        .primary
        .transact(failed, first)
        .await?
        .ok_or_else(|| Error::corrupt("a transaction of one row was put off"))
}

/// A transaction that applies batches. It **never waits for a row of the application's tables while
/// it has locked others**, so it takes part in no deadlock with the application's transactions. It
/// locks the rows that are free, and takes the ids that come before the first one whose row another
/// transaction has locked, in the order of the ledger. If that is the very first id, nothing is
/// done. A second transaction then takes this id alone: it has locked no other row of the
/// application, so it may wait.
#[derive(Clone)]
struct BatchTransaction {
    batches: Vec<Arc<Batch>>,
    /// The target of each batch.
    targets: Vec<Arc<Target>>,
    max_rows: u64,
    max_rejects: Arc<Limit>,
    out: Option<Guard>,
}

/// The deltas of each table, in the order in which all transactions write tables.
type ByTable<'b> = BTreeMap<&'b str, (&'b Target, Vec<Delta<'b>>)>;

impl BatchTransaction {
    /// Finds the rows of the deltas. The index of a delta is its place in the order of the ledger.
    fn by_table<'b>(&'b self, advance: &Advance<'b>, refused: &mut Refused) -> ByTable<'b> {
        let (mut by_table, mut place) = (ByTable::new(), 0);
        for step in &advance.steps {
            let ids = step
                .deltas
                .iter()
                .zip(place..)
                .map(|((id, delta), place)| (place, &**id, *delta));
            let target = &*self.targets[step.index];
            let (_, deltas) = by_table
                .entry(&target.label)
                .or_insert_with(|| (target, Vec::new()));
            deltas.extend(add::deltas(&step.batch.family, ids, refused));
            place += step.deltas.len();
        }
        by_table
    }

    /// Locks the rows of the application's tables without waiting. Returns how many ids, in the
    /// order of the ledger, come before the first one whose row another transaction has locked;
    /// `max_rows` if all are free.
    async fn lock_free(
        &self,
        transaction: &mut Session,
        advance: &Advance<'_>,
    ) -> Result<u64, sqlx::Error> {
        let mut free = self.max_rows;
        if self.targets.iter().all(|target| target.is_own) {
            return Ok(free);
        }
        let by_table = self.by_table(advance, &mut Refused::new());
        for (target, deltas) in by_table.into_values() {
            let locked = add::lock_free(transaction, target, &deltas).await?;
            free = locked.first().map_or(free, |&place| free.min(place as u64));
        }
        Ok(free)
    }
}

impl UnitOfWork for BatchTransaction {
    /// `None` if nothing was done because another transaction has locked the first row.
    type Output = Option<ApplyReply>;

    /// After a lock timeout other families go first, and the scheduler tries this one again later.
    fn is_repeated(error: &sqlx::Error) -> bool {
        fault::is_conflict(error) && !fault::is_locked(error)
    }

    async fn run(&self, transaction: &mut Session) -> Result<Self::Output, sqlx::Error> {
        let LockedRows {
            known,
            unregistered,
        } = ledger::lock(transaction, &self.batches).await?;
        if let Some(family) = unregistered
            && self.out != Some(Guard::Registration)
        {
            return Err(families::not_registered(&family));
        }
        let free = match self.max_rows {
            1 => 1,
            rows => {
                let wanted = Advance::new(&self.batches, &known, rows, self.out);
                self.lock_free(transaction, &wanted).await?
            }
        };
        if free == 0 {
            return Ok(None);
        }
        let advance = Advance::new(&self.batches, &known, free, self.out);
        ledger::write(transaction, &known, &advance.marks).await?;
        ledger::record_lost(transaction, &advance.steps).await?;
        let (mut rows, mut refused) = (0, Refused::new());
        for (target, deltas) in self.by_table(&advance, &mut refused).into_values() {
            rows += add::add(transaction, target, deltas, &mut refused).await?;
        }
        let taken: Vec<_> = advance
            .steps
            .iter()
            .flat_map(|step| step.deltas.iter().map(|delta| (step.batch, delta)))
            .collect();
        let (dropped, rejected): (Vec<rejects::RefusedDelta<'_>>, Vec<_>) = refused
            .iter()
            .map(|(index, refusal)| {
                let (batch, delta) = taken[*index];
                (batch, delta, refusal)
            })
            .partition(|(batch, _, refusal)| {
                refusal.cause == Cause::Missing && batch.family.family.drops_without_row()
            });
        let lost = rejects::write(transaction, &self.max_rejects, &rejected).await?;
        let applied = ApplyReply {
            database_set_back: advance.database_set_back(),
            progress: advance.progress,
            rows,
            rejected: rejected.len() as u64 - lost,
            dropped: dropped.len() as u64,
            lost,
        };
        if taken.len() as u64 == applied.rows + applied.rejected + applied.dropped + applied.lost {
            Ok(Some(applied))
        } else {
            Err(sqlx::Error::Protocol(format!(
                "some deltas were neither added, rejected nor dropped: {applied:?}"
            )))
        }
    }
}
