//! The usual save: every row and its version are there and as known, which two bulk statements find out as they write.

use super::cached_statements::CachedStatements;
use super::fault;
use super::halves::CHUNK;
use super::json::JsonRows;
use super::parts::Segment;
use super::session::Transaction;
use super::versions;
use crate::store::{Registered, Save, Version};

/// A save with its row's key, and the value and version that are known to be there.
pub(super) struct Swap<'e> {
    key: &'e [Segment<'e>],
    save: &'e Save,
    value: i64,
    version: Version,
}

impl<'e> Swap<'e> {
    /// `None` where something is known not to be there.
    pub(super) fn new(key: &'e [Segment<'e>], save: &'e Save) -> Option<Self> {
        Some(Swap { key, save, value: save.known.value?, version: save.known.version? })
    }
}

/// Writes all values and versions, in the order given, or nothing: `false` where a row or version is not as known, or
/// the database refuses a value. Locks are taken in the order of [the long way](super::compare_and_set): no version without its row.
pub(super) async fn all(
    transaction: &mut Transaction,
    cached: &CachedStatements,
    family: &Registered,
    swaps: &[Swap<'_>],
) -> Result<bool, sqlx::Error> {
    if swaps.is_empty() {
        return Ok(true);
    }
    transaction.mark().await?;
    for swaps in swaps.chunks(CHUNK) {
        let written = match values(transaction, cached, swaps).await {
            Ok(written) if written == swaps.len() as u64 => {
                versions::swap(transaction, family, swaps.iter().map(|swap| (swap.save, swap.version))).await?
            }
            Err(error) if !fault::blames_row(&error) => return Err(error),
            _ => 0,
        };
        if written != swaps.len() as u64 {
            transaction.go_back().await?;
            return Ok(false);
        }
    }
    Ok(true)
}

/// Writes those values whose rows are as known; returns how many.
async fn values(
    transaction: &mut Transaction,
    cached: &CachedStatements,
    swaps: &[Swap<'_>],
) -> Result<u64, sqlx::Error> {
    let mut json = JsonRows::default();
    for Swap { key, save, value, .. } in swaps {
        let cells = json.row().number(save.value).number(value);
        key.iter().for_each(|segment| segment.write(cells));
    }
    transaction.execute(cached.swap.query().bind(json.finish())).await
}
