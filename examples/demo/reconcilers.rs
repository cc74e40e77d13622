//! The supervisor's view of the reconciler processes.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::task::JoinHandle;

use crate::Result;
use crate::child::{Report, Reports, Worker};
use crate::families::Place;

pub const RECONCILERS: usize = 2;

/// Reconciler processes, replaced when they are killed.
pub struct Reconcilers {
    /// The role in which this program starts, with its options.
    role: Vec<String>,
    place: Place,
    running: Vec<(Worker, JoinHandle<Result<()>>)>,
    lags: Arc<Mutex<Vec<f64>>>,
}

impl Reconcilers {
    /// Starts this program in the given role.
    pub async fn start(role: &[impl AsRef<str>], place: &Place) -> Result<Self> {
        let mut reconcilers = Reconcilers {
            role: role.iter().map(|word| word.as_ref().to_owned()).collect(),
            place: place.clone(),
            running: Vec::new(),
            lags: Arc::default(),
        };
        reconcilers.start_all().await?;
        Ok(reconcilers)
    }

    /// Starts reconcilers until all run.
    pub async fn start_all(&mut self) -> Result<()> {
        while self.running.len() < RECONCILERS {
            self.start_one().await?;
        }
        Ok(())
    }

    /// Kills all reconcilers.
    pub async fn kill_all(&mut self) -> Result<()> {
        self.kill_after(0).await
    }

    /// Kills all reconcilers but the oldest one.
    pub async fn kill_others(&mut self) -> Result<()> {
        self.kill_after(1).await
    }

    async fn kill_after(&mut self, left: usize) -> Result<()> {
        for (worker, reports) in self.running.drain(left..) {
            worker.kill().await?;
            reports.await??;
        }
        Ok(())
    }

    async fn start_one(&mut self) -> Result<()> {
        let (worker, reports) = Worker::start(&arguments(&self.role, &self.place)).await?;
        self.running
            .push((worker, tokio::spawn(collect(reports, self.lags.clone()))));
        Ok(())
    }

    /// Kills the oldest reconciler and starts another one.
    pub async fn kill_one(&mut self) -> Result<()> {
        let (worker, reports) = self.running.remove(0);
        worker.kill().await?;
        reports.await??;
        self.start_one().await
    }

    /// Sends a signal to the oldest reconciler.
    pub fn signal_one(&self, signal: &str) {
        self.running[0].0.signal(signal);
    }

    /// Sends a signal to all reconcilers.
    pub fn signal_all(&self, signal: &str) {
        for (worker, _) in &self.running {
            worker.signal(signal);
        }
    }

    /// Lets all reconcilers finish their batches and exit. Returns the ages of all reported
    /// batches, in seconds.
    pub async fn stop(self) -> Result<Vec<f64>> {
        for (worker, reports) in self.running {
            let status = worker.terminate().await?;
            if !status.success() {
                return Err(format!("a reconciler ended with {status}").into());
            }
            reports.await??;
        }
        Ok(std::mem::take(&mut *self.lags.lock()))
    }
}

/// Returns the arguments with which this program takes a role, on these servers.
pub fn arguments(role: &[String], Place { redis, mysql }: &Place) -> Vec<String> {
    let place = ["--redis", redis, "--mysql", mysql].map(str::to_owned);
    [role, &place].concat()
}

/// Collects lags until the process exits.
async fn collect(mut reports: Reports, lags: Arc<Mutex<Vec<f64>>>) -> Result<()> {
    while let Some(report) = reports.next().await? {
        if let Report::Lags(more) = report {
            lags.lock().extend(more);
        }
    }
    Ok(())
}
