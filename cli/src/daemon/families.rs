//! The families of one pair. The daemon opens the configured ones, also in namespaces that MySQL
//! knows or that clients announce, and recounts them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem;

use counterfoil::admin::{Finding, Severity};
use counterfoil::recount::{RecountProgress, Recounter};
use counterfoil::{AnyCounters, Counterfoil, Family, Result};
use futures_util::future::join_all;
use futures_util::{StreamExt, stream};

use crate::config::{FamilyConfig, PairConfig};
use crate::families;
use crate::limits::{CHECK_TIMEOUT, with_timeout};
use crate::reason::{LoggedReasons, Reason};
use crate::view::RefusedFamily;

/// The maximum number of families that are opened concurrently.
const MAX_OPENING: usize = 16;
/// The subject of the finding about announced families that cannot be taken from Redis.
const TAKING: &str = "announced families";
/// The subject of the finding about names of families that Redis does not keep.
const KEEPING: &str = "kept families";
/// The maximum number of announced families that are logged as not configured, each once. Further
/// ones are not logged.
const MAX_STRANGERS: usize = 1000;

/// Families by NAMESPACE/FAMILY.
pub struct Families {
    /// The current configuration of the pair.
    pub config: PairConfig,
    counterfoil: Counterfoil,
    opened: BTreeSet<String>,
    /// Families that were not opened, each with the last reason, and the kinds of reasons that were
    /// logged.
    refused: BTreeMap<String, (Reason, LoggedReasons)>,
    recounters: HashMap<String, Recounter>,
    /// Families that clients announced, that are not configured, and that were logged.
    strangers: BTreeSet<String>,
    /// The error of the last attempt to take announced families, if it failed.
    taking_error: Option<Reason>,
    /// The error of the last attempt to keep names of families, if it failed.
    keeping_error: Option<Reason>,
    /// The steps that fail, by name: taking announced families, keeping names, and recounts. Each has
    /// its last error, and the kinds of errors that were logged.
    failing: BTreeMap<String, (Reason, LoggedReasons)>,
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
            keeping_error: None,
            failing: BTreeMap::new(),
        }
    }

    /// Opens the configured families, and those in MySQL that a configured pattern describes.
    /// Families that are open are opened again, because their configuration may have changed. A
    /// family that is no longer configured stays open until the daemon ends.
    pub async fn open_configured(&mut self) {
        self.stop().await;
        self.strangers.clear();
        let config = &self.config;
        self.refused.retain(|name, _| config.family(name).is_some());
        let mut names = config.family_names();
        names.extend(self.opened.iter().cloned());
        // if MySQL does not reply now, the families that only it knows are opened by a later read
        // of them
        let read = with_timeout(
            CHECK_TIMEOUT,
            families::read_registered(self.counterfoil.store()),
        )
        .await;
        let (known, _) = read.unwrap_or_default();
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
        async move { counterfoil.take_wanted().await }
    }

    /// Opens the families that clients announced, and logs each that is not configured, once. A
    /// family that is open is opened again, which configures it in Redis: its client has found that
    /// Redis does not know it.
    pub async fn open_wanted(&mut self, wanted: Result<Vec<String>, Reason>) {
        self.taking_error = wanted.as_ref().err().cloned();
        let (configured, strangers): (Vec<_>, Vec<_>) = wanted
            .unwrap_or_default()
            .into_iter()
            .partition(|name| self.config.family(name).is_some());
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

    /// Opens the families of patterns whose names Redis keeps: a backup of MySQL may lack them. Then
    /// keeps the names of all that are open, because a node of a cluster may have lost them.
    pub async fn open_kept(&mut self) {
        if !self.config.has_patterns() {
            return;
        }
        match with_timeout(CHECK_TIMEOUT, self.counterfoil.kept()).await {
            Ok(kept) => {
                self.keeping_error = None;
                self.open_new(kept.into_iter().collect()).await;
                let opened: Vec<_> = self.opened.iter().cloned().collect();
                self.keep(&opened).await;
            }
            Err(why) => self.keeping_error = Some(why),
        }
    }

    /// Keeps the names of those of these families that a pattern describes.
    async fn keep(&mut self, names: &[String]) {
        let config = &self.config;
        let is_of_pattern = |name: &&str| config.family(name).is_some_and(FamilyConfig::is_pattern);
        let names = names.iter().map(String::as_str);
        let names: Vec<_> = names.filter(is_of_pattern).collect();
        if !names.is_empty() {
            let kept = with_timeout(CHECK_TIMEOUT, self.counterfoil.keep(&names)).await;
            self.keeping_error = kept.err();
        }
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
    pub fn refused(&self) -> Vec<RefusedFamily> {
        self.refused
            .iter()
            .map(|(family, (reason, _))| RefusedFamily {
                family: family.clone(),
                reason: reason.clone(),
            })
            .collect()
    }

    /// Returns whether the configuration has a recount of NAMESPACE/FAMILY.
    pub fn recounts(&self, family: &str) -> bool {
        self.config
            .family(family)
            .is_some_and(|configured| configured.recount.is_some())
    }

    /// Returns the progress of the family's current or last recount.
    pub fn recount(&self, family: &str) -> Option<RecountProgress> {
        self.recounters.get(family).map(Recounter::progress)
    }

    /// Notes which recounts fail, and whether taking or keeping families fails, and logs each new
    /// reason. Retryable errors of recounts are left out: they come from servers that are
    /// unavailable, which are reported as such. Returns true if other steps fail than before, or
    /// one for a new reason.
    pub fn supervise(&mut self) -> bool {
        let mut failing = Vec::new();
        for (name, recounter) in &self.recounters {
            if let Some(error) = recounter.error().filter(|error| !error.is_retryable()) {
                failing.push((format!("recount of {name}"), Reason::from(error)));
            }
        }
        for (step, error) in [(TAKING, &self.taking_error), (KEEPING, &self.keeping_error)] {
            if let Some(error) = error {
                failing.push((step.to_owned(), error.clone()));
            }
        }
        let mut before = mem::take(&mut self.failing);
        let number = before.len();
        let mut is_changed = false;
        for (step, error) in failing {
            let (_, mut logged) = before.remove(&step).unwrap_or_else(|| {
                is_changed = true;
                (error.clone(), LoggedReasons::default())
            });
            if logged.note(&error) {
                is_changed = true;
                let text = &error.text;
                tracing::error!(
                    pair = self.config.name,
                    step,
                    error = text,
                    "fails, will retry"
                );
            }
            self.failing.insert(step, (error, logged));
        }
        is_changed || number != self.failing.len()
    }

    /// Returns a finding for taking families, for keeping their names, and for each recount that
    /// fails.
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (step, (error, _)) in &self.failing {
            let advice = match step.as_str() {
                TAKING => {
                    "New tenants are refused meanwhile. The daemon needs ~cf1:wanted and +spop, and the \
                     key cf1:wanted must be a set"
                }
                KEEPING => {
                    "Hits of tenants that a backup of MySQL lacks may wait. The daemon needs ~cf1:kept, \
                     +zadd, +zrem and +zrangebylex, and the key cf1:kept must be a sorted set"
                }
                _ => "Correct its source in the configuration, or grant SELECT on it",
            };
            findings.push(Finding::new(Severity::Error, step, &error.text, advice));
        }
        findings
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
        let names: Vec<_> = names.into_iter().collect();
        // before they are registered: from then on no client announces them
        self.keep(&names).await;
        let (pair, counterfoil) = (&self.config.name, &self.counterfoil);
        let mut configured = Vec::new();
        for name in names {
            if let Some(config) = self.config.family(&name) {
                configured.push((name, config.clone()));
            }
        }
        let attempts = stream::iter(configured)
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
        for (name, config, opened) in attempts {
            match opened {
                Ok(counters) => {
                    if self.refused.remove(&name).is_some() {
                        tracing::info!(pair, family = name, "family was opened");
                    }
                    // a family that was announced again may be recounted already
                    if !self.recounters.contains_key(&name) {
                        match start_recount(counterfoil, &counters, &config) {
                            Ok(Some(recounter)) => {
                                self.recounters.insert(name.clone(), recounter);
                            }
                            Ok(None) => {}
                            Err(error) => {
                                tracing::error!(pair, family = name, error = %format_args!("{error:#}"), "recount was not started");
                            }
                        }
                    }
                    self.opened.insert(name);
                }
                Err(error) => {
                    let reason = Reason::from(error);
                    let before = self.refused.remove(&name);
                    let mut logged = before.map(|(_, logged)| logged).unwrap_or_default();
                    if logged.note(&reason) {
                        let error = &reason.text;
                        tracing::error!(pair, family = name, error, "family was not opened");
                    }
                    self.refused.insert(name, (reason, logged));
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
    families::recount(counterfoil, counters, recount)
        .map(|builder| builder.every(every..=every + every / 4).start())
        .transpose()
}
