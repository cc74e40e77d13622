//! The watch for a Redis that lost its memory: a restarted, emptied or replaced server is
//! configured again and probed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::admin;
use crate::connection::Connection;
use crate::error::Result;
use crate::process::family::Opened;
use crate::process::shared::Shared;
use crate::reconciler::set_back;
use crate::reconciler::upkeep;
use crate::scripts::bundle;
use crate::scripts::keys::{Key, Keys};
use crate::store::Registered;

/// The interval of checks of Redis.
const LOOK: Duration = Duration::from_secs(1);
/// The interval at which every partition is compared with the ledger, even without a sign of a
/// set-back.
const PROBE: Duration = Duration::from_secs(30);
const NOT_BEFORE_ITS_END: Duration = Duration::from_hours(1);
/// The number of families in a check: on one server in one call, in a cluster with a call for each.
const ON_A_SERVER: usize = 500;
const IN_A_CLUSTER: usize = 16;

/// The servers of a Redis by their addresses, each with its run id.
type Servers = BTreeMap<String, String>;

/// The state of Redis as a reconciler knows it.
#[derive(Clone, Debug)]
pub struct ServerWatch {
    servers: Option<Servers>,
    next_check: Instant,
    probe_at: Instant,
    /// True if a probe was requested after the last check began.
    asks_probe: bool,
    /// The index of the first family in the next check.
    first: usize,
}

impl ServerWatch {
    pub fn new() -> Self {
        let now = Instant::now();
        ServerWatch {
            servers: None,
            next_check: now,
            probe_at: now,
            asks_probe: true,
            first: 0,
        }
    }

    pub fn next_check(&self) -> Instant {
        self.next_check
    }

    /// Requests a probe with the next check, since a family was opened.
    pub fn probe_soon(&mut self) {
        self.asks_probe = true;
    }

    /// Returns the state for [`check`](Self::check) if a check is due. The next one is due only after
    /// this one ended.
    pub fn begin(&mut self) -> Option<Self> {
        let now = Instant::now();
        if self.next_check > now {
            return None;
        }
        if std::mem::take(&mut self.asks_probe) {
            self.probe_at = now;
        }
        self.next_check = now + NOT_BEFORE_ITS_END;
        Some(self.clone())
    }

    pub fn end(&mut self, checked: Result<Self>) {
        if let Ok(known) = checked {
            *self = ServerWatch {
                asks_probe: self.asks_probe,
                ..known
            };
        }
        self.next_check = Instant::now() + LOOK;
    }

    /// Checks Redis, and returns the new state.
    pub async fn check(mut self, shared: &Shared, redis: &Connection) -> Result<Self> {
        let servers = admin::redis::run_ids(redis).await?;
        let families = shared.opened();
        let is_other = self.servers.as_ref().is_some_and(|known| *known != servers);
        if is_other || self.is_emptied(shared, redis, &families).await? {
            configure(shared, redis, &families).await;
        }
        if is_other || self.probe_at <= Instant::now() {
            probe(shared, redis, &families).await?;
            self.probe_at = Instant::now() + PROBE;
        }
        if is_other {
            tracing::warn!(
                "Redis was restarted or replaced: its partitions were compared with the ledger"
            );
        }
        self.servers = Some(servers);
        Ok(self)
    }

    /// Returns true if Redis does not know one of the families whose turn it is.
    async fn is_emptied(
        &mut self,
        shared: &Shared,
        redis: &Connection,
        families: &[Arc<Opened>],
    ) -> Result<bool> {
        let is_cluster = shared.topology.is_cluster();
        let count = if is_cluster {
            IN_A_CLUSTER
        } else {
            ON_A_SERVER
        };
        let turn: Range<usize> = self.first..families.len().min(self.first + count);
        self.first = if turn.end < families.len() {
            turn.end
        } else {
            0
        };
        let homes: Vec<_> = families
            .get(turn)
            .unwrap_or_default()
            .iter()
            .map(|one| Keys::new(&one.family, 0).calls())
            .collect();
        for keys in homes.chunks(if is_cluster { 1 } else { ON_A_SERVER }) {
            match lacks_any(redis, keys).await {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(error) if bundle::crosses_slots(&error) => shared.topology.found_cluster(),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }
}

/// Returns whether Redis lacks one of the keys. A key that cannot be read is left out: the upkeep of
/// its family reports the error.
async fn lacks_any(redis: &Connection, keys: &[Key]) -> Result<bool> {
    match bundle::count_existing(redis, keys).await {
        Ok(existing) => Ok(existing < keys.len() as u64),
        Err(error) if error.is_retryable() || bundle::crosses_slots(&error) => Err(error),
        Err(_) if keys.len() < 2 => Ok(false),
        Err(_) => {
            let (first, second) = keys.split_at(keys.len() / 2);
            Ok(Box::pin(lacks_any(redis, first)).await?
                || Box::pin(lacks_any(redis, second)).await?)
        }
    }
}

/// Compares the families with the ledger. One that cannot be read does not hide the others.
async fn probe(shared: &Shared, redis: &Connection, families: &[Arc<Opened>]) -> Result<()> {
    match set_back::probe(shared, redis, families).await {
        Err(error) if error.is_retryable() => Err(error),
        Err(error) if families.len() < 2 => {
            tracing::debug!(error = %format_args!("{error:#}"), "a family was not probed");
            Ok(())
        }
        Err(_) => {
            let (first, second) = families.split_at(families.len() / 2);
            Box::pin(probe(shared, redis, first)).await?;
            Box::pin(probe(shared, redis, second)).await
        }
        Ok(_) => Ok(()),
    }
}

/// Configures the families that the database has registered. If Redis refuses one, its upkeep
/// reports the error.
async fn configure(shared: &Shared, redis: &Connection, families: &[Arc<Opened>]) {
    for registered in families.iter().filter_map(|opened| opened.known()) {
        let Registered {
            family, database, ..
        } = &*registered;
        let begun = upkeep::begin_epochs(redis, &shared.topology, family, database);
        if let Err(error) = begun.await {
            tracing::debug!(%family, error = %format_args!("{error:#}"), "configuring a family again failed");
        }
    }
}
