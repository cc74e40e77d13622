//! A store in memory: what a store has to do, and nothing else.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use indexmap::IndexMap;

use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::store::{Applied, Batch, Incarnation, ReadFrom, Registered, Row, Save, Saved, Snapshot, Store};
use crate::testing::ablation::{Guard, is_out};

/// A database in memory, for the tests of an application: it takes families of all kinds, and needs no MySQL. A Redis is
/// needed all the same. Clones are one database, which is gone with the last of them.
///
/// Each family has rows of its own, by id, also where it names a table. There are no columns that are too small: a value
/// is an i64. What MySQL would keep as a reject is a warning in the log. Code that is to run on this and on
/// [`MysqlStore`](crate::MysqlStore) is generic over `S: Store`.
///
/// ```no_run
/// use counterfoil::{Changed, Counterfoil, Family, KeyType, MemoryStore, Primary, Table};
///
/// # async fn test() -> counterfoil::Result<()> {
/// let store = MemoryStore::new();
/// let counterfoil = Counterfoil::new(Primary::connect("redis://localhost").await?, store.clone());
/// let items = Table::update("item").key("id", KeyType::Unsigned).value("vote_count");
/// let votes = counterfoil.open(Family::cached("forum", "votes").table(items).build()?).await?;
///
/// store.set(votes.family(), "4711", 0); // in place of INSERT INTO item
/// assert_eq!(votes.incr("4711", 1).await?, Changed::Counted { value: 1 });
/// counterfoil.drain().await?;
/// assert_eq!(votes.stored(&["4711"]).await?, [Some(1)]);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct MemoryStore(Arc<Mutex<StoredFamilies>>);

/// By namespace and name; a family's number is its position.
type StoredFamilies = IndexMap<String, Stored>;

/// What is kept of a family.
#[derive(Debug)]
struct Stored {
    family: Family,
    rows: BTreeMap<String, Row>,
    ledger: HashMap<(u32, Incarnation), u64>,
}

impl MemoryStore {
    /// An empty one.
    #[must_use]
    pub fn new() -> Self {
        MemoryStore::default()
    }

    /// Writes a row as the application would that owns the table: a row that a [`Table::update`](crate::Table::update)
    /// has to have, or another value behind counterfoil's back.
    pub fn set(&self, family: &Family, id: &str, value: i64) {
        kept(&mut self.lock(), family).rows.entry(id.to_owned()).or_default().value = Some(value);
    }

    fn lock(&self) -> MutexGuard<'_, StoredFamilies> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn kept<'f>(families: &'f mut StoredFamilies, family: &Family) -> &'f mut Stored {
    let new = || Stored { family: family.clone(), rows: BTreeMap::new(), ledger: HashMap::new() };
    families.entry(family.to_string()).or_insert_with(new)
}

impl Stored {
    fn row(&self, id: &str) -> Row {
        self.rows.get(id).copied().unwrap_or_default()
    }

    /// Whether the batch is new to the ledger, which knows it from now on.
    fn advance(&mut self, batch: &Batch) -> bool {
        let last = self.ledger.entry((batch.partition, batch.incarnation)).or_default();
        let is_new = *last < batch.seq;
        *last = batch.seq.max(*last);
        is_new
    }

    /// Whether there is a row that takes it.
    fn add(&mut self, id: &str, delta: i64) -> bool {
        let row = self.row(id);
        let value = match row.value {
            None if !self.family.makes_rows() => None,
            value => value.unwrap_or(0).checked_add(delta),
        };
        if value.is_some() {
            self.rows.insert(id.to_owned(), Row { value, ..row });
        }
        value.is_some()
    }

    fn save(&mut self, save: &Save) -> Saved {
        let Ok(id) = std::str::from_utf8(&save.id) else { return Saved::Refused };
        let row = self.row(id);
        let has_row = row.value.is_some() || self.family.makes_rows();
        if !is_out(Guard::Version) {
            if row.version == Some(save.version) {
                return Saved::Done;
            }
            // a row that is gone is no conflict where nobody but the application makes it again
            if row != save.known && (has_row || row.version != save.known.version) {
                return Saved::Conflict(row);
            }
        }
        let value = has_row.then_some(save.value);
        self.rows.insert(id.to_owned(), Row { value, version: Some(save.version) });
        if has_row { Saved::Done } else { Saved::NoRow }
    }
}

impl Store for MemoryStore {
    async fn register(&self, family: &Family) -> Result<u64> {
        let mut families = self.lock();
        let known = kept(&mut families, family).family.identity();
        match known.iter().zip(family.identity()).find(|(known, new)| **known != *new) {
            Some((known, new)) => {
                Err(Error::new(ErrorKind::Mismatch, format!("{family}: {} is {}, not {}", new.0, known.1, new.1)))
            }
            None => Ok(families.get_index_of(&family.to_string()).unwrap_or_default() as u64),
        }
    }

    async fn apply(&self, batches: &[Batch]) -> Result<Applied> {
        let mut families = self.lock();
        let mut applied = Applied::default();
        for batch in batches {
            let Registered { family, .. } = &*batch.family;
            let kept = kept(&mut families, family);
            if !kept.advance(batch) {
                applied.repeated += 1;
                continue;
            }
            applied.batches += 1;
            for (id, delta) in &batch.deltas {
                if kept.add(id, *delta) {
                    applied.rows += 1;
                } else {
                    tracing::warn!(%family, id, delta, "no row takes what was counted");
                    applied.rejected += 1;
                }
            }
            for (id, delta) in &batch.foreign {
                tracing::warn!(%family, id = %id.escape_ascii(), delta, "an id that is not UTF-8");
                applied.rejected += 1;
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
        let mut families = self.lock();
        let kept = kept(&mut families, &family.family);
        Ok(Snapshot {
            values: ids.iter().map(|id| kept.row(id).value).collect(),
            ledger: ledger.iter().map(|batches| kept.ledger.get(batches).copied().unwrap_or(0)).collect(),
        })
    }

    async fn list(
        &self,
        family: &Registered,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, i64)>> {
        let mut families = self.lock();
        let rows = kept(&mut families, &family.family).rows.iter();
        let wanted = rows.filter(|(id, _)| id.starts_with(prefix) && after.is_none_or(|after| id.as_str() > after));
        Ok(wanted.filter_map(|(id, row)| Some((id.clone(), row.value?))).take(limit).collect())
    }

    async fn rows(&self, family: &Registered, ids: &[&str]) -> Result<Vec<Row>> {
        let mut families = self.lock();
        let kept = kept(&mut families, &family.family);
        Ok(ids.iter().map(|id| kept.row(id)).collect())
    }

    async fn save(&self, family: &Registered, saves: &[Save]) -> Result<Vec<Saved>> {
        let mut families = self.lock();
        let kept = kept(&mut families, &family.family);
        let saved: Vec<_> = saves.iter().map(|save| kept.save(save)).collect();
        for (save, saved) in saves.iter().zip(&saved) {
            if matches!(saved, Saved::NoRow | Saved::Refused) {
                tracing::warn!(family = %family.family, id = %save.id.escape_ascii(), value = save.value, "no row takes what was saved");
            }
        }
        Ok(saved)
    }
}
