//! Ctrl-C and SIGTERM.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::Result;

pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    pub fn new() -> Result<Self> {
        Ok(Signals { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Returns when somebody wants the next part of the demo to end.
    pub async fn end(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
