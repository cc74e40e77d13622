//! Batches into the database: one transaction for ledger, values and rejects (docs/protocol.md, section 3.5).

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::MysqlStore;
use super::add::{self, Delta};
use super::ledger;
use super::rejects::{self, Origin, Rejected};
use super::session::Transaction;
use super::target::{self, Target};
use super::transact::{UnitOfWork, transact};
use crate::error::Result;
use crate::store::{Applied, Batch};

/// By family number.
type Targets = HashMap<u64, Arc<Target>>;

/// Applies the batches. With `trusting` every one counts as new, which is for the tests that show what the ledger is
/// there for.
pub(super) async fn apply(mysql: &MysqlStore, batches: &[Batch], trusting: bool) -> Result<Applied> {
    let mut targets = Targets::new();
    for family in batches.iter().map(|batch| &batch.family) {
        if let Entry::Vacant(vacant) = targets.entry(family.number) {
            vacant.insert(mysql.target(&family.family).await?);
        }
    }
    transact(mysql, "batches were not written", &Apply { batches, targets, trusting }).await
}

struct Apply<'b> {
    batches: &'b [Batch],
    targets: Targets,
    trusting: bool,
}

impl UnitOfWork for Apply<'_> {
    type Output = Applied;

    async fn run(&self, transaction: &mut Transaction) -> Result<Applied, sqlx::Error> {
        let new = match ledger::advance(transaction, self.batches).await? {
            _ if self.trusting => self.batches.iter().collect(),
            new => new,
        };
        let mut rejected = Vec::new();
        let mut rows = 0;
        for (_, (target, deltas)) in by_target(&new, &self.targets, &mut rejected) {
            rows += add::add(transaction, target, deltas, &mut rejected).await?;
        }
        rejects::write(transaction, &rejected).await?;
        let applied = Applied {
            batches: new.len() as u64,
            repeated: (self.batches.len() - new.len()) as u64,
            rows,
            rejected: rejected.len() as u64,
        };
        match new.iter().map(|batch| (batch.deltas.len() + batch.foreign.len()) as u64).sum::<u64>()
            == applied.rows + applied.rejected
        {
            true => Ok(applied),
            false => Err(sqlx::Error::Protocol(format!("deltas are unaccounted for: {applied:?}"))),
        }
    }
}

/// The deltas by the table that they go to, tables in one order for everybody. Ids that are no row's are rejected.
fn by_target<'b, 't>(
    batches: &[&'b Batch],
    targets: &'t Targets,
    rejected: &mut Vec<Rejected<'b>>,
) -> BTreeMap<&'t str, (&'t Target, Vec<Delta<'b>>)> {
    let mut groups = BTreeMap::new();
    for &batch in batches {
        let Some(target) = targets.get(&batch.family.number) else { continue };
        rejected.extend(batch.foreign.iter().map(|(id, delta)| Rejected {
            origin: Origin::batch(batch),
            id,
            delta: *delta,
            reason: rejects::NOT_UTF8.to_owned(),
        }));
        let (_, deltas) = groups.entry(target.label.as_str()).or_insert_with(|| (&**target, Vec::new()));
        for (id, delta) in &batch.deltas {
            match target::segments(&batch.family, id) {
                Ok(key) => deltas.push(Delta { key, origin: Origin::batch(batch), id, delta: *delta }),
                Err(reason) => {
                    rejected.push(Rejected { origin: Origin::batch(batch), id: id.as_bytes(), delta: *delta, reason })
                }
            }
        }
    }
    groups
}
