//! The daemon: a server process, of which any number may run.

pub mod discovery;
mod families;
pub mod live;
mod log;
pub mod recounts;
mod rejects;
mod samples;
mod servers;
mod systemd;
mod worker;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::net::TcpListener;
use tokio::select;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};

use self::live::{Live, LivePair};
use self::worker::Worker;
use crate::config::{Config, FamilyConfig, HttpConfig};
use crate::exit::{Exit, Failure};
use crate::http;

/// The upper bounds of the histograms' buckets, in seconds.
const BUCKETS: [f64; 12] = [
    0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0, 600.0,
];
/// The interval at which the recorder aggregates measurements.
const UPKEEP: Duration = Duration::from_secs(5);

/// Runs until a signal ends the daemon.
pub async fn run(config: Config, path: &Path) -> Result<Exit, Failure> {
    log::begin(config.log);
    let prometheus = recorder()?;
    let listener = match &config.http {
        Some(http) => Some((listen(http).await?, http.token.clone())),
        None => None,
    };
    let live = Live {
        pairs: config
            .pairs
            .iter()
            .map(|pair| Arc::new(LivePair::new(&pair.name)))
            .collect(),
    };
    let (stop, stopping) = watch::channel(false);
    let (families, described) = watch::channel::<Arc<[FamilyConfig]>>(config.families.into());
    let mut workers = JoinSet::new();
    for (config, live) in config.pairs.into_iter().zip(live.pairs.iter()) {
        let (families, live, stop) = (described.clone(), live.clone(), stopping.clone());
        workers.spawn(
            Worker {
                config,
                families,
                live,
                stop,
            }
            .run(),
        );
    }
    if let Some((listener, token)) = listener {
        tracing::info!(address = %listener.local_addr()?, "listening");
        let mut stop = stopping.clone();
        let stopped = async move { drop(stop.wait_for(|stop| *stop).await) };
        workers.spawn(async move {
            if let Err(error) = http::serve(listener, live, token, prometheus, stopped).await {
                tracing::error!(%error, "HTTP ended");
            }
        });
    }
    let mut signals = Signals::new()?;
    systemd::ready();
    select! {
        () = signals.until_told_to_end(path, &families) => {}
        () = systemd::watchdog() => {}
    }
    systemd::stopping();
    tracing::info!("told to end");
    stop.send_replace(true);
    let ended = timeout(config.shutdown, async {
        while workers.join_next().await.is_some() {}
    })
    .await;
    match ended {
        Ok(()) => tracing::info!("ended"),
        // nothing is lost: unsaved data is still in Redis
        Err(_) => tracing::warn!(
            "ended before what was held had reached MySQL: it waits in Redis for the next daemon"
        ),
    }
    Ok(Exit::Ok)
}

/// Installs the recorder of the library's metrics, which the HTTP server shows.
fn recorder() -> Result<PrometheusHandle, Failure> {
    let builder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &BUCKETS);
    let prometheus = builder
        .and_then(PrometheusBuilder::install_recorder)
        .map_err(|error| Failure::warning(format!("nothing can be measured: {error}")))?;
    counterfoil::metrics::describe();
    let handle = prometheus.clone();
    tokio::spawn(async move {
        let mut ticks = interval(UPKEEP);
        loop {
            ticks.tick().await;
            handle.run_upkeep();
        }
    });
    Ok(prometheus)
}

async fn listen(http: &HttpConfig) -> Result<TcpListener, Failure> {
    TcpListener::bind(http.listen).await.map_err(|error| {
        let advice =
            "several daemons may run on a machine, each with a `listen` of its own, or \"off\"";
        Failure::warning(format!("listen = \"{}\": {error}: {advice}", http.listen))
    })
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    /// Returns on SIGTERM and Ctrl-C. On SIGHUP it reloads the families.
    async fn until_told_to_end(
        &mut self,
        path: &Path,
        families: &watch::Sender<Arc<[FamilyConfig]>>,
    ) {
        loop {
            select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.hang_up.recv() => {
                    systemd::reloading();
                    reload(path, families);
                    systemd::ready();
                }
            }
        }
    }
}

fn reload(path: &Path, families: &watch::Sender<Arc<[FamilyConfig]>>) {
    match Config::read(path) {
        Ok(config) => {
            let number = config.families.len();
            families.send_replace(config.families.into());
            tracing::info!(
                families = number,
                "the families were read again; other settings need a restart"
            );
        }
        Err(error) => tracing::error!(%error, "not reloaded: the daemon goes on with what it has"),
    }
}
