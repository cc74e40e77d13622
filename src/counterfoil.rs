//! The face of the crate: a Redis and a database that belong together.

use std::sync::Arc;

use redis::aio::{ConnectionLike, ConnectionManager};

use crate::check::{self, Finding};
use crate::counters::Counters;
use crate::error::Result;
use crate::family::Family;
use crate::flush::Flusher;
use crate::mysql::MysqlStore;
use crate::reconciler::ReconcilerBuilder;
use crate::shared::Shared;
use crate::store::{Registered, Store};

/// One Redis and one database that keep an application's counters together.
///
/// `C` is any asynchronous connection of the redis crate: multiplexed, connection manager or cluster. It is cloned for
/// every call. A multiplexed connection does not come back once it is lost; a connection manager does.
///
/// An application with several pairs makes one of these for each; families are opened, also by the thousand, while it
/// runs. Cloning is cheap and gives the same pair.
///
/// The types are those that [`connect`](Counterfoil::connect) makes, where they are not named.
#[derive(Debug)]
pub struct Counterfoil<C = ConnectionManager, S = MysqlStore> {
    shared: Arc<Shared<C, S>>,
}

impl<C, S> Clone for Counterfoil<C, S> {
    fn clone(&self) -> Self {
        Counterfoil { shared: self.shared.clone() }
    }
}

impl<C, S> Counterfoil<C, S>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
    S: Store,
{
    /// Brings a Redis and a database together. Nothing is sent yet.
    pub fn new(redis: C, store: S) -> Self {
        Counterfoil { shared: Arc::new(Shared::new(redis, store)) }
    }

    /// The database.
    pub fn store(&self) -> &S {
        &self.shared.store
    }

    /// Opens a family: registers it with the database, or compares it with what the database knows of it.
    ///
    /// # Errors
    /// [`Mismatch`](crate::ErrorKind::Mismatch) naming the setting in which the family is known differently, or what
    /// its table lacks; [`Store`](crate::ErrorKind::Store) where the database cannot be asked.
    pub async fn open(&self, family: Family) -> Result<Counters<C, S>> {
        let number = self.shared.store.register(&family).await?;
        Ok(Counters::new(self.shared.clone(), Registered { family, number }))
    }

    /// Looks at the servers and answers what should be known or changed, the worst first. An empty answer is a good one.
    pub async fn check(&self) -> Vec<Finding> {
        let families: Vec<_> = self.shared.opened().iter().map(|opened| opened.registered.family.clone()).collect();
        let mut findings = check::redis(&self.shared.redis, &families).await;
        findings.extend(self.shared.store.check(&families).await);
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        findings
    }

    /// Configures a reconciler, which brings what the families of this pair have pending to the database.
    pub fn reconciler(&self) -> ReconcilerBuilder<C, S> {
        ReconcilerBuilder::new(self.shared.clone())
    }

    /// Returns when every hit on an open family that was acknowledged before the call is in the database. It needs no
    /// reconciler, and waits as long as Redis or the database is away.
    ///
    /// # Errors
    /// What no waiting mends: [`Corrupt`](crate::ErrorKind::Corrupt) keys in Redis.
    pub async fn drain(&self) -> Result<()> {
        Flusher::new(self.shared.clone()).drain().await
    }
}
