//! Who wrote which row last: the versions of cached counters, beside their values (docs/protocol.md, section 4).

use sqlx::Row as _;
use sqlx::mysql::MySqlRow;

use super::halves::CHUNK;
use super::json::JsonRows;
use super::positions;
use super::session::Transaction;
use crate::store::{Registered, Save, Version};

/// Versions as a statement is given them; for a swap with those known.
macro_rules! given {
    () => {
        "JSON_TABLE(?, '$[*]' COLUMNS(\
         lineage BIGINT UNSIGNED PATH '$[0]' ERROR ON EMPTY ERROR ON ERROR, \
         n BIGINT UNSIGNED PATH '$[1]' ERROR ON EMPTY ERROR ON ERROR, \
         id VARCHAR(510) PATH '$[2]' ERROR ON EMPTY ERROR ON ERROR)) AS j"
    };
    (swap) => {
        "JSON_TABLE(?, '$[*]' COLUMNS(\
         lineage BIGINT UNSIGNED PATH '$[0]' ERROR ON EMPTY ERROR ON ERROR, \
         n BIGINT UNSIGNED PATH '$[1]' ERROR ON EMPTY ERROR ON ERROR, \
         known_lineage BIGINT UNSIGNED PATH '$[2]' ERROR ON EMPTY ERROR ON ERROR, \
         known_n BIGINT UNSIGNED PATH '$[3]' ERROR ON EMPTY ERROR ON ERROR, \
         id VARCHAR(510) PATH '$[4]' ERROR ON EMPTY ERROR ON ERROR)) AS j"
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
            positions::all(saves.len(), transaction.execute(query).await?)?;
        }
        for saves in self.inserts.chunks(CHUNK) {
            let query = sqlx::query(INSERT).bind(family.number).bind(rows(saves));
            positions::all(saves.len(), transaction.execute(query).await?)?;
        }
        Ok(())
    }
}

/// Writes those versions that are as given, of (save, known version); returns how many.
pub(super) async fn swap(
    transaction: &mut Transaction,
    family: &Registered,
    saves: impl IntoIterator<Item = (&Save, Version)>,
) -> Result<u64, sqlx::Error> {
    const SWAP: &str = concat!(
        "UPDATE ",
        given!(swap),
        " STRAIGHT_JOIN counterfoil_versions AS v ON v.family = ? AND v.id = UNHEX(j.id) ",
        "SET v.lineage = j.lineage, v.n = j.n WHERE v.lineage = j.known_lineage AND v.n = j.known_n",
    );
    let mut rows = JsonRows::default();
    for (Save { id, version, .. }, known) in saves {
        rows.row().number(version.lineage).number(version.n).number(known.lineage).number(known.n).bytes(id);
    }
    transaction.execute(sqlx::query(SWAP).bind(rows.finish()).bind(family.number)).await
}

/// The version in a column of `LINEAGE:N`, both decimal; NULL where there is none.
pub(super) fn read(row: &MySqlRow, index: usize) -> Result<Option<Version>, sqlx::Error> {
    let parse = |text: String| {
        let (lineage, n) = text.split_once(':')?;
        Some(Version { lineage: lineage.parse().ok()?, n: n.parse().ok()? })
    };
    let corrupt = || sqlx::Error::Protocol("a version of another shape".to_owned());
    row.try_get::<Option<String>, _>(index)?.map(|text| parse(text).ok_or_else(corrupt)).transpose()
}

fn rows(saves: &[&Save]) -> String {
    let mut rows = JsonRows::default();
    for Save { id, version, .. } in saves {
        rows.row().number(version.lineage).number(version.n).bytes(id);
    }
    rows.finish()
}
