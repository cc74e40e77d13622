//! The worker of one pair: it waits for the servers, opens the families, brings everything to
//! MySQL, and publishes the state.

use std::collections::BTreeSet;
use std::future::ready;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use counterfoil::admin::{Finding, Severity};
use counterfoil::store::Registration;
use counterfoil::{Counterfoil, Error, ErrorKind, Reconciler, Result};
use tokio::select;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

use super::failing::{self, FailingLog};
use super::families::Families;
use super::overview::Overviews;
use super::sampling::sample;
use super::servers::{MYSQL, REDIS};
use super::systemd;
use crate::config::{Config, PairConfig, Serve};
use crate::limits::{CHECK_ADVICE, CHECK_TIMEOUT, ticks, with_timeout};
use crate::pair;
use crate::probe::Probe;
use crate::reason::{LoggedReasons, Reason};
use crate::state::PairState;
use crate::status::unix_now;
use crate::view::{FailingView, FindingView};
use crate::{certificates, families};

/// The interval between reads of MySQL's overview.
const OVERVIEW: Duration = Duration::from_secs(5);
/// The interval at which a worker reads the database's families, retries refused ones, and runs
/// `check`.
const UPKEEP: Duration = Duration::from_secs(30);
/// The interval of upkeep while `check` finds errors, so that they disappear soon after their
/// cause.
const RECHECK: Duration = Duration::from_secs(5);
/// The interval at which a worker checks that its reconciler runs and succeeds.
const SUPERVISION: Duration = Duration::from_secs(1);
/// The interval between reads of the certificates' ends.
const CERTIFICATES: Duration = Duration::from_mins(10);
/// The interval at which a worker takes the families that clients announced. Clients wait for a
/// second by default.
const WANTED: Duration = Duration::from_millis(200);
/// The time that must pass after the recovery of a server before failing steps are logged. Each
/// step is retried within it, and those that failed because of the outage succeed.
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
        let mysql = Probe::mysql(self.config.mysql.clone());
        watching.spawn(MYSQL.watch(state.clone(), mysql));
        let connected = select! {
            connected = self.connect() => connected,
            () = stop.cancelled() => return Ok(()),
            ended = wait_for_end(&mut watching) => return Err(ended),
        };
        self.state.connected.send_replace(Some(connected.clone()));
        let redis = Probe::Redis(connected.redis().clone());
        watching.spawn(REDIS.watch(state.clone(), redis));
        watching.spawn(watch_certificates(self.config.clone(), state.clone()));
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
        // `stop` drops the current step, which may be waiting for a silent server. Saving must not
        // wait for it
        select! {
            () = pair.work() => {}
            () = stop.cancelled() => {}
            ended = wait_for_end(&mut watching) => return Err(ended),
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
                    let name = &self.config.name;
                    systemd::set_status(name, &format!("waiting for Redis: {error:#}"));
                    REDIS.record(&self.state, Err(error.into()), 0);
                }
            }
            sleep(RETRY_PAUSE).await;
        }
    }
}

/// Reads periodically when the certificates end. Never returns.
async fn watch_certificates(config: PairConfig, state: Arc<PairState>) {
    let mut ticks = ticks(CERTIFICATES);
    loop {
        ticks.tick().await;
        let read = certificates::read(&config).await;
        state.update(|view| view.certificates = read);
    }
}

