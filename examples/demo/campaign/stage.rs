//! The servers and processes of a round, and what the faults do to them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use counterfoil::MysqlStore;
use serde_json::json;
use sqlx::{AssertSqlSafe, MySqlPool};
use testkit::{Fate, MysqlServer, Proxy, RedisServer};
use tokio::time::{Instant, sleep, timeout};

use super::daemon::{self, Daemon};
use super::fault::{Cast, Fault};
use super::hand;
use super::job;
use super::journal::{Counter, Journals, Ms, Scribe, now};
use super::outside;
use super::package::{Client, Counting, Order, Setup};
use super::persistence::Persistence;
use super::server::{Loss, Redis};
use super::site::{self, Home, JOBS, TENANT_NAMESPACE, VIEWS};
use super::watch::{Reader, Reads};
use super::way::{Means, Way};
use super::window::{Ledger, Watch, Windows, ledger};
use crate::Result;
use crate::child::{Report, Reports, Worker};
use crate::disturb::cut_mysql;
use crate::families::{self, NAMESPACE, Place};
use crate::reconcilers::Reconcilers;
use crate::zipf::Random;

const WRITERS: usize = 2;
/// The longest time for which a process or server is paused, in ms.
const PAUSED: u64 = 1_500;
/// A cut happens within this many bytes.
const CUT: u64 = 3_000;
/// The longest delay of a call, in ms.
const LATE: u64 = 200;
/// The longest time after which an older state is restored, in ms.
const OLDER: u64 = 2_000;
/// The longest step of a clock, in ms.
const STEP: u64 = 120_000;
/// The time within which everything must be in MySQL after the last fault.
const SAVED_WITHIN: Duration = Duration::from_secs(60);
/// The time that a row may take from its count to MySQL, in ms.
const ON_THE_WAY: Ms = 8_000;
/// The number of jobs that are made again once Redis has forgotten them.
const LATE_JOBS: usize = 50;
/// The most that a column takes which is too small.
const SMALL: i64 = 20;
/// Begins an epoch, as a client does that asks for one.
const EPOCH: &str = include_str!("../../../lua/v1/family_epoch.lua");

/// Servers and processes.
pub struct Stage<'m> {
    pub persistence: Persistence,
    way: Way,
    redis: Redis,
    mysql: &'m MysqlServer,
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
    /// The ids of rows that were deleted, and of those that a small column may refuse.
    exempt: Rc<RefCell<Vec<Range<u64>>>>,
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

