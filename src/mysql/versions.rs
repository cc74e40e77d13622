//! Who wrote which row last: the versions of cached counters, beside their values (PROTOCOL section 4).

use super::answer;
use super::halves::CHUNK;
use super::json::JsonRows;
use super::session::Transaction;
use crate::store::{Registered, Save, Version};

/// Versions as a statement is given them.
macro_rules! given {
    () => {
        "JSON_TABLE(?, '$[*]' COLUMNS(\
         id VARCHAR(510) PATH '$[0]' ERROR ON EMPTY ERROR ON ERROR, \
         lineage BIGINT UNSIGNED PATH '$[1]' ERROR ON EMPTY ERROR ON ERROR, \
         n BIGINT UNSIGNED PATH '$[2]' ERROR ON EMPTY ERROR ON ERROR)) AS j"
    };
}

/// Versions about to be written.
#[derive(Default)]
pub(super) struct Versions<'s> {
    /// Of counters that have one, which is locked.
    updates: Vec<&'s Save>,
    /// Of those that have none. Should one have come up meanwhile, it is not written over: the insert fails.
    inserts: Vec<&'s Save>,
}

impl<'s> Versions<'s> {
    pub(super) fn add(&mut self, save: &'s Save, found: Option<Version>) {
        match found {
            Some(_) => self.updates.push(save),
            None => self.inserts.push(save),
        }
    }

    pub(super) async fn write(&self, transaction: &mut Transaction, family: &Registered) -> Result<(), sqlx::Error> {
        const UPDATE: &str = concat!(
            "UPDATE ",
            given!(),
            " STRAIGHT_JOIN counterfoil_versions AS v ON v.family = ? AND v.id = UNHEX(j.id) ",
            "SET v.lineage = j.lineage, v.n = j.n",
        );
        const INSERT: &str = concat!(
            "INSERT INTO counterfoil_versions (family, id, lineage, n) SELECT ?, UNHEX(j.id), j.lineage, j.n FROM ",
            given!(),
        );
        for saves in self.updates.chunks(CHUNK) {
            let query = sqlx::query(UPDATE).bind(rows(saves)).bind(family.number);
            answer::all(saves.len(), transaction.execute(query).await?)?;
        }
        for saves in self.inserts.chunks(CHUNK) {
            let query = sqlx::query(INSERT).bind(family.number).bind(rows(saves));
            answer::all(saves.len(), transaction.execute(query).await?)?;
        }
        Ok(())
    }
}

fn rows(saves: &[&Save]) -> String {
    let mut rows = JsonRows::default();
    for Save { id, version, .. } in saves {
        rows.row().bytes(id.as_bytes()).number(version.lineage).number(version.n);
    }
    rows.finish()
}
