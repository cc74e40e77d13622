//! Those who count.

use counterfoil::test_hooks::Fence;

use super::connect::Connect;
use super::stage::Stage;
use super::{Checked, PARTITIONS, failed};

/// Somebody who counts, one call at a time.
#[derive(Debug)]
pub struct Writer<Call> {
    producer: String,
    seq: u64,
    is_registered: bool,
    /// The call whose reply is missing.
    pub open: Option<Call>,
}

impl<Call> Writer<Call> {
    pub fn new(name: u64) -> Self {
        Writer { producer: format!("writer-{name}"), seq: 0, is_registered: false, open: None }
    }

    pub fn begin(&mut self, call: Call) {
        self.seq += 1;
        self.open = Some(call);
    }

    pub async fn register<C: Connect>(&mut self, stage: &Stage<'_, C>) -> Checked {
        if !self.is_registered {
            // one producer for all partitions is fine as long as it has one call in flight
            for number in 0..PARTITIONS {
                stage.partition(number).register(&self.producer).await.map_err(failed)?;
            }
            self.is_registered = true;
        }
        Ok(())
    }

    pub fn fence(&self, repeat: bool) -> Fence<'_> {
        Fence { producer: &self.producer, seq: self.seq, repeat }
    }
}

/// A call that counts one increment.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    pub token: usize,
    pub is_repeat: bool,
}

impl Call {
    pub fn new(token: usize) -> Self {
        Call { token, is_repeat: false }
    }
}

impl Writer<Call> {
    /// The open call, which is a repeat whenever it is sent again.
    pub fn send(&mut self) -> Option<Call> {
        let call = self.open?;
        self.open = Some(Call { is_repeat: true, ..call });
        Some(call)
    }
}
