//! The daemon: a server process, of which any number may run.

pub mod discovery;
mod failing;
mod families;
pub mod metrics;
mod overview;
mod reject_log;
mod sampling;
mod servers;
pub mod state;
mod systemd;
mod worker;

use std::future::pending;
use std::io;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::select;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing_subscriber::EnvFilter;

use self::state::{DaemonState, PairState, is_set};
use self::worker::Worker;
use crate::config::{Config, FamilyConfig, HttpConfig, LogFormat, PairConfig};
use crate::exit::{Exit, Failure};
use crate::http::{self, Access};
use crate::view::ReconcilerView;

/// The default log filter, which `RUST_LOG` overrides. The daemon logs each state once, so this
/// hides the library's messages about every attempt.
const LOG_FILTER: &str = "info,counterfoil::reconciler=error,counterfoil::recount=error,counterfoil::writer=error,counterfoil::connection::failures=off,sqlx=error";
/// The pause before a worker that ended is started again.
const RESTART_PAUSE: Duration = Duration::from_secs(5);
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Runs until a signal ends the daemon.
pub async fn run(config: Config, path: &Path) -> Result<Exit, Failure> {
    start_log(config.log);
    tracing::info!(version = VERSION, "starting");
    let prometheus = metrics::install()
        .map_err(|error| Failure::warning(format!("metrics are unavailable: {error:#}")))?;
    let listener = match &config.http {
        Some(http) => Some(listen(http).await?),
        None => None,
    };
    let pairs = config.pairs.iter();
    let state = DaemonState {
        pairs: pairs
            .map(|pair| Arc::new(PairState::new(&pair.name)))
            .collect(),
    };
    let (stop, stopping) = watch::channel(false);
    let (families, configured) = watch::channel::<Arc<[FamilyConfig]>>(config.families.into());
    let (pairs, configs) = watch::channel::<Arc<[PairConfig]>>(config.pairs.clone().into());
    let mut tasks = JoinSet::new();
    for (config, state) in config.pairs.into_iter().zip(state.pairs.iter()) {
        let worker = Worker {
            config,
            families: configured.clone(),
            state: state.clone(),
            stop: stopping.clone(),
        };
        tasks.spawn(run_pair(worker, configs.clone()));
    }
    let mut live = Live {
        pairs,
        families,
        access: None,
    };
    if let Some((listener, access)) = listener {
        tracing::info!(address = %listener.local_addr()?, "listening");
        let mut stop = stopping.clone();
        let stopped = async move { is_set(&mut stop).await };
        tasks.spawn(http::serve(
            listener,
            state,
            access.subscribe(),
            prometheus,
            stopped,
        ));
        live.access = Some(access);
    }
    select! {
        ended = until_stop(path, &live) => ended?,
        () = systemd::watchdog() => {}
        // workers and HTTP server run until `stop`
        _ = tasks.join_next() => return Err(Failure::warning("a task of the daemon panicked".to_owned())),
    }
    systemd::stopping();
    tracing::info!("shutting down");
    stop.send_replace(true);
    let ended = timeout(config.shutdown, async {
        while tasks.join_next().await.is_some() {}
    })
    .await;
    match ended {
        Ok(()) => tracing::info!("shut down"),
        // nothing is lost: unsaved data is still in Redis
        Err(_) => tracing::warn!(
            "shut down before all hits reached MySQL: the next daemon saves the rest from Redis"
        ),
    }
    Ok(Exit::Ok)
}

/// Runs the worker of a pair until it stops. Starts it again whenever a reload changes how it
/// connects.
async fn run_pair(mut worker: Worker, mut pairs: watch::Receiver<Arc<[PairConfig]>>) {
    let mut stop = worker.stop.clone();
    loop {
        let (end, ending) = watch::channel(false);
        worker.stop = ending;
        let mut run = pin!(supervise(worker.clone()));
        let changed = select! {
            () = &mut run => return,
            () = is_set(&mut stop) => None,
            config = changed(&worker.config, &mut pairs) => Some(config),
        };
        end.send_replace(true);
        run.await;
        let Some(config) = changed else { return };
        tracing::info!(pair = config.name, "connecting with the reloaded settings");
        worker.config = config;
    }
}

/// Waits until a reload changes how the pair connects.
async fn changed(
    current: &PairConfig,
    pairs: &mut watch::Receiver<Arc<[PairConfig]>>,
) -> PairConfig {
    let is_changed = |pair: &&PairConfig| pair.name == current.name && !pair.connects_like(current);
    loop {
        let found = pairs.borrow_and_update().iter().find(is_changed).cloned();
        match found {
            Some(pair) => return pair,
            None if pairs.changed().await.is_err() => return pending().await,
            None => {}
        }
    }
}

