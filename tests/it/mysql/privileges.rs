//! The privileges that docs/operations.md grants are enough, and each of them is needed and missed by name.

use std::sync::Arc;

use counterfoil::{
    Family, KeyType, MysqlStore, ReadFrom, Registered, Retried, Row, Save, Saved, Severity, Store, Table, Version,
};
use sqlx::mysql::MySqlPoolOptions;

use super::buffered::{Db, I1, applied, batch};

/// The statements of the section on MySQL, for this database and a user of its own.
fn statements(db: &Db) -> Vec<String> {
    let document = include_str!("../../../docs/operations.md");
    let section = document.split("\n## MySQL\n").nth(1).expect("a section on MySQL");
    let sql = section.split("```sql\n").nth(1).and_then(|block| block.split("```").next()).expect("a block of SQL");
    let sql = sql.replace("shop.", &format!("{}.", db.name)).replace("IDENTIFIED BY 'secret'", "");
    let sql = sql.replace("'counterfoil'@'%'", &format!("'u{}'@'localhost'", db.name));
    sql.split_terminator(";\n").map(str::to_owned).collect()
}

/// A store that does whatever stores do, for families that are new in each round.
struct Work {
    store: MysqlStore,
    round: u64,
    failures: Vec<String>,
}

impl Work {
    async fn done(db: &Db, round: u64) -> Self {
        let options = (*db.pool.connect_options()).clone().username(&format!("u{}", db.name));
        let pool = MySqlPoolOptions::new().max_connections(2).connect_lazy_with(options);
        let mut work = Work { store: MysqlStore::new(pool), round, failures: Vec::new() };
        work.count("own", None).await;
        work.count("sales", Some(sales())).await;
        work.count("item", Some(item())).await;
        work.save("saved_own", None).await;
        work.save("saved_item", Some(item())).await;
        work.retry("own").await;
        work.recount("saved_own").await;
        work
    }

    fn note<T>(&mut self, result: counterfoil::Result<T>) -> Option<T> {
        result.map_err(|error| self.failures.push(error.to_string())).ok()
    }

    async fn register(&mut self, family: Family) -> Option<Registered> {
        let number = self.store.register(&family).await;
        self.note(number).map(|number| Registered { family, number })
    }

    async fn count(&mut self, name: &str, table: Option<Table>) {
        let family = Family::buffered("shop", format!("{name}{}", self.round));
        let family = table.into_iter().fold(family, |family, table| family.table(table)).build().expect("valid");
        let Some(family) = self.register(family.family().clone()).await.map(Arc::new) else { return };
        for seq in 1..=2 {
            // the second one is no row's
            let done = self.store.apply(&[batch(&family, 0, seq, &[("1", 1), ("", 1)])]).await;
            if let Some(done) = self.note(done) {
                assert_eq!(done, applied(1, 0, 1, 1), "{name}");
            }
        }
        let read = self.store.read(&family, &["1"], &[(0, I1)], ReadFrom::Primary).await;
        self.note(read);
    }

    /// Corrects a counter, and saves it once more: that meets the correction.
    async fn recount(&mut self, name: &str) {
        let family = Family::cached("shop", format!("{name}{}", self.round)).build().expect("valid");
        let Some(family) = self.register(family.family().clone()).await else { return };
        let rows = self.store.rows(&family, &["1"]).await;
        let Some(known) = self.note(rows).map(|rows| rows[0]) else { return };
        let corrected = self.store.correct_one(&family, "1", 5).await;
        if self.note(corrected).is_none() {
            return;
        }
        let version = Version { lineage: self.round, n: 3 };
        let save = Save { id: "1".into(), partition: 0, known, value: 9, version };
        let saved = self.store.save(&family, &[save]).await;
        if let Some(saved) = self.note(saved) {
            let row = Row { value: Some(known.value.unwrap_or(0) + 5), ..known };
            assert_eq!(saved, [Saved::Recounted(row)], "{name}");
        }
    }

