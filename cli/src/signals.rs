//! The signals that stop a process.

use std::io;

use tokio::select;
use tokio::signal::unix::{SignalKind, signal};

/// Returns a future that completes on SIGTERM or Ctrl-C. From now on neither ends the process.
pub fn stop() -> io::Result<impl Future<Output = ()>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}
