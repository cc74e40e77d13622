//! A store in memory: the contract of a store, and nothing else.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use indexmap::IndexMap;
use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::family::Family;
use crate::store::ledger::{Advance, LedgerKey};
use crate::store::{
    ApplyReply, Batch, FamilyNumber, Incarnation, LedgerRow, Mark, ReadFrom, Registration,
    Snapshot, Store,
};
use crate::testing::ablation;

/// A database in memory, for the tests of an application. It takes families of all kinds. Clones
/// share one database, which is dropped with the last of them. `MemoryRedis` (feature
/// `memory-redis`) is the Redis for it.
///
/// Each family has its own rows by id, even if it names a table. A value is an i64: no column is
/// too small. A delta that MySQL would keep as a reject is logged as a warning. Removing and
/// reconfiguring families, rejects and recounts need MySQL.
///
/// With a real Redis, begin with an empty one, or with a new namespace in each run of the tests:
/// values lack what an earlier store received.
///
/// ```no_run
/// use counterfoil::{Counterfoil, Family, KeyType, MemoryStore, Outcome, Primary, Table};
///
/// # async fn test() -> counterfoil::Result<()> {
/// let store = MemoryStore::new();
/// let counterfoil = Counterfoil::new(Primary::connect("redis://localhost").await?, store.clone());
/// let items = Table::update("item").key("id", KeyType::Unsigned).value("vote_count");
/// let votes = counterfoil.open(Family::cached("forum", "votes").table(items)).await?;
///
/// store.set(votes.family(), "4711", 0); // in place of INSERT INTO item
/// assert_eq!(votes.incr("4711", 1).await?, Outcome::Counted(1));
/// counterfoil.drain().await?;
/// assert_eq!(votes.stored(&["4711"]).await?, [Some(1)]);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct MemoryStore(Arc<Mutex<Tables>>);

#[derive(Debug, Default)]
struct Tables {
    /// The families by namespace and name; a family's number is its index.
    families: IndexMap<String, StoredFamily>,
    ledger: BTreeMap<LedgerKey, Mark>,
}

/// A family with its rows.
#[derive(Debug)]
struct StoredFamily {
    family: Family,
    rows: BTreeMap<String, i64>,
}

impl MemoryStore {
    /// Creates an empty database.
    #[must_use]
    pub fn new() -> Self {
        MemoryStore::default()
    }

    /// Writes a row as the application that owns the table would: a row that
    /// [`Table::update`](crate::Table::update) requires, or another value than counterfoil's.
    pub fn set(&self, family: &Family, id: &str, value: i64) {
        self.0
            .lock()
            .stored(family)
            .rows
            .insert(id.to_owned(), value);
    }
}

impl Tables {
    fn stored(&mut self, family: &Family) -> &mut StoredFamily {
        self.families
            .entry(family.to_string())
            .or_insert_with(|| StoredFamily {
                family: family.clone(),
                rows: BTreeMap::new(),
            })
    }

    /// Adds the delta to its row. Returns `false` if no row takes it.
    fn add(&mut self, family: &Family, id: &[u8], delta: i64) -> bool {
        let added = std::str::from_utf8(id).is_ok_and(|id| self.stored(family).add(id, delta));
        if !added {
            tracing::warn!(%family, id = %id.escape_ascii(), delta, "rejected: no row accepts the delta");
        }
        added
    }
}

fn registered(number: usize, family: &Family) -> Registration {
    Registration {
        family: family.clone(),
        number: FamilyNumber(number as u64),
        // not checked: another store may count in the same Redis later
        database: String::new(),
        columns: None,
    }
}

impl StoredFamily {
    fn add(&mut self, id: &str, delta: i64) -> bool {
        let row = self
            .rows
            .get(id)
            .copied()
            .or(self.family.makes_rows().then_some(0));
        let value = row.and_then(|value| value.checked_add(delta));
        self.rows.extend(value.map(|value| (id.to_owned(), value)));
        value.is_some()
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn register(&self, family: &Family) -> Result<Registration> {
        let mut tables = self.0.lock();
        let known = &mut tables.stored(family).family;
        if let Some((setting, known, new)) = known.differences(family).next() {
            let differs = format!("{family}: {setting} is {known}, not {new}");
            return Err(Error::mismatch(differs));
        }
        *known = family.clone();
        let number = tables.families.get_index_of(&family.to_string());
        Ok(registered(number.unwrap_or_default(), family))
    }

    async fn families(&self) -> Result<Vec<(String, Result<Registration>)>> {
        let tables = self.0.lock();
        Ok(tables
            .families
            .iter()
            .enumerate()
            .map(|(number, (name, stored))| (name.clone(), Ok(registered(number, &stored.family))))
            .collect())
    }

    async fn apply(&self, batches: &[Arc<Batch>], max_rows: Option<u64>) -> Result<ApplyReply> {
        let mut tables = self.0.lock();
        let most = max_rows.unwrap_or(u64::MAX);
        let advance = Advance::new(batches, &tables.ledger, most, ablation::out());
        let mut applied = ApplyReply {
            database_set_back: advance.database_set_back(),
            progress: advance.progress,
            ..ApplyReply::default()
        };
        for step in advance.steps {
            for (id, delta) in step.deltas {
                if tables.add(&step.batch.family.family, id, *delta) {
                    applied.rows += 1;
                } else {
                    applied.rejected += 1;
                }
            }
        }
        tables.ledger.extend(advance.marks);
        Ok(applied)
    }

    async fn ledger(&self, families: &[FamilyNumber]) -> Result<Vec<LedgerRow>> {
        let tables = self.0.lock();
        Ok(tables
            .ledger
            .iter()
            .filter(|((family, ..), _)| families.contains(family))
            .map(|(&(family, partition, incarnation), mark)| LedgerRow {
                family,
                partition,
                incarnation,
                mark: mark.clone(),
            })
            .collect())
    }

    async fn read(
        &self,
        family: &Registration,
        ids: &[&str],
        ledger: &[(u32, Incarnation)],
        _: ReadFrom,
    ) -> Result<Snapshot> {
        let mut tables = self.0.lock();
        let marks = ledger
            .iter()
            .map(|&(partition, incarnation)| {
                let key = (family.number, partition, incarnation);
                tables.ledger.get(&key).cloned().unwrap_or_default()
            })
            .collect();
        let rows = &tables.stored(&family.family).rows;
        let values = ids.iter().map(|id| rows.get(*id).copied()).collect();
        Ok(Snapshot {
            values,
            ledger: marks,
        })
    }

    async fn list(
        &self,
        family: &Registration,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, i64)>> {
        let mut tables = self.0.lock();
        let rows = tables
            .stored(&family.family)
            .rows
            .iter()
            .filter(|(id, _)| id.starts_with(prefix) && Some(id.as_str()) > after)
            .map(|(id, value)| (id.clone(), *value));
        Ok(rows.take(limit).collect())
    }
}