/// The journals and the contents of MySQL at the end of a round.
pub struct Settled {
    pub journals: Journals,
    /// The name of the client of each journal.
    pub names: Vec<String>,
    pub stored: BTreeMap<Counter, i64>,
    pub windows: Rc<RefCell<Windows>>,
    /// The files of the round are kept or removed with it.
    _redis: Redis,
    /// The hits and batches that set-backs dropped and lost, as MySQL reports them.
    pub dropped: u64,
    pub lost_batches: u64,
    /// The time from the last fault until everything was in MySQL.
    pub saved_within: Duration,
    /// The saves whose counters were not those of their rows after a last recount.
    pub miscounted: u64,
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
        let place = Place {
            redis: redis.urls(),
            mysql: mysql.url(&database),
        };
        // opens the families, which the reconcilers look for
        let means = way.open(&place, persistence).await?;
        let mut stage = Stage {
            persistence,
            way,
            redis,
            mysql,
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
            exempt: Rc::default(),
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
            stage.start_writer().await?;
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
            exempt: self.exempt.clone(),
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

    async fn start_writer(&mut self) -> Result<()> {
        let number = self.journal("the crate");
        let Place { redis, mysql } = &self.place;
        let args = [
            "count-process".to_owned(),
            format!("--redis={redis}"),
            format!("--mysql={mysql}"),
            format!("--way={}", self.way),
            format!("--persistence={}", self.persistence),
            format!("--directory={}", self.redis.directory().display()),
            format!("--number={number}"),
        ];
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
            repeats: !self.persistence.forgets_requests(),
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
            Fault::WriterKilled => {
                let (writer, _) = self.writers.remove(0);
                writer.kill().await?;
                self.start_writer().await
            }
            Fault::WriterPaused => {
                self.writers[0].0.signal("STOP");
                pause(random).await;
                self.writers[0].0.signal("CONT");
                Ok(())
            }
            Fault::WriterPausedForTwoEpochs => {
                self.writers[0].0.signal("STOP");
                let homes = Home::all().filter(|home| home.partition == 0);
                self.begin_two_epochs("calls", homes).await?;
                self.writers[0].0.signal("CONT");
                Ok(())
            }
            Fault::RequestsRepeatedLate => self.repeat_late().await,
            Fault::AllWritersRestarted => self.restart_writers().await,
            Fault::PackageKilled => {
                self.any_package(random).order(Order::Kill);
                Ok(())
            }
            Fault::PackagePaused => {
                let package = self.any_package(random);
                package.order(Order::Signal("STOP"));
                pause(random).await;
                package.order(Order::Signal("CONT"));
                Ok(())
            }
            Fault::ReconcilerKilled => self.reconcilers.kill_one().await,
            Fault::ReconcilerPaused => {
                self.reconcilers.signal_one("STOP");
                pause(random).await;
                self.reconcilers.signal_one("CONT");
                Ok(())
            }
            Fault::DaemonKilled
            | Fault::DaemonPaused
            | Fault::DaemonReloaded
            | Fault::PartitionsChanged
            | Fault::SecondDatabase => self.strike_daemon(fault, random).await,
            Fault::RedisCrashed
            | Fault::RedisPaused
            | Fault::RedisWithoutMemory
            | Fault::RedisDiskFull
            | Fault::ClockForward
            | Fault::ClockBack
            | Fault::RedisRestored
            | Fault::RedisRestoredBehindTheirBacks
            | Fault::UnknownFamilyAnnounced
            | Fault::PrimaryHandedOver
            | Fault::SlotsMoved
            | Fault::AllConnectionsToRedisClosed
            | Fault::ScriptsFlushed => self.strike_redis(fault, random).await,
            Fault::MysqlKilled
            | Fault::MysqlPaused
            | Fault::MysqlRestored
            | Fault::MysqlDiskFull
            | Fault::TableLocked
            | Fault::ColumnTooSmall
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
        }
    }

    fn any_package(&self, random: &mut Random) -> &Counting {
        &self.packages[random.below(self.packages.len() as u64) as usize]
    }

    /// Has Redis forget the last call of each caller, or requests.
    async fn begin_two_epochs(&self, of: &str, homes: impl Iterator<Item = Home>) -> Result<()> {
        let Some(server) = self.redis.standalone() else {
            return Ok(());
        };
        let mut redis = server.manager().await;
        for home in homes {
            let keys = ["calls", "calls_before", "requests", "requests_before"];
            let keys = keys.map(|name| home.key(name));
            for _ in 0..2 {
                // an epoch that began long ago is over
                let memory = home.key(of);
                let began = [&*memory, "=began_at", "0"];
                if redis::cmd("EXISTS")
                    .arg(&memory)
                    .query_async(&mut redis)
                    .await?
                {
                    redis::cmd("HSET")
                        .arg(&began)
                        .exec_async(&mut redis)
                        .await?;
                    let mut begin = redis::cmd("EVAL");
                    begin.arg(EPOCH).arg(keys.len()).arg(&keys).arg(&[""; 4]);
                    begin.exec_async(&mut redis).await?;
                }
            }
        }
        Ok(())
    }

