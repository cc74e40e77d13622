//! Rejects that are applied again. One transaction adds a delta to its row and marks its reject, so
//! it counts once.

use std::collections::HashMap;

use sqlx::Row;
use sqlx::mysql::MySqlRow;

use super::MysqlStore;
use super::add::{self, Delta};
use super::json::JsonRows;
use super::parts::Segment;
use super::rejects::{self, Decision, Origin};
use super::session::Transaction;
use super::target::{self, Target};
use super::transact::{UnitOfWork, transact};
use crate::error::Result;
use crate::family::Family;
use crate::store::{Registered, Store};

/// The outcome of a retried reject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retried {
    /// Its delta was added to its row, and it is no longer among the
    /// [rejects](MysqlStore::rejects).
    Applied,
    /// An earlier call applied it. This call did nothing.
    AppliedBefore,
    /// The database refused it again. It stays a reject with the new reason.
    Refused,
    /// It was [discarded](MysqlStore::discard_rejects). This call did nothing.
    Discarded,
    /// The family has no reject of this number.
    NotFound,
}

/// Applies the rejects of these numbers again.
pub(super) async fn retry(
    mysql: &MysqlStore,
    family: Family,
    numbers: &[u64],
) -> Result<Vec<Retried>> {
    let number = mysql.register(&family).await?;
    let target = mysql.target(&family).await?;
    let family = Registered { family, number };
    let mut retried = HashMap::new();
    for numbers in rejects::in_order(numbers).chunks(rejects::MOST) {
        let work = Retry {
            target: &target,
            family: &family,
            numbers,
        };
        retried.extend(transact(mysql, "rejects were not applied", &work).await?);
    }
    Ok(numbers
        .iter()
        .map(|number| retried.get(number).copied().unwrap_or(Retried::NotFound))
        .collect())
}

struct Retry<'r> {
    target: &'r Target,
    family: &'r Registered,
    numbers: &'r [u64],
}

/// A reject as it is kept.
struct KeptReject {
    number: u64,
    origin: Origin,
    id: Vec<u8>,
    delta: i64,
    reason: String,
    is_done: bool,
}

impl KeptReject {
    fn is_discarded(&self) -> bool {
        self.is_done && self.reason.starts_with(rejects::DISCARDED)
    }
}

impl UnitOfWork for Retry<'_> {
    type Output = Vec<(u64, Retried)>;

    async fn run(&self, transaction: &mut Transaction) -> Result<Self::Output, sqlx::Error> {
        let kept = self.lock(transaction).await?;
        let (mut deltas, mut refused) = (Vec::new(), HashMap::new());
        for reject in kept.iter().filter(|reject| !reject.is_done) {
            match self.key(reject) {
                Ok(key) => deltas.push(Delta {
                    key,
                    origin: reject.origin,
                    id: &reject.id,
                    delta: reject.delta,
                }),
                Err(reason) => drop(refused.insert((reject.origin, &*reject.id), reason)),
            }
        }
        let mut rejected = Vec::new();
        add::add(transaction, self.target, deltas, &mut rejected).await?;
        refused.extend(
            rejected
                .into_iter()
                .map(|rejected| ((rejected.origin, rejected.id), rejected.reason)),
        );
        let mut decisions = Vec::with_capacity(kept.len());
        let mut retried = Vec::with_capacity(kept.len());
        for reject in &kept {
            let again = refused.get(&(reject.origin, &*reject.id));
            if !reject.is_done {
                let reason = again.unwrap_or(&reject.reason);
                decisions.push(Decision {
                    number: reject.number,
                    is_done: again.is_none(),
                    reason,
                });
            }
            retried.push((
                reject.number,
                match again {
                    _ if reject.is_discarded() => Retried::Discarded,
                    _ if reject.is_done => Retried::AppliedBefore,
                    Some(_) => Retried::Refused,
                    None => Retried::Applied,
                },
            ));
        }
        rejects::decide(transaction, decisions).await?;
        Ok(retried)
    }
}

impl Retry<'_> {
    /// Locks the rejects and returns their content. If two calls apply the same reject, the second
    /// one waits and finds it marked.
    async fn lock(&self, transaction: &mut Transaction) -> Result<Vec<KeptReject>, sqlx::Error> {
        // the derived table is for MySQL, which refuses to lock a JSON_TABLE (error 3569)
        const LOCK: &str = "SELECT r.number, r.partition_no, r.incarnation, r.seq, r.id, r.delta, r.reason, \
             CAST(r.applied_at IS NOT NULL AS SIGNED) \
             FROM (SELECT * FROM JSON_TABLE(?, '$[*]' COLUMNS(\
             number BIGINT UNSIGNED PATH '$[0]' ERROR ON EMPTY ERROR ON ERROR)) AS given) AS j \
             STRAIGHT_JOIN counterfoil_rejects AS r ON r.number = j.number WHERE r.family = ? FOR UPDATE";
        let mut numbers = JsonRows::default();
        for number in self.numbers {
            numbers.row().number(number);
        }
        let rows = transaction
            .fetch(
                sqlx::query(LOCK)
                    .bind(numbers.finish())
                    .bind(self.family.number),
            )
            .await?;
        rows.iter().map(|row| self.kept(row)).collect()
    }

    fn kept(&self, row: &MySqlRow) -> Result<KeptReject, sqlx::Error> {
        Ok(KeptReject {
            number: row.try_get(0)?,
            origin: Origin {
                family: self.family.number,
                partition: row.try_get(1)?,
                incarnation: row.try_get(2)?,
                seq: row.try_get(3)?,
            },
            id: row.try_get(4)?,
            delta: row.try_get(5)?,
            reason: row.try_get(6)?,
            is_done: row.try_get::<i64, _>(7)? == 1,
        })
    }

    /// Returns the key of the reject's row, or the reason why there is none.
    fn key<'k>(&self, reject: &'k KeptReject) -> Result<Vec<Segment<'k>>, String> {
        if rejects::is_cut(&self.family.family, &reject.id, &reject.reason) {
            Err(reject.reason.clone())
        } else {
            target::key(self.family, &reject.id)
        }
    }
}
