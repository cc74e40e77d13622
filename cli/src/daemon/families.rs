//! The families of one pair. The daemon opens the configured ones, also in namespaces that it
//! discovers, and recounts them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use counterfoil::{Counterfoil, Family, Recounted};
use futures_util::{StreamExt, stream};
use tokio::sync::watch;

use super::discovery;
use super::recounts::Recounts;
use crate::config::FamilyConfig;
use crate::view::Refused;

/// The maximum number of families that are opened concurrently.
const OPENING: usize = 16;

/// A family's namespace and its name.
type Name = (String, String);

pub struct Families {
    pair: String,
    counterfoil: Counterfoil,
    /// The configured families of all pairs.
    described: watch::Receiver<Arc<[FamilyConfig]>>,
    /// The families that are open.
    opened: BTreeSet<Name>,
    /// The reasons why others were not opened.
    refused: BTreeMap<Name, String>,
    recounts: Recounts,
}

impl Families {
    pub fn new(
        pair: String,
        counterfoil: Counterfoil,
        described: watch::Receiver<Arc<[FamilyConfig]>>,
    ) -> Self {
        let (opened, refused, recounts) = (BTreeSet::new(), BTreeMap::new(), Recounts::default());
        Families {
            pair,
            counterfoil,
            described,
            opened,
            refused,
            recounts,
        }
    }

    /// Opens the configured families, except patterns.
    pub async fn open_described(&mut self) {
        self.open(self.described_names()).await;
    }

    /// Retries the configured families that are not open.
    pub async fn open_missing(&mut self) {
        let mut again = self.described_names();
        again.retain(|name| !self.opened.contains(name));
        again.extend(self.refused.keys().cloned());
        self.open(again).await;
    }

    /// Searches Redis for namespaces of configured patterns, and opens the families found.
    pub async fn discover(&mut self) {
        let described = self.described.borrow().clone();
        if !of_pair(&described, &self.pair).any(FamilyConfig::is_pattern) {
            return;
        }
        match discovery::families(self.counterfoil.redis()).await {
            Ok(found) => {
                let new: Vec<_> = found.difference(&self.opened).cloned().collect();
                self.open(new).await;
            }
            Err(error) => {
                tracing::warn!(pair = self.pair, %error, "Redis was not searched for namespaces")
            }
        }
    }

    /// Opens families that are new or changed in a reloaded configuration. A family that is no
    /// longer configured stays open until the daemon ends.
    pub async fn reload(&mut self) {
        self.recounts.stop().await;
        let described = self.described.borrow().clone();
        self.refused
            .retain(|name, _| describing(&described, &self.pair, name).is_some());
        let mut names = self.described_names();
        names.extend(self.opened.iter().cloned());
        self.open(names).await;
        self.discover().await;
    }

    /// Returns the number of open families.
    pub fn number(&self) -> usize {
        self.opened.len()
    }

    pub fn has(&self, family: &Family) -> bool {
        self.opened
            .contains(&(family.namespace().to_owned(), family.name().to_owned()))
    }

    /// Returns the configured families that were not opened.
    pub fn refused(&self) -> Vec<Refused> {
        let view = |((namespace, name), reason): (&Name, &String)| Refused {
            family: format!("{namespace}/{name}"),
            reason: reason.clone(),
        };
        self.refused.iter().map(view).collect()
    }

    /// Returns the progress of the current or last recount of NAMESPACE/FAMILY.
    pub fn recount(&self, family: &str) -> Option<Recounted> {
        self.recounts.progress(family)
    }

    /// Stops the recounts where they are.
    pub async fn stop(&mut self) {
        self.recounts.stop().await;
    }

    /// Returns the names of the configured families, except patterns.
    fn described_names(&self) -> BTreeSet<Name> {
        let described = self.described.borrow();
        let single = of_pair(&described, &self.pair).filter(|family| !family.is_pattern());
        single
            .map(|family| (family.namespace.clone(), family.family.clone()))
            .collect()
    }

    /// Opens families by name, as configured.
    async fn open(&mut self, names: impl IntoIterator<Item = Name>) {
        let described = self.described.borrow().clone();
        let with_config = |name| Some((describing(&described, &self.pair, &name)?.clone(), name));
        let names: Vec<_> = names.into_iter().filter_map(with_config).collect();
        let counterfoil = &self.counterfoil;
        let opened = stream::iter(names)
            .map(async |(config, name)| {
                let opened = match config.in_namespace(&name.0) {
                    Ok(family) => counterfoil.open(family).await,
                    Err(error) => Err(error),
                };
                (name, config, opened)
            })
            .buffer_unordered(OPENING)
            .collect::<Vec<_>>()
            .await;
        for (name, config, opened) in opened {
            let begun = opened.and_then(|counters| {
                if let Some(recount) = &config.recount {
                    self.recounts.start(&self.counterfoil, &counters, recount)?;
                }
                Ok(())
            });
            match begun {
                Ok(()) => {
                    self.refused.remove(&name);
                    self.opened.insert(name);
                }
                Err(error) => {
                    let reason = error.to_string();
                    let family = format!("{}/{}", name.0, name.1);
                    if self.refused.insert(name, reason.clone()).as_ref() != Some(&reason) {
                        tracing::error!(pair = self.pair, family, error = reason, "not opened");
                    }
                }
            }
        }
    }
}

/// Returns the configured families of a pair.
fn of_pair<'a>(
    described: &'a [FamilyConfig],
    pair: &'a str,
) -> impl Iterator<Item = &'a FamilyConfig> {
    described.iter().filter(move |family| family.pair == pair)
}

/// Returns the configuration of a pair's family.
fn describing<'a>(
    described: &'a [FamilyConfig],
    pair: &'a str,
    name: &Name,
) -> Option<&'a FamilyConfig> {
    of_pair(described, pair).find(|family| family.describes(&name.0, &name.1))
}
