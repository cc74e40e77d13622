//! The rows of cached counters, for those that are not in Redis (PROTOCOL section 4, step 2).

use sqlx::MySqlPool;
use sqlx::Row as _;
use sqlx::mysql::MySqlRow;

use super::answer;
use super::fault::store;
use super::json::JsonRows;
use super::read;
use super::session::Meter;
use super::target::{self, Segment, Target};
use super::versions;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Registered, Row, Version};

/// What failed, where something does.
const FAILED: &str = "rows were not read";

/// One statement, so one snapshot of InnoDB, in any isolation level but READ UNCOMMITTED.
pub(super) async fn read(
    pool: &MySqlPool,
    meter: &Meter,
    target: &Target,
    family: &Registered,
    ids: &[String],
) -> Result<Vec<Row>> {
    // an id that is no row's is not asked for
    let key = |(index, id)| Some((index, target::segments(family, id).ok()?));
    let asked: Vec<_> = ids.iter().map(String::as_str).enumerate().filter_map(key).collect();
    let mut rows = vec![Row::default(); ids.len()];
    let answers = match &asked[..] {
        [] => return Ok(rows),
        [(index, key)] => one(pool, meter, target, family, &ids[*index], key).await,
        _ => several(pool, meter, target, family, ids, &asked).await,
    };
    for ((index, _), answer) in asked.into_iter().zip(answers.map_err(store(FAILED))?) {
        rows[index] = row(&answer, family, &ids[index])?;
    }
    Ok(rows)
}

/// What was found of an id.
struct Answer {
    digits: Option<String>,
    version: Option<Version>,
    read_only: String,
}

/// Lookups by key, where [`several`] would unfold JSON: most seeds are of one counter.
async fn one(
    pool: &MySqlPool,
    meter: &Meter,
    target: &Target,
    family: &Registered,
    id: &str,
    key: &[Segment<'_>],
) -> Result<Vec<Answer>, sqlx::Error> {
    let query = key.iter().fold(target.cached.row.query(), |query, segment| segment.bind(query));
    meter.sent(1);
    let query = query.bind(family.number).bind(id.as_bytes());
    Ok(vec![Answer::new(&query.fetch_one(pool).await?, 0)?])
}

async fn several(
    pool: &MySqlPool,
    meter: &Meter,
    target: &Target,
    family: &Registered,
    ids: &[String],
    asked: &[(usize, Vec<Segment<'_>>)],
) -> Result<Vec<Answer>, sqlx::Error> {
    let mut json = JsonRows::default();
    for (index, key) in asked {
        target.cached.write_id(json.row(), key, &ids[*index]);
    }
    meter.sent(1);
    let rows = target.cached.rows.query().bind(json.finish()).bind(family.number).fetch_all(pool).await?;
    answer::by_position(&rows, asked.len(), |row| Answer::new(row, 1))
}

impl Answer {
    /// From the columns from `at` on.
    fn new(row: &MySqlRow, at: usize) -> Result<Self, sqlx::Error> {
        Ok(Answer { digits: row.try_get(at)?, version: versions::read(row, at + 1)?, read_only: row.try_get(at + 2)? })
    }
}

/// Refuses a server that takes no writes: it may be a replica, and its rows older than what was saved before.
fn row(answer: &Answer, family: &Registered, id: &str) -> Result<Row> {
    if !matches!(answer.read_only.as_str(), "0" | "OFF") {
        return Err(Error::new(
            ErrorKind::Unsafe,
            format!(
                "{}: the database that counters are seeded from takes no writes (read_only is {}), as a replica does; \
                 give MysqlStore::new a pool on the primary",
                family.family, answer.read_only
            ),
        ));
    }
    let value = answer.digits.as_ref().map(|digits| read::value(family, id, digits)).transpose()?;
    Ok(Row { value, version: answer.version })
}
