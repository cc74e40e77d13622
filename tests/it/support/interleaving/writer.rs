//! Writers that count.

use counterfoil::test_hooks::Partition;

use super::*;
use crate::support::*;

/// A writer with one call in flight.
#[derive(Debug)]
pub struct Writer<Call> {
    key: Key,
    /// The call whose reply is missing.
    pub open: Option<Call>,
}

/// The idempotency key of a call, with its epoch, which is "" before the writer has requested one.
#[derive(Clone, Debug)]
pub struct Key {
    caller: String,
    n: u64,
    epoch: String,
}

impl Key {
    pub fn fence<'a>(&'a self, home: &'a Partition) -> Fence<'a> {
        Fence {
            home: home.keys(),
            caller: &self.caller,
            n: self.n,
            epoch: &self.epoch,
        }
    }
}

impl<Call> Writer<Call> {
    pub fn new(name: u64) -> Self {
        Writer {
            key: Key {
                caller: format!("writer-{name}"),
                n: 0,
                epoch: String::new(),
            },
            open: None,
        }
    }

    pub fn begin(&mut self, call: Call) {
        self.key.n += 1;
        self.open = Some(call);
    }

    /// Returns the key of the open call. A writer without an epoch requests one from the home.
    pub async fn key<C: Connect>(
        &mut self,
        stage: &Stage<'_, C>,
        home: &Partition,
    ) -> Checked<Key> {
        if self.key.epoch.is_empty() {
            self.key.epoch = epoch(home, &stage.family.family).await?;
        }
        Ok(self.key.clone())
    }

    /// Returns whether the key belongs to the open call.
    pub fn is_of_open_call(&self, key: &Key) -> bool {
        self.open.is_some() && (&*key.caller, key.n) == (&*self.key.caller, self.key.n)
    }

    /// Makes a writer without an open call request the epoch before its next call.
    pub fn ask(&mut self) {
        if self.open.is_none() {
            self.key.epoch.clear();
        }
    }
}

/// Begins a new epoch of the home, after a minute.
pub async fn turn_epoch<C: Connect>(stage: &mut Stage<'_, C>, home: u32) -> Checked {
    stage.pass(60_000);
    epoch(&stage.partition(home), &stage.family.family).await?;
    Ok(())
}
