//! The write of batches, part by part: one transaction for ledger, values and rejects
//! (docs/protocol.md, section 3).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::MysqlStore;
use super::add::{self, Delta, Refused};
use super::ledger;
use super::rejects;
use super::session::{Transaction, UnitOfWork};
use super::target::Target;
use crate::error::Result;
use crate::store::ledger::Advance;
use crate::store::{Applied, Batch};
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
    mysql.primary.transact(failed, apply).await
}

struct Apply {
    batches: Vec<Arc<Batch>>,
    /// The target of each batch.
    targets: Vec<Arc<Target>>,
    max_rows: u64,
    out: Option<Guard>,
}

impl UnitOfWork for Apply {
    type Output = Applied;

    async fn run(&self, transaction: &mut Transaction) -> Result<Applied, sqlx::Error> {
        let known = ledger::lock(transaction, &self.batches).await?;
        let Advance { steps, marks } = Advance::new(&self.batches, &known, self.max_rows, self.out);
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
            Ok(applied)
        } else {
            Err(sqlx::Error::Protocol(format!(
                "some deltas were neither added, rejected nor dropped: {applied:?}"
            )))
        }
    }
}
