//! What one writes by hand to bring many sums to MySQL: rows sorted by their key, many in a statement, many statements
//! in a transaction.

use std::fmt::Write;
use std::time::Instant;

use sqlx::mysql::MySqlArguments;
use sqlx::query::Query;
use sqlx::{MySql, MySqlPool};

/// As many as counterfoil takes unless told otherwise.
const ROWS_OF_TRANSACTION: usize = 50_000;

#[derive(Clone, Copy)]
pub enum Way {
    /// `VALUES (?, ?, ?), ...`, 1,000 rows a statement.
    Values,
    /// One JSON text of 10,000 rows through `JSON_TABLE`.
    JsonTable,
}

type Row = (String, i64);

impl Way {
    fn table(self) -> &'static str {
        match self {
            Way::Values => "by_values",
            Way::JsonTable => "by_json",
        }
    }

    fn rows_of_statement(self) -> usize {
        match self {
            Way::Values => 1_000,
            Way::JsonTable => 10_000,
        }
    }

    fn statement(self, rows: usize) -> String {
        let table = self.table();
        match self {
            Way::Values => format!(
                "INSERT INTO {table} (family, id, value) VALUES {} ON DUPLICATE KEY UPDATE value = value + VALUES(value)",
                vec!["(?, ?, ?)"; rows].join(", ")
            ),
            Way::JsonTable => format!(
                "INSERT INTO {table} (family, id, value) SELECT 1, j.id, j.delta FROM JSON_TABLE(?, '$[*]' \
                 COLUMNS(id VARCHAR(255) PATH '$[0]', delta BIGINT PATH '$[1]')) AS j \
                 ON DUPLICATE KEY UPDATE {table}.value = {table}.value + j.delta"
            ),
        }
    }

    fn bind<'r>(self, text: &'r str, rows: &'r [Row]) -> Query<'r, MySql, MySqlArguments> {
        let query = sqlx::query(sqlx::AssertSqlSafe(text));
        match self {
            Way::Values => rows.iter().fold(query, |query, (id, delta)| query.bind(1).bind(id).bind(delta)),
            Way::JsonTable => query.bind(json(rows)),
        }
    }
}

fn json(rows: &[Row]) -> String {
    let mut text = String::from("[");
    for (place, (id, delta)) in rows.iter().enumerate() {
        write!(text, "{}[\"{id}\",{delta}]", if place == 0 { "" } else { "," }).unwrap();
    }
    text + "]"
}

/// A table for each way, of the same shape as counterfoil's.
pub async fn create_tables(pool: &MySqlPool) {
    for way in [Way::Values, Way::JsonTable] {
        let create = format!("CREATE TABLE {} LIKE counterfoil_values", way.table());
        sqlx::raw_sql(sqlx::AssertSqlSafe(create)).execute(pool).await.unwrap();
    }
}

/// Adds the rows to the table; returns the seconds that it took.
pub async fn upsert(pool: &MySqlPool, way: Way, rows: &[Row]) -> f64 {
    let (pool, rows) = (pool.clone(), rows.to_vec());
    let upserting = tokio::spawn(async move {
        let text = way.statement(way.rows_of_statement());
        let started = Instant::now();
        for rows in rows.chunks(ROWS_OF_TRANSACTION) {
            let mut transaction = pool.begin().await.unwrap();
            for rows in rows.chunks(way.rows_of_statement()) {
                way.bind(&text, rows).execute(&mut *transaction).await.unwrap();
            }
            transaction.commit().await.unwrap();
        }
        started.elapsed().as_secs_f64()
    });
    upserting.await.unwrap()
}
