//! The name under which a partition is written, and the number of the call (PROTOCOL section 3, producer fence).

use std::sync::Arc;
use std::time::Duration;

use redis::aio::ConnectionLike;
use tokio::time::Instant;

use crate::error::Result;
use crate::partition::{Partition, random};

/// Redis forgets a producer after a day of idleness; long before that it is not used any more.
const LIFE: Duration = Duration::from_secs(12 * 3600);

/// An idempotent producer: a repeat of a call with its name and number is not executed twice.
#[derive(Clone, Debug)]
pub struct Producer {
    pub name: Arc<str>,
    /// The number of the call that it makes or has made.
    pub seq: u64,
    used: Instant,
}

impl Producer {
    /// A new one that Redis knows, for its first call. Until then nothing was counted.
    pub async fn register<C: ConnectionLike + Clone + 'static>(partition: &Partition<C>) -> Result<Self> {
        let name = format!("{:016x}", random()?);
        partition.register(&name).await?;
        Ok(Producer { name: name.into(), seq: 1, used: Instant::now() })
    }

    /// The same for its next call; `None` if Redis may have forgotten it.
    pub fn next_call(self) -> Option<Self> {
        let now = Instant::now();
        (now - self.used < LIFE).then(|| Producer { seq: self.seq + 1, used: now, ..self })
    }
}
