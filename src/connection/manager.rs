//! The redis crate's connection manager, which connects before it sends: where a server refuses the
//! connection, nothing was sent.

use futures_util::FutureExt;
use redis::aio::{ConnectionLike, ConnectionManager};
use redis::{Cmd, Pipeline, RedisError, RedisFuture, Value};

use crate::connection::refusal;

#[derive(Clone)]
pub struct ManagedConnection(pub ConnectionManager);

impl ConnectionLike for ManagedConnection {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        let reply = self.0.req_packed_command(cmd);
        reply.map(|reply| reply.map_err(unsent)).boxed()
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        let replies = self.0.req_packed_commands(pipeline, offset, count);
        replies.map(|replies| replies.map_err(unsent)).boxed()
    }

    fn get_db(&self) -> i64 {
        self.0.get_db()
    }
}

fn unsent(error: RedisError) -> RedisError {
    if error.is_connection_refusal() {
        refusal::unsent(&error)
    } else {
        error
    }
}
