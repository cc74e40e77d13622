//! The values of series and visitors as the library returns them.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use counterfoil::{Family, Precision, Series, Slice};
use futures_util::TryStreamExt;

use crate::Result;
use crate::count::{PlainCount, Totals, day_id, hour_id};
use crate::families::{self, Opened, REQUESTS, VISITORS};
use crate::log::SITE;

const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;

/// The families that are read back.
pub const FAMILIES: [&str; 2] = [REQUESTS, VISITORS];

/// Reads each series over the whole time range of the log, and the visitors of all days.
pub async fn read(opened: &Opened, counted: &PlainCount) -> Result<Totals> {
    let mut totals = Totals::default();
    let names: BTreeSet<_> = counted
        .totals
        .of(REQUESTS)
        .filter_map(|(id, _)| id.rsplit('/').next())
        .collect();
    for name in names {
        for Slice { start, count } in
            slices(&opened.requests, name, Precision::HOUR, HOUR, counted).await?
        {
            totals.insert(REQUESTS, hour_id(seconds(start)?, name), count);
        }
        for Slice { start, count } in
            slices(&opened.requests, name, families::DAY, DAY, counted).await?
        {
            totals.insert(REQUESTS, day_id(seconds(start)?, name), count);
        }
    }
    read_visitors(opened, &mut totals).await?;
    Ok(totals)
}

/// Returns the slices whose count is not zero.
async fn slices(
    series: &Series,
    name: &str,
    precision: Precision,
    seconds: i64,
    counted: &PlainCount,
) -> Result<Vec<Slice>> {
    let time = counted.time.clone().unwrap_or_default();
    let whole_days = time.start.div_euclid(DAY) * DAY..time.end;
    let mut slices = Vec::new();
    for start in whole_days
        .clone()
        .step_by(Family::MAX_RANGE * usize::try_from(seconds)?)
    {
        let end = whole_days
            .end
            .min(start + seconds * i64::try_from(Family::MAX_RANGE)?);
        slices.extend(
            series
                .get_range(name, precision, at(start)?..at(end)?)
                .await?,
        );
    }
    slices.retain(|slice| slice.count != 0);
    Ok(slices)
}

fn at(seconds: i64) -> Result<SystemTime> {
    Ok(UNIX_EPOCH + Duration::from_secs(seconds.try_into()?))
}

fn seconds(time: SystemTime) -> Result<i64> {
    Ok(time.duration_since(UNIX_EPOCH)?.as_secs().try_into()?)
}

async fn read_visitors(opened: &Opened, totals: &mut Totals) -> Result<()> {
    let mut days = opened.visitors.list_all(&format!("{SITE}/"));
    while let Some((id, visitors)) = days.try_next().await? {
        totals.insert(VISITORS, id, visitors);
    }
    Ok(())
}
