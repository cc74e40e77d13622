//! Families of the database that this process did not open: which of them a reconciler serves, and which it does not.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::error::{Error, ErrorKind, Result};
use crate::store::{Registered, Store};
use crate::writer::shared::Shared;

/// How often families are looked for that are to be served.
const LOOK: Duration = Duration::from_secs(10);
/// How often they are only looked for to be told of.
const TELL: Duration = Duration::from_secs(60);
/// How many names an event of the log has.
const NAMES: usize = 50;

/// What a look at the database returns.
pub type Look = Result<Vec<Result<Registered>>>;

/// Which families a reconciler serves beside those that its process opens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// None.
    Opened,
    /// Those of these namespaces.
    Namespaces(Vec<String>),
    All,
}

/// What a reconciler knows of the families in the database.
#[derive(Debug)]
pub struct Registry {
    scope: Scope,
    next_look: Instant,
    /// Those that it serves, by the database's numbers.
    serves: HashMap<u64, Arc<Registered>>,
    /// What was told of those that it does not serve.
    told: HashSet<String>,
}

impl Registry {
    pub fn new(scope: Scope) -> Self {
        // the process is left the time to open its own
        let first = if scope == Scope::Opened { LOOK } else { Duration::ZERO };
        Registry { scope, next_look: Instant::now() + first, serves: HashMap::new(), told: HashSet::new() }
    }

    pub fn next_look(&self) -> Instant {
        self.next_look
    }

    /// Whether a look is due, which is then begun.
    pub fn begin_look(&mut self) -> bool {
        let now = Instant::now();
        let due = self.next_look <= now;
        if due {
            self.next_look = now + if self.scope == Scope::Opened { TELL } else { LOOK };
        }
        due
    }

    /// Takes those in use that are to be served, and are new or have other settings than before. Returns their numbers in
    /// this process.
    pub fn take_in(&mut self, shared: &Shared, found: Look) -> Vec<Result<u64>> {
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                self.not_found(&error);
                return Vec::new();
            }
        };
        let (mut taken, mut unserved) = (Vec::new(), Vec::new());
        for one in found {
            match one {
                Ok(registered) if self.scope.has(&registered) => {
                    if self.serves.get(&registered.number).is_none_or(|known| **known != registered) {
                        let registered = Arc::new(registered);
                        self.serves.insert(registered.number, registered.clone());
                        taken.push(shared.serve(registered).map(|(opened, _)| opened.number));
                    }
                }
                Ok(Registered { family, .. }) if shared.is_in_use(&family) => {}
                Ok(Registered { family, .. }) => unserved.push(family.to_string()),
                Err(error) => unserved.push(error.to_string()),
            }
        }
        unserved.retain(|what| self.told.insert(what.clone()));
        if !unserved.is_empty() {
            let (number, names) = (unserved.len(), unserved[..unserved.len().min(NAMES)].join("; "));
            tracing::warn!(number, families = names, "in the database, and not served by this reconciler");
        }
        taken
    }

    /// Who serves nothing but what was opened has no need to know.
    fn not_found(&self, error: &Error) {
        if self.scope != Scope::Opened {
            tracing::warn!(%error, "families were not looked for in the database, which is tried again");
        }
    }
}

impl Scope {
    pub fn with(self, namespace: String) -> Self {
        match self {
            Scope::Opened => Scope::Namespaces(vec![namespace]),
            Scope::Namespaces(mut namespaces) => {
                namespaces.push(namespace);
                Scope::Namespaces(namespaces)
            }
            Scope::All => Scope::All,
        }
    }

    fn has(&self, Registered { family, .. }: &Registered) -> bool {
        match self {
            Scope::Opened => false,
            Scope::Namespaces(namespaces) => namespaces.iter().any(|namespace| namespace == family.namespace()),
            Scope::All => true,
        }
    }
}

/// Looks at the database, for no longer than until the next look.
pub async fn look(store: &dyn Store) -> Look {
    let late = |_| Err(Error::new(ErrorKind::Store, "the database did not reply"));
    timeout(LOOK, store.families()).await.unwrap_or_else(late)
}
