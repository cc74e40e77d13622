//! Families in the database that this process did not open: a reconciler serves them, or names them
//! in the log.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::error::{Error, Result};
use crate::process::shared::Shared;
use crate::reconciler::flush::Flusher;
use crate::reconciler::step::Step;
use crate::store::{Registered, Store};

/// The interval of the search for families to serve.
const SEARCH_INTERVAL: Duration = Duration::from_secs(10);
/// The interval of the search for families to name in the log only.
const WARN_INTERVAL: Duration = Duration::from_mins(1);
/// The maximum number of names in one log event.
const NAMES: usize = 50;

/// The families that a reconciler serves beside those that its process opens.
#[derive(Debug, Default)]
pub struct Scope {
    pub all: bool,
    pub namespaces: Vec<String>,
}

/// The families of the database as a reconciler knows them.
struct Registry {
    scope: Scope,
    /// The families that it serves, by their numbers in the database.
    serves: HashMap<u64, Arc<Registered>>,
    /// The families and errors that were logged as not served.
    warned: HashSet<String>,
}

/// Serves the families in scope as the database has them, and names others in the log.
pub async fn serve_families(flusher: Arc<Flusher>, scope: Scope) {
    let mut pause = SEARCH_INTERVAL;
    if !scope.all && scope.namespaces.is_empty() {
        // the process gets time to open its own families
        sleep(SEARCH_INTERVAL).await;
        pause = WARN_INTERVAL;
    }
    let mut registry = Registry {
        scope,
        serves: HashMap::new(),
        warned: HashSet::new(),
    };
    loop {
        let serve = async {
            let found = list(&*flusher.shared.store).await?;
            registry.serve_found(&flusher.shared, found);
            Ok(())
        };
        let _ = flusher.noted(Step::Listing, serve).await;
        sleep(pause).await;
    }
}

impl Registry {
    /// Serves the families in scope that are new or have changed settings, and logs families that
    /// are not served.
    fn serve_found(&mut self, shared: &Shared, found: Vec<Result<Registered>>) {
        let mut unserved = Vec::new();
        for one in found {
            match one {
                Ok(registered) if self.scope.has(&registered) => {
                    let known = self.serves.get(&registered.number);
                    if known.is_none_or(|known| **known != registered) {
                        let registered = Arc::new(registered);
                        self.serves.insert(registered.number, registered.clone());
                        if let Err(error) = shared.serve(registered) {
                            tracing::error!(error = %format_args!("{error:#}"), "a family is not served");
                        }
                    }
                }
                Ok(Registered { family, .. }) if shared.in_use(&family).is_some() => {}
                Ok(Registered { family, .. }) => unserved.push(family.to_string()),
                Err(error) => unserved.push(format!("{error:#}")),
            }
        }
        unserved.retain(|what| self.warned.insert(what.clone()));
        if !unserved.is_empty() {
            let number = unserved.len();
            let families = unserved[..number.min(NAMES)].join("; ");
            tracing::warn!(
                number,
                families,
                "registered families are not served by this reconciler"
            );
        }
    }
}

impl Scope {
    fn has(&self, Registered { family, .. }: &Registered) -> bool {
        self.all || self.namespaces.contains(&family.namespace)
    }
}

/// Lists the families in the database, for at most the interval of the search.
async fn list(store: &dyn Store) -> Result<Vec<Result<Registered>>> {
    let late = |_| Err(Error::store("the database did not reply"));
    timeout(SEARCH_INTERVAL, store.families())
        .await
        .unwrap_or_else(late)
}
