//! Refusing a connection that sends commands again by itself.
//!
//! The fence against counting twice is above the connection: a call whose reply was lost is sent again, marked as a
//! repeat, and answered DUP or UNKNOWN. A client that resends on its own account takes the mark away, so that a Redis
//! that lost its memory in between counts the hit again. And it answers with the last attempt only: one that was
//! executed and whose reply was lost, followed by one that a cluster refused (CLUSTERDOWN, TRYAGAIN), looks like a call
//! that was surely not executed, which a caller may make again.

use redis::aio::ConnectionLike;
use tokio::sync::OnceCell;

use crate::error::{Error, ErrorKind, Result};
use crate::family::Family;
use crate::keys::Keys;
use crate::link;
use crate::partition::random;
use crate::script;

/// Refuses the call that it sees first, with an error that a cluster client resends at once.
const PROBE: &str = "\
if not redis.call('SET', KEYS[1], '', 'NX', 'PX', 10000) then return 'RESENT' end
return redis.error_reply('MOVED counterfoil asks whether this client resends by itself')";

/// What is known of a pair's connection: asked once.
#[derive(Debug, Default)]
pub struct ResendProbe(OnceCell<()>);

impl ResendProbe {
    /// Returns at once where the connection is known not to resend. It has to be asked before the first producer
    /// of the pair is registered, and asks Redis, by a key of the family's that lasts for 10 s, only until it knows.
    ///
    /// # Errors
    /// [`Unsafe`](ErrorKind::Unsafe) for a connection that resends; [`Redis`](ErrorKind::Redis) where nobody answers.
    pub async fn refuse<C>(&self, redis: &C, family: &Family) -> Result<()>
    where
        C: ConnectionLike + Clone + 'static,
    {
        if link::sends_once::<C>() {
            return Ok(());
        }
        self.0.get_or_try_init(|| ask(redis, family)).await.copied()
    }
}

async fn ask<C: ConnectionLike + Clone + 'static>(redis: &C, family: &Family) -> Result<()> {
    let key = Keys::new(family, 0).probe(random()?);
    let error = match script::eval(redis, PROBE, &[key], &[""; 0]).await {
        Ok(_) => {
            return Err(Error::new(
                ErrorKind::Unsafe,
                "the connection to Redis sends a command again by itself, which can count a hit twice: build it with \
                 ClusterClientBuilder::retries(0), or let Counterfoil::connect_cluster make it",
            ));
        }
        Err(error) => error,
    };
    match error.code() {
        // the probe's own; a slot that has really moved is named by its number
        Some("MOVED") if error.detail().is_some_and(|detail| detail.starts_with("counterfoil")) => Ok(()),
        _ => {
            Err(Error::new(ErrorKind::Redis, "Redis could not be asked whether its client resends").with_source(error))
        }
    }
}
