//! The worker of one pair: it waits for the servers, opens the families, brings everything to
//! MySQL, and publishes the state.

use std::collections::BTreeSet;
use std::future::ready;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use counterfoil::admin::{Finding, Severity};
use counterfoil::store::Registered;
use counterfoil::{Counterfoil, Error, ErrorKind, Reconciler, Result};
use tokio::select;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::failing::{self, FailingLog};
use super::families::Families;
use super::overview::Overviews;
use super::sampling::sample;
use super::servers::{MYSQL, REDIS, check_mysql, check_redis};
use super::systemd;
use crate::config::{Config, PairConfig, Serve};
use crate::families;
use crate::limits::{CHECK_ADVICE, CHECK_TIMEOUT, ticks, with_timeout};
use crate::pair;
use crate::state::PairState;
use crate::status::unix_now;
use crate::view::{FailingView, FindingView};

/// The interval between reads of MySQL's overview.
const OVERVIEW: Duration = Duration::from_secs(5);
/// The interval at which a worker reads the database's families, retries refused ones, and runs
/// `check`.
const UPKEEP: Duration = Duration::from_secs(30);
/// The interval while `check` finds errors: they may be over.
const RECHECK: Duration = Duration::from_secs(5);
/// The interval at which a worker checks that its reconciler runs and succeeds.
const SUPERVISION: Duration = Duration::from_secs(1);
/// The interval at which a worker takes the families that clients announced. Clients wait for a
/// second by default.
const WANTED: Duration = Duration::from_millis(200);
/// The time after a server's recovery from which failing steps are logged: each is retried before.
const RECOVERY: Duration = Duration::from_secs(3);
/// The pause after a server refused something, before the next attempt.
const RETRY_PAUSE: Duration = Duration::from_secs(2);
/// The maximum number of names in a line of the log.
const MAX_NAMES: usize = 50;
/// One pair of the daemon.
#[derive(Clone)]
pub struct Worker {
    pub config: PairConfig,
    /// The current configuration.
    pub reloads: watch::Receiver<Arc<Config>>,
    pub state: Arc<PairState>,
    pub stop: CancellationToken,
}

impl Worker {
    /// Works until it is stopped, then saves what it holds.
    ///
    /// # Errors
    /// An invalid setting of the pair, or a panic in one of its tasks.
    pub async fn run(self) -> Result<()> {
        let stop = self.stop.clone();
        let state = self.state.clone();
        state.forget_servers();
        let mut watching = JoinSet::new();
        let probe = pair::probe(&self.config);
        watching.spawn(MYSQL.watch(state.clone(), move || check_mysql(probe.clone())));
        let connected = select! {
            connected = self.connect() => connected,
            () = stop.cancelled() => return Ok(()),
            ended = ended(&mut watching) => return Err(ended),
        };
        self.state.connected.send_replace(Some(connected.clone()));
        let connection = connected.redis().clone();
        watching.spawn(REDIS.watch(state.clone(), move || check_redis(connection.clone())));
        watching.spawn(sample(connected.clone(), state));
        let families = Families::new(self.config.clone(), connected.clone());
        let mut pair = ConnectedWorker {
            config: self.config,
            reloads: self.reloads,
            state: self.state,
            counterfoil: connected,
            families,
            up_since: None,
            reconciler: None,
            overviews: Overviews::default(),
            failing_log: FailingLog::default(),
        };
        // a step that waits for a silent server is given up
        select! {
            () = pair.work() => {}
            () = stop.cancelled() => {}
            ended = ended(&mut watching) => return Err(ended),
        }
        pair.finish().await;
        Ok(())
    }

    /// Retries until it has a connection to Redis.
    async fn connect(&self) -> Counterfoil {
        loop {
            match pair::connect(&self.config).await {
                Ok(pair) => return pair,
                Err(error) => {
                    REDIS.record(&self.state, Err(format!("{error:#}")), 0);
                    let name = &self.config.name;
                    systemd::status(name, &format!("waiting for Redis: {error:#}"));
                }
            }
            sleep(RETRY_PAUSE).await;
        }
    }
}

/// Waits for the end of one of the tasks, which run until they are dropped.
async fn ended(tasks: &mut JoinSet<()>) -> Error {
    let ended = tasks.join_next().await;
    let error = Error::new(ErrorKind::Closed, "a task of the pair ended");
    match ended {
        Some(Err(panicked)) => error.with_source(panicked),
        _ => error,
    }
}

