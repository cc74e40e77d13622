//! Waiting for the daemon, which alone brings counters to MySQL.

use std::collections::BTreeSet;
use std::time::Duration;

use counterfoil::{Counterfoil, MysqlStore};
use tokio::time::{Instant, sleep};

use crate::Result;
use crate::journal::Journal;
use crate::site::Site;

const LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);

/// Returns when MySQL has every family that the clients counted in, and Redis has nothing left to
/// save.
pub async fn wait(site: &Site, told: &Journal) -> Result<()> {
    let counterfoil = Counterfoil::new(site.redis.clone(), MysqlStore::new(&site.mysql)?);
    let started = Instant::now();
    loop {
        let waiting = waiting(&counterfoil, told).await;
        if waiting.as_ref().is_ok_and(BTreeSet::is_empty) {
            return Ok(());
        }
        // the connection may be one that was cut
        if started.elapsed() > LIMIT {
            let waiting: Vec<_> = waiting?.into_iter().collect();
            return Err(format!("not in MySQL after {LIMIT:?}: {}", waiting.join(", ")).into());
        }
        sleep(POLL).await;
    }
}

async fn waiting<'a>(counterfoil: &Counterfoil, told: &'a Journal) -> Result<BTreeSet<&'a str>> {
    for (_, known) in counterfoil.store().families().await? {
        counterfoil.open_registered(known?)?;
    }
    let mut waiting: BTreeSet<_> = told.sums.keys().map(String::as_str).collect();
    for (family, backlog) in counterfoil.backlogs().await? {
        if backlog?.ids == 0 {
            waiting.remove(family.to_string().as_str());
        }
    }
    Ok(waiting)
}