    /// Applies what cannot be applied.
    async fn retry(&mut self, name: &str) {
        let family = Family::buffered("shop", format!("{name}{}", self.round)).build().expect("valid");
        let rejects = self.store.rejects(0, 10_000).await;
        let Some(rejects) = self.note(rejects) else { return };
        let family = family.family();
        let of_family = rejects.iter().filter(|reject| reject.family == family.name());
        let numbers: Vec<_> = of_family.map(|reject| reject.number).collect();
        let again = self.store.retry_rejects(family, &numbers).await;
        if let Some(again) = self.note(again) {
            assert!(again.iter().all(|one| *one == Retried::Refused), "{again:?}");
        }
    }

    async fn save(&mut self, name: &str, table: Option<Table>) {
        let family = Family::cached("shop", format!("{name}{}", self.round));
        let family = table.into_iter().fold(family, |family, table| family.table(table)).build().expect("valid");
        let Some(family) = self.register(family.family().clone()).await else { return };
        for n in 1..=2 {
            let rows = self.store.rows(&family, &["1"]).await;
            let Some(known) = self.note(rows).map(|rows| rows[0]) else { return };
            let version = Version { lineage: self.round, n };
            let value = known.value.unwrap_or(0) + 1;
            let save = Save { id: "1".into(), partition: 0, known, value, version };
            let saved = self.store.save(&family, &[save]).await;
            if let Some(saved) = self.note(saved) {
                assert_eq!(saved, [Saved::Done], "{name}");
            }
        }
    }
}

fn sales() -> Table {
    Table::upsert("sales").key("id", KeyType::Signed).value("n")
}

fn item() -> Table {
    Table::update("item").key("id", KeyType::Signed).value("n")
}

#[tokio::test]
async fn each_privilege_of_the_documentation_is_enough_and_needed() {
    let db = Db::new().await;
    db.run("CREATE TABLE sales (id INT PRIMARY KEY, n INT NOT NULL); CREATE TABLE item LIKE sales; INSERT INTO item VALUES (1, 0)")
        .await;
    let statements = statements(&db);
    for statement in &statements {
        db.run(statement).await;
    }
    let family = |name| Family::buffered("shop", name);
    let families = [family("own"), family("sales").table(sales()), family("item").table(item())];
    let families = families.map(|family| family.build().expect("valid").family().clone());
    let mut round = 1;
    let work = Work::done(&db, round).await;
    assert_eq!(work.failures, [""; 0]);
    work.store.create_tables().await.expect("all are there");
    let findings = work.store.check(&families).await;
    assert!(findings.iter().all(|finding| finding.severity < Severity::Error), "{findings:#?}");

    let grants: Vec<_> = statements.iter().filter_map(|statement| statement.strip_prefix("GRANT ")).collect();
    assert_eq!(grants.len(), 9);
    for grant in grants {
        let (privileges, rest) = grant.split_once(" ON ").expect("a grant");
        let (table, user) = rest.split_once(" TO ").expect("a grant");
        let name = table.rsplit('.').next().expect("a table");
        for privilege in privileges.split(", ") {
            round += 1;
            db.run(&format!("REVOKE {privilege} ON {table} FROM {user}")).await;
            let work = Work::done(&db, round).await;
            // MySQL's words for an UPDATE that may not lock
            let locking = |failure: &String| privilege == "UPDATE" && failure.contains("with locking clause");
            let names = |failure: &&String| failure.contains(privilege) || locking(failure);
            let named = work.failures.iter().filter(names).any(|failure| failure.contains(name));
            assert!(named, "without {privilege} on {table}: {:#?}", work.failures);
            let findings = work.store.check(&families).await;
            let found = findings.iter().any(|finding| {
                finding.severity == Severity::Error
                    && finding.subject.contains(name)
                    && finding.message.contains(&format!("no {privilege} privilege"))
            });
            assert!(found, "without {privilege} on {table}: {findings:#?}");
            db.run(&format!("GRANT {privilege} ON {table} TO {user}")).await;
        }
    }
    round += 1;
    assert_eq!(Work::done(&db, round).await.failures, [""; 0]);
}
