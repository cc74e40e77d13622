//! Batches into the database: one transaction for ledger, values and rejects (PROTOCOL section 3, step 5).

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::MysqlStore;
use super::add::{self, Delta};
use super::fault::{is_conflict, store};
use super::ledger;
use super::rejects::{self, Rejected};
use super::session::Transaction;
use super::target::{self, Target};
use crate::error::Result;
use crate::store::{Applied, Batch};

/// How often a transaction is begun that meets others.
const ATTEMPTS: u32 = 5;

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
    let mut attempt = 1;
    loop {
        match transact(mysql, batches, &targets, trusting).await {
            Err(error) if is_conflict(&error) && attempt < ATTEMPTS => {
                tracing::debug!(attempt, %error, "a transaction met another one and is begun again");
                tokio::time::sleep(pause(attempt)).await;
                attempt += 1;
            }
            result => return result.map_err(store("batches were not written")),
        }
    }
}

/// Up to 20 ms longer after each attempt; random, so that two that met do not meet again.
fn pause(attempt: u32) -> Duration {
    let random = getrandom::u32().unwrap_or(0) % 20_000;
    Duration::from_micros(u64::from(attempt * random))
}

async fn transact(
    mysql: &MysqlStore,
    batches: &[Batch],
    targets: &Targets,
    trusting: bool,
) -> Result<Applied, sqlx::Error> {
    let mut transaction = Transaction::begin(&mysql.primary, &mysql.meter).await?;
    match write(&mut transaction, batches, targets, trusting).await {
        Ok(applied) => transaction.commit().await.map(|()| applied),
        Err(error) => {
            transaction.rollback().await;
            Err(error)
        }
    }
}

async fn write(
    transaction: &mut Transaction,
    batches: &[Batch],
    targets: &Targets,
    trusting: bool,
) -> Result<Applied, sqlx::Error> {
    let new = match ledger::advance(transaction, batches).await? {
        _ if trusting => batches.iter().collect(),
        new => new,
    };
    let mut rejected = Vec::new();
    let mut rows = 0;
    for (_, (target, deltas)) in by_target(&new, targets, &mut rejected) {
        rows += add::add(transaction, target, deltas, &mut rejected).await?;
    }
    rejects::write(transaction, &rejected).await?;
    let applied = Applied {
        batches: new.len() as u64,
        repeated: (batches.len() - new.len()) as u64,
        rows,
        rejected: rejected.len() as u64,
    };
    match new.iter().map(|batch| batch.deltas.len() as u64).sum::<u64>() == applied.rows + applied.rejected {
        true => Ok(applied),
        false => Err(sqlx::Error::Protocol(format!("deltas are unaccounted for: {applied:?}"))),
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
        let (_, deltas) = groups.entry(target.label.as_str()).or_insert_with(|| (&**target, Vec::new()));
        for (id, delta) in &batch.deltas {
            match target::segments(&batch.family, id) {
                Ok(key) => deltas.push(Delta { key, batch, id, delta: *delta }),
                Err(reason) => rejected.push(Rejected { batch, id, delta: *delta, reason }),
            }
        }
    }
    groups
}
