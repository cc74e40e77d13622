//! Outages of Redis. After the first call that waited for a reply in vain, other calls do not wait:
//! they fail at once, until a probe in the background gets a reply.

use std::error::Error as StdError;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::time::{self, Duration};

use parking_lot::Mutex;
use redis::{Cmd, RedisError, ServerErrorKind, ToRedisArgs, cmd};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep};

use crate::connection::Connection;
use crate::connection::backoff::Backoff;
use crate::connection::refusal::unsent_reason;
use crate::error::{Error, ErrorKind, Result, redis_error};

/// The shortest wait without a reply that begins an outage. A call with a shorter limit proves
/// nothing.
const PATIENCE: Duration = Duration::from_millis(400);

/// A time before all calls.
static START: LazyLock<time::Instant> = LazyLock::new(time::Instant::now);

/// The outage of a server, if there is one: of the single server, or in a cluster of the node of
/// one home.
#[derive(Debug, Default)]
pub struct Outage {
    is_out: AtomicBool,
    began: Mutex<Option<(Instant, Error)>>,
    /// The time of the first attempt of a call after the last reply, in ms after [`START`]; 0 if
    /// there is none.
    asked_ms: AtomicU64,
}

impl Outage {
    /// Makes an attempt of a call, and notes whether the server replied. Most errors are replies, too.
    pub async fn heard<T>(&self, attempt: impl Future<Output = Result<T>>) -> Result<T> {
        let (none, now) = (0, since_start().max(1));
        let _ = self
            .asked_ms
            .compare_exchange(none, now, Ordering::Relaxed, Ordering::Relaxed);
        let reply = attempt.await;
        if !reply.as_ref().is_err_and(is_silence) {
            self.asked_ms.store(none, Ordering::Relaxed);
        }
        reply
    }

    /// Returns how long the server has replied to no attempt.
    fn silent(&self) -> Duration {
        match self.asked_ms.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            asked => Duration::from_millis(since_start().saturating_sub(asked)),
        }
    }

    /// Refuses a call during an outage: nothing was sent.
    pub async fn check(&self, family: &impl fmt::Display) -> Result<()> {
        if !self.is_out.load(Ordering::Relaxed) {
            return Ok(());
        }
        // a caller that tries again at once must not keep the probe from running
        yield_now().await;
        match &*self.began.lock() {
            None => Ok(()),
            Some((at, cause)) => {
                let what = format!("{family}: Redis has not replied for {:.1?}", at.elapsed());
                Err(Error::new(ErrorKind::Redis, what).with_source(OutageCause(cause.clone())))
            }
        }
    }

    /// Begins an outage if a call with this error waited in vain, and the server replied to nothing
    /// that it was asked meanwhile. Then the server is probed, by reading a key.
    pub fn failed(
        self: &Arc<Self>,
        redis: &Connection,
        key: impl ToRedisArgs,
        began: Instant,
        error: &Error,
    ) {
        let silent = began.elapsed().min(self.silent());
        if silent < PATIENCE || !is_silence(error) {
            return;
        }
        let mut known = self.began.lock();
        if known.is_some() {
            return;
        }
        *known = Some((Instant::now() - silent, error.clone()));
        self.is_out.store(true, Ordering::Relaxed);
        // The lock is released before the spawn: a runtime that shuts down drops the task at once,
        // which ends the outage and takes this lock.
        drop(known);
        tracing::warn!(error = %format_args!("{error:#}"), "Redis does not reply: calls fail at once until it does");
        let guard = OutageGuard(Arc::downgrade(self));
        let mut exists = cmd("EXISTS");
        exists.arg(key);
        tokio::spawn(probe(guard, redis.clone(), exists));
    }
}

/// The error that began an outage.
#[derive(Debug)]
struct OutageCause(Error);

impl fmt::Display for OutageCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StdError for OutageCause {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source()
    }
}

/// Returns whether a call was refused because of an outage: nothing was sent, and another attempt
/// would not be either.
pub fn is_outage(error: &Error) -> bool {
    error
        .source()
        .is_some_and(|cause| cause.is::<OutageCause>())
}

/// Probes the server until it replies, or every handle is dropped.
async fn probe(guard: OutageGuard, redis: Connection, command: Cmd) {
    let mut pause = Backoff::default();
    while guard.0.strong_count() > 0 {
        sleep(pause.next()).await;
        // the probe waits as long as the connection allows, so that the connection notices that it
        // is lost
        let replied = redis.send(&command).await;
        if replied.is_ok() || replied.is_err_and(|error| !is_no_reply(&error)) {
            tracing::info!("Redis replies again");
            return;
        }
    }
}

/// Ends an outage when it is dropped, also if the task that probes ends early, with its runtime.
struct OutageGuard(Weak<Outage>);

impl Drop for OutageGuard {
    fn drop(&mut self) {
        if let Some(outage) = self.0.upgrade() {
            outage.is_out.store(false, Ordering::Relaxed);
            *outage.began.lock() = None;
        }
    }
}

/// Returns the ms after [`START`].
fn since_start() -> u64 {
    u64::try_from(START.elapsed().as_millis()).unwrap_or(u64::MAX)
}

/// Returns whether a call failed because Redis did not reply, or is not ready to reply.
fn is_silence(error: &Error) -> bool {
    if !matches!(error.kind(), ErrorKind::Redis | ErrorKind::OutcomeUnknown) {
        return false;
    }
    redis_cause(error).is_none_or(is_no_reply)
}

/// Returns the error of Redis among the causes.
fn redis_cause(error: &Error) -> Option<&RedisError> {
    let mut source = error.source();
    while let Some(cause) = source {
        if let Some(error) = redis_error(cause) {
            return Some(error);
        }
        source = cause.source();
    }
    None
}

/// Returns whether the error means that no server replies, or that it is not ready. MOVED is one of
/// them: a node that redirects a call for as long as [`PATIENCE`] redirects it to a node that is
/// down.
fn is_no_reply(error: &RedisError) -> bool {
    use redis::ErrorKind::Server;
    let not_ready = matches!(
        error.kind(),
        Server(
            ServerErrorKind::BusyLoading
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::MasterDown
                | ServerErrorKind::Moved
        )
    );
    not_ready || error.code().is_none() || unsent_reason(error).is_some()
}
