//! The servers and processes of a round, and what the faults do to them.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use counterfoil::MysqlStore;
use sqlx::MySqlPool;
use testkit::{Fate, MysqlServer, Proxy};
use tokio::time::sleep;

use super::fault::Fault;
use super::hand;
use super::journal::{Counter, Journals, Ms, Scribe, now};
use super::persistence::Persistence;
use super::server::Redis;
use super::watch::{Reads, watch};
use super::way::{Means, Way};
use crate::Result;
use crate::child::{Report, Reports, Worker};
use crate::disturb::cut_mysql;
use crate::families::{self, Place};
use crate::reconcilers::Reconcilers;
use crate::zipf::Random;

const WRITERS: usize = 3;
/// The longest time for which a process or server is paused, in ms.
const PAUSED: u64 = 1_500;
/// A cut happens within this many bytes.
const CUT: u64 = 3_000;
/// The longest delay of a call, in ms.
const LATE: u64 = 200;

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
    /// The number of journals.
    opened: usize,
    /// The times whose hits a crash may lose.
    lost: Vec<RangeInclusive<Ms>>,
}

impl<'m> Stage<'m> {
    pub async fn start(mysql: &'m MysqlServer, persistence: Persistence, way: Way) -> Result<Self> {
        let redis = Redis::start(persistence).await;
        let (database, pool) = mysql.database("campaign").await;
        MysqlStore::new(&pool)?.create_tables().await?;
        hand::create_table(&pool).await?;
        let place = Place {
            redis: redis.urls(),
            mysql: mysql.url(&database),
        };
        let role = match way {
            Way::Library => "serve-process",
            Way::Rename => "rename-process",
            Way::Take => "take-process",
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
            reconcilers: Reconcilers::start(role, &place).await?,
            place,
            opened: 0,
            lost: Vec::new(),
        };
        for _ in 0..WRITERS {
            stage.start_writer().await?;
        }
        Ok(stage)
    }

    /// Reads values until `is_over` is set. Counters made by hand have none while they are pending.
    pub fn watch<'o>(
        &self,
        is_over: &'o Cell<bool>,
    ) -> impl Future<Output = Result<Reads>> + use<'o> {
        let (way, place, persistence) = (self.way, self.place.clone(), self.persistence);
        let directory = self.redis.directory();
        async move {
            match way {
                Way::Library => watch(place, persistence, directory, is_over).await,
                _ => Ok(Reads::default()),
            }
        }
    }

    fn journals(&self) -> Result<Journals> {
        let mut journals = Journals::new(self.redis.directory(), self.lost.clone());
        journals.read()?;
        Ok(journals)
    }

    async fn start_writer(&mut self) -> Result<()> {
        let Place { redis, mysql } = &self.place;
        let args = [
            "count-process".to_owned(),
            format!("--redis={redis}"),
            format!("--mysql={mysql}"),
            format!("--way={}", self.way),
            format!("--persistence={}", self.persistence),
            format!("--directory={}", self.redis.directory().display()),
            format!("--number={}", self.opened),
        ];
        self.opened += 1;
        self.writers.push(Worker::start(&args).await?);
        Ok(())
    }

    /// Injects a fault, to its end.
    pub async fn strike(&mut self, fault: Fault, random: &mut Random) -> Result<()> {
        let pause = |random: &mut Random| sleep(Duration::from_millis(random.below(PAUSED)));
        let (proxy, server) = (self.redis.proxy(), self.redis.primary(random).await);
        match fault {
            Fault::WriterKilled => {
                let (writer, _) = self.writers.remove(0);
                writer.kill().await?;
                self.start_writer().await?;
            }
            Fault::WriterPaused => {
                self.writers[0].0.signal("STOP");
                pause(random).await;
                self.writers[0].0.signal("CONT");
            }
            Fault::ReconcilerKilled => self.reconcilers.kill_one().await?,
            Fault::ReconcilerPaused => {
                self.reconcilers.signal_one("STOP");
                pause(random).await;
                self.reconcilers.signal_one("CONT");
            }
            Fault::RedisCrashed => {
                // no late call of a cached counter outlives a crash (docs/protocol.md, 4.2)
                if let Some(proxy) = proxy {
                    proxy.calm();
                    sleep(Duration::from_millis(LATE)).await;
                }
                let lost = self.redis.crash(random).await?;
                self.lost.extend(lost);
            }
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
            Fault::PrimaryHandedOver => self.redis.hand_over(random).await,
            Fault::AllConnectionsToRedisClosed => {
                server.run::<()>("CLIENT KILL TYPE normal").await?;
            }
            Fault::AllConnectionsToMysqlClosed => {
                cut_mysql(&self.pool).await?;
            }
            Fault::ScriptsFlushed => server.run::<()>("SCRIPT FLUSH").await?,
            network => {
                if let Some(proxy) = proxy {
                    disturb(proxy, network, random);
                }
            }
        }
        Ok(())
    }

    /// Ends the processes, and moves everything to MySQL. Returns what the journals and MySQL have.
    pub async fn settle(mut self) -> Result<(Journals, BTreeMap<Counter, i64>)> {
        if let Some(proxy) = self.redis.proxy() {
            proxy.call_off();
            proxy.calm();
        }
        for (writer, _) in &mut self.writers {
            writer.order("stop").await?;
        }
        for (_, reports) in &mut self.writers {
            if !matches!(reports.next().await?, Some(Report::Finished { .. })) {
                return Err("a writer ended early".into());
            }
        }
        self.finish_jobs().await?;
        let journals = self.journals()?;
        self.reconcilers.stop().await?;
        self.means.drain().await?;
        let rejects = families::rejects(&self.pool).await?;
        if rejects > 0 {
            return Err(format!("MySQL refused {rejects} deltas").into());
        }
        Ok((journals, self.means.stored(&self.pool).await?))
    }

    /// Repeats the jobs of killed writers.
    async fn finish_jobs(&mut self) -> Result<()> {
        if self.persistence.forgets_requests() {
            return Ok(());
        }
        let open = self.journals()?.open;
        let scribe = Scribe::create(&self.redis.directory(), self.opened)?;
        self.opened += 1;
        for job in &open {
            let begun = now();
            while self.means.count(std::slice::from_ref(job)).await != [Some(true)] {}
            scribe.end(std::iter::once((job, true)), begun)?;
        }
        Ok(())
    }
}

/// Has the network disturb one of the next calls.
fn disturb(proxy: &Proxy, fault: Fault, random: &mut Random) {
    let (cut, after) = (
        random.below(CUT) as usize,
        Duration::from_millis(random.below(LATE)),
    );
    let calls = ["EVALSHA", "HINCRBY"];
    match fault {
        Fault::ConnectionCutInARequest => proxy.cut_requests_after(cut),
        Fault::ConnectionCutInAReply => proxy.cut_replies_after(cut),
        Fault::CallLate => proxy.disturb(calls, Fate::Late { after }),
        _ => proxy.disturb(calls, Fate::Twice { after }),
    }
}
