//! The privileges of each role suffice, and a missing one is reported by name. docs/operations.md
//! lists them.

use std::sync::Arc;

use counterfoil::admin::{Retried, Role, Severity, grants};
use counterfoil::store::{ReadFrom, Registered};
use counterfoil::{Family, KeyType, MysqlStore, Store, Table};
use sqlx::mysql::MySqlPoolOptions;

use super::buffered::{Db, I1, applied, batch, complete};

/// Returns the families of the documentation.
fn families() -> [Family; 3] {
    let family = |name| Family::buffered("shop", name);
    let families = [
        family("own"),
        family("sales").table(sales()),
        family("item").table(item()),
    ];
    families.map(|family| family.build().expect("valid").clone())
}

/// Creates a database with the tables, and a user with the role's privileges.
async fn granted(families: &[Family], role: Role) -> (Db, Vec<String>) {
    let db = Db::new().await;
    db.run("CREATE TABLE sales (id INT PRIMARY KEY, n INT NOT NULL); CREATE TABLE item LIKE sales")
        .await;
    db.run("INSERT INTO item VALUES (1, 0)").await;
    db.run(&format!("CREATE USER 'u{}'@'localhost'", db.name))
        .await;
    let grants = grants(families, role, &db.name, &format!("u{}@localhost", db.name));
    for grant in &grants {
        db.run(grant).await;
    }
    (db, grants)
}

/// Returns the user's store with new connections.
fn store(db: &Db) -> MysqlStore {
    let options = (*db.pool.connect_options())
        .clone()
        .username(&format!("u{}", db.name));
    MysqlStore::new(
        MySqlPoolOptions::new()
            .max_connections(2)
            .connect_lazy_with(options),
    )
}

/// A granted privilege on a table.
struct Granted<'g> {
    privilege: &'g str,
    /// The quoted table with its schema.
    table: &'g str,
    user: &'g str,
}

impl<'g> Granted<'g> {
    /// Returns the privileges of a statement.
    fn of(grant: &'g str) -> Vec<Self> {
        let (privileges, rest) = grant
            .strip_prefix("GRANT ")
            .and_then(|rest| rest.split_once(" ON "))
            .expect("a grant");
        let (table, user) = rest
            .trim_end_matches(';')
            .split_once(" TO ")
            .expect("a grant");
        privileges
            .split(", ")
            .map(|privilege| Granted {
                privilege,
                table,
                user,
            })
            .collect()
    }

    /// Returns the table's name alone.
    fn name(&self) -> &str {
        self.table
            .rsplit('.')
            .next()
            .expect("a table")
            .trim_matches('`')
    }

    async fn revoke(&self, db: &Db) {
        db.run(&format!(
            "REVOKE {} ON {} FROM {}",
            self.privilege, self.table, self.user
        ))
        .await;
    }

    async fn give_back(&self, db: &Db) {
        db.run(&format!(
            "GRANT {} ON {} TO {}",
            self.privilege, self.table, self.user
        ))
        .await;
    }
}

/// A store that makes every kind of call, on new families in each round.
struct Work {
    store: MysqlStore,
    round: u64,
    failures: Vec<String>,
}

impl Work {
    async fn done(db: &Db, round: u64) -> Self {
        let mut work = Work {
            store: store(db),
            round,
            failures: Vec::new(),
        };
        work.count("own", None).await;
        work.count("sales", Some(sales())).await;
        work.count("item", Some(item())).await;
        work.retry("own").await;
        work.recount("own").await;
        work
    }

    fn note<T>(&mut self, result: counterfoil::Result<T>) -> Option<T> {
        result
            .map_err(|error| self.failures.push(format!("{error:#}")))
            .ok()
    }

    async fn register(&mut self, family: Family) -> Option<Registered> {
        let number = self.store.register(&family).await;
        self.note(number)
            .map(|number| Registered { family, number })
    }

