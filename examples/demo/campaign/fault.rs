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
    PrimaryHandedOver,
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
    /// Returns the faults that a cluster can have, or a standalone server behind a proxy.
    pub fn all(of_cluster: bool) -> impl Iterator<Item = Fault> {
        let needs_proxy = |fault: &Fault| {
            matches!(
                fault,
                Fault::ConnectionCutInARequest
                    | Fault::ConnectionCutInAReply
                    | Fault::CallLate
                    | Fault::CallTwice
            )
        };
        let all = Fault::value_variants().iter().copied();
        all.filter(move |fault| match fault {
            Fault::PrimaryHandedOver => of_cluster,
            other => !(of_cluster && needs_proxy(other)),
        })
    }

    pub fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().replace('-', " "))
    }
}
