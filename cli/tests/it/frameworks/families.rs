//! The families of a sample, as its `counterfoil.toml` has them, and what MySQL has of them.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use counterfoil::sqlx::{self, AssertSqlSafe};
use serde::Deserialize;
use testkit::Sample;
use tokio::time::sleep;

use super::journal::{Journal, PRODUCTS, Told};
use crate::support::Site;

/// The kinds of the families in which views and daily visitors count. A family with a recount counts rows.
pub const VIEWS: &str = "buffered";
pub const VISITORS: &str = "visitors";

/// Longer than an interrupted recount keeps others waiting.
const INTERRUPTED: Duration = Duration::from_secs(120);

#[derive(Deserialize)]
pub struct Families {
    family: Vec<Family>,
}

#[derive(Deserialize)]
struct Family {
    name: String,
    kind: String,
    table: Option<Table>,
    recount: Option<Recount>,
}

#[derive(Deserialize)]
struct Table {
    name: String,
    keys: Vec<(String, String)>,
    value: String,
}

#[derive(Deserialize)]
struct Recount {
    table: String,
    keys: Vec<String>,
}

impl Families {
    /// Reads the configuration of a sample, and writes the daemon's: the same with the servers of this site.
    pub fn of(sample: Sample, site: &Site, listen: &str) -> Self {
        let text = fs::read_to_string(sample.folder().join("counterfoil.toml"));
        let text = text.expect("the configuration of the sample");
        let families = toml::from_str(&text).expect("TOML with families");
        let (redis, mysql) = (site.redis.url(), &site.mysql_url);
        let own = |line: &&str| {
            !["listen = ", "create_tables = "]
                .iter()
                .any(|one| line.starts_with(one))
        };
        let lines = text.lines().filter(own);
        let lines = lines.map(|line| match line.split_once(" = ") {
            Some(("redis", _)) => format!("redis = {redis:?}\ncreate_tables = true"),
            Some(("mysql", _)) => format!("mysql = {mysql:?}"),
            // a recount that lasts is interrupted when the daemon is killed, which the next one waits for
            Some(("within", _)) => "within = \"1s\"".to_owned(),
            _ => line.to_owned(),
        });
        let lines: Vec<_> = lines.collect();
        site.write(&format!("listen = {listen:?}\n{}\n", lines.join("\n")));
        families
    }

    /// Returns whether the sample counts rows.
    pub fn has_saves(&self) -> bool {
        self.of_rows().is_some()
    }

    /// Compares the rows with the journal, and panics at the first difference beyond calls of unknown outcome.
    pub async fn check(&self, site: &Site, journal: &Journal) {
        for kind in [VIEWS, VISITORS] {
            let is_of_kind = |one: &&Family| one.kind == kind && one.recount.is_none();
            let family = self.family.iter().find(is_of_kind);
            let family = family.unwrap_or_else(|| panic!("the sample has no {kind} family"));
            let rows = family.rows(site).await;
            for product in 1..=PRODUCTS {
                let row = rows.get(&product).copied().unwrap_or(0);
                let Told { counted, unknown } = journal.told(kind, product);
                assert!(
                    (counted..=counted + unknown).contains(&row),
                    "{} of {product}: the row has {row}, {counted} were acknowledged, {unknown} are unknown",
                    family.name
                );
            }
        }
    }

    /// Returns the sum of the differences between the counters of rows and these rows.
    pub async fn drift(&self, site: &Site) -> i64 {
        let Some((family, Recount { table, keys })) = self.of_rows() else {
            return 0;
        };
        let counters = family.rows(site).await;
        let rows = format!(
            "SELECT CAST({} AS SIGNED), COUNT(*) FROM {table} GROUP BY 1",
            keys[0]
        );
        let rows = select(site, &rows).await;
        let drift = |id| (counters.get(&id).unwrap_or(&0) - rows.get(&id).unwrap_or(&0)).abs();
        (1..=PRODUCTS).map(drift).sum()
    }

    /// Corrects the counters of rows, once an interrupted recount may be repeated.
    pub async fn recount(&self, site: &Site) {
        let (family, _) = self.of_rows().expect("a family with a recount");
        let started = Instant::now();
        loop {
            let recounted = site.run(&["recount", &family.name]).await;
            if recounted.code == 0 {
                return;
            }
            assert!(
                recounted.err.contains("interrupted") && started.elapsed() < INTERRUPTED,
                "{recounted:?}"
            );
            sleep(Duration::from_secs(1)).await;
        }
    }

    /// Returns the family that counts rows.
    fn of_rows(&self) -> Option<(&Family, &Recount)> {
        let mut families = self.family.iter();
        families.find_map(|family| Some((family, family.recount.as_ref()?)))
    }
}

impl Family {
    /// Returns the sum of each product, whose number is the first key.
    async fn rows(&self, site: &Site) -> BTreeMap<i64, i64> {
        let Table { name, keys, value } = self.table.as_ref().expect("a table");
        let id = &keys[0].0;
        select(
            site,
            &format!(
                "SELECT CAST({id} AS SIGNED), CAST(SUM({value}) AS SIGNED) FROM {name} GROUP BY 1"
            ),
        )
        .await
    }
}

async fn select(site: &Site, sql: &str) -> BTreeMap<i64, i64> {
    let rows = sqlx::query_as(AssertSqlSafe(sql))
        .fetch_all(&site.pool)
        .await;
    rows.unwrap_or_else(|error| panic!("{sql}: {error}"))
        .into_iter()
        .collect()
}
