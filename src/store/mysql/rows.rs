//! The rows of cached counters, for those that are not in Redis (docs/protocol.md, section 4.2).

use sqlx::MySqlPool;
use sqlx::Row as _;
use sqlx::mysql::MySqlRow;

use super::cached_statements::ASK_READ_ONLY;
use super::fault::store;
use super::json::JsonRows;
use super::parts::Segment;
use super::positions;
use super::session::{self, Meter};
use super::snapshot;
use super::target::{self, Target};
use super::versions;
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
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
    let found = match &asked[..] {
        [] => return Ok(rows),
        [(index, key)] => one(pool, meter, target, family, &ids[*index], key).await,
        _ => several(pool, meter, target, family, ids, &asked).await,
    };
    for ((index, _), found) in asked.into_iter().zip(found.map_err(store(FAILED))?) {
        rows[index] = row(&found, family, &ids[index])?;
    }
    Ok(rows)
}

/// What was found of an id.
struct Found {
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
) -> Result<Vec<Found>, sqlx::Error> {
    let query = || {
        let query = key.iter().fold(target.cached.row.query(), |query, segment| segment.bind(query));
        query.bind(family.number).bind(id.as_bytes())
    };
    Ok(vec![Found::new(&session::fetch_one(pool, meter, query).await?, 0)?])
}

async fn several(
    pool: &MySqlPool,
    meter: &Meter,
    target: &Target,
    family: &Registered,
    ids: &[String],
    asked: &[(usize, Vec<Segment<'_>>)],
) -> Result<Vec<Found>, sqlx::Error> {
    let mut json = JsonRows::default();
    for (index, key) in asked {
        target.cached.write_id(json.row(), key, ids[*index].as_bytes());
    }
    let json = json.finish();
    let query = || target.cached.rows.query().bind(&json).bind(family.number);
    let rows = session::fetch(pool, meter, query).await?;
    positions::by_position(&rows, asked.len(), |row| Found::new(row, 1))
}

impl Found {
    /// From the columns from `at` on.
    fn new(row: &MySqlRow, at: usize) -> Result<Self, sqlx::Error> {
        Ok(Found { digits: row.try_get(at)?, version: versions::read(row, at + 1)?, read_only: row.try_get(at + 2)? })
    }
}

fn row(found: &Found, family: &Registered, id: &str) -> Result<Row> {
    check_writable(&found.read_only, &family.family)?;
    let value = found.digits.as_ref().map(|digits| snapshot::value(family, id, digits)).transpose()?;
    Ok(Row { value, version: found.version })
}

/// Refuses a server that takes no writes, before anything is seeded from it.
pub(super) async fn refuse_replica(pool: &MySqlPool, meter: &Meter, family: &Family) -> Result<()> {
    meter.sent(1);
    let asked = sqlx::query_scalar(ASK_READ_ONLY).fetch_one(pool).await;
    let read_only: String = asked.map_err(store("the database was not asked whether it takes writes"))?;
    check_writable(&read_only, family)
}

/// A server that takes no writes may be a replica, and its rows older than what was saved before.
fn check_writable(read_only: &str, family: &Family) -> Result<()> {
    match read_only {
        "0" | "OFF" => Ok(()),
        setting => Err(Error::new(
            ErrorKind::Unsafe,
            format!(
                "{family}: the database that counters are seeded from takes no writes (read_only is {setting}), as a \
                 replica does; give MysqlStore::new a pool on the primary"
            ),
        )),
    }
}
