//! The read of one id of one partition, the most common read: two lookups by primary key, where
//! [`SnapshotRead`] would unfold JSON.
//!
//! [`SnapshotRead`]: super::snapshot::SnapshotRead

use sqlx::{MySqlPool, Row};

use super::fault::store;
use super::ledger;
use super::parts::Segment;
use super::session::{self, Meter};
use super::snapshot;
use super::target::{self, Target};
use crate::error::Result;
use crate::store::{Incarnation, Registered, Snapshot};

/// A query that is ready to be sent.
pub(super) struct Point<'a> {
    target: &'a Target,
    family: &'a Registered,
    id: &'a str,
    key: Vec<Segment<'a>>,
    partition: u32,
    incarnation: Incarnation,
}

impl<'a> Point<'a> {
    /// Creates the query. Returns `None` for more or fewer ids or partitions, and for an id that
    /// matches no row.
    pub(super) fn new(
        target: &'a Target,
        family: &'a Registered,
        ids: &'a [String],
        ledger: &[(u32, Incarnation)],
    ) -> Option<Self> {
        let ([id], &[(partition, incarnation)]) = (ids, ledger) else {
            return None;
        };
        let key = target::segments(family, id).ok()?;
        Some(Point {
            target,
            family,
            id,
            key,
            partition,
            incarnation,
        })
    }

    /// Sends the query. It is one statement, so it reads one snapshot of InnoDB, except with READ
    /// UNCOMMITTED.
    pub(super) async fn send(self, pool: &MySqlPool, meter: &Meter) -> Result<Snapshot> {
        let query = || {
            let query = self
                .key
                .iter()
                .fold(self.target.point.query(), |query, segment| {
                    segment.bind(query)
                });
            query
                .bind(self.family.number)
                .bind(self.partition)
                .bind(self.incarnation.0)
        };
        let read = async {
            let row = session::fetch_one(pool, meter, query).await?;
            Ok((row.try_get::<Option<String>, _>(0)?, ledger::mark(&row, 1)?))
        };
        let (digits, mark) = read.await.map_err(store("values were not read"))?;
        let value = digits
            .map(|digits| snapshot::value(self.family, self.id, &digits))
            .transpose()?;
        Ok(Snapshot {
            values: vec![value],
            ledger: vec![mark.unwrap_or_default()],
        })
    }
}
