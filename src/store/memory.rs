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
    Applied, Batch, FamilyNumber, Incarnation, LedgerRow, Mark, ReadFrom, Registered, Snapshot,
    Store,
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
    families: IndexMap<String, Stored>,
    ledger: BTreeMap<LedgerKey, Mark>,
}

/// A family with its rows.
#[derive(Debug)]
struct Stored {
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
    fn stored(&mut self, family: &Family) -> &mut Stored {
        let new = || Stored {
            family: family.clone(),
            rows: BTreeMap::new(),
        };
        self.families.entry(family.to_string()).or_insert_with(new)
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

fn registered(number: usize, family: &Family) -> Registered {
    Registered {
        family: family.clone(),
        number: FamilyNumber(number as u64),
        // not checked: another store may count in the same Redis later
        database: String::new(),
        columns: None,
    }
}

impl Stored {
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
    async fn register(&self, family: &Family) -> Result<Registered> {
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

    async fn families(&self) -> Result<Vec<(String, Result<Registered>)>> {
        let tables = self.0.lock();
        let all = tables.families.iter().enumerate();
        let all = all
            .map(|(number, (name, stored))| (name.clone(), Ok(registered(number, &stored.family))));
        Ok(all.collect())
    }

    async fn apply(&self, batches: &[Arc<Batch>], max_rows: Option<u64>) -> Result<Applied> {
        let mut tables = self.0.lock();
        let max_rows = max_rows.unwrap_or(u64::MAX);
        let advance = Advance::new(batches, &tables.ledger, max_rows, ablation::out());
        let mut applied = Applied {
            progress: advance.progress,
            ..Applied::default()
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
        let rows = tables
            .ledger
            .iter()
            .filter(|((family, ..), _)| families.contains(family));
        let row = |(&(family, partition, incarnation), mark): (&LedgerKey, &Mark)| LedgerRow {
            family,
            partition,
            incarnation,
            mark: mark.clone(),
        };
        Ok(rows.map(row).collect())
    }

    async fn read(
        &self,
        family: &Registered,
        ids: &[&str],
        ledger: &[(u32, Incarnation)],
        _: ReadFrom,
    ) -> Result<Snapshot> {
        let mut tables = self.0.lock();
        let mark = |(partition, incarnation): &(u32, Incarnation)| {
            let mark = tables
                .ledger
                .get(&(family.number, *partition, *incarnation));
            mark.cloned().unwrap_or_default()
        };
        let ledger = ledger.iter().map(mark).collect();
        let rows = &tables.stored(&family.family).rows;
        let values = ids.iter().map(|id| rows.get(*id).copied()).collect();
        Ok(Snapshot { values, ledger })
    }

    async fn list(
        &self,
        family: &Registered,
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
