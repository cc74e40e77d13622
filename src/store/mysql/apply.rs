//! The write of batches, part by part: one transaction for ledger, values and rejects
//! (docs/protocol.md, section 3).

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::MysqlStore;
use super::add::{self, Delta, Origin, Rejected};
use super::ledger;
use super::rejects;
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
pub(super) async fn apply(
    mysql: &MysqlStore,
    batches: &[Arc<Batch>],
    max_rows: Option<u64>,
    unguarded: Unguarded,
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
        batches,
        targets,
        max_rows: max_rows.unwrap_or(default),
        unguarded,
    };
    mysql
        .primary
        .transact("batches were not written", &apply)
        .await
}

struct Apply<'b> {
    batches: &'b [Arc<Batch>],
    targets: Targets,
    max_rows: u64,
    unguarded: Unguarded,
}

impl UnitOfWork for Apply<'_> {
    type Output = Applied;

    async fn run(&self, transaction: &mut Transaction) -> Result<Applied, sqlx::Error> {
        let known = ledger::lock(transaction, self.batches).await?;
        let Advance { steps, marks } =
            Advance::new(self.batches, &known, self.max_rows, self.unguarded);
        ledger::write(transaction, &known, &marks).await?;
        let mut rejected = Vec::new();
        let mut rows = 0;
        for (target, deltas) in by_target(&steps, &self.targets, &mut rejected).into_values() {
            rows += add::add(transaction, target, deltas, &mut rejected).await?;
        }
        rejects::write(transaction, &rejected).await?;
        let applied = Applied {
            progress: steps.iter().map(|step| step.progress).collect(),
            rows,
            rejected: rejected.len() as u64,
        };
        let taken: usize = steps.iter().map(|step| step.deltas.len()).sum();
        if taken as u64 == applied.rows + applied.rejected {
            Ok(applied)
        } else {
            Err(sqlx::Error::Protocol(format!(
                "deltas are unaccounted for: {applied:?}"
            )))
        }
    }
}

/// Groups the deltas by their table. All transactions write tables in this order. Ids that match no
/// row are rejected.
fn by_target<'b, 't>(
    steps: &[Step<'b>],
    targets: &'t Targets,
    rejected: &mut Vec<Rejected<'b>>,
) -> BTreeMap<&'t str, (&'t Target, Vec<Delta<'b>>)> {
    let mut groups = BTreeMap::new();
    for step in steps {
        let Some(target) = targets.get(&step.batch.family.number) else {
            continue;
        };
        let (_, deltas) = groups
            .entry(target.label.as_str())
            .or_insert_with(|| (&**target, Vec::new()));
        let origin = Origin::batch(step.batch);
        for (id, delta) in step.deltas {
            match Delta::new(&step.batch.family, origin, id, *delta) {
                Ok(delta) => deltas.push(delta),
                Err(refused) => rejected.push(refused),
            }
        }
    }
    groups
}
