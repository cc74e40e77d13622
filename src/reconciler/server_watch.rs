//! The watch for a Redis that lost its memory: a restarted, emptied or replaced server is
//! configured again and probed.

use std::collections::{BTreeMap, HashSet};
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::admin;
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::process::family::OpenFamily;
use crate::process::tasks::{bisected, try_each};
use crate::process::work::FamilySlot;
use crate::reconciler::flusher::Flusher;
use crate::reconciler::step::Step;
use crate::reconciler::{set_back, upkeep};
use crate::scripts::bundle;
use crate::scripts::keys::{Key, Keys};

/// The pause between checks of Redis.
const PAUSE: Duration = Duration::from_secs(1);
/// The interval at which every partition is compared with the ledger, even without a sign of a
/// set-back.
const PROBE: Duration = Duration::from_secs(30);
/// The number of families in a check: on one server in one call, in a cluster with a call for each.
const ON_A_SERVER: usize = 500;
const IN_A_CLUSTER: usize = 16;
/// The maximum number of names in a line of the log.
const MAX_NAMES: usize = 10;

/// The servers of a Redis by their addresses, each with its run id.
type Servers = BTreeMap<String, String>;

/// The state of Redis as a reconciler knows it.
struct ServerWatch {
    /// `None` before the first check.
    servers: Option<Servers>,
    probe_at: Instant,
    /// The number of families in use at the last probe.
    probed: usize,
    /// The index of the first family in the next check.
    first: usize,
    /// The families that Redis knew at an earlier check, and those of other processes that were
    /// checked before.
    checked: HashSet<FamilySlot>,
    /// Redis did not know a family of the last check that it had known before.
    is_emptied: bool,
}

/// The families that Redis does not know.
#[derive(Default)]
struct Lacking {
    /// Those that it lost.
    lost: Vec<Arc<OpenFamily>>,
    /// Those that it may never have known.
    new: Vec<Arc<OpenFamily>>,
}

/// Checks again and again that Redis has not lost or reverted its state.
pub async fn watch_servers(flusher: Arc<Flusher>) {
    let mut known = ServerWatch {
        servers: None,
        probe_at: Instant::now(),
        probed: 0,
        first: 0,
        checked: HashSet::new(),
        is_emptied: false,
    };
    loop {
        // boxed to keep the task small
        let check = Box::pin(known.check(&flusher));
        let _ = flusher.noted(Step::Servers, check).await;
        sleep(PAUSE).await;
    }
}

impl ServerWatch {
    /// Checks Redis. After an error the next check does what is left.
    async fn check(&mut self, flusher: &Flusher) -> Result<()> {
        let servers = admin::redis::run_ids(&flusher.redis).await?;
        let families = flusher.shared.opened();
        let is_other = self.servers.as_ref().is_some_and(|known| *known != servers);
        let Lacking { mut lost, new } = self.lacking(flusher, &families).await?;
        let databases: Vec<_> = lost.iter().map(|one| database(one)).collect();
        // another process has registered a new family, and is about to write its settings
        let is_due = |one: &Arc<OpenFamily>| !one.is_served;
        if is_other || !lost.is_empty() || new.iter().any(is_due) {
            configure(flusher, &families).await;
        }
        // a family that a new database has taken over was deleted on purpose
        let mut before = databases.into_iter();
        lost.retain(|one| before.next() == Some(database(one)));
        if !lost.is_empty() && !self.is_emptied {
            report(&lost);
        }
        self.is_emptied = !lost.is_empty();
        let is_new = families.len() > self.probed;
        if is_other || is_new || self.probe_at <= Instant::now() {
            probe(flusher, &families).await?;
            self.probe_at = Instant::now() + PROBE;
            self.probed = families.len();
        }
        if is_other {
            tracing::warn!(
                "Redis was restarted or replaced: its partitions were compared with the ledger"
            );
        }
        self.servers = Some(servers);
        Ok(())
    }

    /// Returns the families, of those whose turn it is, that Redis does not know.
    async fn lacking(
        &mut self,
        flusher: &Flusher,
        families: &[Arc<OpenFamily>],
    ) -> Result<Lacking> {
        let shared = &flusher.shared;
        let count = if shared.topology.is_cluster() {
            IN_A_CLUSTER
        } else {
            ON_A_SERVER
        };
        let some: Vec<_> = families.iter().skip(self.first).take(count).collect();
        let home = |one: &&Arc<OpenFamily>| Keys::new(&one.family, 0).calls();
        let homes: Vec<_> = some.iter().map(home).collect();
        let lacks = |keys| lacks_any(&flusher.redis, keys);
        let mut are_lacking = vec![false; homes.len()];
        if (shared.by_group(&homes, ON_A_SERVER, lacks).await?).contains(&true) {
            let lacks = |home| lacks_any(&flusher.redis, slice::from_ref(home));
            are_lacking = try_each(&homes, lacks).await?;
        }
        let mut lacking = Lacking::default();
        for (one, is_lacking) in some.iter().zip(are_lacking) {
            if is_lacking && self.checked.contains(&one.slot) {
                lacking.lost.push((*one).clone());
            } else if is_lacking {
                lacking.new.push((*one).clone());
            }
            if one.is_served || !is_lacking {
                self.checked.insert(one.slot);
            }
        }
        self.first += some.len();
        if self.first >= families.len() {
            self.first = 0;
        }
        Ok(lacking)
    }
}

/// Returns the id of the database that has the family as far as this process knows.
fn database(opened: &OpenFamily) -> Option<String> {
    opened.known().map(|known| known.database.clone())
}

/// Logs that Redis has lost these families.
fn report(lost: &[Arc<OpenFamily>]) {
    let names: Vec<_> = lost
        .iter()
        .take(MAX_NAMES)
        .map(|one| one.family.to_string())
        .collect();
    let (families, number) = (names.join(" "), lost.len());
    tracing::error!(
        families,
        number,
        "Redis does not know families any more: if it was emptied, the hits that the database did not \
         have are lost"
    );
}

/// Returns whether Redis lacks one of the keys. A key that cannot be read is left out: the upkeep
/// of its family reports the error.
async fn lacks_any(redis: &Connection, keys: &[Key]) -> Result<bool> {
    let concerns_one = |error: &Error| !error.is_retryable();
    let count = |some| bundle::count_existing(redis, some);
    let mut counts = bisected(keys, concerns_one, count).await?.into_iter();
    Ok(counts.any(|(some, existing)| existing.is_ok_and(|number| number < some.len() as u64)))
}

/// Compares the families with the ledger. One that cannot be read does not hide the others.
async fn probe(flusher: &Flusher, families: &[Arc<OpenFamily>]) -> Result<()> {
    let probe = |some| set_back::probe(flusher, some);
    for (_, probed) in bisected(families, |error| !error.is_retryable(), probe).await? {
        if let Err(error) = probed {
            tracing::debug!(error = %format_args!("{error:#}"), "a family was not probed");
        }
    }
    Ok(())
}

/// Configures the families that the database has registered. If Redis refuses one, its upkeep
/// reports the error.
async fn configure(flusher: &Flusher, families: &[Arc<OpenFamily>]) {
    for opened in families.iter().filter(|opened| opened.known().is_some()) {
        let family = &opened.family;
        if let Err(error) = upkeep::begin_epochs(flusher, opened).await {
            tracing::debug!(%family, error = %format_args!("{error:#}"), "configuring a family again failed");
        }
    }
}
