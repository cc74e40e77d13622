//! The reconciler processes, seen from the supervisor.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::task::JoinHandle;

use crate::Result;
use crate::child::{Report, Reports, Worker};
use crate::families::Place;

pub const RECONCILERS: usize = 2;

/// Reconciler processes, replaced when they are killed.
pub struct Reconcilers {
    role: &'static str,
    place: Place,
    running: Vec<(Worker, JoinHandle<Result<()>>)>,
    lags: Arc<Mutex<Vec<f64>>>,
}

impl Reconcilers {
    /// This program in that role.
    pub async fn start(role: &'static str, place: &Place) -> Result<Self> {
        let mut reconcilers = Reconcilers { role, place: place.clone(), running: Vec::new(), lags: Arc::default() };
        for _ in 0..RECONCILERS {
            reconcilers.start_one().await?;
        }
        Ok(reconcilers)
    }

    async fn start_one(&mut self) -> Result<()> {
        let Place { redis, mysql } = &self.place;
        let args = [self.role, "--redis", redis, "--mysql", mysql].map(str::to_owned);
        let (worker, reports) = Worker::start(&args).await?;
        self.running.push((worker, tokio::spawn(collect(reports, self.lags.clone()))));
        Ok(())
    }

    /// Kills the one that has lived longest, and starts another one.
    pub async fn kill_one(&mut self) -> Result<()> {
        let (worker, reports) = self.running.remove(0);
        worker.kill().await?;
        reports.await??;
        self.start_one().await
    }

    /// Lets all of them finish what they hold. Returns the ages of all batches that they reported, in seconds.
    pub async fn stop(self) -> Result<Vec<f64>> {
        for (worker, reports) in self.running {
            let status = worker.terminate().await?;
            if !status.success() {
                return Err(format!("a reconciler ended with {status}").into());
            }
            reports.await??;
        }
        Ok(std::mem::take(&mut *self.lags.lock().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// Until the process is gone.
async fn collect(mut reports: Reports, lags: Arc<Mutex<Vec<f64>>>) -> Result<()> {
    while let Some(report) = reports.next().await? {
        if let Report::Lags(more) = report {
            lags.lock().unwrap_or_else(PoisonError::into_inner).extend(more);
        }
    }
    Ok(())
}
