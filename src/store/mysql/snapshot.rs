//! Values and ledger as of one moment (docs/protocol.md, section 3.7).

use std::sync::Arc;

use sqlx::mysql::MySqlRow;
use sqlx::{MySqlPool, Row};

use super::fault::store;
use super::json::JsonRows;
use super::ledger;
use super::positions;
use super::session::{self, Meter};
use super::target::{self, Target};
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Incarnation, Mark, Registered, Snapshot};

/// A query that is ready to be sent.
pub(super) struct SnapshotRead {
    target: Arc<Target>,
    family: Registered,
    ids: Vec<String>,
    /// The index of the id of each row in the query. An id that matches no row is not in it.
    asked: Vec<usize>,
    keys: String,
    ledger_rows: usize,
    ledger: String,
}

impl SnapshotRead {
    pub(super) fn new(
        target: Arc<Target>,
        family: Registered,
        ids: Vec<String>,
        ledger: &[(u32, Incarnation)],
    ) -> Self {
        let (mut asked, mut keys, mut rows) =
            (Vec::new(), JsonRows::default(), JsonRows::default());
        for (index, id) in ids.iter().enumerate() {
            if let Ok(segments) = target::segments(&family, id) {
                asked.push(index);
                let row = keys.row();
                segments.iter().for_each(|segment| segment.write(row));
            }
        }
        for (partition, incarnation) in ledger {
            rows.row().number(partition).number(incarnation.0);
        }
        SnapshotRead {
            target,
            family,
            ids,
            asked,
            keys: keys.finish(),
            ledger_rows: ledger.len(),
            ledger: rows.finish(),
        }
    }

    /// Sends the query. It is one statement, so it reads one snapshot of InnoDB, except with READ
    /// UNCOMMITTED.
    pub(super) async fn send(self, pool: &MySqlPool, meter: &Meter) -> Result<Snapshot> {
        let query = || {
            self.target
                .read
                .query()
                .bind(&self.keys)
                .bind(&self.ledger)
                .bind(self.family.number)
        };
        let rows = session::fetch(pool, meter, query)
            .await
            .map_err(store("values were not read"))?;
        if rows.len() != self.asked.len() + self.ledger_rows {
            return Err(store("values were not read")(positions::unexpected(
                self.asked.len() + self.ledger_rows,
                rows.len(),
            )));
        }
        let mut snapshot = Snapshot {
            values: vec![None; self.ids.len()],
            ledger: vec![Mark::default(); self.ledger_rows],
        };
        for row in &rows {
            self.take(row, &mut snapshot)?;
        }
        Ok(snapshot)
    }

    /// Takes a row of 0 and a value's digits, or 1 and a ledger's mark, with the position from 1 in
    /// between.
    fn take(&self, row: &MySqlRow, snapshot: &mut Snapshot) -> Result<()> {
        let read = || {
            Ok((
                row.try_get::<i64, _>(0)?,
                row.try_get::<u64, _>(1)?,
                row.try_get::<Option<String>, _>(2)?,
            ))
        };
        let (kind, position, text) = read().map_err(store("values were not read"))?;
        let (Some(text), Some(index)) = (
            text,
            usize::try_from(position)
                .ok()
                .and_then(|at| at.checked_sub(1)),
        ) else {
            return Ok(());
        };
        if kind == 1 {
            let mark = ledger::parse(&text).map_err(store("values were not read"))?;
            snapshot
                .ledger
                .get_mut(index)
                .into_iter()
                .for_each(|slot| *slot = mark.clone());
        } else if let Some(&index) = self.asked.get(index) {
            snapshot.values[index] = Some(value(&self.family, &self.ids[index], &text)?);
        }
        Ok(())
    }
}

/// Reads a value from its digits. Only an unsigned column can hold one that is not a valid i64.
pub(super) fn value(family: &Registered, id: &str, digits: &str) -> Result<i64> {
    let outside = |_| {
        Error::new(
            ErrorKind::Range,
            format!("{}: the value of {id:?} is {digits}", family.family),
        )
    };
    digits.parse().map_err(outside)
}
