//! Shows that are sold out, until another program cancels bookings. Then the next bookings must be
//! accepted (docs/protocol.md, section 4.1).

use std::cell::Cell;
use std::time::Duration;

use counterfoil::Outcome::{Counted, OutOfRange};
use counterfoil::{CachedCounters, Family, FamilyBuilder};
use tokio::time::sleep;

use super::journal::{Ms, now};
use super::site::{self, Site};
use super::watch::{Reader, Reads};
use crate::families::NAMESPACE;

/// The seats of a show.
const SEATS: i64 = 100;
/// The bookings that are cancelled.
const CANCELLED: i64 = 3;
/// The time after which a refusal is not based on the row that was read before.
const OLD: Duration = Duration::from_millis(1_100);
/// The time that a show stays in Redis, so that no other row than an old one is there.
const RETAIN: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);

pub fn family() -> FamilyBuilder<CachedCounters> {
    let seats = Family::cached(NAMESPACE, "seats").partitions(1).max(SEATS);
    seats.table(site::in_table("seats", "taken")).retain(RETAIN)
}

/// Books seats of one show after the other until `is_over` is set.
pub async fn check(site: &Site, reader: &Reader, is_over: &Cell<bool>) -> Reads {
    let mut reads = Reads::default();
    while !is_over.get() {
        sleep(PAUSE).await;
        let show = now();
        // a server may be unavailable
        let _ = check_show(site, reader, show, &mut reads).await;
    }
    reads
}

/// Books seats of a show that was sold out. The time is its id.
async fn check_show(
    site: &Site,
    reader: &Reader,
    show: Ms,
    reads: &mut Reads,
) -> crate::Result<()> {
    let insert = sqlx::query("INSERT INTO seats VALUES (?, ?)").bind(show);
    insert.bind(SEATS).execute(&reader.mysql).await?;
    let mut outcomes = vec![(book(site, show).await?, OutOfRange(Some(SEATS)))];
    let cancel = sqlx::query("UPDATE seats SET taken = taken - ? WHERE id = ?").bind(CANCELLED);
    cancel.bind(show).execute(&reader.mysql).await?;
    sleep(OLD).await;
    for taken in SEATS - CANCELLED + 1..=SEATS {
        outcomes.push((book(site, show).await?, Counted(taken)));
    }
    outcomes.push((book(site, show).await?, OutOfRange(Some(SEATS))));
    if reader.is_calm_since(show) {
        for (outcome, right) in outcomes {
            reads.note(outcome == right, || {
                format!("a booking of show {show}: {outcome:?}, which should be {right:?}")
            });
        }
    }
    Ok(())
}

async fn book(site: &Site, show: Ms) -> counterfoil::Result<counterfoil::Outcome> {
    site.seats.incr(&show.to_string(), 1).await
}
