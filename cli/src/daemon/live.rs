//! What the daemon's tasks share with what it shows over HTTP.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use counterfoil::{Counterfoil, Registered};
use tokio::sync::watch;

use crate::view::{PairView, View};

/// One pair as the daemon has it.
pub struct LivePair {
    pub name: String,
    /// Nothing until Redis was there once.
    pub connected: watch::Sender<Option<Counterfoil>>,
    pub view: watch::Sender<Arc<PairView>>,
    /// The families that the database knows, by NAMESPACE/FAMILY.
    known: RwLock<HashMap<String, Registered>>,
}

/// All pairs of the daemon.
#[derive(Clone)]
pub struct Live {
    pub pairs: Arc<[Arc<LivePair>]>,
}

impl LivePair {
    pub fn new(name: &str) -> Self {
        let view = PairView { name: name.to_owned(), ..PairView::default() };
        LivePair {
            name: name.to_owned(),
            connected: watch::Sender::new(None),
            view: watch::Sender::new(Arc::new(view)),
            known: RwLock::default(),
        }
    }

    /// Changes what is shown of it.
    pub fn show(&self, change: impl FnOnce(&mut PairView)) {
        self.view.send_modify(|view| change(Arc::make_mut(view)));
    }

    /// The connections, once they were made.
    pub fn pair(&self) -> Option<Counterfoil> {
        self.connected.borrow().clone()
    }

    /// The family of that name, NAMESPACE/FAMILY, as the database last had it.
    pub fn known(&self, name: &str) -> Option<Registered> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    pub fn set_known(&self, families: impl IntoIterator<Item = Registered>) {
        let named = families.into_iter().map(|registered| (registered.family.to_string(), registered));
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = named.collect();
    }
}

impl Live {
    /// Everything as it was last seen.
    pub fn view(&self) -> View {
        View {
            at: crate::status::now(),
            version: env!("CARGO_PKG_VERSION"),
            pairs: self.pairs.iter().map(|pair| pair.view.borrow().clone()).collect(),
        }
    }

    /// The pair of that name, or the only one.
    pub fn pair(&self, name: Option<&str>) -> Option<&Arc<LivePair>> {
        match name {
            Some(name) => self.pairs.iter().find(|pair| pair.name == name),
            None => self.pairs.first().filter(|_| self.pairs.len() == 1),
        }
    }
}