/// Runs a worker until it stops. Starts it again if it panics or fails.
async fn supervise(worker: Worker) {
    let state = worker.state.clone();
    run_again(&state, RESTART_PAUSE, || worker.clone().run()).await;
}

/// Runs until a run ends without an error. A panic ends a run with an error.
async fn run_again<F>(state: &PairState, pause: Duration, run: impl Fn() -> F)
where
    F: Future<Output = counterfoil::Result<()>> + Send + 'static,
{
    loop {
        let why = match tokio::spawn(run()).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => format!("{error:#}"),
            Err(error) => format!("{error}"),
        };
        let pair = &state.name;
        tracing::error!(pair, error = why, "the worker ended, will restart");
        state.update(|view| {
            view.reconciler = ReconcilerView {
                why: Some(format!("the worker ended: {why}")),
                ..ReconcilerView::default()
            };
        });
        sleep(pause).await;
    }
}

/// Starts to log on standard error.
fn start_log(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(LOG_FILTER));
    // a closed pipe must not end the daemon
    let log = tracing_subscriber::fmt()
        .log_internal_errors(false)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_env_filter(filter);
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
}

async fn listen(http: &HttpConfig) -> Result<(TcpListener, watch::Sender<Access>), Failure> {
    http.check(http.listen).map_err(Failure::usage)?;
    let listener = TcpListener::bind(http.listen).await.map_err(|error| {
        let advice = "each daemon on a machine needs another `listen` address, or \"off\"";
        Failure::warning(format!("listen = \"{}\": {error:#}: {advice}", http.listen))
    })?;
    let access = Access::new(http, listener.local_addr()?);
    Ok((listener, watch::Sender::new(access)))
}

/// Reports to systemd that the daemon is ready, and returns on SIGTERM and Ctrl-C. On SIGHUP it
/// reloads the configuration.
async fn until_stop(path: &Path, live: &Live) -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hang_up = signal(SignalKind::hangup())?;
    systemd::ready();
    loop {
        select! {
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            _ = hang_up.recv() => {
                systemd::reloading();
                live.reload(path);
                systemd::ready();
            }
        }
    }
}

/// The settings that a reload replaces.
struct Live {
    pairs: watch::Sender<Arc<[PairConfig]>>,
    families: watch::Sender<Arc<[FamilyConfig]>>,
    /// `None` without an HTTP server.
    access: Option<watch::Sender<Access>>,
}

impl Live {
    fn reload(&self, path: &Path) {
        match self.try_reload(path) {
            Ok(number) => tracing::info!(
                families = number,
                "reloaded the families, secrets and addresses; other settings need a restart"
            ),
            Err(error) => {
                tracing::error!(error = %error, "reload failed, configuration unchanged")
            }
        }
    }

    /// Returns the number of configured families.
    fn try_reload(&self, path: &Path) -> Result<usize, String> {
        let config = Config::read(path)?;
        if let (Some(access), Some(http)) = (&self.access, &config.http) {
            let new = access.borrow().reloaded(http)?;
            access.send_replace(new);
        }
        let number = config.families.len();
        self.families.send_replace(config.families.into());
        self.pairs.send_replace(config.pairs.into());
        Ok(number)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use counterfoil::{Error, ErrorKind};

    use super::*;

    #[tokio::test]
    async fn a_worker_that_fails_or_panics_is_reported_and_runs_again() {
        let (state, runs) = (PairState::new("main"), Arc::new(AtomicU32::new(0)));
        let reason = || state.view.borrow().reconciler.why.clone();
        let run = || {
            let runs = runs.clone();
            async move {
                match runs.fetch_add(1, Ordering::SeqCst) {
                    0 => panic!("of the test"),
                    1 => Err(Error::new(ErrorKind::InvalidInput, "a wrong setting")),
                    _ => Ok(()),
                }
            }
        };
        let pause = Duration::from_millis(100);
        let supervised = run_again(&state, pause, run);
        let mut supervised = std::pin::pin!(supervised);
        for expected in ["of the test", "a wrong setting"] {
            let reported = async {
                while !reason().is_some_and(|why| why.contains(expected)) {
                    sleep(Duration::from_millis(1)).await;
                }
            };
            select! {
                () = &mut supervised => panic!("it ended"),
                () = reported => {}
            }
        }
        supervised.await;
        assert_eq!(runs.load(Ordering::SeqCst), 3);
    }
}
