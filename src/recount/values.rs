//! Exact values of counters, as a recount reads them.

use std::collections::BTreeMap;

use futures_util::future::try_join_all;
use redis::aio::ConnectionLike;

use crate::client::handle::Handle;
use crate::error::{Error, ErrorKind, Result};
use crate::scripts::cached::Peeked;
use crate::scripts::partition::Partition;
use crate::store::Store;
use crate::store::mysql::MysqlStore;

/// Exact values, without bringing a cached counter to Redis.
pub async fn exact<C>(handle: &Handle<C, MysqlStore>, ids: &[String]) -> Result<Vec<i64>>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    let ids: Vec<_> = ids.iter().map(String::as_str).collect();
    match handle.family().is_cached() {
        _ if ids.is_empty() => Ok(Vec::new()),
        true => handle.repeating(|_| cached(handle, &ids)).await,
        false => handle.exact(&ids).await,
    }
}

async fn cached<C>(handle: &Handle<C, MysqlStore>, ids: &[&str]) -> Result<Vec<i64>>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    let registered = handle.registered().await?;
    let mut values = vec![0; ids.len()];
    let mut left: Vec<usize> = (0..ids.len()).collect();
    // a row that is saved between the two looks is looked at again
    for _ in 0..100 {
        let asked: Vec<_> = left.iter().map(|&at| ids[at]).collect();
        let peeked = peek(handle, &asked).await?;
        let rows = handle.shared.store.rows(registered, &asked).await?;
        let mut again = Vec::new();
        for ((at, peeked), row) in left.into_iter().zip(peeked).zip(rows) {
            let value = match peeked {
                Some(peeked) => peeked.on_top_of(row),
                None => Some(row.value.unwrap_or(0).into()),
            };
            match value.map(i64::try_from) {
                Some(Ok(value)) => values[at] = value,
                Some(Err(_)) => {
                    let what = format!("{}: the value of {:?} is no i64", handle.family(), ids[at]);
                    return Err(Error::new(ErrorKind::Range, what));
                }
                None => again.push(at),
            }
        }
        if again.is_empty() {
            return Ok(values);
        }
        left = again;
    }
    let family = handle.family();
    Err(Error::corrupt(format!("{family}: {:?} and its row do not come to agree", ids[left[0]])))
}

async fn peek<C>(handle: &Handle<C, MysqlStore>, ids: &[&str]) -> Result<Vec<Option<Peeked>>>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    let mut partitions: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (at, id) in ids.iter().enumerate() {
        partitions.entry(handle.family().partition_of(id)).or_default().push(at);
    }
    let chunks = partitions.into_iter().flat_map(|(number, all)| {
        let chunks: Vec<_> = all.chunks(Partition::<C>::READ_IDS).map(|some| (number, some.to_vec())).collect();
        chunks
    });
    let reads = chunks.map(|(number, some)| async move {
        let names: Vec<_> = some.iter().map(|&at| ids[at]).collect();
        let peeked = handle.partition(number).peek(&names).await?;
        Ok::<_, Error>(some.into_iter().zip(peeked).collect::<Vec<_>>())
    });
    let mut found = vec![None; ids.len()];
    for (at, peeked) in try_join_all(reads).await?.into_iter().flatten() {
        found[at] = peeked;
    }
    Ok(found)
}
