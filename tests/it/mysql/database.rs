//! A test's own database, batches for it, and the sums of their outcomes.

use counterfoil::admin::Reject;
use counterfoil::recount::{RecountProgress, Rows, Source};

use crate::support::*;

/// The key columns of a table.
pub type Keys = &'static [(&'static str, KeyType)];

pub const I1: Incarnation = Incarnation(u64::MAX);

/// A test's own database with counterfoil's tables.
pub struct Db {
    pub name: String,
    pub pool: MySqlPool,
    pub store: MysqlStore,
    pub mariadb: bool,
}

impl Db {
    pub async fn new() -> Self {
        let db = Db::empty().await;
        db.store.create_tables().await.unwrap();
        db
    }

    pub async fn empty() -> Self {
        Db::on(mysql().await).await
    }

    /// Creates a database without tables on the server.
    pub async fn on(server: &MysqlServer) -> Self {
        let (name, pool) = server.database("store").await;
        let version = sqlx::query_scalar::<_, String>("SELECT VERSION()").fetch_one(&pool);
        Db {
            name,
            mariadb: version.await.unwrap().contains("MariaDB"),
            store: MysqlStore::new(&pool).unwrap(),
            pool,
        }
    }

    /// Returns the database over a store with one connection, and its pool.
    pub fn alone(&self) -> Self {
        let store = MysqlStore::new(&self.pool).unwrap().max_connections(1);
        Db {
            name: self.name.clone(),
            pool: store.pool().clone(),
            store,
            mariadb: self.mariadb,
        }
    }

    /// Returns a store of the user's, with connections of its own.
    pub fn store_of(&self, user: &str) -> MysqlStore {
        let options = (*self.pool.connect_options()).clone();
        MysqlStore::new(options.username(user)).unwrap()
    }

    /// Creates a user with these privileges on the database's tables, and returns its name.
    pub async fn user(&self, privileges: &[&str]) -> String {
        let user = format!("u{}", self.name);
        self.run(&format!("CREATE USER '{user}'@'localhost'")).await;
        for privilege in privileges {
            let grant = format!("GRANT {privilege} TO '{user}'@'localhost'");
            self.run(&grant.replace(" ON ", &format!(" ON {}.", self.name)))
                .await;
        }
        user
    }

    pub async fn run(&self, sql: &str) {
        run_sql(&self.pool, sql).await;
    }

    pub async fn number(&self, sql: &str) -> i64 {
        let number = number(&self.pool, sql).await;
        number.unwrap_or_else(|| panic!("{sql}: none"))
    }

    /// Returns the collation that compares texts byte by byte.
    pub fn exact(&self) -> &'static str {
        if self.mariadb {
            "utf8mb4_nopad_bin"
        } else {
            "utf8mb4_0900_bin"
        }
    }

    pub async fn registered(&self, family: &Family) -> Arc<Registration> {
        Arc::new(self.store.register(family).await.unwrap())
    }

    pub async fn family(&self, builder: FamilyBuilder<BufferedCounters>) -> Arc<Registration> {
        self.registered(&builder.build().unwrap()).await
    }

    pub async fn views(&self) -> Arc<Registration> {
        self.family(views()).await
    }

    pub async fn table(&self, name: &str, table: Table) -> Arc<Registration> {
        self.family(Family::buffered("shop", name).table(table))
            .await
    }

    /// Creates a table of rows by `id`, whose value `n` has this type.
    pub async fn numbers(&self, name: &str, value: &str) -> Arc<Registration> {
        let columns = format!("(id INT PRIMARY KEY, n {value} NOT NULL)");
        self.run(&format!("CREATE TABLE {name} {columns}")).await;
        self.table(name, by_id(Table::upsert(name), Signed)).await
    }

    pub async fn values(&self, family: &Registration, ids: &[&str]) -> Vec<Option<i64>> {
        self.store
            .read(family, ids, &[], ReadFrom::Primary)
            .await
            .unwrap()
            .values
    }

    /// Asserts that the rows of these ids have these values.
    pub async fn has(
        &self,
        family: &Registration,
        ids: &[&str],
        expected: impl AsRef<[Option<i64>]>,
    ) {
        let (values, family) = (self.values(family, ids).await, &family.family);
        assert_eq!(values, expected.as_ref(), "{family} {ids:?}");
    }

    pub async fn rows(&self, family: &Registration, ids: &[&str]) -> Vec<Option<i64>> {
        self.store.rows(family, ids).await.unwrap()
    }

    pub async fn list(
        &self,
        family: &Registration,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Vec<(String, i64)> {
        self.store.list(family, prefix, after, limit).await.unwrap()
    }

    /// Lists all ids with the prefix, page by page.
    pub async fn pages(&self, family: &Registration, prefix: &str, limit: usize) -> Vec<String> {
        let (mut all, mut after) = (Vec::<String>::new(), None);
        loop {
            let page = self.list(family, prefix, after.as_deref(), limit).await;
            all.extend(page.iter().map(|(id, _)| id.clone()));
            after = all.last().cloned();
            if page.len() < limit {
                return all;
            }
        }
    }

    pub async fn rejects(&self) -> Vec<Reject> {
        self.store.rejects(None, None, 100_000).await.unwrap()
    }

    /// Asserts that these deltas were rejected.
    pub async fn expect_rejects(&self, expected: &[(&str, i64, &str)]) {
        expect_rejects(&self.store, expected).await;
    }

    pub async fn apply(&self, batches: &[Arc<Batch>]) -> Sums {
        complete(&self.store, batches, None).await.unwrap()
    }

    /// Applies one batch.
    pub async fn add<I: AsRef<[u8]>>(
        &self,
        family: &Arc<Registration>,
        partition: u32,
        seq: u64,
        deltas: impl IntoIterator<Item = (I, i64)>,
    ) -> Sums {
        self.apply(&[batch(family, partition, seq, deltas)]).await
    }

    /// Applies a batch of partition 0, of which so many deltas change rows, and so many are rejected.
    pub async fn adds<I: AsRef<[u8]>>(
        &self,
        family: &Arc<Registration>,
        seq: u64,
        deltas: impl IntoIterator<Item = (I, i64)>,
        (rows, rejected): (u64, u64),
    ) {
        let sums = self.add(family, 0, seq, deltas).await;
        assert_eq!(
            sums,
            applied(1, 0, rows, rejected),
            "{}, batch {seq}",
            family.family
        );
    }

    pub async fn mismatch(&self, builder: FamilyBuilder<BufferedCounters>) -> String {
        let registered = self.store.register(&builder.build().unwrap()).await;
        format!("{:#}", refused(registered, Mismatch, ""))
    }
}