    /// Makes jobs again that were counted, once Redis has forgotten them.
    async fn repeat_late(&self) -> Result<()> {
        let Means::Library(site) = &self.means else {
            return Ok(());
        };
        let Journals { open, epochs, .. } = self.read_journals()?;
        let counted = epochs.iter().filter(|(job, _)| !open.contains_key(job));
        self.begin_two_epochs("requests", Home::all().filter(|home| home.is_of(JOBS)))
            .await?;
        for (job, epoch) in counted.rev().take(LATE_JOBS) {
            // it must not count, whatever it returns
            let _ = site.count_job(job, epoch).await;
        }
        Ok(())
    }

    /// Replaces all writers, as a release of the application does. Each finishes its calls.
    async fn restart_writers(&mut self) -> Result<()> {
        for package in &self.packages {
            package.order(Order::Restart);
        }
        for _ in 0..self.writers.len() {
            self.start_writer().await?;
            let writer = self.writers.remove(0);
            finish(writer).await?;
        }
        Ok(())
    }

    async fn strike_daemon(&mut self, fault: Fault, random: &mut Random) -> Result<()> {
        let Some((daemon, _)) = &mut self.daemon else {
            return Ok(());
        };
        match fault {
            Fault::DaemonKilled => {
                daemon.kill().await?;
                daemon.keep_running()
            }
            Fault::DaemonPaused => {
                daemon.signal("STOP")?;
                pause(random).await;
                daemon.signal("CONT")
            }
            Fault::DaemonReloaded => {
                self.reloads += 1;
                self.reload_daemon()
            }
            Fault::PartitionsChanged => self.change_partitions().await,
            _ => {
                let (database, pool) = self.mysql.database("another").await;
                MysqlStore::new(&pool)?.create_tables().await?;
                hand::create_table(&pool).await?;
                site::create_tables(&pool).await?;
                let place = Place {
                    redis: self.place.redis.clone(),
                    mysql: self.mysql.url(&database),
                };
                let config = self.configure("another", &place, "off")?;
                let program = daemon::program().ok_or("the daemon was not built")?;
                let mut another = Daemon::start(&program, &config)?;
                pause(random).await;
                another.kill().await
            }
        }
    }

    /// Has the daemon read its configuration again.
    fn reload_daemon(&mut self) -> Result<()> {
        if let Some((daemon, address)) = self.daemon.take() {
            self.configure("daemon", &self.place, &address.to_string())?;
            let (daemon, _) = self.daemon.insert((daemon, address));
            daemon.signal("HUP")?;
        }
        Ok(())
    }

    /// Changes the partitions of the tenant's family as docs/operations.md tells it, "Changing a family".
    async fn change_partitions(&mut self) -> Result<()> {
        let (Means::Library(site), Some(package)) = (&self.means, self.packages.pop()) else {
            return Ok(());
        };
        let (client, installed) = (package.client, package.installed.clone());
        package.stop().await?;
        let family = site::tenant(self.persistence, self.changes + 1)?;
        let change = async || {
            site.pair.drain().await?;
            site.pair.reconfigure(&family).await
        };
        families::patiently(change).await?;
        self.changes += 1;
        self.reload_daemon()?;
        self.start_package(client, installed, true).await
    }

