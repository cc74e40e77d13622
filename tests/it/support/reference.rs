//! A store in plain Rust: what a store has to do, and nothing else.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};

use counterfoil::{
    Applied, Batch, Error, ErrorKind, Family, Incarnation, ReadFrom, Registered, Result, Row, Save, Saved, Snapshot,
    Store, Version,
};

#[derive(Clone, Debug, Default)]
pub struct Reference(Arc<Mutex<Tables>>);

#[derive(Debug, Default)]
struct Tables {
    families: Vec<Family>,
    values: BTreeMap<(u64, String), i64>,
    ledger: HashMap<(u64, u32, Incarnation), u64>,
    versions: HashMap<(u64, String), Version>,
    /// Saves are written without a look at the row.
    is_trusting: bool,
}

impl Tables {
    fn row(&self, family: u64, id: &str) -> Row {
        let key = (family, id.to_owned());
        Row { value: self.values.get(&key).copied(), version: self.versions.get(&key).copied() }
    }
}

impl Reference {
    /// One that takes every save: what `Guard::Version` prevents.
    pub fn trusting() -> Self {
        Reference(Arc::new(Mutex::new(Tables { is_trusting: true, ..Tables::default() })))
    }

    /// Somebody else adds to a row, and knows nothing of versions.
    pub fn add_from_outside(&self, family: &Registered, id: &str, delta: i64) {
        *self.0.lock().unwrap().values.entry((family.number, id.to_owned())).or_default() += delta;
    }
}

impl Store for Reference {
    async fn register(&self, family: &Family) -> Result<u64> {
        let mut tables = self.0.lock().unwrap();
        let same_name = |known: &Family| known.to_string() == family.to_string();
        if let Some(number) = tables.families.iter().position(same_name) {
            let known = tables.families[number].identity();
            return match known.iter().zip(family.identity()).find(|(known, new)| **known != *new) {
                Some((known, new)) => {
                    Err(Error::new(ErrorKind::Mismatch, format!("{family}: {} is {}, not {}", new.0, known.1, new.1)))
                }
                None => Ok(number as u64),
            };
        }
        tables.families.push(family.clone());
        Ok(tables.families.len() as u64 - 1)
    }

    async fn apply(&self, batches: &[Batch]) -> Result<Applied> {
        let mut tables = self.0.lock().unwrap();
        let mut applied = Applied::default();
        for batch in batches {
            let stands = tables.ledger.entry((batch.family.number, batch.partition, batch.incarnation)).or_default();
            if *stands >= batch.seq {
                applied.repeated += 1;
                continue;
            }
            *stands = batch.seq;
            applied.batches += 1;
            for (id, delta) in &batch.deltas {
                *tables.values.entry((batch.family.number, id.clone())).or_default() += delta;
                applied.rows += 1;
            }
        }
        Ok(applied)
    }

    async fn read(
        &self,
        family: &Registered,
        ids: &[&str],
        ledger: &[(u32, Incarnation)],
        _: ReadFrom,
    ) -> Result<Snapshot> {
        let tables = self.0.lock().unwrap();
        let value = |id: &&str| tables.values.get(&(family.number, (*id).to_owned())).copied();
        let stands = |&(partition, incarnation): &(u32, Incarnation)| {
            tables.ledger.get(&(family.number, partition, incarnation)).copied().unwrap_or(0)
        };
        Ok(Snapshot { values: ids.iter().map(value).collect(), ledger: ledger.iter().map(stands).collect() })
    }

    async fn list(
        &self,
        family: &Registered,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, i64)>> {
        let tables = self.0.lock().unwrap();
        let wanted = |id: &str| id.starts_with(prefix) && after.is_none_or(|after| id > after);
        let all = tables.values.iter().filter(|((number, id), _)| *number == family.number && wanted(id));
        Ok(all.take(limit).map(|((_, id), value)| (id.clone(), *value)).collect())
    }

    async fn rows(&self, family: &Registered, ids: &[&str]) -> Result<Vec<Row>> {
        let tables = self.0.lock().unwrap();
        Ok(ids.iter().map(|id| tables.row(family.number, id)).collect())
    }

    async fn save(&self, family: &Registered, saves: &[Save]) -> Result<Vec<Saved>> {
        let mut tables = self.0.lock().unwrap();
        let mut write = |save: &Save| {
            let id = std::str::from_utf8(&save.id).expect("UTF-8");
            let found = tables.row(family.number, id);
            if !tables.is_trusting && found.version == Some(save.version) {
                return Saved::Done;
            }
            if !tables.is_trusting && found != save.known {
                return Saved::Conflict(found);
            }
            let key = (family.number, id.to_owned());
            tables.values.insert(key.clone(), save.value);
            tables.versions.insert(key, save.version);
            Saved::Done
        };
        Ok(saves.iter().map(&mut write).collect())
    }
}
