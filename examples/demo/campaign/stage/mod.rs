//! The servers and processes of a round, and what the faults do to them.

mod daemon;
mod mysql;
mod network;
mod process;
mod redis;
mod settle;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use counterfoil::MysqlStore;
use serde_json::json;
use sqlx::MySqlPool;
use testkit::{MysqlServer, Proxy, RedisServer};
use tokio::time::sleep;

use self::mysql::State;
use self::network::strike_network;
pub use self::settle::Settled;
use super::clock::Clock;
use super::daemon::Daemon;
use super::fault::{Cast, Fault};
use super::hand;
use super::journal::Journals;
use super::outside;
use super::package::{Client, Counting, Setup};
use super::persistence::Persistence;
use super::server::Redis;
use super::site::{self, TENANT_NAMESPACE, VIEWS};
use super::watch::{Reader, Reads};
use super::way::{Means, Way};
use super::window::Watch;
use crate::Result;
use crate::child::{Report, Reports, Worker};
use crate::families::{NAMESPACE, Place};
use crate::reconcilers::Reconcilers;
use crate::zipf::Random;

const WRITERS: usize = 2;
/// The longest time for which a process or server is paused, in ms.
const PAUSED: u64 = 1_500;
/// The longest delay of a call, in ms.
const LATE: u64 = 200;
/// The longest time after which an older state is restored, in ms.
const OLDER: u64 = 2_000;

/// Servers and processes.
pub struct Stage<'m> {
    pub persistence: Persistence,
    way: Way,
    redis: Redis,
    mysql: &'m MysqlServer,
    /// MySQL before all families but one were registered.
    start: State,
    /// The network in front of MySQL.
    mysql_proxy: Proxy,
    /// The supervisor's own connections.
    pool: MySqlPool,
    place: Place,
    /// The supervisor's own means.
    means: Means,
    writers: Vec<(Worker, Reports)>,
    reconcilers: Reconcilers,
    daemon: Option<(Daemon, SocketAddr)>,
    /// The number of times that the daemon was configured anew.
    reloads: u64,
    /// The number of times that the tenant's partitions were changed.
    changes: u32,
    packages: Vec<Counting>,
    /// The name of the client of each journal.
    journals: Vec<String>,
    watch: Watch,
    clock: Rc<RefCell<Clock>>,
    /// The ids of deleted rows, and of rows that a small column may refuse.
    exempt: Rc<RefCell<Vec<Range<u64>>>>,
    /// The ids of which an older backup may lack rows.
    unsaved: Rc<RefCell<Vec<Range<u64>>>>,
    /// The hits of the deleted rows.
    deleted: BTreeMap<u64, i64>,
}

/// The participants of a round.
pub struct Plan {
    pub persistence: Persistence,
    pub way: Way,
    /// The packages that count, and where they are installed; the last one for a tenant.
    pub clients: Vec<(Client, PathBuf)>,
    pub daemon: Option<PathBuf>,
}

