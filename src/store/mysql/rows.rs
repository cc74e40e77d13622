//! The values that seed cached counters in Redis (docs/protocol.md, section 4).

use sqlx::mysql::MySqlRow;
use sqlx::{MySqlPool, Row};

use super::fault::store;
use super::json::JsonRows;
use super::parts::Segment;
use super::positions;
use super::session::{self, Meter};
use super::snapshot;
use super::target::{self, Target};
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::store::Registered;

/// The digits of a value, and the server's `read_only`.
type Found = (Option<String>, String);

/// Reads the values by one statement, so from one snapshot of InnoDB, except with READ UNCOMMITTED.
pub(super) async fn read(
    pool: &MySqlPool,
    meter: &Meter,
    target: &Target,
    family: &Registered,
    ids: &[String],
) -> Result<Vec<Option<i64>>> {
    // an id that matches no row is left out of the query
    let key = |(index, id)| Some((index, target::segments(family, id).ok()?));
    let (indexes, keys): (Vec<_>, Vec<_>) = ids
        .iter()
        .map(String::as_str)
        .enumerate()
        .filter_map(key)
        .unzip();
    let found = match &keys[..] {
        [] => Ok(Vec::new()),
        [key] => one(pool, meter, target, key).await,
        keys => several(pool, meter, target, keys).await,
    };
    let mut values = vec![None; ids.len()];
    for (index, (digits, read_only)) in indexes
        .into_iter()
        .zip(found.map_err(store("rows were not read"))?)
    {
        check_writable(&read_only, &family.family)?;
        values[index] = digits
            .map(|digits| snapshot::value(family, &ids[index], &digits))
            .transpose()?;
    }
    Ok(values)
}

/// Looks one row up by its key, without the cost of JSON: most seeds are of one counter.
async fn one(
    pool: &MySqlPool,
    meter: &Meter,
    target: &Target,
    key: &[Segment<'_>],
) -> Result<Vec<Found>, sqlx::Error> {
    let query = || {
        key.iter()
            .fold(target.row.query(), |query, segment| segment.bind(query))
    };
    Ok(vec![found(
        &session::fetch_one(pool, meter, query).await?,
        0,
    )?])
}

async fn several(
    pool: &MySqlPool,
    meter: &Meter,
    target: &Target,
    keys: &[Vec<Segment<'_>>],
) -> Result<Vec<Found>, sqlx::Error> {
    let mut json = JsonRows::default();
    for key in keys {
        let cells = json.row();
        key.iter().for_each(|segment| segment.write(cells));
    }
    let json = json.finish();
    let rows = session::fetch(pool, meter, || target.rows.query().bind(json.clone())).await?;
    positions::by_position(&rows, keys.len(), |row| found(row, 1))
}

/// Reads the columns from `at` on.
fn found(row: &MySqlRow, at: usize) -> Result<Found, sqlx::Error> {
    Ok((row.try_get(at)?, row.try_get(at + 1)?))
}

/// Refuses a server that accepts no writes, before a counter is seeded from it.
pub(super) async fn refuse_replica(pool: &MySqlPool, meter: &Meter, family: &Family) -> Result<()> {
    const ASK: &str = "SELECT CAST(@@GLOBAL.read_only AS CHAR)";
    meter.sent(1);
    let asked = sqlx::query_scalar(ASK).fetch_one(pool).await;
    let read_only: String = asked.map_err(store("read_only was not read"))?;
    check_writable(&read_only, family)
}

/// Refuses a server that accepts no writes. It may be a replica, whose rows may be older than
/// batches applied before.
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