/// Waits for the end of one of the tasks, which run until they are dropped.
async fn wait_for_end(tasks: &mut JoinSet<()>) -> Error {
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
                _ = overviews.tick(), if is_working => self.read_overview().await,
                _ = upkeep.tick(), if is_working => {
                    self.maintain().await;
                    if views.borrow().checked.iter().any(FindingView::is_error) {
                        upkeep.reset_after(RECHECK);
                    }
                }
                _ = wanted.tick(), if is_working => self.open_wanted().await,
                Ok(()) = views.changed() => {}
            }
        }
    }

    /// Checks that the reconciler runs, and publishes which of its steps fail. Returns true if
    /// other steps fail than before: `check` is then due, because it may find the cause.
    fn supervise(&mut self) -> bool {
        let Some(reconciler) = &self.reconciler else {
            return false;
        };
        if !reconciler.is_running() {
            self.reconciler = None;
            let error = Error::new(ErrorKind::Closed, "the reconciler ended by a panic");
            self.report_not_running(error.into());
            return false;
        }
        let current = self.state.view.borrow().clone();
        let up_for = current.are_up().then(|| {
            let up_since = *self.up_since.get_or_insert_with(Instant::now);
            up_since.elapsed()
        });
        let failing = failing::views(reconciler.failing(), &current, up_for);
        if up_for.is_some_and(|up_for| up_for >= RECOVERY) {
            self.failing_log.log(&self.config.name, &failing);
        }
        let known = &current.reconciler.failing;
        let is_same = |(one, known): (&FailingView, &FailingView)| one.is_same_step(known);
        let is_changed = failing.len() != known.len() || !failing.iter().zip(known).all(is_same);
        // an update changes the view in place only if nothing else holds it. Otherwise it copies
        // the whole view
        drop(current);
        self.state.update(|view| view.set_failing(failing));
        self.families.supervise() || is_changed
    }

    /// Publishes and logs why the reconciler does not run.
    fn report_not_running(&self, reason: Reason) {
        let mut is_new = false;
        self.state.update(|view| {
            is_new = view.reconciler.logged.note(&reason);
            view.reconciler.running = false;
            view.reconciler.why = Some(reason.clone());
            view.set_failing(Vec::new());
        });
        let (pair, why) = (&self.config.name, reason.text.as_str());
        systemd::set_status(pair, why);
        if is_new {
            tracing::error!(pair, error = why, "start failed, will retry");
        }
    }

    /// Opens the families and starts the reconciler, which need both servers. Waits a moment after
    /// a failure.
    async fn start(&mut self) {
        if let Err(error) = self.try_start().await {
            self.report_not_running(error.into());
            sleep(RETRY_PAUSE).await;
        }
    }

    async fn try_start(&mut self) -> Result<()> {
        if self.config.create_tables {
            let create = self.counterfoil.mysql()?.create_tables();
            with_timeout(CHECK_TIMEOUT, create)
                .await
                .map_err(|why| Error::new(ErrorKind::Store, why.text))?;
        }
        self.families.open_configured().await;
        let mut builder = self.counterfoil.reconciler();
        match &self.config.serve {
            Serve::All => builder = builder.all(),
            Serve::Declared => {}
            Serve::Namespaces(namespaces) => {
                for name in namespaces {
                    builder = builder.namespace(name);
                }
            }
        }
        // the library's log lines name the pair, too; at any level of the filter
        let span = tracing::error_span!("reconciler", pair = self.config.name);
        self.reconciler = Some(builder.start().instrument(span).await?);
        self.state.update(|view| {
            view.reconciler.running = true;
            view.reconciler.why = None;
            view.reconciler.logged = LoggedReasons::default();
        });
        let (pair, families) = (&self.config.name, self.families.number());
        tracing::info!(pair, families, "started");
        systemd::set_status(pair, "running");
        Ok(())
    }

    /// Reads rejects, recounts and their differences from MySQL.
    async fn read_overview(&mut self) {
        let state = &self.state;
        let read = self
            .overviews
            .read(&self.counterfoil, &self.families, state);
        let result = with_timeout(CHECK_TIMEOUT, read).await;
        // exact reads compare a family's settings with those in the database, so the families are
        // read as often as the overview. An error of this read is not reported here: the next
        // upkeep reads them, too, and reports it. After a failed overview MySQL is not asked again,
        // because waiting twice for a silent MySQL would delay a reload
        state.record_read("overview", result.clone());
        if result.is_ok()
            && let Ok(names) = with_timeout(CHECK_TIMEOUT, self.read_families()).await
        {
            self.families.open_new(names).await;
        }
    }

    /// Retries refused families, reads those that Redis keeps and those of the database, and runs
    /// `check`.
    async fn maintain(&mut self) {
        self.families.retry_missing().await;
        self.families.open_kept().await;
        let read = with_timeout(CHECK_TIMEOUT, self.read_families()).await;
        let result = match read {
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
        state.record_read("check", result);
    }

    async fn open_wanted(&mut self) {
        let taken = with_timeout(CHECK_TIMEOUT, self.families.take_wanted()).await;
        self.families.open_wanted(taken).await;
    }

    /// Runs `check`, and continues to supervise the reconciler and to open what clients announce: they
    /// wait for less time than a locked table may hold up a check.
    async fn check(&mut self) {
        let counterfoil = self.counterfoil.clone();
        let mut check = pin!(with_timeout(CHECK_TIMEOUT, async move {
            Ok::<_, Error>(counterfoil.check().await)
        }));
        let (mut supervisions, mut wanted) = (ticks(SUPERVISION), ticks(WANTED));
        let result = loop {
            select! {
                result = &mut check => break result,
                _ = supervisions.tick() => drop(self.supervise()),
                _ = wanted.tick() => self.open_wanted().await,
            }
        };
        let checked = result.unwrap_or_else(|why| {
            let late = Finding::new(Severity::Error, "check", why.text, CHECK_ADVICE);
            vec![late]
        });
        let findings = [self.families.findings(), checked].concat();
        self.state.update(|view| {
            view.checked = FindingView::all(findings, &view.checked, unix_now());
        });
    }

    /// Reads the families that the database knows, and publishes them and those that are not served.
    /// Returns the names of all.
    async fn read_families(&self) -> Result<BTreeSet<String>> {
        let (known, unknown) = families::read_registered(self.counterfoil.store()).await?;
        let mut not_served = Vec::new();
        for registered in &known {
            if !self.serves(registered) {
                not_served.push(registered.family.to_string());
            }
        }
        not_served.extend(unknown.into_values());
        let before = self.state.view.borrow().not_served.clone();
        let new: Vec<_> = not_served
            .iter()
            .filter(|name| !before.contains(name))
            .take(MAX_NAMES)
            .cloned()
            .collect();
        if !new.is_empty() {
            let (pair, number) = (&self.config.name, not_served.len());
            tracing::warn!(
                pair,
                number,
                new = new.join("; "),
                "families in the database are not served"
            );
        }
        // published first: as soon as a family is known, an exact read by HTTP may open it
        self.state.update(|view| view.not_served = not_served);
        let names = known.iter().map(|known| known.family.to_string()).collect();
        self.state.set_known(known);
        Ok(names)
    }

    fn serves(&self, Registration { family, .. }: &Registration) -> bool {
        // such a namespace may have a family that another process has registered. It is not open
        // here yet, but the reconciler will open it
        self.config.serve.includes(family.namespace())
            || self.families.has(family)
            || self.families.describes(family)
    }

    /// Applies the families of a reloaded configuration. Without a reconciler, the next start opens
    /// them.
    async fn reload(&mut self) {
        let reloaded = self.reloads.borrow().pair(&self.config.name).cloned();
        self.families.config.families = reloaded.map(|pair| pair.families).unwrap_or_default();
        if self.reconciler.is_some() {
            self.families.open_configured().await;
            self.maintain().await;
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
