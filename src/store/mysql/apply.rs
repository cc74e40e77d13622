//! The write of batches, part by part: one transaction for ledger, values and rejects
//! (docs/protocol.md, section 3).

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::MysqlStore;
use super::add::{self, Delta, Refused};
use super::ledger;
use super::rejects::{self, Rejected};
use super::session::{Transaction, UnitOfWork};
use super::target::Target;
use crate::error::Result;
use crate::store::ledger::{Advance, Step, Unguarded};
use crate::store::{Applied, Batch};

/// The targets by family number.
type Targets = HashMap<u64, Arc<Target>>;

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
    let mut targets = Targets::new();
    for family in batches.iter().map(|batch| &batch.family) {
        if let Entry::Vacant(vacant) = targets.entry(family.number) {
            vacant.insert(mysql.target(&family.family).await?);
        }
    }
    let mut families = batches.iter().map(|batch| &batch.family.family);
    let is_shared = families.any(|family| family.table.is_some());
    let default = if is_shared { MAX_ROWS_SHARED } else { MAX_ROWS };
    let apply = Apply {
        batches: batches.to_vec(),
        targets,
        max_rows: max_rows.unwrap_or(default),
        // read here, because the transaction may run on another thread
        unguarded: Unguarded::here(),
    };
    let failed = "batches were not written";
    mysql.primary.transact(failed, apply).await
}

struct Apply {
    batches: Vec<Arc<Batch>>,
    targets: Targets,
    max_rows: u64,
    unguarded: Unguarded,
}

impl UnitOfWork for Apply {
    type Output = Applied;

    async fn run(&self, transaction: &mut Transaction) -> Result<Applied, sqlx::Error> {
        let known = ledger::lock(transaction, &self.batches).await?;
        let Advance { steps, marks } =
            Advance::new(&self.batches, &known, self.max_rows, self.unguarded);
        ledger::write(transaction, &known, &marks).await?;
        let taken: Vec<_> = steps
            .iter()
            .flat_map(|step| step.deltas.iter().map(|delta| (step.batch, delta)))
            .collect();
        let (mut refused, mut rows) = (Refused::new(), 0);
        for (target, deltas) in self.by_target(&steps, &mut refused).into_values() {
            rows += add::add(transaction, target, deltas, &mut refused).await?;
        }
        let rejected = refused.iter().filter_map(|(index, reason)| {
            let (batch, (id, delta)) = taken.get(*index)?;
            Some(Rejected {
                batch,
                id,
                delta: *delta,
                reason,
            })
        });
        let rejected: Vec<_> = rejected.collect();
        rejects::write(transaction, &rejected).await?;
        let applied = Applied {
            progress: steps.iter().map(|step| step.progress).collect(),
            rows,
            rejected: rejected.len() as u64,
        };
        if taken.len() as u64 == applied.rows + applied.rejected {
            Ok(applied)
        } else {
            Err(sqlx::Error::Protocol(format!(
                "some deltas were neither added nor rejected: {applied:?}"
            )))
        }
    }
}

impl Apply {
    /// Groups the deltas by their table. All transactions write tables in this order.
    fn by_target<'b>(
        &self,
        steps: &[Step<'b>],
        refused: &mut Refused,
    ) -> BTreeMap<&str, (&Target, Vec<Delta<'b>>)> {
        let mut groups = BTreeMap::new();
        let mut indexes = 0..;
        for step in steps {
            let ids = step.deltas.iter().zip(&mut indexes);
            let ids = ids.map(|((id, delta), index)| (index, &**id, *delta));
            if let Some(target) = self.targets.get(&step.batch.family.number) {
                let (_, deltas) = groups
                    .entry(target.label.as_str())
                    .or_insert_with(|| (&**target, Vec::new()));
                deltas.extend(add::deltas(&step.batch.family, ids, refused));
            }
        }
        groups
    }
}
