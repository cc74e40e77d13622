//! The worker of one pair: it waits for the servers, opens the families, brings everything to
//! MySQL, and publishes the state.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use counterfoil::admin::Overview;
use counterfoil::store::Registered;
use counterfoil::{Counterfoil, Reconciler, Result};
use tokio::select;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::families::Families;
use super::reject_log::RejectLog;
use super::servers::{self, Server};
use super::state::{PairState, is_set};
use super::systemd;
use crate::config::{FamilyConfig, PairConfig, Serve};
use crate::pair;
use crate::poll::ticks;
use crate::sampler::Sampler;
use crate::status::{self, LATE};
use crate::view::{DriftView, RecountView, RejectView};

/// The interval between reads of MySQL's overview.
const OVERVIEW: Duration = Duration::from_secs(5);
/// The interval at which a worker reads the database's families, retries refused ones, and runs
/// `check`.
const UPKEEP: Duration = Duration::from_secs(30);
/// The pause after a server refused something, before the next attempt.
const RETRY_PAUSE: Duration = Duration::from_secs(2);
/// The maximum number of names in a line of the log.
const MAX_NAMES: usize = 50;
/// The maximum number of rejects, and of differences, to show.
const MAX_SHOWN: u64 = 20;
/// The pause between samples of the families.
const SAMPLE_PAUSE: Duration = Duration::from_secs(2);
/// The pause if there are many families: a sample of 10,000 takes Redis about 100 ms.
const SAMPLE_PAUSE_OF_MANY: Duration = Duration::from_secs(10);
const MANY_FAMILIES: usize = 1_000;

/// One pair of the daemon.
#[derive(Clone)]
pub struct Worker {
    pub config: PairConfig,
    /// The configured families of all pairs.
    pub families: watch::Receiver<Arc<[FamilyConfig]>>,
    pub state: Arc<PairState>,
    pub stop: watch::Receiver<bool>,
}

impl Worker {
    /// Works until `stop` is set, then saves what it holds.
    pub async fn run(mut self) {
        let mut stop = self.stop.clone();
        let mut redis = Server::new(&self.config.name, "redis");
        let connected = select! {
            connected = self.connect(&mut redis) => connected,
            () = is_set(&mut stop) => return,
        };
        self.state.connected.send_replace(Some(connected.clone()));
        self.work(connected, redis).await;
    }

    /// Retries until it has a connection to Redis.
    async fn connect(&self, redis: &mut Server) -> Counterfoil {
        loop {
            match pair::connect(&self.config).await {
                Ok(pair) => return pair,
                Err(error) => {
                    let view = redis.record(Err(format!("{error:#}")), 0);
                    self.state.update(|pair| pair.redis = view);
                    let name = &self.config.name;
                    systemd::status(&format!("pair {name}: waiting for Redis: {error:#}"));
                }
            }
            sleep(RETRY_PAUSE).await;
        }
    }

    async fn work(&mut self, counterfoil: Counterfoil, redis: Server) {
        let probe = pair::probe(&self.config);
        let servers = (redis, Server::new(&self.config.name, "mysql"));
        let connections = (counterfoil.redis().clone(), probe);
        let (set_both_up, both_up) = watch::channel(false);
        let watching = servers::watch(servers, connections, self.state.clone(), set_both_up);
        let (overview, known) = watch::channel(Vec::new());
        let sampling = sample(counterfoil.clone(), known, self.state.clone());
        let watching = [tokio::spawn(watching), tokio::spawn(sampling)];
        let families = Families::new(
            self.config.name.clone(),
            counterfoil.clone(),
            self.families.clone(),
        );
        let mut pair = ConnectedWorker {
            worker: self,
            counterfoil,
            families,
            both_up,
            reconciler: None,
            overview,
            reject_log: RejectLog::default(),
            drift_of: BTreeMap::new(),
        };
        pair.work().await;
        watching.iter().for_each(JoinHandle::abort);
    }
}

