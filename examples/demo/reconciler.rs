//! A reconciler process: brings pending counts to MySQL until it receives SIGTERM or is killed.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::time::interval;

use counterfoil::Reconciler;

use crate::Result;
use crate::child::{self, Report};
use crate::families::{Pair, Place, patiently};
use crate::measured::Recorder;

/// The pause between reports. It is short, because a kill loses what was not yet reported.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// The time until another reconciler takes over from a killed one. The default of 10 s would be
/// most of the demo.
const LEASE: Duration = Duration::from_secs(1);

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    pub place: Place,
}

/// Reconciles the families that `open` opens.
pub async fn run(
    args: Args,
    open: impl AsyncFn(&Place) -> counterfoil::Result<Pair>,
) -> Result<()> {
    let _no_orders = child::orders();
    let recorder = Recorder::install()?;
    let mut stop = signal(SignalKind::terminate())?;
    let pair = patiently(async || open(&args.place).await).await?;
    let reconciler = patiently(async || start(&pair).await).await?;
    child::report(&Report::Ready)?;
    let mut reports = interval(REPORT_EVERY);
    loop {
        tokio::select! {
            _ = reports.tick() => child::report(&Report::Lags(recorder.take().lags))?,
            _ = stop.recv() => break,
        }
    }
    reconciler.shutdown().await?;
    child::report(&Report::Lags(recorder.take().lags))
}

async fn start(pair: &Pair) -> counterfoil::Result<Reconciler> {
    pair.reconciler().all().lease(Some(LEASE)).start().await
}