    async fn count(&mut self, name: &str, table: Option<Table>) {
        let family = Family::buffered("shop", format!("{name}{}", self.round));
        let family = table
            .into_iter()
            .fold(family, |family, table| family.table(table))
            .build()
            .expect("valid");
        let Some(family) = self.register(family.clone()).await.map(Arc::new) else {
            return;
        };
        for seq in 1..=2 {
            // the second id matches no row
            let done = complete(
                &self.store,
                &[batch(&family, 0, seq, &[("1", 1), ("", 1)])],
                None,
            )
            .await;
            if let Some(done) = self.note(done) {
                assert_eq!(done, applied(1, 0, 1, 1), "{name}");
            }
        }
        let read = self
            .store
            .read(&family, &["1"], &[(0, I1)], ReadFrom::Primary)
            .await;
        self.note(read);
        let rows = self.store.rows(&family, &["1"]).await;
        self.note(rows);
        let ledger = self.store.ledger(&[family.number]).await;
        self.note(ledger);
    }

    /// Corrects a counter.
    async fn recount(&mut self, name: &str) {
        let family = Family::buffered("shop", format!("{name}{}", self.round))
            .build()
            .expect("valid");
        let Some(family) = self.register(family.clone()).await else {
            return;
        };
        let corrected = self.store.correct_one(&family, "1", 5).await;
        self.note(corrected);
    }

    /// Retries the rejects, which are refused again.
    async fn retry(&mut self, name: &str) {
        let family = Family::buffered("shop", format!("{name}{}", self.round))
            .build()
            .expect("valid");
        let rejects = self.store.rejects(0, 10_000).await;
        let Some(rejects) = self.note(rejects) else {
            return;
        };
        let family = family;
        let of_family = rejects
            .iter()
            .filter(|reject| reject.family == family.name());
        let numbers: Vec<_> = of_family.map(|reject| reject.number).collect();
        let again = self.store.retry_rejects(&family, &numbers).await;
        if let Some(again) = self.note(again) {
            assert!(
                again.iter().all(|one| *one == Retried::Refused),
                "{again:?}"
            );
        }
    }
}

fn sales() -> Table {
    Table::upsert("sales").key("id", KeyType::Signed).value("n")
}

fn item() -> Table {
    Table::update("item").key("id", KeyType::Signed).value("n")
}

#[test]
fn the_documentation_has_the_privileges_of_a_reconciler() {
    let document = include_str!("../../../docs/operations.md");
    let section = document
        .split("\n## MySQL\n")
        .nth(1)
        .expect("a section on MySQL");
    let sql = section
        .split("```sql\n")
        .nth(1)
        .and_then(|block| block.split("```").next())
        .expect("a block of SQL");
    let documented: Vec<_> = sql
        .lines()
        .filter(|line| line.starts_with("GRANT "))
        .collect();
    assert_eq!(
        documented,
        grants(&families(), Role::Reconciler, "shop", "counterfoil@%")
    );
}

#[tokio::test]
async fn each_privilege_of_a_reconciler_is_enough_and_needed() {
    let (db, grants) = granted(&families(), Role::Reconciler).await;
    let mut round = 1;
    let work = Work::done(&db, round).await;
    assert_eq!(work.failures, [""; 0]);
    work.store.create_tables().await.expect("all are there");
    let findings = work.store.check(&families()).await;
    assert!(
        findings
            .iter()
            .all(|finding| finding.severity < Severity::Error),
        "{findings:#?}"
    );

    for granted in grants.iter().flat_map(|grant| Granted::of(grant)) {
        let (privilege, name) = (granted.privilege, granted.name());
        round += 1;
        granted.revoke(&db).await;
        let work = Work::done(&db, round).await;
        // MySQL's message for an UPDATE that may not lock
        let locking =
            |failure: &String| privilege == "UPDATE" && failure.contains("with locking clause");
        let names = |failure: &&String| failure.contains(privilege) || locking(failure);
        let named = work
            .failures
            .iter()
            .filter(names)
            .any(|failure| failure.contains(name));
        assert!(named, "without {privilege} on {name}: {:#?}", work.failures);
        let findings = work.store.check(&families()).await;
        let found = findings.iter().any(|finding| {
            finding.severity == Severity::Error
                && finding.subject.contains(name)
                && finding
                    .message
                    .contains(&format!("no {privilege} privilege"))
        });
        assert!(found, "without {privilege} on {name}: {findings:#?}");
        granted.give_back(&db).await;
    }
    round += 1;
    assert_eq!(Work::done(&db, round).await.failures, [""; 0]);
}

