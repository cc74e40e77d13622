//! Likes: rows that are added and deleted, and counted soon after. No recount may change a counter that
//! agrees with its rows once they are counted (docs/protocol.md, section 9).

use std::cell::Cell;
use std::time::Duration;

use counterfoil::recount::{RecountBuilder, RecountIds, Rows, Source};
use counterfoil::{BufferedCounters, Family, FamilyBuilder};
use sqlx::MySqlPool;
use tokio::time::{Instant, sleep};

use super::journal::{Ms, now};
use super::site::{LEASE, Site};
use super::watch::{Reader, Reads};
use crate::families::NAMESPACE;
use crate::zipf::Random;

/// The number of times that a post is liked and disliked again.
const TIMES: usize = 10;
/// The longest time from a row to its count, in ms.
const COUNTED_AFTER: u64 = 80;
/// The time within which a row must be counted.
const WITHIN: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(20);

pub fn family() -> FamilyBuilder<BufferedCounters> {
    Family::buffered(NAMESPACE, "likes").partitions(1)
}

pub fn recount(site: &Site) -> RecountBuilder {
    let recount = site.pair.recount(&site.likes, Rows::AddedAndDeleted);
    let recount = recount.source(Source::table("likes", ["id"]));
    let recount = recount.ids(RecountIds::Both).within(WITHIN);
    recount.timeout(LEASE).lease(LEASE)
}

/// Likes one post after the other until `is_over` is set.
pub async fn check(site: &Site, reader: &Reader, is_over: &Cell<bool>) -> Reads {
    let (mut reads, mut random) = (Reads::default(), Random(now()));
    while !is_over.get() {
        sleep(PAUSE).await;
        let post = Post {
            site,
            mysql: &reader.mysql,
            id: now(),
        };
        for time in 0..2 * TIMES {
            let rows = i64::from(time % 2 == 0);
            let after = Duration::from_millis(random.below(COUNTED_AFTER));
            // a server may be unavailable
            let Ok(Some(value)) = post.change(rows, after).await else {
                break;
            };
            if !reader.is_calm_since(post.id) {
                break;
            }
            let (id, at) = (post.id, now());
            reads.note(value == rows, || {
                format!("likes {id}: {value} at {at}, which should be {rows}")
            });
        }
    }
    reads
}

/// A post that one user likes. The time is its id.
struct Post<'s> {
    site: &'s Site,
    mysql: &'s MySqlPool,
    id: Ms,
}

impl Post<'_> {
    /// Adds or deletes its row, and counts that. Returns the value, unless the count came too late for a
    /// recount.
    async fn change(&self, rows: i64, after: Duration) -> crate::Result<Option<i64>> {
        let (started, id) = (Instant::now(), self.id.to_string());
        let change = if rows == 1 {
            "INSERT INTO likes VALUES (?)"
        } else {
            "DELETE FROM likes WHERE id = ?"
        };
        sqlx::query(change)
            .bind(self.id)
            .execute(self.mysql)
            .await?;
        sleep(after).await;
        let counted = self.site.likes.add(&id, 2 * rows - 1).await?.counted();
        let is_in_time = started.elapsed() < WITHIN;
        let value = self.site.likes.get(&id).await?;
        Ok(counted.filter(|_| is_in_time).map(|_| value))
    }
}
