//! Rows per second from Redis to a commit, compared with a loop that upserts the same rows from
//! memory.

use std::fmt::Write;
use std::time::Instant;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand::seq::index;
use sqlx::mysql::MySqlArguments;
use sqlx::query::Query;
use sqlx::{MySql, MySqlPool};

use crate::measuring::{AtLeast, Bench, Figure, Pending, alternate, median};

const FIGURE: Figure = Figure {
    name: "flush_vs_hand_written",
    what: "rows/s from Redis to the commit : the better of two hand-written upsert loops from memory",
    target: AtLeast(0.9),
};
/// The number of rows in a transaction, equal to counterfoil's for its own table.
const ROWS_OF_TRANSACTION: usize = 10_000;

pub async fn measure(bench: &mut Bench) {
    if !bench.wants(&[FIGURE.name]) {
        return;
    }
    let rows = bench.size(400_000, 100_000);
    let stage = Pending::set(bench).await;
    create_tables(&stage.pool).await;
    let rows_per_second = |seconds: f64| rows as f64 / seconds;
    let (mut round, mut other_round) = (0, 0);
    let ours = async || {
        round += 1;
        stage.fill(drawn(rows, round).into_iter()).await;
        [rows_per_second(stage.flush().await); 2]
    };
    let theirs = async || {
        other_round += 1;
        let mut ids = drawn(rows, other_round);
        // not measured, although counterfoil's own sorting is
        ids.sort_unstable();
        by_hand(&stage.pool, &ids).await.map(rows_per_second)
    };
    let rounds = alternate(bench.size(6, 2), ours, theirs).await;
    bench.figure(FIGURE, rounds.ratio(|[values, json]| values.max(*json)));
    bench.absolute(
        "flushed_rows_per_second",
        median(rounds.ours.iter().map(|both| both[0])),
    );
    bench.absolute(
        "hand_written_values_rows_per_second",
        median(rounds.theirs.iter().map(|both| both[0])),
    );
    bench.absolute(
        "hand_written_json_rows_per_second",
        median(rounds.theirs.iter().map(|both| both[1])),
    );
}

/// Draws ids out of two and a half times as many. In the first round all rows are new, in later
/// rounds fewer and fewer.
fn drawn(ids: usize, round: u64) -> Vec<String> {
    let places = index::sample(&mut SmallRng::seed_from_u64(round), ids * 5 / 2, ids);
    places
        .into_iter()
        .map(|number| format!("page/{number}"))
        .collect()
}

/// A hand-written way to bring many sums to MySQL: rows sorted by key, many per statement, many
/// statements per transaction.
#[derive(Clone, Copy)]
enum Way {
    /// `VALUES (?, ?, ?), ...`, 1,000 rows per statement.
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
            Way::Values => rows.iter().fold(query, |query, (id, delta)| {
                query.bind(1).bind(id).bind(delta)
            }),
            Way::JsonTable => query.bind(json(rows)),
        }
    }
}

fn json(rows: &[Row]) -> String {
    let mut text = String::from("[");
    for (place, (id, delta)) in rows.iter().enumerate() {
        write!(
            text,
            "{}[\"{id}\",{delta}]",
            if place == 0 { "" } else { "," }
        )
        .unwrap();
    }
    text + "]"
}

/// Adds 1 to the row of each of the sorted ids, once in each way. Returns the seconds that each way
/// took.
pub async fn by_hand(pool: &MySqlPool, ids: &[String]) -> [f64; 2] {
    let rows: Vec<_> = ids.iter().map(|id| (id.clone(), 1)).collect();
    [
        upsert(pool, Way::Values, &rows).await,
        upsert(pool, Way::JsonTable, &rows).await,
    ]
}

/// Creates a table for each way, with the same columns as counterfoil's.
pub async fn create_tables(pool: &MySqlPool) {
    for way in [Way::Values, Way::JsonTable] {
        let create = format!("CREATE TABLE {} LIKE counterfoil_values", way.table());
        sqlx::raw_sql(sqlx::AssertSqlSafe(create))
            .execute(pool)
            .await
            .unwrap();
    }
}

/// Adds the rows to the table and returns the elapsed seconds.
async fn upsert(pool: &MySqlPool, way: Way, rows: &[Row]) -> f64 {
    let (pool, rows) = (pool.clone(), rows.to_vec());
    let upserting = tokio::spawn(async move {
        let text = way.statement(way.rows_of_statement());
        let started = Instant::now();
        for rows in rows.chunks(ROWS_OF_TRANSACTION) {
            let mut transaction = pool.begin().await.unwrap();
            for rows in rows.chunks(way.rows_of_statement()) {
                way.bind(&text, rows)
                    .execute(&mut *transaction)
                    .await
                    .unwrap();
            }
            transaction.commit().await.unwrap();
        }
        started.elapsed().as_secs_f64()
    });
    upserting.await.unwrap()
}
