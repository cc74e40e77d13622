//! The families of one pair. The daemon opens the configured ones, also in namespaces that it
//! discovers, and recounts them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem;

use counterfoil::admin::{Finding, Severity};
use counterfoil::recount::{RecountBuilder, Recounted, Recounter};
use counterfoil::redis::RedisResult;
use counterfoil::{AnyCounters, Counterfoil, Family, Result};
use futures_util::future::join_all;
use futures_util::{StreamExt, stream};

use super::discovery;
use crate::config::{FamilyConfig, PairConfig};
use crate::families;
use crate::view::Refused;

/// The maximum number of families that are opened concurrently.
const MAX_OPENING: usize = 16;
/// The subject of the finding about a search that fails.
const SEARCH: &str = "search for namespaces";

/// Families by NAMESPACE/FAMILY.
pub struct Families {
    /// The current configuration of the pair.
    pub config: PairConfig,
    counterfoil: Counterfoil,
    opened: BTreeSet<String>,
    /// Families that were not opened, each with the reason.
    refused: BTreeMap<String, String>,
    recounters: HashMap<String, Recounter>,
    /// The error of the last search, if it failed.
    search_error: Option<String>,
    /// The search and the recounts that fail, each with its error.
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
            search_error: None,
            failing: BTreeMap::new(),
        }
    }

    /// Opens the configured families, and again those that a search found: their configuration may
    /// have changed. A family that is no longer configured stays open until the daemon ends.
    pub async fn open_configured(&mut self) {
        self.stop().await;
        let config = &self.config;
        self.refused.retain(|name, _| config.family(name).is_some());
        let mut names = config.family_names();
        names.extend(self.opened.iter().cloned());
        self.open(names).await;
    }

    /// Retries the configured families that are not open.
    pub async fn retry_missing(&mut self) {
        let mut missing = self.config.family_names();
        missing.retain(|name| !self.opened.contains(name));
        missing.extend(self.refused.keys().cloned());
        self.open(missing).await;
    }

    /// Searches Redis for families, if patterns are configured.
    pub fn search(&self) -> impl Future<Output = RedisResult<BTreeSet<String>>> + use<> {
        let has_patterns = self.config.has_patterns();
        let redis = self.counterfoil.redis().clone();
        async move {
            if has_patterns {
                discovery::families(&redis).await
            } else {
                Ok(BTreeSet::new())
            }
        }
    }

    /// Opens the families that a search found, those of configured patterns.
    pub async fn open_found(&mut self, found: RedisResult<BTreeSet<String>>) {
        self.search_error = found.as_ref().err().map(|error| format!("{error:#}"));
        if let Ok(found) = found {
            let new: Vec<_> = found.difference(&self.opened).cloned().collect();
            self.open(new).await;
        }
    }

    pub fn number(&self) -> usize {
        self.opened.len()
    }

    pub fn has(&self, family: &Family) -> bool {
        self.opened.contains(&family.to_string())
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

    /// Notes whether the search and the recounts fail, and logs each new reason. Returns true if
    /// others fail than before. Servers that are unavailable are reported as such.
    pub fn supervise(&mut self) -> bool {
        let recounts = self.recounters.iter().filter_map(|(name, recounter)| {
            let error = recounter.error().filter(|error| !error.is_retryable())?;
            Some((format!("recount of {name}"), format!("{error:#}")))
        });
        let search = self.search_error.iter();
        let search = search.map(|error| (SEARCH.to_owned(), error.clone()));
        let failing: BTreeMap<_, _> = recounts.chain(search).collect();
        let before = mem::replace(&mut self.failing, failing);
        for (step, error) in &self.failing {
            if before.get(step) != Some(error) {
                tracing::error!(pair = self.config.name, step, error, "fails, will retry");
            }
        }
        before != self.failing
    }

    /// Returns a finding for the search and for each recount that fails.
    pub fn findings(&self) -> Vec<Finding> {
        let finding = |(step, error): (&String, &String)| {
            let advice = if step == SEARCH {
                "Redis refuses hits of new namespaces meanwhile. The search needs +scan"
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
                    match start_recount(counterfoil, &counters, &config) {
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
    config: &FamilyConfig,
) -> Result<Option<Recounter>> {
    let Some(recount) = &config.recount else {
        return Ok(None);
    };
    let every = recount.settings.every.0;
    let builder = families::recount(counterfoil, counters, recount);
    let start = |builder: RecountBuilder| builder.every(every..=every + every / 4).start();
    builder.map(start).transpose()
}
