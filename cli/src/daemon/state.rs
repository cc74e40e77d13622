//! The state that the daemon's tasks share with its HTTP server.

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::sync::{Arc, Mutex};

use counterfoil::store::Registered;
use counterfoil::{Counterfoil, Family};
use tokio::sync::watch;

use crate::sampler::Sampler;
use crate::status::unix_now;
use crate::view::{Look, Looks, PairView, View};

/// One pair of the running daemon.
pub struct PairState {
    pub name: String,
    /// `None` until the first connection to Redis.
    pub connected: watch::Sender<Option<Counterfoil>>,
    pub view: watch::Sender<Arc<PairView>>,
    /// The samples of the families: they outlive a worker, so that metrics count each hit once.
    pub sampler: Mutex<Sampler>,
    /// The families that the database knows, by NAMESPACE/FAMILY.
    known: watch::Sender<HashMap<String, Registered>>,
}

/// All pairs of the daemon.
#[derive(Clone)]
pub struct DaemonState {
    pub pairs: Arc<[Arc<PairState>]>,
}

impl PairState {
    pub fn new(name: &str) -> Self {
        let view = PairView {
            name: name.to_owned(),
            ..PairView::default()
        };
        PairState {
            name: name.to_owned(),
            connected: watch::Sender::new(None),
            view: watch::Sender::new(Arc::new(view)),
            sampler: Mutex::new(Sampler::new(name)),
            known: watch::Sender::default(),
        }
    }

    /// Changes the published view of the pair.
    pub fn update(&self, change: impl FnOnce(&mut PairView)) {
        self.view.send_modify(|view| change(Arc::make_mut(view)));
    }

    /// Returns the family NAMESPACE/FAMILY as last read from the database.
    pub fn known(&self, name: &str) -> Option<Registered> {
        self.known.borrow().get(name).cloned()
    }

    /// Returns the families that the database knows, except those of these names.
    pub fn known_except(&self, names: &HashSet<String>) -> Vec<Family> {
        let known = self.known.borrow();
        let others = known.iter().filter(|(name, _)| !names.contains(*name));
        others.map(|(_, known)| known.family.clone()).collect()
    }

    /// Records a read of some figures. If it fails twice for the same reason while both servers are
    /// up, the reason is logged.
    pub fn looked<E: Display>(
        &self,
        figures: &str,
        look: fn(&mut Looks) -> &mut Look,
        result: Result<(), E>,
    ) {
        let why = result.err().map(|error| format!("{error:#}"));
        let mut is_new = false;
        self.update(|view| {
            let are_up = view.redis.up && view.mysql.up;
            let look = look(&mut view.looks);
            if why.is_none() {
                (look.at, look.logged) = (Some(unix_now()), None);
            } else if are_up && look.why == why && look.logged != why {
                look.logged.clone_from(&why);
                is_new = true;
            }
            look.why.clone_from(&why);
        });
        if let Some(why) = why.filter(|_| is_new) {
            tracing::error!(pair = self.name, figures, why, "figures are not current");
        }
    }

    pub fn set_known(&self, families: impl IntoIterator<Item = Registered>) {
        let named = families
            .into_iter()
            .map(|registered| (registered.family.to_string(), registered));
        self.known.send_replace(named.collect());
    }
}

impl DaemonState {
    /// Returns the last known state of all pairs.
    pub fn view(&self) -> View {
        View {
            at: unix_now(),
            version: super::VERSION,
            pairs: self
                .pairs
                .iter()
                .map(|pair| pair.view.borrow().clone())
                .collect(),
        }
    }

    /// Returns the pair `name`, or the only one.
    pub fn pair(&self, name: Option<&str>) -> Option<&Arc<PairState>> {
        match name {
            Some(name) => self.pairs.iter().find(|pair| pair.name == name),
            None => self.pairs.first().filter(|_| self.pairs.len() == 1),
        }
    }
}

/// Waits until the flag is set, or its sender is dropped.
pub async fn is_set(flag: &mut watch::Receiver<bool>) {
    let _ = flag.wait_for(|flag| *flag).await;
}
