//! A stand-in for Redis inside the process, for the tests of an application.

mod commands;
mod keyspace;
mod lua;

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use redis::aio::ConnectionLike;
use redis::{Arg, Cmd, Pipeline, RedisFuture, RedisResult, Value, parse_redis_value};

use self::lua::Server;

/// A Redis in memory, for the tests of an application: with a [`MemoryStore`](crate::MemoryStore) a
/// test needs no server. Clones share one Redis, which is dropped with the last of them.
///
/// It runs the scripts of the bundle in Lua 5.1, as Redis does, over the commands that they call.
/// So all kinds of families count and refuse as they do on a server, and keys expire by this
/// machine's clock.
///
/// It has no faults: no call fails, and nothing is lost in a crash, so no batch has to settle. To
/// test how your application handles faults, use a server. Other commands than those of the scripts
/// are mostly missing.
///
/// ```
/// use counterfoil::{Counterfoil, Family, MemoryRedis, MemoryStore, Outcome};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> counterfoil::Result<()> {
/// let counterfoil = Counterfoil::new(MemoryRedis::new(), MemoryStore::new());
/// let views = counterfoil.open(Family::buffered("shop", "views")).await?;
///
/// assert_eq!(views.add("/products/1", 1).await?, Outcome::Counted(1));
/// counterfoil.drain().await?;
/// assert_eq!(views.stored(&["/products/1"]).await?, [Some(1)]);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct MemoryRedis(Arc<Mutex<Server>>);

impl Default for MemoryRedis {
    fn default() -> Self {
        MemoryRedis(Arc::new(Mutex::new(Server::new())))
    }
}

impl MemoryRedis {
    /// Creates an empty Redis.
    #[must_use]
    pub fn new() -> Self {
        MemoryRedis::default()
    }

    /// Executes a command. Returns an error reply as a value, as a connection does.
    fn execute(&self, command: &Cmd) -> RedisResult<Value> {
        let words: Vec<_> = command
            .args_iter()
            .map(|word| match word {
                Arg::Simple(bytes) => bytes.to_vec(),
                _ => b"0".to_vec(),
            })
            .collect();
        let mut server = self.0.lock();
        server.execute(&words).or_else(|refusal| {
            let line = refusal.replace(['\r', '\n'], " ");
            parse_redis_value(format!("-{line}\r\n").as_bytes())
        })
    }
}

impl ConnectionLike for MemoryRedis {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            // a caller that never waits would starve the other tasks of its thread
            tokio::task::yield_now().await;
            self.execute(command)
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        commands: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async move {
            tokio::task::yield_now().await;
            let replies = commands.cmd_iter().map(|command| self.execute(command));
            replies.skip(offset).take(count).collect()
        })
    }

    fn get_db(&self) -> i64 {
        0
    }
}

impl fmt::Debug for MemoryRedis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MemoryRedis")
    }
}
