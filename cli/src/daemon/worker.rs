//! What the daemon does for one pair: it waits for the servers, opens the families that are described, brings
//! everything to MySQL, and looks at it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use counterfoil::{Counterfoil, Overview, Reconciler, Registered, Result, Store};
use futures_util::{StreamExt, stream};
use tokio::select;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Interval, MissedTickBehavior, interval, sleep};

use super::discovery::{self, Nodes};
use super::live::LivePair;
use super::recounts::Recounts;
use super::rejects::Told;
use super::samples;
use super::servers::{self, Server};
use super::systemd;
use crate::config::{FamilyConfig, PairConfig, Serve};
use crate::pair::{self, Pair, Redis, with_pair};
use crate::status;
use crate::view::{DriftView, FindingView, RecountView, Refused, RejectView};

/// How often what MySQL knows is read.
const OVERVIEW: Duration = Duration::from_secs(5);
/// How often the families of the database are read, those that were refused are opened again, and `check` is run.
const UPKEEP: Duration = Duration::from_secs(30);
/// Between two attempts at what a server refused.
const AGAIN: Duration = Duration::from_secs(2);
/// How many families are opened at a time.
const OPENING: usize = 16;
/// How many names a line of the log has.
const NAMES: usize = 50;
/// How many rejects and differences are shown.
const SHOWN: u64 = 20;

/// One pair of the daemon.
pub struct Worker {
    pub config: PairConfig,
    /// Those of all pairs.
    pub families: watch::Receiver<Arc<[FamilyConfig]>>,
    pub live: Arc<LivePair>,
    pub stop: watch::Receiver<bool>,
}

impl Worker {
    /// Works until it is told to stop, and then finishes what it holds.
    pub async fn run(mut self) {
        let mut stop = self.stop.clone();
        let stopped = async move { stop.wait_for(|stop| *stop).await.map(drop) };
        let mut redis = Server::new(&self.config.name, "redis");
        let connected = select! {
            connected = self.connect(&mut redis) => connected,
            _ = stopped => return,
        };
        self.live.connected.send_replace(Some(connected.clone()));
        with_pair!(connected, counterfoil => self.work(counterfoil, redis).await);
    }

    /// Waits for Redis.
    async fn connect(&self, redis: &mut Server) -> Pair {
        loop {
            match Pair::connect(&self.config).await {
                Ok(pair) => return pair,
                Err(error) => {
                    let view = redis.found(Err(error.to_string()), 0);
                    self.live.show(|pair| pair.redis = view);
                    systemd::status(&format!("pair {} waits for Redis: {error}", self.config.name));
                }
            }
            sleep(AGAIN).await;
        }
    }

    async fn work<C>(&mut self, counterfoil: Counterfoil<C>, redis: Server)
    where
        C: Redis + Nodes,
    {
        let Ok(probe) = pair::probe(&self.config) else { return };
        let servers = (redis, Server::new(&self.config.name, "mysql"));
        let (found, both_up) = watch::channel(false);
        let watching = servers::watch(servers, (counterfoil.redis().clone(), probe), self.live.clone(), found);
        let (overview, known) = watch::channel(Vec::new());
        let sampling = samples::watch(counterfoil.clone(), known, self.live.clone());
        let watching = [tokio::spawn(watching), tokio::spawn(sampling)];
        let mut pair = Working {
            worker: self,
            counterfoil,
            both_up,
            reconciler: None,
            recounts: Recounts::default(),
            opened: BTreeSet::new(),
            refused: BTreeMap::new(),
            overview,
            told: Told::default(),
            drift_of: BTreeMap::new(),
        };
        pair.work().await;
        watching.iter().for_each(JoinHandle::abort);
    }
}

/// A pair whose Redis was there.
struct Working<'w, C> {
    worker: &'w mut Worker,
    counterfoil: Counterfoil<C>,
    /// Whether both servers are there.
    both_up: watch::Receiver<bool>,
    reconciler: Option<Reconciler>,
    recounts: Recounts,
    /// The families that are described and opened.
    opened: BTreeSet<Name>,
    /// Why others were not.
    refused: BTreeMap<Name, String>,
    /// What MySQL last knew of each family.
    overview: watch::Sender<Vec<Overview>>,
    told: Told,
    /// Of which run, with how many differences, the drift of a family was read.
    drift_of: BTreeMap<String, (u64, u64)>,
}

/// A family's namespace and its name.
type Name = (String, String);

/// What there is to do next.
enum Next {
    Begin,
    Overview,
    Upkeep,
    Discover,
    Reload,
    Stop,
}