    async fn strike_redis(&mut self, fault: Fault, random: &mut Random) -> Result<()> {
        match fault {
            Fault::RedisCrashed => {
                // no late call of a cached counter outlives a crash (docs/protocol.md, 4.2)
                self.calm().await;
                self.watch.windows.borrow_mut().suspend();
                let stored = ledger(&self.pool).await?;
                let loss = self.redis.crash(random).await?;
                if let Some(server) = self.redis.standalone() {
                    self.watch.look_at(server.url());
                }
                self.note(loss, stored).await
            }
            Fault::RedisRestored | Fault::RedisRestoredBehindTheirBacks => {
                let Some(server) = self.redis.standalone() else {
                    return Ok(());
                };
                let dump = server.back_up().await;
                sleep(Duration::from_millis(random.below(OLDER))).await;
                self.calm().await;
                let is_behind = fault == Fault::RedisRestoredBehindTheirBacks;
                if is_behind {
                    self.reconcilers.kill_all().await?;
                    if let Some((daemon, _)) = &mut self.daemon {
                        daemon.kill().await?;
                    }
                }
                self.watch.windows.borrow_mut().suspend();
                let stored = ledger(&self.pool).await?;
                if let Some(server) = self.redis.standalone() {
                    server.restore(&dump).await;
                }
                self.note(Loss::Pending(now()), stored).await?;
                if is_behind {
                    pause(random).await;
                    self.reconcilers.start_all().await?;
                    if let Some((daemon, _)) = &mut self.daemon {
                        daemon.keep_running()?;
                    }
                }
                Ok(())
            }
            Fault::PrimaryHandedOver => {
                self.redis.hand_over(random).await;
                Ok(())
            }
            Fault::SlotsMoved => {
                let homes: Vec<_> = Home::all().collect();
                let home = homes[random.below(homes.len() as u64) as usize];
                self.redis.move_slot(&home.key("calls"), random).await
            }
            Fault::UnknownFamilyAnnounced => {
                let announce = "SADD cf1:wanted nobody/knows not-a-family";
                Ok(self
                    .redis
                    .server_of("cf1:wanted")
                    .await?
                    .run(announce)
                    .await?)
            }
            fault => strike_server(self.redis.primary(random).await, fault, random).await,
        }
    }

    /// Ends the disturbances of calls, and waits until those that are late have arrived.
    async fn calm(&self) {
        if let Some(proxy) = self.redis.proxy() {
            proxy.calm();
            sleep(Duration::from_millis(LATE)).await;
        }
    }

    /// Notes what a crash may have lost. MySQL had `stored` completely before it.
    async fn note(&self, loss: Loss, stored: Ledger) -> Result<()> {
        let mut windows = self.watch.windows.borrow_mut();
        match loss {
            Loss::Nothing => {}
            Loss::Of(time) => windows.add(*time.start(), *time.end()),
            Loss::Pending(crashed) => {
                drop(windows);
                self.watch.crash(&stored, crashed);
                windows = self.watch.windows.borrow_mut();
            }
        }
        windows.know();
        Ok(())
    }

    async fn strike_mysql(&mut self, fault: Fault, random: &mut Random) -> Result<()> {
        match fault {
            Fault::MysqlKilled => {
                self.mysql.kill();
                sleep(Duration::from_millis(random.below(LATE))).await;
                self.mysql.start_again().await;
            }
            Fault::MysqlPaused => {
                self.mysql.pause();
                pause(random).await;
                self.mysql.resume();
            }
            Fault::MysqlRestored => {
                let (begun, stored) = (now(), ledger(&self.pool).await?);
                // others see a commit before it is in the log
                sleep(Duration::from_millis(LATE)).await;
                let backup = self.mysql.back_up();
                let deleted = self.deleted.clone();
                sleep(Duration::from_millis(random.below(OLDER))).await;
                self.watch.windows.borrow_mut().suspend();
                self.mysql.restore(&backup).await;
                self.deleted = deleted;
                self.watch.restored(&stored, begun, now());
                self.watch.windows.borrow_mut().know();
            }
            Fault::MysqlDiskFull => {
                if let Some(disk) = self.mysql.disk() {
                    disk.fill();
                    pause(random).await;
                    disk.free();
                }
            }
            Fault::TableLocked => {
                let mut lock = self.pool.acquire().await?.detach();
                sqlx::raw_sql("LOCK TABLES views WRITE")
                    .execute(&mut lock)
                    .await?;
                pause(random).await;
            }
            Fault::ColumnTooSmall => {
                let first = site::ids_in_use(now() - ON_THE_WAY, now()).start;
                self.exempt.borrow_mut().push(first..u64::MAX);
                for event in ["INSERT", "UPDATE"] {
                    let create = format!(
                        "CREATE TRIGGER small_{event} BEFORE {event} ON views FOR EACH ROW \
                         IF NEW.hits > {SMALL} THEN SIGNAL SQLSTATE '22003' SET MYSQL_ERRNO = 1264, \
                         MESSAGE_TEXT = 'Out of range value for column hits'; END IF"
                    );
                    sqlx::raw_sql(AssertSqlSafe(create))
                        .execute(&self.pool)
                        .await?;
                }
                pause(random).await;
                for event in ["INSERT", "UPDATE"] {
                    let drop = format!("DROP TRIGGER small_{event}");
                    sqlx::raw_sql(AssertSqlSafe(drop))
                        .execute(&self.pool)
                        .await?;
                }
                let end = site::ids_in_use(now(), now()).end;
                if let Some(refused) = self.exempt.borrow_mut().last_mut() {
                    refused.end = end;
                }
                self.retry_rejects().await?;
            }
            // a reconciler may win a deadlock
            Fault::RowDeleted => while self.delete_row().await.is_err() {},
            _ => {
                cut_mysql(&self.pool).await?;
            }
        }
        Ok(())
    }

