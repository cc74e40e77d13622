//! The privileges of each role suffice, and a missing one is reported by name. docs/operations.md
//! lists them.

use counterfoil::admin::grants;

use super::database::*;
use crate::support::*;

fn table(name: &str) -> Option<Table> {
    match name {
        "sales" => Some(by_id(Table::upsert("sales"), Signed)),
        "item" => Some(by_id(Table::update("item"), Signed)),
        _ => None,
    }
}

/// Returns the family of this number with a name of the documentation.
fn numbered(name: &str, number: &str) -> Family {
    let family = Family::buffered("shop", format!("{name}{number}"));
    let family = match table(name) {
        Some(table) => family.table(table),
        None => family,
    };
    family.build().unwrap()
}

/// Returns the families of the documentation.
fn families() -> [Family; 3] {
    ["own", "sales", "item"].map(|name| numbered(name, ""))
}

/// Creates a database with the tables, and a user with the role's privileges.
async fn granted(families: &[Family], role: Role) -> (Db, Vec<String>) {
    let db = Db::new().await;
    db.run(
        "CREATE TABLE sales (id INT PRIMARY KEY, n INT NOT NULL); CREATE TABLE item LIKE sales;
         INSERT INTO item VALUES (1, 0)",
    )
    .await;
    let user = db.user(&[]).await;
    let grants = grants(families, role, &db.name, &format!("{user}@localhost"));
    for grant in &grants {
        db.run(grant).await;
    }
    (db, grants)
}

/// Returns the user's store with new connections.
fn store(db: &Db) -> MysqlStore {
    db.store_of(&format!("u{}", db.name))
}

/// A granted privilege on a table.
struct Granted<'g> {
    privilege: &'g str,
    /// The quoted table with its schema.
    table: &'g str,
    user: &'g str,
}

/// Returns the privileges of all statements.
fn each(grants: &[String]) -> impl Iterator<Item = Granted<'_>> {
    grants.iter().flat_map(|grant| {
        let (privileges, rest) = grant
            .strip_prefix("GRANT ")
            .unwrap()
            .split_once(" ON ")
            .unwrap();
        let (table, user) = rest.split_once(" TO ").unwrap();
        let user = user.trim_end_matches(';');
        privileges.split(", ").map(move |privilege| Granted {
            privilege,
            table,
            user,
        })
    })
}

impl Granted<'_> {
    /// Returns the table's name alone.
    fn name(&self) -> &str {
        self.table.rsplit('.').next().unwrap().trim_matches('`')
    }

    async fn revoke(&self, db: &Db) {
        let (privilege, table, user) = (self.privilege, self.table, self.user);
        db.run(&format!("REVOKE {privilege} ON {table} FROM {user}"))
            .await;
    }

    async fn give_back(&self, db: &Db) {
        let (privilege, table, user) = (self.privilege, self.table, self.user);
        db.run(&format!("GRANT {privilege} ON {table} TO {user}"))
            .await;
    }
}

/// A store that makes every kind of call, on new families in each round.
struct Work {
    store: MysqlStore,
    redis: Arc<RedisServer>,
    failures: Vec<String>,
}

impl Work {
    async fn done(db: &Db, redis: &Arc<RedisServer>, round: u64) -> Self {
        let mut work = Work {
            store: store(db),
            redis: redis.clone(),
            failures: vec![],
        };
        let round = round.to_string();
        for name in ["own", "sales", "item"] {
            work.count(numbered(name, &round)).await;
        }
        work.retry_and_recount(numbered("own", &round)).await;
        let changed = Family::buffered("shop", format!("own{round}")).sync_hits(7);
        work.register(changed.build().unwrap()).await;
        work
    }

    fn note<T>(&mut self, result: Result<T>) -> Option<T> {
        result
            .map_err(|error| self.failures.push(format!("{error:#}")))
            .ok()
    }

    async fn register(&mut self, family: Family) -> Option<Arc<Registration>> {
        let registered = self.store.register(&family).await;
        self.note(registered).map(Arc::new)
    }

    async fn count(&mut self, family: Family) -> Option<()> {
        let family = self.register(family).await?;
        for seq in 1..=2 {
            // the second id matches no row
            let done = complete(
                &self.store,
                &[batch(&family, 0, seq, [("1", 1), ("", 1)])],
                None,
            )
            .await;
            if let Some(done) = self.note(done) {
                assert_eq!(done, applied(1, 0, 1, 1), "{}", family.family);
            }
        }
        let (ids, ledger) = (["1"], [(0, I1)]);
        self.note(
            self.store
                .read(&family, &ids, &ledger, ReadFrom::Primary)
                .await,
        );
        self.note(self.store.rows(&family, &ids).await);
        self.note(self.store.ledger(&[family.number]).await);
        None
    }

    /// Retries the rejects, which are refused again, and corrects a counter.
    async fn retry_and_recount(&mut self, family: Family) -> Option<()> {
        let rejects = self.store.rejects(None, None, 10_000).await;
        self.note(rejects);
        let again = self.store.retry_rejects(&family, None).await;
        let again = self.note(again).unwrap_or_default();
        assert_eq!((again.applied, again.left), (0, 0));
        // one that nothing refuses
        let gone = self.store.discard_rejects(&family.to_string(), None).await;
        self.note(gone);
        let corrected = recounted(&self.store, &self.redis, family.name(), 5).await;
        let corrected = self.note(corrected)?;
        // without a privilege that counting needs there is no counter
        if self.failures.is_empty() {
            assert_eq!((corrected.checked, corrected.raised), (1, 1));
        }
        None
    }
}

