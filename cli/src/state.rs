//! The state that the daemon's tasks share with its HTTP server.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use counterfoil::admin::Overview;
use counterfoil::store::Registration;
use counterfoil::{Counterfoil, Family};
use tokio::sync::{Semaphore, watch};

use crate::config::{PairConfig, Serve};
use crate::reason::{LoggedReasons, Reason};
use crate::status::unix_now;
use crate::view::{PairView, View};

/// The number of connections to MySQL that reads by HTTP leave to the flushes of the reconciler.
const FLUSHES: u32 = 3;

/// One pair of the running daemon.
pub struct PairState {
    pub name: String,
    pub serve: Serve,
    /// A permit for each concurrent read of an HTTP request.
    pub reads: Semaphore,
    /// `None` until the first connection to Redis.
    pub connected: watch::Sender<Option<Counterfoil>>,
    /// The published view. It outlives a worker that is started again, because metrics count the
    /// difference between two views: after an empty view they would count all hits of Redis again.
    pub view: watch::Sender<Arc<PairView>>,
    /// The last overview of MySQL.
    pub overview: watch::Sender<Vec<Overview>>,
    known: watch::Sender<KnownFamilies>,
}

/// The families that the database knows, by NAMESPACE/FAMILY.
#[derive(Default)]
struct KnownFamilies {
    families: HashMap<String, Registration>,
    /// False until the families were read over the current connection. A reload may have named
    /// another database since.
    are_current: bool,
}

impl PairState {
    pub fn new(config: &PairConfig) -> Self {
        let reads = config.connections.saturating_sub(FLUSHES).max(1);
        PairState {
            name: config.name.clone(),
            serve: config.serve.clone(),
            reads: Semaphore::new(reads as usize),
            connected: watch::Sender::new(None),
            view: watch::Sender::new(Arc::new(PairView::new(&config.name))),
            overview: watch::Sender::default(),
            known: watch::Sender::default(),
        }
    }

    /// Forgets the state of the servers: the settings may name others than before. The figures
    /// stay, with their age. The families stay, too, because metrics count the difference to their
    /// last figures.
    pub fn forget_servers(&self) {
        self.connected.send_replace(None);
        self.known.send_modify(|known| known.are_current = false);
        self.update(|view| {
            (view.redis, view.mysql) = Default::default();
            view.reconciler.running = false;
            view.reconciler.failing.clear();
            view.checked.clear();
        });
    }

    /// Changes the published view of the pair.
    pub fn update(&self, change: impl FnOnce(&mut PairView)) {
        self.view.send_modify(|view| change(Arc::make_mut(view)));
    }

    /// Returns the family NAMESPACE/FAMILY as last read from the database.
    pub fn known(&self, name: &str) -> Option<Registration> {
        let known = self.known.borrow();
        known
            .families
            .get(name)
            .filter(|_| known.are_current)
            .cloned()
    }

    /// Returns the families that the database knows, except those of these names.
    pub fn known_except(&self, names: &HashSet<String>) -> Vec<Family> {
        let known = self.known.borrow();
        known
            .families
            .iter()
            .filter(|(name, _)| !names.contains(*name))
            .map(|(_, registered)| registered.family.clone())
            .collect()
    }

    pub fn set_known(&self, families: Vec<Registration>) {
        self.known.send_replace(KnownFamilies {
            families: families
                .into_iter()
                .map(|registered| (registered.family.to_string(), registered))
                .collect(),
            are_current: true,
        });
    }

    /// Records a read of some figures. From the second failure in a row on, while both servers are
    /// up, each new kind of reason is logged.
    pub fn record_read<E: Into<Reason>>(&self, figures: &str, result: Result<(), E>) {
        let reason = result.err().map(Into::into);
        self.update(|view| {
            let are_up = view.are_up();
            for look in view.looks.iter_mut().filter(|look| look.name == figures) {
                match &reason {
                    None => (look.at, look.logged) = (Some(unix_now()), LoggedReasons::default()),
                    Some(reason) if are_up && look.why.is_some() && look.logged.note(reason) => {
                        tracing::error!(
                            pair = self.name,
                            figures,
                            why = reason.text,
                            "figures are not current"
                        );
                    }
                    Some(_) => {}
                }
                look.why = reason.as_ref().map(|reason| reason.text.clone());
            }
        });
    }
}

impl View {
    /// Returns the last known state of pairs.
    pub fn of(pairs: &[Arc<PairState>]) -> Self {
        View {
            at: unix_now(),
            pairs: pairs
                .iter()
                .map(|pair| pair.view.borrow().clone())
                .collect(),
        }
    }
}
