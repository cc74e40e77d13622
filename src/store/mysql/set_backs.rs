//! The set-backs of both servers that the ledger records, until an operator acknowledges them
//! (docs/protocol.md, section 3.9).

use std::time::SystemTime;

use super::families::NOT_REMOVED;
use super::session::Database;
use super::statement::{Statement, text, time, unix_ms};
use crate::error::Result;

/// A set-back of one of the servers, as far as it concerns a family. Sums over its partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SetBack {
    /// The family's namespace.
    pub namespace: String,
    /// The family's name.
    pub family: String,
    /// The number of partitions in which it was found.
    pub partitions: u64,
    /// The loss by it.
    pub loss: Loss,
    /// The time when it was last found, by the database's clock, in whole seconds.
    pub at: SystemTime,
}

/// The loss by a set-back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Loss {
    /// Redis was set back, and hits that waited in it were dropped. For series and activity a kept
    /// slice counts as one hit.
    Dropped {
        /// The number of hits.
        hits: u64,
        /// The number of ids that had them.
        ids: u64,
    },
    /// The database was set back, and lost batches that it had.
    Batches(u64),
}

/// Reads the set-backs of both servers that were found within a day and not acknowledged, in the order
/// of their families.
pub async fn read(database: &Database) -> Result<Vec<SetBack>> {
    const FAILED: &str = "set-backs were not read";
    let of_redis = select("dropped_at", ["l.dropped_hits", "l.dropped_ids"]);
    let of_database = select("lost_at", ["l.lost_batches", "0"]);
    let mut set_backs = Vec::new();
    for (select, is_redis) in [(of_redis, true), (of_database, false)] {
        for (namespace, family, partitions, sum, ids, at) in database.read(FAILED, select).await? {
            set_backs.push(SetBack {
                namespace: text(namespace),
                family: text(family),
                partitions,
                loss: if is_redis {
                    Loss::Dropped { hits: sum, ids }
                } else {
                    Loss::Batches(sum)
                },
                at: time(at),
            });
        }
    }
    set_backs.sort_by(|one, other| {
        (&one.namespace, &one.family).cmp(&(&other.namespace, &other.family))
    });
    Ok(set_backs)
}

/// Returns the SELECT of the set-backs of one server. `at` is the column of their time, and the
/// other two are summed.
fn select(at: &str, [first, second]: [&str; 2]) -> Statement {
    Statement::new(format!(
        "SELECT f.namespace, f.name, CAST(COUNT(*) AS UNSIGNED), CAST(SUM({first}) AS UNSIGNED), \
         CAST(SUM({second}) AS UNSIGNED), {} FROM counterfoil_ledger AS l \
         JOIN counterfoil_families AS f ON f.number = l.family \
         WHERE l.{at} > CURRENT_TIMESTAMP - INTERVAL 1 DAY AND {NOT_REMOVED} \
         GROUP BY f.namespace, f.name",
        unix_ms(&format!("MAX(l.{at})"))
    ))
}

/// Acknowledges the set-backs that were found until this time.
pub async fn acknowledge(database: &Database, until: SystemTime) -> Result<()> {
    const DROPPED: &str = "UPDATE counterfoil_ledger \
         SET dropped_hits = 0, dropped_ids = 0, dropped_at = NULL WHERE dropped_at <= FROM_UNIXTIME(?)";
    const LOST: &str = "UPDATE counterfoil_ledger SET lost_batches = 0, lost_at = NULL \
         WHERE lost_at <= FROM_UNIXTIME(?)";
    let since_1970 = until
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    for sql in [DROPPED, LOST] {
        let update = Statement::once(sql).bind(since_1970.as_secs());
        let failed = "set-backs were not acknowledged";
        database.transact(failed, update).await?;
    }
    Ok(())
}
