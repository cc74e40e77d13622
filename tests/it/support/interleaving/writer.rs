//! Those who count.

use counterfoil::test_hooks::{Fence, Partition};

use super::connect::Connect;
use super::stage::Stage;
use super::{Checked, failed};

/// Somebody who counts, one call at a time.
#[derive(Debug)]
pub struct Writer<Call> {
    key: Key,
    /// The call whose reply is missing.
    pub open: Option<Call>,
}

/// The idempotency key of a call, with the epoch that it names: "" as long as none was told.
#[derive(Clone, Debug)]
pub struct Key {
    caller: String,
    n: u64,
    epoch: String,
}

impl Key {
    pub fn fence<'a, C: Connect>(&'a self, home: &'a Partition<C>) -> Fence<'a> {
        Fence { home: home.keys(), caller: &self.caller, n: self.n, epoch: &self.epoch }
    }
}

impl<Call> Writer<Call> {
    pub fn new(name: u64) -> Self {
        Writer { key: Key { caller: format!("writer-{name}"), n: 0, epoch: String::new() }, open: None }
    }

    pub fn begin(&mut self, call: Call) {
        self.key.n += 1;
        self.open = Some(call);
    }

    /// The key of the open call. It names the epoch that the home told, unless one was told before.
    pub async fn key<C: Connect>(&mut self, stage: &Stage<'_, C>, home: &Partition<C>) -> Result<Key, super::Failed> {
        if self.key.epoch.is_empty() {
            self.key.epoch = home.epoch(&stage.family.family).await.map_err(failed)?;
        }
        Ok(self.key.clone())
    }

    /// Whether the key is that of the open call.
    pub fn made(&self, key: &Key) -> bool {
        self.open.is_some() && (&*key.caller, key.n) == (&*self.key.caller, self.key.n)
    }

    /// Whoever has no call open asks for the epoch before the next one.
    pub fn ask(&mut self) {
        if self.open.is_none() {
            self.key.epoch.clear();
        }
    }
}

/// A minute goes by, and the home begins a new epoch.
pub async fn turn_epoch<C: Connect>(stage: &mut Stage<'_, C>, home: u32) -> Checked {
    stage.pass(60_000);
    stage.partition(home).epoch(&stage.family.family).await.map(drop).map_err(failed)
}