    /// Deletes the newest row of views, and notes what it had.
    async fn delete_row(&mut self) -> Result<()> {
        let mut transaction = self.pool.begin().await?;
        let select = "SELECT id, hits FROM views ORDER BY id DESC LIMIT 1 FOR UPDATE";
        let row: Option<(u64, i64)> = sqlx::query_as(select)
            .fetch_optional(&mut *transaction)
            .await?;
        let Some((id, hits)) = row else {
            return Ok(());
        };
        // before it is deleted, so that no read is compared that may lack it
        self.exempt.borrow_mut().push(id..id + 1);
        let delete = sqlx::query("DELETE FROM views WHERE id = ?").bind(id);
        delete.execute(&mut *transaction).await?;
        transaction.commit().await?;
        *self.deleted.entry(id).or_default() += hits;
        Ok(())
    }

    /// Adds the deltas that a small column refused.
    async fn retry_rejects(&self) -> Result<()> {
        if let Means::Library(site) = &self.means {
            let family = site.views();
            let store = site.pair.mysql()?;
            families::patiently(async || store.retry_rejects(family, None).await).await?;
        }
        Ok(())
    }

    /// Ends the writers, and waits until everything is in MySQL.
    pub async fn settle(mut self) -> Result<Settled> {
        let ended = Instant::now();
        if let Some(proxy) = self.redis.proxy() {
            proxy.call_off();
            proxy.calm();
        }
        let wedged = |what: &str| format!("{what} {SAVED_WITHIN:?} after the last fault");
        for package in std::mem::take(&mut self.packages) {
            let name = package.client.name();
            let stopped = timeout(SAVED_WITHIN, package.stop()).await;
            stopped.map_err(|_| wedged(&format!("{name} has not ended")))??;
        }
        for writer in std::mem::take(&mut self.writers) {
            let finished = timeout(SAVED_WITHIN, finish(writer)).await;
            finished.map_err(|_| wedged("a writer has not ended"))??;
        }
        let jobs = timeout(SAVED_WITHIN, self.finish_jobs()).await;
        jobs.map_err(|_| wedged("a job has no outcome"))??;
        if self.way == Way::Library {
            let Ok(saved) = timeout(SAVED_WITHIN, self.wait_until_saved()).await else {
                // before the servers are dropped, and their files with them
                testkit::keep();
                let pending = self.redis.pending().await?.join(", ");
                let rejects = families::rejects(&self.pool).await?;
                return Err(wedged(&format!("pending: {pending}, and {rejects} rejects")).into());
            };
            saved?;
        }
        let saved_within = ended.elapsed();
        self.reconcilers.stop().await?;
        if let Some((daemon, _)) = self.daemon.take() {
            daemon.terminate().await?;
        }
        self.means.drain().await?;
        let mut stored = self.means.stored(&self.pool).await?;
        for (id, hits) in &self.deleted {
            *stored.entry((VIEWS, *id)).or_default() += hits;
        }
        let miscounted = match &self.means {
            Means::Library(site) => {
                site.recount_at_the_end().await?;
                site::miscounted(&self.pool).await?
            }
            Means::ByHand(_) => 0,
        };
        let (dropped, lost_batches) = sqlx::query_as(
            "SELECT CAST(COALESCE(SUM(dropped_hits), 0) AS UNSIGNED), \
               CAST(COALESCE(SUM(lost_batches), 0) AS UNSIGNED) FROM counterfoil_ledger",
        )
        .fetch_one(&self.pool)
        .await?;
        let mut journals = Journals::new(self.redis.directory());
        journals.read()?;
        self.watch.windows.borrow_mut().close();
        Ok(Settled {
            journals,
            names: self.journals,
            stored,
            windows: self.watch.windows,
            _redis: self.redis,
            dropped,
            lost_batches,
            saved_within,
            miscounted,
        })
    }