/// A pair with a connection to Redis.
struct ConnectedWorker<'w> {
    worker: &'w mut Worker,
    counterfoil: Counterfoil,
    families: Families,
    /// True while both servers are up.
    both_up: watch::Receiver<bool>,
    reconciler: Option<Reconciler>,
    /// The last overview from MySQL.
    overview: watch::Sender<Vec<Overview>>,
    reject_log: RejectLog,
    /// The run, and its number of differences, at the last read of each family's drift.
    drift_of: BTreeMap<String, (u64, u64)>,
}

impl ConnectedWorker<'_> {
    async fn work(&mut self) {
        let mut stop = self.worker.stop.clone();
        let mut families = self.worker.families.clone();
        let discover = self.worker.config.discover.max(Duration::from_millis(100));
        let (mut overviews, mut upkeep, mut discoveries) =
            (ticks(OVERVIEW), ticks(UPKEEP), ticks(discover));
        let (mut both_up, mut up_changes) = (self.both_up.clone(), self.both_up.clone());
        loop {
            let is_started = self.reconciler.is_some();
            // steps that need MySQL are skipped while a server is down
            let is_working = is_started && *both_up.borrow();
            select! {
                biased;
                () = is_set(&mut stop) => return self.finish().await,
                Ok(()) = families.changed() => self.reload().await,
                () = is_set(&mut both_up), if !is_started => self.start().await,
                Ok(()) = up_changes.changed(), if is_started => {}
                _ = overviews.tick(), if is_working => self.overview().await,
                _ = upkeep.tick(), if is_working => self.upkeep().await,
                _ = discoveries.tick(), if is_working => self.families.discover().await,
            }
        }
    }

    /// Opens the families and starts the reconciler, which need both servers. Waits a moment after
    /// a failure.
    async fn start(&mut self) {
        if let Err(error) = self.try_start().await {
            let pair = &self.worker.config.name;
            tracing::error!(pair, error = %format_args!("{error:#}"), "start failed, will retry");
            systemd::status(&format!("pair {pair}: {error:#}"));
            sleep(RETRY_PAUSE).await;
        }
    }

    async fn try_start(&mut self) -> Result<()> {
        let config = &self.worker.config;
        if config.create_tables {
            self.counterfoil.mysql()?.create_tables().await?;
        }
        self.families.open_configured().await;
        let reconciler = self.counterfoil.reconciler();
        let reconciler = match &self.worker.config.serve {
            Serve::All => reconciler.all(),
            Serve::Declared => reconciler,
            Serve::Namespaces(namespaces) => namespaces
                .iter()
                .fold(reconciler, |one, name| one.namespace(name)),
        };
        self.reconciler = Some(reconciler.start().await?);
        let (pair, families) = (&self.worker.config.name, self.families.number());
        tracing::info!(pair, families, "started");
        systemd::status(&format!("pair {pair}: running"));
        Ok(())
    }

    /// Reads rejects, recounts and their differences from MySQL.
    async fn overview(&mut self) {
        let Ok(store) = self.counterfoil.mysql() else {
            return;
        };
        let (Ok(overview), Ok(latest)) = (
            store.overview().await,
            store.latest_rejects(MAX_SHOWN).await,
        ) else {
            return;
        };
        self.reject_log.log(&self.worker.config.name, &latest);
        let mut recounts = Vec::new();
        for one in &overview {
            let Some(run) = &one.recount else { continue };
            let family = format!("{}/{}", one.namespace, one.family);
            let own = self.families.recount(&family);
            let own = own.filter(|own| own.run == run.run);
            recounts.push(RecountView {
                run: run.run,
                checked: own.map_or(run.checked, |own| own.checked),
                drifted: own.map_or(run.drifted, |own| own.drifted),
                about: own.map(|own| own.about),
                started: status::unix_seconds(run.started),
                finished: run.finished.map(status::unix_seconds),
                family,
            });
        }
        self.overview.send_replace(overview);
        let drift = self.drift(&recounts).await;
        self.worker.state.update(|view| {
            view.rejects = RejectView::all(latest);
            view.recounts = recounts;
            view.drift = drift;
        });
    }

    /// Returns the latest differences, with those that current runs found since the last call.
    async fn drift(&mut self, recounts: &[RecountView]) -> Vec<DriftView> {
        let mut all = self.worker.state.view.borrow().drift.clone();
        let Ok(store) = self.counterfoil.mysql() else {
            return all;
        };
        for recount in recounts {
            let (family, run) = (&recount.family, recount.run);
            let seen = (run, recount.drifted);
            if recount.drifted == 0 || self.drift_of.get(family) == Some(&seen) {
                continue;
            }
            let Some(Registered { family: known, .. }) = self.worker.state.known(family) else {
                continue;
            };
            let Ok(drift) = store.drift(&known, run, None, MAX_SHOWN).await else {
                continue;
            };
            self.drift_of.insert(family.clone(), seen);
            all.retain(|one| one.family != *family || one.run != run);
            all.extend(DriftView::all(family, run, drift));
        }
        all.sort_by_key(|drift| Reverse(drift.at));
        all.truncate(MAX_SHOWN as usize);
        all
    }

    /// Retries refused families, reads those of the database, and runs `check`.
    async fn upkeep(&mut self) {
        self.families.retry_missing().await;
        let not_served = self.read_families().await;
        let findings = self.counterfoil.check().await;
        let refused = self.families.refused();
        self.worker.state.update(|view| {
            view.findings = findings;
            view.refused = refused;
            if let Some(not_served) = not_served {
                view.not_served = not_served;
            }
        });
    }

    /// Reads the families that the database knows, and returns those that are not served.
    async fn read_families(&self) -> Option<Vec<String>> {
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
                Err(error) => not_served.push(format!("{error:#}")),
            }
        }
        let before = self.worker.state.view.borrow().not_served.clone();
        let new = not_served.iter().filter(|name| !before.contains(name));
        let new: Vec<_> = new.take(MAX_NAMES).cloned().collect();
        if !new.is_empty() {
            let (pair, number) = (&self.worker.config.name, not_served.len());
            tracing::warn!(
                pair,
                number,
                new = new.join("; "),
                "families in the database are not served"
            );
        }
        self.worker.state.set_known(known);
        Some(not_served)
    }

    fn serves(&self, Registered { family, .. }: &Registered) -> bool {
        let in_scope = match &self.worker.config.serve {
            Serve::All => true,
            Serve::Declared => false,
            Serve::Namespaces(namespaces) => namespaces
                .iter()
                .any(|namespace| namespace == family.namespace()),
        };
        in_scope || self.families.has(family)
    }

    /// Applies a reloaded configuration.
    async fn reload(&mut self) {
        if self.reconciler.is_none() {
            return;
        }
        self.families.reload().await;
        self.upkeep().await;
    }

    /// Stops the recounts and the reconciler, which saves what it holds.
    async fn finish(&mut self) {
        self.families.stop().await;
        if let Some(reconciler) = self.reconciler.take()
            && let Err(error) = reconciler.shutdown().await
        {
            tracing::error!(pair = self.worker.config.name, error = %format_args!("{error:#}"), "shutdown of the reconciler failed");
        }
    }
}

/// Publishes the state of the families, with MySQL's last overview. It needs only Redis, and never
/// returns.
async fn sample(
    counterfoil: Counterfoil,
    overview: watch::Receiver<Vec<Overview>>,
    state: Arc<PairState>,
) {
    let mut sampler = Sampler::new(&state.name);
    loop {
        let overview = overview.borrow().clone();
        let mut pause = SAMPLE_PAUSE;
        if let Ok(families) = status::of_families(&counterfoil, &overview, LATE).await {
            if families.len() > MANY_FAMILIES {
                pause = SAMPLE_PAUSE_OF_MANY;
            }
            let families = sampler.sample(families);
            state.update(|view| view.families = families);
        }
        sleep(pause).await;
    }
}