pub fn views() -> FamilyBuilder<BufferedCounters> {
    Family::buffered("shop", "views")
}

/// Adds the key column `id` and the value column `n` to the table.
pub fn by_id(table: Table, kind: KeyType) -> Table {
    keyed(table, [("id", kind)])
}

/// Returns this number of ids, each with the delta.
pub fn many(ids: usize, delta: i64) -> impl Iterator<Item = (String, i64)> + Clone {
    (0..ids).map(move |id| (id.to_string(), delta))
}

pub fn batch<I: AsRef<[u8]>>(
    family: &Arc<Registration>,
    partition: u32,
    seq: u64,
    deltas: impl IntoIterator<Item = (I, i64)>,
) -> Arc<Batch> {
    let deltas = deltas.into_iter();
    let mut deltas: Vec<_> = deltas
        .map(|(id, delta)| (id.as_ref().to_vec(), delta))
        .collect();
    deltas.sort();
    Arc::new(Batch {
        family: family.clone(),
        partition,
        id: BatchId {
            incarnation: I1,
            seq,
            nonce: Nonce(u64::MAX - seq),
        },
        deltas,
        is_lost: false,
    })
}

/// The outcomes of batches, and the number of changed rows.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Sums {
    pub complete: u64,
    pub repeated: u64,
    pub set_back: u64,
    pub rows: u64,
    pub rejected: u64,
}

pub fn applied(complete: u64, repeated: u64, rows: u64, rejected: u64) -> Sums {
    Sums {
        complete,
        repeated,
        set_back: 0,
        rows,
        rejected,
    }
}

/// Applies the batches part by part, as a worker does, until each of them has ended.
pub async fn complete(
    store: &impl Store,
    batches: &[Arc<Batch>],
    max_rows: Option<u64>,
) -> Result<Sums> {
    let (mut left, mut sums) = (batches.to_vec(), Sums::default());
    while !left.is_empty() {
        let ApplyReply {
            progress,
            rows,
            rejected,
            ..
        } = match store.apply(&left, max_rows).await {
            // another task has locked a row for a second
            Err(error) if error.kind() == Busy => continue,
            applied => applied?,
        };
        (sums.rows, sums.rejected) = (sums.rows + rows, sums.rejected + rejected);
        let mut partial = vec![];
        for (batch, progress) in left.into_iter().zip(progress) {
            match progress {
                Progress::Complete => sums.complete += 1,
                Progress::Repeated => sums.repeated += 1,
                Progress::SetBack => sums.set_back += 1,
                Progress::Partial { .. } => partial.push(batch),
            }
        }
        left = partial;
    }
    Ok(sums)
}

/// Recounts the family of buffered counters, each of which stands for `rows` rows, and reads the
/// drift.
pub async fn recounted(
    store: &MysqlStore,
    redis: &RedisServer,
    name: &str,
    rows: i64,
) -> Result<RecountProgress> {
    let counterfoil = patient(Counterfoil::new(redis.manager().await, store.clone()));
    let counters = counterfoil.open(Family::buffered("shop", name)).await?;
    let source =
        Source::function(
            move |ids| async move { Ok(ids.into_iter().map(|id| (id, rows)).collect()) },
        );
    let recounted = counterfoil
        .recount(&counters, Rows::Added)
        .source(source)
        .within(Duration::ZERO)
        .run_once()
        .await?;
    store
        .drift(counters.family(), recounted.run, None, 10)
        .await
        .map(|_| recounted)
}
