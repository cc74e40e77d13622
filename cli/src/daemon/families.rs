//! The families of one pair. The daemon opens the configured ones, also in namespaces that MySQL
//! knows or that clients announce, and recounts them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem;

use counterfoil::admin::{Finding, Severity};
use counterfoil::recount::{RecountBuilder, Recounted, Recounter};
use counterfoil::{AnyCounters, Counterfoil, Family, Result};
use futures_util::future::join_all;
use futures_util::{StreamExt, stream};

use crate::config::{FamilyConfig, PairConfig};
use crate::families::{self, registered};
use crate::limits::{CHECK_TIMEOUT, with_timeout};
use crate::view::Refused;

/// The maximum number of families that are opened concurrently.
const MAX_OPENING: usize = 16;
/// The subject of the finding about announced families that cannot be taken from Redis.
const TAKING: &str = "announced families";
/// The maximum number of names that Redis holds, and the daemon takes at once.
const MAX_WANTED: usize = 10_000;
/// The maximum number of names that are remembered as logged. Further ones are not logged.
const MAX_STRANGERS: usize = 1000;

/// Families by NAMESPACE/FAMILY.
pub struct Families {
    /// The current configuration of the pair.
    pub config: PairConfig,
    counterfoil: Counterfoil,
    opened: BTreeSet<String>,
    /// Families that were not opened, each with the reason.
    refused: BTreeMap<String, String>,
    recounters: HashMap<String, Recounter>,
    /// Families that clients announced, and that are not configured.
    strangers: BTreeSet<String>,
    /// The error of the last attempt to take announced families, if it failed.
    taking_error: Option<String>,
    /// That attempt and the recounts that fail, each with its error.
    failing: BTreeMap<String, String>,
}

impl Families {
    pub fn new(config: PairConfig, counterfoil: Counterfoil) -> Self {
        Families {
            config,
            counterfoil,
            opened: BTreeSet::new(),
            refused: BTreeMap::new(),
            recounters: HashMap::new(),
            strangers: BTreeSet::new(),
            taking_error: None,
            failing: BTreeMap::new(),
        }
    }

    /// Opens the configured families, also those of patterns in MySQL, and again all that are open:
    /// their configuration may have changed. A family that is no longer configured stays open until
    /// the daemon ends.
    pub async fn open_configured(&mut self) {
        self.stop().await;
        self.strangers.clear();
        let config = &self.config;
        self.refused.retain(|name, _| config.family(name).is_some());
        let mut names = config.family_names();
        names.extend(self.opened.iter().cloned());
        // if MySQL does not reply, its families are opened once it does
        let registered = with_timeout(CHECK_TIMEOUT, registered(self.counterfoil.store())).await;
        let (known, _) = registered.unwrap_or_default();
        names.extend(known.iter().map(|known| known.family.to_string()));
        self.open(names).await;
    }

    /// Retries the configured families that are not open.
    pub async fn retry_missing(&mut self) {
        let mut missing = self.config.family_names();
        missing.retain(|name| !self.opened.contains(name));
        missing.extend(self.refused.keys().cloned());
        self.open(missing).await;
    }

    /// Opens those of these families that are configured and not open.
    pub async fn open_new(&mut self, mut names: BTreeSet<String>) {
        names.retain(|name| !self.opened.contains(name) && !self.refused.contains_key(name));
        self.open(names).await;
    }

    /// Takes the families that clients announced.
    pub fn take_wanted(&self) -> impl Future<Output = Result<Vec<String>>> + use<> {
        let counterfoil = self.counterfoil.clone();
        async move { counterfoil.take_wanted(MAX_WANTED).await }
    }

    /// Opens the families that clients announced, and logs each that is not configured, once. One
    /// that is open is configured in Redis again.
    pub async fn open_wanted(&mut self, wanted: Result<Vec<String>, String>) {
        self.taking_error = wanted.as_ref().err().cloned();
        let is_configured = |name: &String| self.config.family(name).is_some();
        let wanted = wanted.unwrap_or_default().into_iter();
        let (configured, strangers): (Vec<_>, Vec<_>) = wanted.partition(is_configured);
        let mut new = Vec::new();
        for name in strangers {
            if self.strangers.len() < MAX_STRANGERS && self.strangers.insert(name.clone()) {
                new.push(name);
            }
        }
        if !new.is_empty() {
            let pair = &self.config.name;
            let families = new.join(" ");
            tracing::warn!(
                pair,
                families,
                "applications ask for families that are not configured"
            );
        }
        self.open(configured).await;
    }

    pub fn number(&self) -> usize {
        self.opened.len()
    }

    pub fn has(&self, family: &Family) -> bool {
        self.opened.contains(&family.to_string())
    }

    /// Returns whether the family is configured.
    pub fn describes(&self, family: &Family) -> bool {
        self.config.family(&family.to_string()).is_some()
    }