    /// Returns once the reconcilers have brought everything to MySQL.
    async fn wait_until_saved(&mut self) -> Result<()> {
        loop {
            if let Some((daemon, _)) = &mut self.daemon {
                daemon.keep_running()?;
            }
            if self.redis.pending().await?.is_empty() {
                self.retry_rejects().await?;
                if families::rejects(&self.pool).await? == 0 {
                    return Ok(());
                }
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Repeats the jobs of killed writers.
    async fn finish_jobs(&mut self) -> Result<()> {
        if self.persistence.forgets_requests() {
            return Ok(());
        }
        let (journals, number) = (self.read_journals()?, self.journal("the crate"));
        let Means::Library(site) = &self.means else {
            return Ok(());
        };
        let scribe = Scribe::create(&self.redis.directory(), number)?;
        for job in journals.open.keys() {
            let epoch = journals.epochs.get(job).cloned();
            job::count(site, &scribe, job, epoch, true).await?;
        }
        Ok(())
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

async fn strike_server(server: &RedisServer, fault: Fault, random: &mut Random) -> Result<()> {
    match fault {
        Fault::RedisPaused => {
            server.pause();
            pause(random).await;
            server.resume();
        }
        Fault::RedisWithoutMemory => {
            server.run::<()>("CONFIG SET maxmemory 1").await?;
            pause(random).await;
            server.run::<()>("CONFIG SET maxmemory 0").await?;
        }
        Fault::RedisDiskFull => {
            if let Some(disk) = server.disk() {
                disk.fill();
                pause(random).await;
                disk.free();
                // what did not fit waits in memory, where a crash would lose it
                let is_written = async || {
                    let info: String = server.run("INFO persistence").await?;
                    Ok::<_, redis::RedisError>(info.contains("aof_last_write_status:ok"))
                };
                while !is_written().await? {
                    sleep(Duration::from_millis(1)).await;
                }
            }
        }
        Fault::ClockForward => server.step_clock_forward(Duration::from_millis(random.below(STEP))),
        Fault::ClockBack => server.step_clock_back(Duration::from_millis(random.below(STEP))),
        Fault::ScriptsFlushed => server.run::<()>("SCRIPT FLUSH").await?,
        _ => server.run::<()>("CLIENT KILL TYPE normal").await?,
    }
    Ok(())
}

/// Has the network disturb one of the next calls, or all for a while.
async fn strike_network(proxy: &Proxy, fault: Fault, random: &mut Random) {
    let (cut, after) = (
        random.below(CUT) as usize,
        Duration::from_millis(random.below(LATE)),
    );
    let calls = ["EVALSHA", "HINCRBY", "INCR", "LPUSH"];
    match fault {
        Fault::ConnectionCutInARequest => proxy.cut_requests_after(cut),
        Fault::ConnectionCutInAReply => proxy.cut_replies_after(cut),
        Fault::CallLate => proxy.disturb(calls, Fate::Late { after }),
        Fault::CallTwice => proxy.disturb(calls, Fate::Twice { after }),
        _ => {
            proxy.delay_replies(after);
            pause(random).await;
            proxy.delay_replies(Duration::ZERO);
        }
    }
}
