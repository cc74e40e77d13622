//! One partition of a family in one Redis, and what is the same for all kinds: who writes it. The calls of each kind are
//! in [`buffered`](crate::buffered) and [`cached`](crate::cached).

use std::time::Duration;

use redis::aio::ConnectionLike;

use crate::ablation::{self, Guard};
use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::keys::Keys;
use crate::script::{self, Arg, Reply, arg, made};
use crate::simulated;

/// One partition of a family in one Redis.
#[derive(Clone, Debug)]
pub struct Partition<C> {
    pub(crate) redis: C,
    pub(crate) keys: Keys,
    /// Empty for the server's clock; tests say what time it is.
    pub(crate) now_ms: String,
}

/// The name of a writer and the number of its call (PROTOCOL section 3, producer fence).
#[derive(Clone, Copy, Debug)]
pub struct Fence<'a> {
    /// The writer's random name, which is registered.
    pub producer: &'a str,
    /// The call's number, higher than that of the last one.
    pub seq: u64,
    /// An earlier send of this call may have been executed.
    pub repeat: bool,
}

impl Fence<'_> {
    /// How a script is told whether the call is a repeat.
    pub(crate) fn attempt(fence: Option<&Self>) -> &'static str {
        if fence.is_some_and(|fence| fence.repeat) { "repeat" } else { "first" }
    }

    /// As every counting script begins its arguments.
    pub(crate) fn args<'a>(fence: Option<&Fence<'a>>) -> [Arg<'a>; 3] {
        let (producer, seq) = fence.map_or(("", 0), |fence| (fence.producer, fence.seq));
        [arg(producer), made(seq), arg(Fence::attempt(fence))]
    }
}

impl<C: ConnectionLike + Clone + 'static> Partition<C> {
    /// The partition of that number. Nothing is sent.
    pub fn new(redis: C, family: &Family, partition: u32) -> Self {
        Partition { redis, keys: Keys::new(family, partition), now_ms: String::new() }
    }

    /// The same partition at a time that the caller says.
    #[cfg(feature = "test-hooks")]
    pub fn at(mut self, now_ms: u64) -> Self {
        self.now_ms = now_ms.to_string();
        self
    }

    /// What a script is told of the time where a caller's clock has no say: nothing, but in tests.
    pub(crate) fn time(&self) -> Arg<'_> {
        simulated::time().map_or_else(|| arg(&self.now_ms), made)
    }

    /// Makes the producer known.
    pub async fn register(&self, producer: &str) -> Result<()> {
        let reply = script::repeat_safe(
            &self.redis,
            "buffered_register",
            &[self.keys.producers()],
            &[arg(producer), self.time()],
        )
        .await?;
        expect_ok(&reply)
    }

    /// Forgets the producers that have been idle for so long.
    pub async fn trim(&self, idle: Duration) -> Result<u64> {
        let (mut cursor, mut trimmed) = ("0".to_owned(), 0);
        loop {
            let args = [made(millis(idle)), made(&cursor), arg("100"), self.time()];
            let reply = script::repeat_safe(&self.redis, "buffered_trim", &[self.keys.producers()], &args).await?;
            expect_ok(&reply)?;
            cursor = reply.string(0)?;
            trimmed += reply.number::<u64>(1)?;
            if cursor == "0" {
                return Ok(trimmed);
            }
        }
    }
}

/// The fence, unless a test has taken it out.
pub(crate) fn guarded(fence: Option<Fence<'_>>) -> Option<Fence<'_>> {
    fence.filter(|_| !ablation::is_out(Guard::ProducerFence))
}

pub(crate) fn expect_ok(reply: &Reply) -> Result<()> {
    if reply.status() == "OK" { Ok(()) } else { Err(reply.misshapen()) }
}

pub(crate) fn millis(time: Duration) -> String {
    time.as_millis().to_string()
}

/// A random number for a producer, an owner, an incarnation or a ticket.
pub fn random() -> Result<u64> {
    getrandom::u64().map_err(|error| {
        Error::new(ErrorKind::Unsafe, "the operating system has no random numbers").with_source(error.to_string())
    })
}
