//! The daemon: a server process, of which any number may run.

mod failing;
mod families;
mod overview;
mod sampling;
mod servers;
mod systemd;
mod worker;

use std::future::pending;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use counterfoil::{Error, ErrorKind};
use sd_notify::NotifyState;
use tokio::net::TcpListener;
use tokio::select;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

use self::worker::Worker;
use crate::VERSION;
use crate::config::{Config, HttpConfig, LogFormat, PairConfig, forbid_core_dumps};
use crate::exit::{Exit, Failure};
use crate::http::{self, App};
use crate::metrics;
use crate::reason::Reason;
use crate::signals;
use crate::state::PairState;
use crate::view::ReconcilerView;

/// The default log filter, which `RUST_LOG` overrides. The daemon logs each state once, so this
/// hides the libraries' messages about every attempt.
const LOG_FILTER: &str = "info,counterfoil::reconciler=error,counterfoil::recount=error,counterfoil::writer=error,counterfoil::connection::failures=off,redis=off,sqlx=error";
/// The pause before a worker that ended is started again.
const RESTART_PAUSE: Duration = Duration::from_secs(5);

/// Runs until a signal ends the daemon.
pub async fn run(config: Config, path: &Path) -> Result<Exit, Failure> {
    let (stop_signal, hang_up) = (signals::stop()?, signal(SignalKind::hangup())?);
    start_log(config.log);
    forbid_core_dumps();
    tracing::info!(version = VERSION, "starting");
    let prometheus = metrics::install()
        .map_err(|error| Failure::warning(format!("metrics are unavailable: {error:#}")))?;
    let listener = match &config.http {
        Some(http) => Some(listen(http).await?),
        None => None,
    };
    let address = listener.as_ref().map(TcpListener::local_addr).transpose()?;
    let shutdown = config.shutdown;
    let stop = CancellationToken::new();
    let (current, reloads) = watch::channel(Arc::new(config));
    let (mut tasks, mut pairs) = (JoinSet::new(), Vec::new());
    for pair in &reloads.borrow().pairs {
        let state = Arc::new(PairState::new(pair));
        pairs.push(state.clone());
        tasks.spawn(run_pair(Worker {
            config: pair.clone(),
            reloads: reloads.clone(),
            state,
            stop: stop.clone(),
        }));
    }
    if let (Some(listener), Some(address)) = (listener, address) {
        tracing::info!(%address, "listening");
        let app = App::new(pairs, reloads, prometheus, address.port());
        let stopped = stop.clone().cancelled_owned();
        tasks.spawn(http::serve(listener, app, stopped));
    }
    select! {
        () = stop_signal => {}
        never = reload_on(hang_up, path, &current, address) => never,
        () = systemd::watchdog() => {}
        // workers and the HTTP server run until `stop`, so a task that ends before has panicked
        _ = tasks.join_next() => return Err(Failure::warning("a task of the daemon panicked".to_owned())),
    }
    systemd::notify(NotifyState::Stopping);
    tracing::info!("shutting down");
    stop.cancel();
    let ended = timeout(shutdown, async {
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

/// Runs the worker of a pair until it stops. Starts it again if it panics or fails, and whenever a
/// reload changes how it connects.
async fn run_pair(mut worker: Worker) {
    let stop = worker.stop.clone();
    loop {
        worker.stop = stop.child_token();
        let mut run = tokio::spawn(worker.clone().run());
        let changed = select! {
            ended = &mut run => {
                let error = match ended {
                    Ok(Ok(())) => return,
                    Ok(Err(error)) => error,
                    Err(panicked) => Error::new(ErrorKind::Closed, panicked.to_string()),
                };
                let (pair, why) = (&worker.config.name, format!("{error:#}"));
                tracing::error!(pair, error = why, "the worker ended, will restart");
                worker.state.update(|view| {
                    let why = Reason::new(format!("the worker ended: {why}"), &error);
                    view.reconciler = ReconcilerView {
                        why: Some(why),
                        ..ReconcilerView::default()
                    };
                });
                select! {
                    () = sleep(RESTART_PAUSE) => continue,
                    () = stop.cancelled() => return,
                }
            }
            () = stop.cancelled() => None,
            config = wait_for_change(&worker.config, worker.reloads.clone()) => Some(config),
        };
        worker.stop.cancel();
        let _ = run.await;
        let Some(config) = changed else { return };
        tracing::info!(pair = config.name, "connecting with the reloaded settings");
        worker.config = config;
    }
}

/// Waits until a reload changes how the pair connects.
async fn wait_for_change(
    current: &PairConfig,
    mut reloads: watch::Receiver<Arc<Config>>,
) -> PairConfig {
    loop {
        let pair = reloads.borrow_and_update().pair(&current.name).cloned();
        match pair {
            Some(pair) if pair.connects_by != current.connects_by => return pair,
            _ if reloads.changed().await.is_err() => return pending().await,
            _ => {}
        }
    }
}

/// Starts to log on standard error.
fn start_log(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(LOG_FILTER));
    // by default the subscriber reports a failed write by `eprintln!`, which panics if standard
    // error is a closed pipe. That must not end the daemon
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

async fn listen(http: &HttpConfig) -> Result<TcpListener, Failure> {
    http.check(http.listen).map_err(Failure::usage)?;
    TcpListener::bind(http.listen).await.map_err(|error| {
        let advice = "each daemon on a machine needs another `listen` address, or \"off\"";
        Failure::warning(format!("listen = \"{}\": {error:#}: {advice}", http.listen))
    })
}

/// Reports to systemd that the daemon is ready, and reloads the configuration on each SIGHUP. Never
/// returns.
async fn reload_on<T>(
    mut hang_up: Signal,
    path: &Path,
    config: &watch::Sender<Arc<Config>>,
    address: Option<SocketAddr>,
) -> T {
    loop {
        systemd::notify(NotifyState::Ready);
        hang_up.recv().await;
        systemd::notify_reloading();
        match reload(path, config, address) {
            Ok(families) => tracing::info!(
                families,
                "reloaded the families, secrets and addresses; other settings need a restart"
            ),
            Err(error) => tracing::error!(error, "reload failed, configuration unchanged"),
        }
    }
}

/// Replaces the configuration, and returns the number of configured families. The HTTP server keeps
/// its `address`, also if the new configuration has another one.
fn reload(
    path: &Path,
    config: &watch::Sender<Arc<Config>>,
    address: Option<SocketAddr>,
) -> Result<usize, String> {
    let mut new = Config::read(path)?;
    match (&new.http, address) {
        (Some(http), Some(address)) => http.check(address)?,
        _ => new.http.clone_from(&config.borrow().http),
    }
    let families = new.pairs.iter().map(|pair| pair.families.len()).sum();
    config.send_replace(Arc::new(new));
    Ok(families)
}