impl<'m> Stage<'m> {
    pub async fn start(mysql: &'m MysqlServer, plan: Plan) -> Result<Self> {
        let Plan {
            persistence,
            way,
            clients,
            daemon,
        } = plan;
        let redis = Redis::start(persistence).await;
        let (database, pool) = mysql.database("campaign").await;
        MysqlStore::new(&pool)?.create_tables().await?;
        hand::create_table(&pool).await?;
        site::create_tables(&pool).await?;
        if let Some(disk) = mysql.disk() {
            site::move_values(&pool, disk.dir()).await?;
        }
        site::register(&pool, VIEWS, persistence).await?;
        let start = State::back_up(mysql, &pool, &BTreeMap::new()).await?;
        let mysql_proxy = Proxy::to_unix(mysql.socket());
        let socket = |path: &Path| path.display().to_string();
        let place = Place {
            redis: redis.urls(),
            mysql: mysql
                .url(&database)
                .replace(&socket(mysql.socket()), &socket(mysql_proxy.socket())),
        };
        // opens the families, which the reconcilers look for
        let means = way.open(&place, persistence).await?;
        let mut stage = Stage {
            persistence,
            way,
            redis,
            mysql,
            start,
            mysql_proxy,
            pool,
            means,
            writers: Vec::new(),
            reconcilers: Reconcilers::start(&way.role(persistence), &place).await?,
            place,
            daemon: None,
            reloads: 0,
            changes: 0,
            packages: Vec::new(),
            journals: Vec::new(),
            watch: Watch::new(),
            clock: Rc::default(),
            exempt: Rc::default(),
            unsaved: Rc::default(),
            deleted: BTreeMap::new(),
        };
        if let Some(server) = stage.redis.standalone() {
            stage.watch.look_at(server.url());
        }
        if let Some(program) = daemon {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, testkit::free_port()));
            let config = stage.configure("daemon", &stage.place, &address.to_string())?;
            stage.daemon = Some((Daemon::start(&program, &config)?, address));
        }
        for _ in 0..WRITERS {
            stage.start_writer(None).await?;
        }
        let last = clients.len().saturating_sub(1);
        for (index, (client, installed)) in clients.into_iter().enumerate() {
            stage
                .start_package(client, installed, index == last)
                .await?;
        }
        Ok(stage)
    }

    /// Returns what the round has.
    pub fn cast(&self) -> Cast {
        let server = self.redis.standalone();
        Cast {
            has_clock: server.is_some_and(RedisServer::has_clock),
            has_disk: server.is_some_and(|server| server.disk().is_some()),
            has_mysql_disk: self.mysql.disk().is_some(),
            persistence: self.persistence,
            is_library: self.way == Way::Library,
            has_daemon: self.daemon.is_some(),
            has_packages: !self.packages.is_empty(),
        }
    }

    /// Reads values until `is_over` is set. Counters made by hand have none while they are pending.
    pub fn read<'o>(
        &self,
        is_over: &'o Cell<bool>,
    ) -> impl Future<Output = Result<Reads>> + use<'o> {
        let reader = (self.way == Way::Library).then(|| Reader {
            place: self.place.clone(),
            persistence: self.persistence,
            directory: self.redis.directory(),
            daemon: self.daemon.as_ref().map(|(_, address)| *address),
            windows: self.watch.windows.clone(),
            clock: self.clock.clone(),
            exempt: self.exempt.clone(),
            unsaved: self.unsaved.clone(),
            mysql: self.pool.clone(),
        });
        async move {
            match reader {
                Some(reader) => reader.run(is_over).await,
                None => Ok(Reads::default()),
            }
        }
    }

    /// Writes the column of votes until `is_over` is set.
    pub fn write_outside<'o>(
        &mut self,
        is_over: &'o Cell<bool>,
    ) -> impl Future<Output = Result<()>> + use<'o> {
        let (mysql, directory) = (self.pool.clone(), self.redis.directory());
        // a number without a file would hide all later journals
        let number = (self.way == Way::Library).then(|| self.journal("another program"));
        async move {
            if let Some(number) = number {
                outside::write(mysql, directory, number, is_over).await?;
            }
            Ok(())
        }
    }

    /// Notes every cut, without end.
    pub fn note_cuts(&self) -> impl Future<Output = Result<()>> + use<> {
        let (watch, is_watched) = (self.watch.clone(), self.redis.standalone().is_some());
        async move {
            if is_watched {
                watch.run().await?;
            }
            std::future::pending().await
        }
    }

    /// Returns the number of a new journal.
    fn journal(&mut self, of: &str) -> usize {
        self.journals.push(of.to_owned());
        self.journals.len() - 1
    }

    fn read_journals(&self) -> Result<Journals> {
        let mut journals = Journals::new(self.redis.directory());
        journals.read()?;
        Ok(journals)
    }

    /// Writes the configuration of a daemon.
    fn configure(&self, name: &str, place: &Place, listen: &str) -> Result<PathBuf> {
        let path = self.redis.directory().join(format!("{name}.toml"));
        let partitions = site::tenant_partitions(self.changes);
        let text = site::configuration(place, self.persistence, listen, self.reloads, partitions);
        fs::write(&path, text)?;
        Ok(path)
    }

    /// Starts a writer, on a machine that was resumed from a snapshot if there is one.
    async fn start_writer(&mut self, snapshot: Option<&str>) -> Result<()> {
        let number = self.journal("the crate");
        let Place { redis, mysql } = &self.place;
        let mut args = vec![
            "count-process".to_owned(),
            format!("--redis={redis}"),
            format!("--mysql={mysql}"),
            format!("--way={}", self.way),
            format!("--persistence={}", self.persistence),
            format!("--directory={}", self.redis.directory().display()),
            format!("--number={number}"),
        ];
        args.extend(snapshot.map(|name| format!("--snapshot={name}")));
        self.writers.push(Worker::start(&args).await?);
        Ok(())
    }

    async fn start_package(
        &mut self,
        client: Client,
        installed: PathBuf,
        is_of_tenant: bool,
    ) -> Result<()> {
        let mut open = json!({
            "library": client.library,
            "namespace": if is_of_tenant { TENANT_NAMESPACE } else { NAMESPACE },
            "timeout": 1,
            "options": {"retry_for": 2},
        });
        match self.redis.proxy() {
            Some(proxy) => open["socket"] = json!(proxy.socket()),
            None => {
                let nodes = self.place.redis.split(',');
                let nodes = nodes.map(|url| url.trim_start_matches("redis://"));
                open["nodes"] = json!(nodes.collect::<Vec<_>>());
            }
        }
        if let Some((_, address)) = &self.daemon {
            open["options"]["daemon"] = json!(format!("http://{address}"));
        }
        let setup = Setup {
            client,
            installed,
            open,
            is_of_tenant,
            directory: self.redis.directory(),
            number: self.journal(&client.name()),
        };
        self.packages.push(Counting::start(setup).await?);
        Ok(())
    }

    /// Injects a fault, to its end.
    pub async fn strike(&mut self, fault: Fault, random: &mut Random) -> Result<()> {
        if let Some((daemon, _)) = &mut self.daemon {
            daemon.keep_running()?;
        }
        match fault {
            Fault::DaemonKilled
            | Fault::DaemonPaused
            | Fault::DaemonReloaded
            | Fault::PartitionsChanged => self.strike_daemon(fault, random).await,
            Fault::SecondDatabase => self.serve_elsewhere(random).await,
            Fault::OtherTimeZones => self.serve_in_other_zones().await,
            Fault::RedisCrashed
            | Fault::RedisPaused
            | Fault::RedisWithoutMemory
            | Fault::RedisDiskFull
            | Fault::ClockForward
            | Fault::ClockBack
            | Fault::RedisRestored
            | Fault::RedisRestoredBehindTheirBacks
            | Fault::RedisRestoredByReplication
            | Fault::UnknownFamilyAnnounced
            | Fault::PrimaryHandedOver
            | Fault::SlotsMoved
            | Fault::AllConnectionsToRedisClosed
            | Fault::ScriptsFlushed => self.strike_redis(fault, random).await,
            Fault::MysqlKilled
            | Fault::MysqlPaused
            | Fault::MysqlRestored
            | Fault::MysqlRestoredToItsStart
            | Fault::MysqlDiskFull
            | Fault::TableLocked
            | Fault::ColumnTooSmall
            | Fault::SavesRefused
            | Fault::RowDeleted
            | Fault::AllConnectionsToMysqlClosed => self.strike_mysql(fault, random).await,
            Fault::ConnectionCutInARequest
            | Fault::ConnectionCutInAReply
            | Fault::CallLate
            | Fault::CallTwice
            | Fault::RepliesDelayed => {
                if let Some(proxy) = self.redis.proxy() {
                    strike_network(proxy, fault, random).await;
                }
                Ok(())
            }
            Fault::MysqlConnectionCutInARequest
            | Fault::MysqlConnectionCutInAReply
            | Fault::MysqlRepliesDelayed => {
                strike_network(&self.mysql_proxy, fault, random).await;
                Ok(())
            }
            _ => self.strike_process(fault, random).await,
        }
    }
}

/// Lets a writer finish its calls.
async fn finish((mut writer, mut reports): (Worker, Reports)) -> Result<()> {
    writer.order("stop").await?;
    match reports.next().await? {
        Some(Report::Finished { .. }) => Ok(()),
        _ => Err("a writer ended early".into()),
    }
}

async fn pause(random: &mut Random) {
    sleep(Duration::from_millis(random.below(PAUSED))).await;
}