/// A pair with a connection to Redis.
struct ConnectedWorker {
    config: PairConfig,
    reloads: watch::Receiver<Arc<Config>>,
    state: Arc<PairState>,
    counterfoil: Counterfoil,
    families: Families,
    /// The time since which both servers are up.
    up_since: Option<Instant>,
    reconciler: Option<Reconciler>,
    overviews: Overviews,
    failing_log: FailingLog,
}

impl ConnectedWorker {
    /// Works step by step. Never returns.
    async fn work(&mut self) {
        let mut reloads = self.reloads.clone();
        let (mut overviews, mut upkeep, mut wanted) =
            (ticks(OVERVIEW), ticks(UPKEEP), ticks(WANTED));
        let mut supervisions = ticks(SUPERVISION);
        let mut views = self.state.view.subscribe();
        let mut were_up = false;
        loop {
            let is_started = self.reconciler.is_some();
            // steps that need MySQL are skipped while a server is down
            let both_up = views.borrow_and_update().are_up();
            if both_up != were_up {
                upkeep.reset_immediately();
            }
            were_up = both_up;
            let is_working = is_started && both_up;
            if !both_up {
                self.up_since = None;
            }
            select! {
                biased;
                Ok(()) = reloads.changed() => {
                    self.reload().await;
                }
                _ = supervisions.tick(), if is_started => {
                    if self.supervise() {
                        upkeep.reset_immediately();
                    }
                }
                () = ready(()), if !is_started && both_up => self.start().await,
                _ = overviews.tick(), if is_working => self.overview().await,
                _ = upkeep.tick(), if is_working => {
                    self.upkeep().await;
                    if views.borrow().checked.iter().any(FindingView::is_error) {
                        upkeep.reset_after(RECHECK);
                    }
                }
                _ = wanted.tick(), if is_working => {
                    let taken = with_timeout(CHECK_TIMEOUT, self.families.take_wanted()).await;
                    self.families.open_wanted(taken).await;
                }
                Ok(()) = views.changed() => {}
            }
        }
    }

    /// Checks that the reconciler runs, and publishes which of its steps fail. Returns true if others
    /// fail than before: then `check` may find something else.
    fn supervise(&mut self) -> bool {
        let Some(reconciler) = &self.reconciler else {
            return false;
        };
        if !reconciler.is_running() {
            self.reconciler = None;
            self.not_running("the reconciler ended by a panic".to_owned());
            return false;
        }
        let current = self.state.view.borrow().clone();
        let failing = failing::views(reconciler.failing(), &current);
        let up_since = *self.up_since.get_or_insert_with(Instant::now);
        if current.are_up() && up_since.elapsed() >= RECOVERY {
            self.failing_log.log(&self.config.name, &failing);
        }
        let known = &current.reconciler.failing;
        let is_same = |(one, known): (&FailingView, &FailingView)| one.is_same_step(known);
        let is_changed = failing.len() != known.len() || !failing.iter().zip(known).all(is_same);
        // the update would copy a view that is in use
        drop(current);
        self.state.update(|view| view.set_failing(failing));
        self.families.supervise() || is_changed
    }

    /// Publishes and logs why the reconciler does not run.
    fn not_running(&self, why: String) {
        let mut is_new = false;
        self.state.update(|view| {
            is_new = view.reconciler.why.as_ref() != Some(&why);
            view.reconciler.running = false;
            view.reconciler.why = Some(why.clone());
            view.set_failing(Vec::new());
        });
        let pair = &self.config.name;
        systemd::status(pair, &why);
        if is_new {
            tracing::error!(pair, error = why, "start failed, will retry");
        }
    }

    /// Opens the families and starts the reconciler, which need both servers. Waits a moment after
    /// a failure.
    async fn start(&mut self) {
        if let Err(error) = self.try_start().await {
            self.not_running(format!("{error:#}"));
            sleep(RETRY_PAUSE).await;
        }
    }

    async fn try_start(&mut self) -> Result<()> {
        let config = &self.config;
        if config.create_tables {
            let create = self.counterfoil.mysql()?.create_tables();
            let created = with_timeout(CHECK_TIMEOUT, create).await;
            created.map_err(|why| Error::new(ErrorKind::Store, why))?;
        }
        self.families.open_configured().await;
        let reconciler = self.counterfoil.reconciler();
        let reconciler = match &self.config.serve {
            Serve::All => reconciler.all(),
            Serve::Declared => reconciler,
            Serve::Namespaces(namespaces) => namespaces
                .iter()
                .fold(reconciler, |one, name| one.namespace(name)),
        };
        self.reconciler = Some(reconciler.start().await?);
        self.state.update(|view| {
            view.reconciler.running = true;
            view.reconciler.why = None;
        });
        let (pair, families) = (&self.config.name, self.families.number());
        tracing::info!(pair, families, "started");
        systemd::status(pair, "running");
        Ok(())
    }