/// Does the work with the role's privileges, and without each of them.
async fn try_each(
    db: &Db,
    grants: &[String],
    work: impl AsyncFn(MysqlStore) -> counterfoil::Result<()>,
) {
    work(store(db)).await.expect("the privileges are enough");
    for granted in grants.iter().flat_map(|grant| Granted::of(grant)) {
        granted.revoke(db).await;
        let error = work(store(db)).await.expect_err(granted.table);
        let error = format!("{error:#}");
        let is_hidden = error.contains("does not exist") || error.contains("doesn't exist");
        assert!(
            error.contains(granted.name()) && (is_hidden || error.contains(granted.privilege)),
            "{error}"
        );
        granted.give_back(db).await;
    }
}

/// Returns the family as the database has it, which the user cannot register.
async fn registered(store: &MysqlStore, name: &str) -> counterfoil::Result<Registered> {
    let families = store
        .families()
        .await?
        .into_iter()
        .collect::<counterfoil::Result<Vec<_>>>()?;
    Ok(families
        .into_iter()
        .find(|one| one.family.name() == name)
        .expect("registered"))
}

#[tokio::test]
async fn a_writer_reads_the_rows_of_cached_counters_and_writes_none() {
    let families = [("votes", None), ("likes", Some(item()))].map(|(name, table)| {
        let family = Family::cached("shop", name);
        table
            .into_iter()
            .fold(family, |family, table| family.table(table))
            .build()
            .expect("valid")
            .clone()
    });
    let (db, grants) = granted(&families, Role::Writer).await;
    for family in &families {
        let number = db.store.register(family).await.expect("registered");
        let family = Arc::new(Registered {
            family: family.clone(),
            number,
        });
        let batches = [batch(&family, 0, 1, &[("1", 9)])];
        assert_eq!(db.apply(&batches).await, applied(1, 0, 1, 0));
        store(&db)
            .apply(&batches, None)
            .await
            .expect_err("it may not");
    }
    let seed = async |store: MysqlStore| {
        for name in ["votes", "likes"] {
            let rows = store
                .rows(&registered(&store, name).await?, &["1", "2"])
                .await?;
            assert_eq!(rows, [Some(9), None], "{name}");
        }
        Ok(())
    };
    try_each(&db, &grants, seed).await;
}

#[tokio::test]
async fn a_reader_reads_exactly_and_writes_nothing() {
    let (db, grants) = granted(&families(), Role::Reader).await;
    for family in families() {
        let number = db.store.register(&family).await.expect("registered");
        let family = Arc::new(Registered { family, number });
        assert_eq!(
            db.apply(&[batch(&family, 0, 1, &[("1", 5)])]).await,
            applied(1, 0, 1, 0)
        );
        store(&db)
            .apply(&[batch(&family, 0, 2, &[("1", 5)])], None)
            .await
            .expect_err("it may not");
    }
    let read = async |store: MysqlStore| {
        for name in ["own", "sales", "item"] {
            let family = registered(&store, name).await?;
            for ids in [&["1"][..], &["1", "2"]] {
                let snapshot = store
                    .read(&family, ids, &[(0, I1)], ReadFrom::Primary)
                    .await?;
                assert_eq!(
                    (snapshot.values[0], snapshot.ledger[0].seq),
                    (Some(5), 1),
                    "{name}"
                );
            }
            assert_eq!(
                store.list(&family, "", None, 10).await?,
                [("1".to_owned(), 5)],
                "{name}"
            );
        }
        Ok(())
    };
    try_each(&db, &grants, read).await;
}
