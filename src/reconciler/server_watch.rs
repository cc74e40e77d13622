//! The watch for a Redis that lost its memory: a restarted, emptied or replaced server is
//! configured again and probed.

use std::collections::BTreeMap;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::admin;
use crate::connection::Connection;
use crate::error::{Error, Result};
use crate::process::family::OpenFamily;
use crate::process::tasks::{bisected, try_each};
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
const NAMED: usize = 10;

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
    /// Redis did not know a family of the last check.
    is_lacking: bool,
}

/// Checks again and again that Redis has not lost or reverted its state.
pub async fn watch_servers(flusher: Arc<Flusher>) {
    let mut known = ServerWatch {
        servers: None,
        probe_at: Instant::now(),
        probed: 0,
        first: 0,
        is_lacking: false,
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
        let lacking = self.lacking(flusher, &families).await?;
        if !lacking.is_empty() && !self.is_lacking {
            let names: Vec<_> = lacking.iter().take(NAMED).cloned().collect();
            let (families, number) = (names.join(" "), lacking.len());
            tracing::error!(
                families,
                number,
                "Redis does not know these families: they are new, were adopted, or Redis was emptied. If it \
                 was, the hits that the database did not have are lost"
            );
        }
        self.is_lacking = !lacking.is_empty();
        if is_other || self.is_lacking {
            configure(flusher, &families).await;
        }
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

    /// Returns the names of the families, of those whose turn it is, that Redis does not know.
    async fn lacking(
        &mut self,
        flusher: &Flusher,
        families: &[Arc<OpenFamily>],
    ) -> Result<Vec<String>> {
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
        let mut lacking = Vec::new();
        if (shared.by_group(&homes, ON_A_SERVER, lacks).await?).contains(&true) {
            let lacks = |home| lacks_any(&flusher.redis, slice::from_ref(home));
            let are_lacking = try_each(&homes, lacks).await?;
            let found = some.iter().zip(are_lacking).filter(|(_, lacks)| *lacks);
            lacking = found.map(|(one, _)| one.family.to_string()).collect();
        }
        self.first += some.len();
        if self.first >= families.len() {
            self.first = 0;
        }
        Ok(lacking)
    }
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
