//! Families in the database that this process did not open: a reconciler serves them, or names them
//! in the log.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::error::{Error, Result};
use crate::process::shared::Shared;
use crate::reconciler::flusher::Flusher;
use crate::reconciler::step::Step;
use crate::store::Registration;

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

/// Serves the families in scope as the database has them, and names others in the log.
pub async fn serve_families(flusher: Arc<Flusher>, scope: Scope) {
    let mut pause = SEARCH_INTERVAL;
    if !scope.all && scope.namespaces.is_empty() {
        // the process gets time to open its own families
        sleep(SEARCH_INTERVAL).await;
        pause = WARN_INTERVAL;
    }
    // the families and errors that were logged
    let mut warned = HashSet::new();
    loop {
        let serve = async {
            let late = |_| Err(Error::store("the database did not reply"));
            let found = timeout(SEARCH_INTERVAL, flusher.shared.store.families()).await;
            let mut unserved = serve_found(&flusher.shared, &scope, found.unwrap_or_else(late)?);
            unserved.retain(|what| warned.insert(what.clone()));
            if !unserved.is_empty() {
                let number = unserved.len();
                let families = unserved[..number.min(NAMES)].join("; ");
                tracing::warn!(
                    number,
                    families,
                    "registered families are not served by this reconciler"
                );
            }
            Ok(())
        };
        let _ = flusher.noted(Step::Listing, serve).await;
        sleep(pause).await;
    }
}

/// Serves the families in scope. Returns the names of others that are not in use, and the errors.
fn serve_found(
    shared: &Shared,
    scope: &Scope,
    found: Vec<(String, Result<Registration>)>,
) -> Vec<String> {
    let mut unserved = Vec::new();
    for (name, one) in found {
        let served = match one {
            Ok(registered) if scope.has(&registered) => {
                let known = shared
                    .in_use(&registered.family)
                    .and_then(|(opened, _)| opened.known());
                if known.is_some_and(|known| *known == registered) {
                    Ok(())
                } else {
                    shared.serve(Arc::new(registered)).map(drop)
                }
            }
            Ok(Registration { family, .. }) => {
                if shared.in_use(&family).is_none() {
                    unserved.push(name);
                }
                Ok(())
            }
            Err(error) => Err(error),
        };
        unserved.extend(served.err().map(|error| format!("{error:#}")));
    }
    unserved
}

impl Scope {
    fn has(&self, Registration { family, .. }: &Registration) -> bool {
        self.all || self.namespaces.contains(&family.namespace)
    }
}
