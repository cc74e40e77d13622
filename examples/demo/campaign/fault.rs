//! The faults of processes, servers and the network.

use clap::ValueEnum;

use super::persistence::Persistence;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Fault {
    WriterKilled,
    WriterPaused,
    /// A writer is paused while Redis forgets its last calls.
    WriterPausedForTwoEpochs,
    AllWritersRestarted,
    /// Two writers begin with the callers of one snapshot.
    MachineResumedTwice,
    /// Redis forgets requests, and jobs that were counted in the epoch before are made again.
    RequestsRepeatedLate,
    PackageKilled,
    PackagePaused,
    ReconcilerKilled,
    ReconcilerPaused,
    /// A reconciler is paused while it corrects a counter, until another one has continued its recount.
    RecounterPaused,
    DaemonKilled,
    DaemonPaused,
    /// The daemon reads a configuration with another bound and another sync time.
    DaemonReloaded,
    /// The family of the tenant gets another number of partitions.
    PartitionsChanged,
    /// A daemon, or an application, with another database for the same families.
    SecondDatabase,
    /// A reconciler whose days begin at other times, by other data of time zones.
    OtherTimeZones,
    /// A client announces a family that no daemon knows.
    UnknownFamilyAnnounced,
    RedisCrashed,
    RedisPaused,
    RedisWithoutMemory,
    RedisDiskFull,
    /// The clock of the server steps, by up to two epochs.
    ClockForward,
    ClockBack,
    /// The server returns to an older dump.
    RedisRestored,
    /// The server returns to an older dump while neither reconciler nor daemon runs.
    RedisRestoredBehindTheirBacks,
    /// The server takes over the state of one that was started from an older dump. It is not restarted.
    RedisRestoredByReplication,
    PrimaryHandedOver,
    SlotsMoved,
    MysqlKilled,
    MysqlPaused,
    /// The server returns to an older backup.
    MysqlRestored,
    /// The server returns to a backup that has one family. The others are registered again, with other
    /// numbers.
    MysqlRestoredToItsStart,
    /// The disk of counterfoil's table of values is full.
    MysqlDiskFull,
    TableLocked,
    /// A table refuses values above a limit.
    ColumnTooSmall,
    /// A table refuses saves. A recount reads them before they are added.
    SavesRefused,
    RowDeleted,
    ConnectionCutInARequest,
    ConnectionCutInAReply,
    /// The connection of a call is closed, and the call arrives later.
    CallLate,
    CallTwice,
    RepliesDelayed,
    AllConnectionsToRedisClosed,
    MysqlConnectionCutInARequest,
    MysqlConnectionCutInAReply,
    MysqlRepliesDelayed,
    AllConnectionsToMysqlClosed,
    ScriptsFlushed,
}

/// The properties of a round, on which its faults depend.
#[derive(Clone, Copy, Debug)]
pub struct Cast {
    pub persistence: Persistence,
    /// It counts with the library, in the families of the library.
    pub is_library: bool,
    pub has_daemon: bool,
    pub has_packages: bool,
    /// The clock of Redis can step.
    pub has_clock: bool,
    /// Redis has a small disk.
    pub has_disk: bool,
    /// MySQL has one.
    pub has_mysql_disk: bool,
}

impl Fault {
    /// Returns the faults that such a round can have.
    pub fn all(cast: Cast) -> impl Iterator<Item = Fault> {
        let all = Fault::value_variants().iter().copied();
        all.filter(move |fault| fault.suits(cast))
    }

    fn suits(self, cast: Cast) -> bool {
        let is_cluster = cast.persistence == Persistence::Cluster;
        match self {
            Fault::PrimaryHandedOver | Fault::SlotsMoved => is_cluster,
            Fault::ConnectionCutInARequest
            | Fault::ConnectionCutInAReply
            | Fault::CallLate
            | Fault::RepliesDelayed => !is_cluster,
            // the clients of counters made by hand never send a call twice
            Fault::CallTwice => cast.is_library && !is_cluster,
            Fault::WriterPausedForTwoEpochs
            | Fault::RequestsRepeatedLate
            | Fault::RecounterPaused
            | Fault::SavesRefused
            | Fault::MysqlRestored
            | Fault::MysqlRestoredToItsStart => cast.is_library && !is_cluster,
            Fault::RedisRestored
            | Fault::RedisRestoredBehindTheirBacks
            | Fault::RedisRestoredByReplication => {
                cast.is_library && cast.persistence == Persistence::Snapshots
            }
            Fault::RedisDiskFull => cast.has_disk,
            Fault::MysqlDiskFull => cast.is_library && cast.has_mysql_disk,
            Fault::ClockForward | Fault::ClockBack => cast.has_clock,
            Fault::PackageKilled | Fault::PackagePaused | Fault::PartitionsChanged => {
                cast.has_packages
            }
            Fault::DaemonKilled | Fault::DaemonPaused | Fault::DaemonReloaded => cast.has_daemon,
            Fault::SecondDatabase
            | Fault::OtherTimeZones
            | Fault::UnknownFamilyAnnounced
            | Fault::MachineResumedTwice
            | Fault::TableLocked
            | Fault::ColumnTooSmall
            | Fault::RowDeleted
            | Fault::MysqlConnectionCutInARequest
            | Fault::MysqlConnectionCutInAReply
            | Fault::MysqlRepliesDelayed => cast.is_library,
            _ => true,
        }
    }

    pub fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().replace('-', " "))
    }
}
