//! A reconciler process: brings what is pending to MySQL until it is told to stop, or killed.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::time::interval;

use counterfoil::Reconciler;
use counterfoil::test_hooks::set_time;

use crate::Result;
use crate::child::{self, Report};
use crate::families::{Pair, Place, patiently};
use crate::measured::Recorder;

/// Often, because what was not reported when the process is killed is not known to anybody.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// How long what a killed one held waits for another one. The default of 10 s would be most of the demo.
const LEASE: Duration = Duration::from_secs(1);

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    place: Place,
}

/// For the families that `open` opens.
pub async fn run(args: Args, open: impl AsyncFn(&Place) -> counterfoil::Result<Pair>) -> Result<()> {
    let _no_orders = child::orders();
    // the writers' producers count at the log's times, and are not to be taken for long idle
    set_time(Some(0));
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
    pair.reconciler().lease(Some(LEASE)).start().await
}