    /// Returns the configured families that were not opened.
    pub fn refused(&self) -> Vec<Refused> {
        let refused = self.refused.iter().map(|(family, reason)| Refused {
            family: family.clone(),
            reason: reason.clone(),
        });
        refused.collect()
    }

    /// Returns whether the configuration has a recount of NAMESPACE/FAMILY.
    pub fn recounts(&self, family: &str) -> bool {
        let configured = self.config.family(family);
        configured.is_some_and(|configured| configured.recount.is_some())
    }

    /// Returns the progress of the family's current or last recount.
    pub fn recount(&self, family: &str) -> Option<Recounted> {
        self.recounters.get(family).map(Recounter::progress)
    }

    /// Notes whether taking families and the recounts fail, and logs each new reason. Returns true if
    /// others fail than before. Servers that are unavailable are reported as such.
    pub fn supervise(&mut self) -> bool {
        let recounts = self.recounters.iter().filter_map(|(name, recounter)| {
            let error = recounter.error().filter(|error| !error.is_retryable())?;
            Some((format!("recount of {name}"), format!("{error:#}")))
        });
        let taking = self.taking_error.iter();
        let taking = taking.map(|error| (TAKING.to_owned(), error.clone()));
        let failing: BTreeMap<_, _> = recounts.chain(taking).collect();
        let before = mem::replace(&mut self.failing, failing);
        for (step, error) in &self.failing {
            if before.get(step) != Some(error) {
                tracing::error!(pair = self.config.name, step, error, "fails, will retry");
            }
        }
        before != self.failing
    }

    /// Returns a finding for taking families and for each recount that fails.
    pub fn findings(&self) -> Vec<Finding> {
        let finding = |(step, error): (&String, &String)| {
            let advice = if step == TAKING {
                "New tenants are refused meanwhile. The daemon needs ~cf1:wanted and +spop, and the \
                 key cf1:wanted must be a set"
            } else {
                "Correct its source in the configuration, or grant SELECT on it"
            };
            Finding::new(Severity::Error, step, error, advice)
        };
        self.failing.iter().map(finding).collect()
    }

    /// Stops the recounts where they are. The next recounters resume them there.
    pub async fn stop(&mut self) {
        let recounters = self.recounters.drain();
        for stopped in join_all(recounters.map(|(_, recounter)| recounter.shutdown())).await {
            if let Err(error) = stopped {
                tracing::warn!(error = %format_args!("{error:#}"), "stopping a recount failed");
            }
        }
    }

    /// Opens families by name, as configured.
    async fn open(&mut self, names: impl IntoIterator<Item = String>) {
        let (pair, counterfoil) = (&self.config, &self.counterfoil);
        let with_config = |name: String| {
            let config = pair.family(&name)?.clone();
            Some((name, config))
        };
        let names: Vec<_> = names.into_iter().filter_map(with_config).collect();
        let opened = stream::iter(names)
            .map(async |(name, config)| {
                let opened = families::open(counterfoil, &config, &name).await;
                if let Err(error) = &opened
                    && !error.is_retryable()
                {
                    families::refuse(counterfoil, &config, &name, error).await;
                }
                (name, config, opened)
            })
            .buffer_unordered(MAX_OPENING)
            .collect::<Vec<_>>()
            .await;
        let pair = &pair.name;
        for (name, config, opened) in opened {
            match opened {
                Ok(counters) => {
                    if self.refused.remove(&name).is_some() {
                        tracing::info!(pair, family = name, "family was opened");
                    }
                    // one that was announced again is recounted already
                    let is_recounted = self.recounters.contains_key(&name);
                    let config = (!is_recounted).then_some(&config);
                    match start_recount(counterfoil, &counters, config) {
                        Ok(recounter) => {
                            let recounter = recounter.map(|recounter| (name.clone(), recounter));
                            self.recounters.extend(recounter);
                        }
                        Err(error) => {
                            tracing::error!(pair, family = name, error = %format_args!("{error:#}"), "recount was not started");
                        }
                    }
                    self.opened.insert(name);
                }
                Err(error) => {
                    let error = format!("{error:#}");
                    if self.refused.get(&name) != Some(&error) {
                        tracing::error!(pair, family = name, error, "family was not opened");
                        self.refused.insert(name, error);
                    }
                }
            }
        }
    }
}

/// Starts to recount a family periodically, if that is configured and possible for its kind.
fn start_recount(
    counterfoil: &Counterfoil,
    counters: &AnyCounters,
    config: Option<&FamilyConfig>,
) -> Result<Option<Recounter>> {
    let Some(recount) = config.and_then(|config| config.recount.as_ref()) else {
        return Ok(None);
    };
    let every = recount.settings.every.0;
    let builder = families::recount(counterfoil, counters, recount);
    let start = |builder: RecountBuilder| builder.every(every..=every + every / 4).start();
    builder.map(start).transpose()
}