#[test]
fn the_documentation_has_the_privileges_of_a_reconciler() {
    let document = include_str!("../../../docs/operations.md");
    let documented: Vec<_> = document
        .split("\n## MySQL\n")
        .last()
        .unwrap()
        .split("```sql\n")
        .nth(1)
        .unwrap()
        .split("```")
        .next()
        .into_iter()
        .flat_map(str::lines)
        .filter(|line| line.starts_with("GRANT "))
        .collect();
    assert_eq!(
        documented,
        grants(&families(), Role::Reconciler, "shop", "counterfoil@%")
    );
}

#[test]
fn grants_name_each_table_once_in_its_database() {
    let named = |table: Option<Table>, name| {
        let family = Family::buffered("shop", name);
        let family = match table {
            Some(table) => family.table(by_id(table, Signed)),
            None => family,
        };
        family.build().unwrap()
    };
    let families = [
        named(Some(Table::update("sales")), "sold"),
        named(Some(Table::upsert("shop.sales")), "seen"),
        named(Some(Table::update("other.item")), "liked"),
    ];
    let all = grants(&families, Role::Reconciler, "shop", "shop@10.0.0.%");
    let expected = [
        "GRANT SELECT, INSERT, UPDATE ON `shop`.`sales` TO `shop`@`10.0.0.%`;",
        "GRANT SELECT, UPDATE ON `other`.`item` TO `shop`@`10.0.0.%`;",
    ];
    assert_eq!(all[6..], expected);
    let own = [named(None, "own")];
    let quoted = grants(&own, Role::Reader, "a`b", "c`d");
    let expected = "GRANT SELECT ON `a``b`.`counterfoil_families` TO `c``d`@`%`;";
    assert_eq!(quoted[0], expected);
    // only rows of cached counters are read to count
    assert_eq!(grants(&own, Role::Writer, "shop", "shop"), [""; 0]);
}

#[tokio::test]
async fn each_privilege_of_a_reconciler_is_enough_and_needed() {
    let (db, grants) = granted(&families(), Role::Reconciler).await;
    let redis = Arc::new(new_redis().await);
    let work = Work::done(&db, &redis, 1).await;
    assert_eq!(work.failures, [""; 0]);
    work.store.create_tables().await.unwrap();
    has_no_errors(&work.store.check(&families()).await);

    for (granted, round) in each(&grants).zip(2..) {
        let (privilege, name) = (granted.privilege, granted.name());
        granted.revoke(&db).await;
        let work = Work::done(&db, &redis, round).await;
        let is_named = |failure: &String| {
            // MySQL's message for an UPDATE that may not lock
            let is_locking = privilege == "UPDATE" && failure.contains("with locking clause");
            failure.contains(name) && (failure.contains(privilege) || is_locking)
        };
        assert!(
            work.failures.iter().any(is_named),
            "without {privilege} on {name}: {:#?}",
            work.failures
        );
        let missing = format!("no {privilege} privilege");
        let findings = work.store.check(&families()).await;
        assert_found(&findings, Severity::Error, &[name, &missing]);
        granted.give_back(&db).await;
    }
    assert_eq!(Work::done(&db, &redis, 0).await.failures, [""; 0]);
}

/// Does the work with the role's privileges, and without each of them.
async fn try_each(db: &Db, grants: &[String], work: impl AsyncFn(MysqlStore) -> Result<()>) {
    work(store(db)).await.unwrap();
    for granted in each(grants) {
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
async fn registered(store: &MysqlStore, name: &str) -> Result<Registration> {
    Ok(store.find(&format!("shop/{name}")).await?.unwrap())
}

/// Applies a batch to each family, which the user cannot do.
async fn fill(db: &Db, families: &[Family], value: i64) {
    for family in families {
        let family = db.registered(family).await;
        db.adds(&family, 1, [("1", value)], (1, 0)).await;
        store(db)
            .apply(&[batch(&family, 0, 2, [("1", value)])], None)
            .await
            .expect_err("a user without privileges");
    }
}

#[tokio::test]
async fn a_writer_reads_the_rows_of_cached_counters_and_writes_none() {
    let (votes, likes) = (
        Family::cached("shop", "votes"),
        Family::cached("shop", "likes"),
    );
    let likes = likes.table(table("item").unwrap());
    let families = [votes, likes].map(|family| family.build().unwrap());
    let (db, grants) = granted(&families, Role::Writer).await;
    fill(&db, &families, 9).await;
    let seed = async |store: MysqlStore| {
        for name in ["votes", "likes"] {
            assert_eq!(
                store
                    .rows(&registered(&store, name).await?, &["1", "2"])
                    .await?,
                [Some(9), None],
                "{name}"
            );
        }
        Ok(())
    };
    try_each(&db, &grants, seed).await;
}

#[tokio::test]
async fn a_reader_reads_exactly_and_writes_nothing() {
    let (db, grants) = granted(&families(), Role::Reader).await;
    fill(&db, &families(), 5).await;
    let read = async |store: MysqlStore| {
        for name in ["own", "sales", "item"] {
            let family = registered(&store, name).await?;
            for ids in [&["1"][..], &["1", "2"]] {
                let read = store.read(&family, ids, &[(0, I1)], ReadFrom::Primary);
                let read = read.await?;
                assert_eq!((read.values[0], read.ledger[0].seq), (Some(5), 1), "{name}");
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
