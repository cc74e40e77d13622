//! The writing of rejects, in the transaction of their batch.

use std::borrow::Cow;
use std::time::Duration;

use super::limit::Limit;
use crate::store::mysql::add::{Cause, Refusal};
use crate::store::mysql::json::{self, I64, ID, INPUT, U64, hex};
use crate::store::mysql::session::Session;
use crate::store::mysql::statement::Statement;
use crate::store::{Batch, FamilyNumber};

/// The pause before the first retry. It doubles with each refused one.
pub const PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_hours(1);

/// The approximate size of the ids and reasons in a statement, where they take twice as much as
/// hexadecimal digits.
const STATEMENT_BYTES: usize = 2_000_000;

const ID_BYTES: usize = 255;
const REASON_CHARS: usize = 1024;

/// The end of an id that was cut. It is not UTF-8, so no row has such an id.
const CUT: u8 = 0xff;

/// The reason in a statement's JSON as text.
pub const REASON: &str = "CONVERT(UNHEX(reason) USING utf8mb4)";

pub const NOW: &str = "CURRENT_TIMESTAMP(3)";

/// A delta of a batch, and its refusal.
pub type RefusedDelta<'b> = (&'b Batch, &'b (Vec<u8>, i64), &'b Refusal);

/// Adds the refused deltas to the rejects of their ids. Returns the number of lost ones: their ids have
/// no reject, and there are as many as the limit allows.
pub async fn write(
    transaction: &mut Session,
    limit: &Limit,
    refused: &[RefusedDelta<'_>],
) -> Result<u64, sqlx::Error> {
    if refused.is_empty() {
        return Ok(0);
    }
    let input = json::table([
        ("family", U64),
        ("pause", U64),
        ("delta", I64),
        ("id", ID),
        ("reason", json::REASON),
    ]);
    let first_retry =
        |pause: &str| format!("IF({pause} = 0, NULL, {NOW} + INTERVAL {pause} SECOND)");
    // further refusals do not change the pauses of retries
    let statement = Statement::new(format!(
        "INSERT INTO counterfoil_rejects (family, id, delta, reason, retry_at) \
         SELECT family, UNHEX(id), delta, {REASON}, {} FROM {input} \
         ON DUPLICATE KEY UPDATE counterfoil_rejects.delta = counterfoil_rejects.delta + {INPUT}.delta, \
         counterfoil_rejects.reason = CONVERT(UNHEX({INPUT}.reason) USING utf8mb4), \
         counterfoil_rejects.last_at = {NOW}, \
         counterfoil_rejects.retry_at = IF({INPUT}.pause = 0, NULL, COALESCE(counterfoil_rejects.retry_at, {}))",
        first_retry("pause"),
        first_retry(&format!("{INPUT}.pause"))
    ));
    let mut rows: Vec<_> = refused
        .iter()
        .map(|(batch, (id, delta), refusal)| {
            (
                batch.family.number,
                pause(refusal, 0).as_secs(),
                *delta,
                hex(fitting(id)),
                hex(short(&refusal.reason)),
            )
        })
        .collect();
    // all transactions lock rejects in this order
    rows.sort_unstable_by(|one, other| (one.0, &one.3).cmp(&(other.0, &other.3)));
    let mut room = limit.room(transaction).await?;
    let all = rows.len() as u64;
    if room < all {
        let ids: Vec<_> = rows.iter().map(|row| (row.0, &row.3)).collect();
        let mut exists = existing(transaction, &ids).await?.into_iter();
        rows.retain(|_| {
            let joins = exists.next() == Some(true);
            let fits = joins || room > 0;
            room -= u64::from(fits && !joins);
            fits
        });
    }
    for some in statements(&rows, |row| row.3.len() + row.4.len()) {
        let upsert = statement.clone().bind_rows(some);
        let changed = transaction.execute(upsert).await?;
        // the server counts 1 for an inserted row and 2 for an updated one
        limit.use_up((2 * some.len() as u64).saturating_sub(changed));
    }
    Ok(all - rows.len() as u64)
}

/// Returns for each id of a family, in hexadecimal digits, whether it has a reject.
async fn existing(
    transaction: &mut Session,
    ids: &[(FamilyNumber, &String)],
) -> Result<Vec<bool>, sqlx::Error> {
    let select = Statement::new(format!(
        "SELECT CAST({INPUT}.pos AS UNSIGNED), r.id IS NOT NULL FROM {} \
         LEFT JOIN counterfoil_rejects AS r FORCE INDEX (PRIMARY) \
         ON r.family = {INPUT}.family AND r.id = UNHEX({INPUT}.id)",
        json::table([("family", U64), ("id", ID)])
    ));
    let rows = transaction.fetch(select.bind_rows(ids)).await?;
    json::by_position(rows, ids.len())
}

/// Returns the pause after a refusal, given the number of refused retries; 0 if there is no retry.
pub fn pause(refusal: &Refusal, retries: u64) -> Duration {
    match refusal.cause {
        Cause::Never => Duration::ZERO,
        Cause::Missing | Cause::Row => LONGEST_PAUSE.min(PAUSE * (1 << retries.min(16))),
    }
}

/// Splits rows into those of each statement.
pub fn statements<R>(rows: &[R], digits: impl Fn(&R) -> usize) -> impl Iterator<Item = &[R]> {
    let mut bytes = 0;
    rows.chunk_by(move |row, _| {
        bytes += digits(row) / 2;
        let fits = bytes < STATEMENT_BYTES;
        bytes *= usize::from(fits);
        fits
    })
}

/// Cuts the reason to its column.
pub fn short(reason: &str) -> String {
    reason.chars().take(REASON_CHARS).collect()
}

/// Cuts the id to its column.
pub fn fitting(id: &[u8]) -> Cow<'_, [u8]> {
    if id.len() <= ID_BYTES {
        return Cow::Borrowed(id);
    }
    let end = match std::str::from_utf8(id) {
        Ok(text) => text.floor_char_boundary(ID_BYTES - 1),
        Err(_) => ID_BYTES - 1,
    };
    Cow::Owned([&id[..end], &[CUT]].concat())
}