    /// Reads rejects, recounts and their differences from MySQL.
    async fn overview(&mut self) {
        let state = &self.state;
        let read = self
            .overviews
            .read(&self.counterfoil, &self.families, state);
        let read = with_timeout(CHECK_TIMEOUT, read).await;
        // exact reads compare the settings of families; an upkeep reports an error. A silent MySQL is
        // waited for once, so that it does not delay a reload
        state.looked("overview", read.clone());
        if read.is_ok()
            && let Ok(names) = with_timeout(CHECK_TIMEOUT, self.read_families()).await
        {
            self.families.open_new(names).await;
        }
    }

    /// Retries refused families, reads those of the database, and runs `check`.
    async fn upkeep(&mut self) {
        self.families.retry_missing().await;
        let read = with_timeout(CHECK_TIMEOUT, self.read_families()).await;
        let read = match read {
            Ok(names) => {
                self.families.open_new(names).await;
                Ok(())
            }
            Err(why) => Err(why),
        };
        self.check().await;
        let refused = self.families.refused();
        let state = &self.state;
        state.update(|view| view.refused = refused);
        state.looked("check", read);
    }

    /// Runs `check`, and continues to supervise the reconciler meanwhile.
    async fn check(&mut self) {
        let counterfoil = self.counterfoil.clone();
        let check = async move { Ok::<_, String>(counterfoil.check().await) };
        let mut check = pin!(with_timeout(CHECK_TIMEOUT, check));
        let mut supervisions = ticks(SUPERVISION);
        let checked = loop {
            select! {
                checked = &mut check => break checked,
                _ = supervisions.tick() => drop(self.supervise()),
            }
        };
        let late = |why| Finding::new(Severity::Error, "check", why, CHECK_ADVICE);
        let checked = checked.unwrap_or_else(|why| vec![late(why)]);
        let findings = [self.families.findings(), checked].concat();
        self.state.update(|view| {
            view.checked = FindingView::all(findings, &view.checked, unix_now());
        });
    }

    /// Reads the families that the database knows, and publishes them and those that are not served.
    /// Returns the names of all.
    async fn read_families(&self) -> Result<BTreeSet<String>> {
        let (known, unknown) = families::registered(self.counterfoil.store()).await?;
        let others = known.iter().filter(|registered| !self.serves(registered));
        let others = others.map(|registered| registered.family.to_string());
        let not_served: Vec<_> = others.chain(unknown.into_values()).collect();
        let before = self.state.view.borrow().not_served.clone();
        let new = not_served.iter().filter(|name| !before.contains(name));
        let new: Vec<_> = new.take(MAX_NAMES).cloned().collect();
        if !new.is_empty() {
            let (pair, number) = (&self.config.name, not_served.len());
            tracing::warn!(
                pair,
                number,
                new = new.join("; "),
                "families in the database are not served"
            );
        }
        // first, since a read of a known family opens it
        self.state.update(|view| view.not_served = not_served);
        let names = known.iter().map(|known| known.family.to_string()).collect();
        self.state.set_known(known);
        Ok(names)
    }

    fn serves(&self, Registered { family, .. }: &Registered) -> bool {
        // one of another daemon is opened next
        self.config.serve.includes(family.namespace())
            || self.families.has(family)
            || self.families.describes(family)
    }

    /// Applies the families of a reloaded configuration. Without a reconciler, the next start opens
    /// them.
    async fn reload(&mut self) {
        let reloaded = self.reloads.borrow().pair(&self.config.name).cloned();
        let reloaded = reloaded.map(|pair| pair.families);
        self.families.config.families = reloaded.unwrap_or_default();
        if self.reconciler.is_some() {
            self.families.open_configured().await;
            self.upkeep().await;
        }
    }

    /// Stops the recounts and the reconciler, which saves what it holds.
    async fn finish(&mut self) {
        self.families.stop().await;
        if let Some(reconciler) = self.reconciler.take()
            && let Err(error) = reconciler.shutdown().await
        {
            tracing::error!(pair = self.config.name, error = %format_args!("{error:#}"), "shutdown of the reconciler failed");
        }
    }
}
