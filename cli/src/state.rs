//! The state that the daemon's tasks share with its HTTP server.

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::sync::Arc;

use counterfoil::admin::Overview;
use counterfoil::store::Registered;
use counterfoil::{Counterfoil, Family};
use tokio::sync::{Semaphore, watch};

use crate::config::{PairConfig, Serve};
use crate::status::unix_now;
use crate::view::{PairView, View};

/// The connections to MySQL that reads leave to the reconciler, which makes so many flushes at a
/// time.
const FLUSHES: u32 = 3;

/// One pair of the running daemon.
pub struct PairState {
    pub name: String,
    pub serve: Serve,
    /// A permit for each concurrent read of an HTTP request.
    pub reads: Semaphore,
    /// `None` until the first connection to Redis.
    pub connected: watch::Sender<Option<Counterfoil>>,
    /// The view outlives a worker, so that metrics count each hit once.
    pub view: watch::Sender<Arc<PairView>>,
    /// The last overview of MySQL.
    pub overview: watch::Sender<Vec<Overview>>,
    known: watch::Sender<Known>,
}

/// The families that the database knows, by NAMESPACE/FAMILY.
#[derive(Default)]
struct Known {
    families: HashMap<String, Registered>,
    /// False until they were read from the present database.
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

    /// Forgets the servers, which may be others than before. The figures stay with their age, and the
    /// families, since metrics count each hit once.
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
    pub fn known(&self, name: &str) -> Option<Registered> {
        let known = self.known.borrow();
        let family = known.families.get(name).filter(|_| known.are_current);
        family.cloned()
    }

    /// Returns the families that the database knows, except those of these names.
    pub fn known_except(&self, names: &HashSet<String>) -> Vec<Family> {
        let known = self.known.borrow();
        let others = known
            .families
            .iter()
            .filter(|(name, _)| !names.contains(*name));
        others.map(|(_, known)| known.family.clone()).collect()
    }

    pub fn set_known(&self, families: Vec<Registered>) {
        let named = families
            .into_iter()
            .map(|registered| (registered.family.to_string(), registered));
        self.known.send_replace(Known {
            families: named.collect(),
            are_current: true,
        });
    }

    /// Records a read of some figures. If it fails twice for the same reason while both servers are
    /// up, the reason is logged.
    pub fn looked<E: Display>(&self, figures: &str, result: Result<(), E>) {
        let why = result.err().map(|error| format!("{error:#}"));
        self.update(|view| {
            let are_up = view.are_up();
            for look in view.looks.iter_mut().filter(|look| look.name == figures) {
                match &why {
                    None => (look.at, look.logged) = (Some(unix_now()), None),
                    Some(reason) if are_up && look.why == why && look.logged != why => {
                        tracing::error!(
                            pair = self.name,
                            figures,
                            why = reason,
                            "figures are not current"
                        );
                        look.logged.clone_from(&why);
                    }
                    Some(_) => {}
                }
                look.why.clone_from(&why);
            }
        });
    }
}

impl View {
    /// Returns the last known state of pairs.
    pub fn of(pairs: &[Arc<PairState>]) -> Self {
        let pairs = pairs.iter().map(|pair| pair.view.borrow().clone());
        View {
            at: unix_now(),
            pairs: pairs.collect(),
        }
    }
}