impl<C> Working<'_, C>
where
    C: Redis + Nodes,
{
    async fn work(&mut self) {
        let mut stop = self.worker.stop.clone();
        let mut families = self.worker.families.clone();
        let discover = self.worker.config.discover.max(Duration::from_millis(100));
        let (mut overviews, mut upkeep, mut discoveries) = (every(OVERVIEW), every(UPKEEP), every(discover));
        let (mut both_up, mut turned) = (self.both_up.clone(), self.both_up.clone());
        loop {
            let is_begun = self.reconciler.is_some();
            // what needs MySQL does not wait for it
            let works = is_begun && *both_up.borrow();
            let next = select! {
                biased;
                _ = stop.wait_for(|stop| *stop) => Next::Stop,
                changed = families.changed() => if changed.is_ok() { Next::Reload } else { Next::Stop },
                _ = both_up.wait_for(|up| *up), if !is_begun => Next::Begin,
                changed = turned.changed(), if is_begun => if changed.is_ok() { continue } else { Next::Stop },
                _ = overviews.tick(), if works => Next::Overview,
                _ = upkeep.tick(), if works => Next::Upkeep,
                _ = discoveries.tick(), if works => Next::Discover,
            };
            match next {
                Next::Begin => self.begin().await,
                Next::Overview => self.overview().await,
                Next::Upkeep => self.upkeep().await,
                Next::Discover => self.discover().await,
                Next::Reload => self.reload().await,
                Next::Stop => return self.finish().await,
            }
        }
    }

    /// What can be done only when both servers are there.
    async fn begin(&mut self) {
        if let Err(error) = self.try_begin().await {
            let pair = &self.worker.config.name;
            tracing::error!(pair, %error, "not begun, which is tried again");
            systemd::status(&format!("pair {pair}: {error}"));
            sleep(AGAIN).await;
        }
    }

    async fn try_begin(&mut self) -> Result<()> {
        let config = &self.worker.config;
        if config.create_tables {
            self.counterfoil.store().create_tables().await?;
        }
        let names = described_names(&self.worker.families.borrow(), &config.name);
        self.open(names).await;
        let reconciler = self.counterfoil.reconciler();
        let reconciler = match &self.worker.config.serve {
            Serve::All => reconciler.all(),
            Serve::Declared => reconciler,
            Serve::Namespaces(namespaces) => namespaces.iter().fold(reconciler, |one, name| one.namespace(name)),
        };
        self.reconciler = Some(reconciler.start().await?);
        let (pair, families) = (&self.worker.config.name, self.opened.len());
        tracing::info!(pair, families, "begun");
        systemd::status(&format!("pair {pair}: works"));
        Ok(())
    }

    /// Opens families by their names, as they are described.
    async fn open(&mut self, names: impl IntoIterator<Item = Name>) {
        let described = self.worker.families.borrow().clone();
        let pair = self.worker.config.name.clone();
        let find = |(namespace, name): &Name| {
            described.iter().find(|family| family.pair == pair && family.describes(namespace, name)).cloned()
        };
        let names = names.into_iter().filter_map(|name| find(&name).map(|config| (name, config)));
        let counterfoil = &self.counterfoil;
        let opened = stream::iter(names.collect::<Vec<_>>())
            .map(async |(name, config)| {
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
                        tracing::error!(pair, family, error = reason, "not opened");
                    }
                }
            }
        }
    }

    /// Finds namespaces in Redis that the described families are counted in.
    async fn discover(&mut self) {
        let has_patterns = {
            let families = self.worker.families.borrow();
            families.iter().any(|family| family.pair == self.worker.config.name && family.is_pattern())
        };
        if !has_patterns {
            return;
        }
        match discovery::families(self.counterfoil.redis()).await {
            Ok(found) => {
                let new: Vec<_> = found.difference(&self.opened).cloned().collect();
                self.open(new).await;
            }
            Err(error) => {
                tracing::warn!(pair = self.worker.config.name, %error, "Redis was not searched for namespaces")
            }
        }
    }

    /// What MySQL knows: rejects, recounts and what they found.
    async fn overview(&mut self) {
        let store = self.counterfoil.store();
        let (Ok(overview), Ok(latest)) = (store.overview().await, store.latest_rejects(SHOWN).await) else { return };
        self.told.tell(&self.worker.config.name, &latest);
        let mut recounts = Vec::new();
        for one in &overview {
            let Some(run) = &one.recount else { continue };
            let family = format!("{}/{}", one.namespace, one.family);
            let own = self.recounts.progress(&family).filter(|own| own.run == run.run);
            recounts.push(RecountView {
                run: run.run,
                checked: own.as_ref().map_or(run.checked, |own| own.checked),
                drifted: own.as_ref().map_or(run.drifted, |own| own.drifted),
                about: own.map(|own| own.about),
                started: status::unix_seconds(run.started),
                finished: run.finished.map(status::unix_seconds),
                family,
            });
        }
        self.overview.send_replace(overview);
        let drift = self.drift(&recounts).await;
        self.worker.live.show(|view| {
            view.rejects = latest.iter().map(RejectView::from).collect();
            view.recounts = recounts;
            view.drift.splice(0..0, drift);
            view.drift.sort_by_key(|drift| std::cmp::Reverse(drift.at));
            view.drift.truncate(SHOWN as usize);
        });
    }

    /// What the latest runs found that was not read before.
    async fn drift(&mut self, recounts: &[RecountView]) -> Vec<DriftView> {
        let mut found = Vec::new();
        for RecountView { family, run, drifted, .. } in recounts.iter().filter(|recount| recount.drifted > 0) {
            if self.drift_of.get(family) == Some(&(*run, *drifted)) {
                continue;
            }
            let Some(Registered { family: known, .. }) = self.worker.live.known(family) else { continue };
            let Ok(read) = self.counterfoil.store().drift(&known, *run, None, SHOWN).await else { continue };
            self.drift_of.insert(family.clone(), (*run, *drifted));
            let shown: BTreeSet<_> = {
                let view = self.worker.live.view.borrow();
                view.drift
                    .iter()
                    .filter(|one| one.family == *family && one.run == *run)
                    .map(|one| one.id.clone())
                    .collect()
            };
            let new = read.iter().filter(|drift| !shown.contains(&drift.id));
            found.extend(new.map(|drift| DriftView::new(family, *run, drift)));
        }
        found
    }

    /// Now and then: what was refused is tried again, and `check` looks at the servers.
    async fn upkeep(&mut self) {
        let mut again = described_names(&self.worker.families.borrow(), &self.worker.config.name);
        again.retain(|name| !self.opened.contains(name));
        again.extend(self.refused.keys().cloned());
        self.open(again).await;
        let not_served = self.look_at_families().await;
        let findings = self.counterfoil.check().await;
        let refused = self.refused.iter().map(|((namespace, name), reason)| Refused {
            family: format!("{namespace}/{name}"),
            reason: reason.clone(),
        });
        let refused = refused.collect();
        self.worker.live.show(|view| {
            view.findings = findings.iter().map(FindingView::from).collect();
            view.refused = refused;
            if let Some(not_served) = not_served {
                view.not_served = not_served;
            }
        });
    }

    /// Reads the families that the database knows, and returns those that are not served.
    async fn look_at_families(&self) -> Option<Vec<String>> {
        let found = self.counterfoil.store().families().await.ok()?;
        let (mut known, mut not_served) = (Vec::new(), Vec::new());
        for one in found {
            match one {
                Ok(registered) => {
                    if !self.serves(&registered) {
                        not_served.push(registered.family.to_string());
                    }
                    known.push(registered);
                }
                Err(error) => not_served.push(error.to_string()),
            }
        }
        let before = self.worker.live.view.borrow().not_served.clone();
        let new: Vec<_> = not_served.iter().filter(|name| !before.contains(name)).take(NAMES).cloned().collect();
        if !new.is_empty() {
            let (pair, number) = (&self.worker.config.name, not_served.len());
            tracing::warn!(pair, number, new = new.join("; "), "in the database, and not served");
        }
        self.worker.live.set_known(known);
        Some(not_served)
    }

    fn serves(&self, Registered { family, .. }: &Registered) -> bool {
        let in_scope = match &self.worker.config.serve {
            Serve::All => true,
            Serve::Declared => false,
            Serve::Namespaces(namespaces) => namespaces.iter().any(|namespace| namespace == family.namespace()),
        };
        in_scope || self.opened.contains(&(family.namespace().to_owned(), family.name().to_owned()))
    }

    /// The configuration was read again: families that are new or described otherwise are opened. One that is not described any
    /// more goes on until the daemon ends.
    async fn reload(&mut self) {
        if self.reconciler.is_none() {
            return;
        }
        self.recounts.stop().await;
        let mut names = described_names(&self.worker.families.borrow_and_update(), &self.worker.config.name);
        names.extend(self.opened.iter().cloned());
        self.open(names).await;
        self.discover().await;
        self.upkeep().await;
    }

    /// Finishes what is held.
    async fn finish(&mut self) {
        self.recounts.stop().await;
        if let Some(reconciler) = self.reconciler.take()
            && let Err(error) = reconciler.shutdown().await
        {
            tracing::error!(pair = self.worker.config.name, %error, "not ended as it should");
        }
    }
}

/// The families of a pair that are described one by one.
fn described_names(families: &[FamilyConfig], pair: &str) -> BTreeSet<Name> {
    let of_pair = families.iter().filter(|family| family.pair == pair && !family.is_pattern());
    of_pair.map(|family| (family.namespace.clone(), family.family.clone())).collect()
}

fn every(time: Duration) -> Interval {
    let mut ticks = interval(time);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}
