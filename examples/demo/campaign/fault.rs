//! The faults of processes, servers and the network.

use clap::ValueEnum;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Fault {
    WriterKilled,
    WriterPaused,
    ReconcilerKilled,
    ReconcilerPaused,
    RedisCrashed,
    RedisPaused,
    RedisWithoutMemory,
    MysqlKilled,
    MysqlPaused,
    ConnectionCutInARequest,
    ConnectionCutInAReply,
    /// The connection of a call is closed, and the call arrives later.
    CallLate,
    CallTwice,
    AllConnectionsToRedisClosed,
    AllConnectionsToMysqlClosed,
    ScriptsFlushed,
}

impl Fault {
    pub fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().replace('-', " "))
    }
}
