//! Helpers that several test programs share.
#![allow(dead_code, missing_docs, unused_imports)]

pub mod between;
pub mod custom;
pub mod hits;
pub mod interleaving;
pub mod kinds;
pub mod load;
mod log;
pub mod measure;
pub mod model;
pub mod random;
pub mod site;
pub mod state;
pub mod tally;
pub mod tls;
pub mod trouble;

use std::ops::{Deref, Range};

pub use counterfoil::ErrorKind::{
    AccessDenied, Busy, Closed, Corrupt, InvalidInput, Mismatch, OutcomeUnknown, Unsafe,
};
pub use counterfoil::KeyType::{Char, Date, DateTime, Signed, Text, Unsigned, Uuid};
pub use counterfoil::Outcome::{Counted, CountedBefore, NoRow, OutOfRange};
pub use counterfoil::admin::{
    Backlog, Finding, Reject, RetrySummary, Role, Script, Severity, acl_rules,
};
pub use counterfoil::store::{
    ApplyReply, Batch, BatchId, FamilyNumber, Incarnation, LedgerRow, Mark, Nonce, Progress,
    ReadFrom, Registration,
};
pub use counterfoil::test_hooks::{
    Cut, Destination, Fence, FetchReply, Guard, LastCut, PairResult, ResetReply, RotateReply,
    Update, take_out,
};
pub use counterfoil::{
    Activity, BufferedCounters, CachedCounters, Cluster, Connection, Counterfoil, CustomConnection,
    Day, Durability, Error, ErrorKind, Family, FamilyBuilder, FamilyHandle, KeyType, MemoryStore,
    MysqlStore, Outcome, Precision, Primary, PrimaryTimeouts, Reconciler, Result, Series, Slice,
    Store, Table, Visitors,
};
pub use futures_util::future::{join_all, try_join_all};
pub use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
pub use proptest::prelude::*;
pub use proptest::test_runner::{TestCaseError, TestError, TestRunner};
pub use rand::rngs::StdRng;
pub use rand::{RngExt, SeedableRng};
pub use redis::aio::{ConnectionManager, ConnectionManagerConfig};
pub use redis::{Cmd, FromRedisValue, RedisResult, cmd, pipe};
pub use sqlx::{AssertSqlSafe, MySqlPool, Row};
pub use std::collections::{BTreeMap, BTreeSet, HashMap};
pub use std::fmt::Debug;
pub use std::fs;
pub use std::path::{Path, PathBuf};
pub use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
pub use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
pub use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
pub use testkit::{
    Certificates, Held, MysqlServer, Proxy, RedisCluster, RedisOptions, RedisServer, Sentinel,
};
pub use tokio::runtime::{Builder, Runtime};
pub use tokio::sync::OnceCell;
pub use tokio::task::{JoinHandle, JoinSet};
pub use tokio::time::timeout;

pub use between::{Between, Gate, Wrapped};
pub use custom::{RESENDS, custom, custom_once, cut_off, interposed, lossy, mentions};
pub use hits::{Hit, HitOutcome, Hits, Reckoning};
pub use kinds::{KINDS, OfKind};
pub use load::Load;
pub use log::Log;
pub use measure::Metrics;
pub use model::{changed, changes, scripts};
pub use site::{Handles, Site};
pub use state::State;
pub use tally::{Tally, now_ms};
pub use tls::{CERTIFIED, Tls};
pub use trouble::doomed;

/// Returns the test program's one MySQL, which no test may stop.
pub async fn mysql() -> &'static MysqlServer {
    static MYSQL: OnceCell<MysqlServer> = OnceCell::const_new();
    MYSQL.get_or_init(MysqlServer::start).await
}

/// A separate Redis, and a client of it with this store.
pub struct Plain<S = MemoryStore> {
    pub redis: RedisServer,
    pub store: S,
    pub counterfoil: Counterfoil,
}

impl Plain {
    pub async fn new() -> Self {
        Plain::with(RedisOptions::volatile()).await
    }

    pub async fn with(options: RedisOptions) -> Self {
        Plain::on(options, MemoryStore::new()).await
    }

    /// Starts a Redis without persistence, with a client, and opens this family.
    pub async fn of<H: FamilyHandle>(family: FamilyBuilder<H>) -> (Self, H) {
        let plain = Plain::new().await;
        let counters = plain.open(family).await;
        (plain, counters)
    }
}

impl<S: Store + Clone> Plain<S> {
    async fn on(options: RedisOptions, store: S) -> Self {
        let redis = RedisServer::start(options).await;
        let counterfoil = patient(Counterfoil::new(redis.manager().await, store.clone()));
        Plain {
            redis,
            store,
            counterfoil,
        }
    }

    /// Returns a client of another process, with another connection.
    pub fn over(&self, redis: impl Into<Connection>) -> Counterfoil {
        patient(Counterfoil::new(redis, self.store.clone()))
    }

    /// Returns a client of another process.
    pub async fn other(&self) -> Counterfoil {
        self.over(self.redis.manager().await)
    }

    pub async fn open<H: FamilyHandle>(&self, family: FamilyBuilder<H>) -> H {
        self.counterfoil.open(family).await.unwrap()
    }

    pub async fn drain(&self) {
        self.counterfoil.drain().await.unwrap();
    }
}

/// A separate Redis, and a separate database on the test program's one MySQL.
pub struct Pair {
    pub pool: MySqlPool,
    plain: Plain<MysqlStore>,
}

impl Pair {
    pub async fn new() -> Self {
        Pair::with(RedisOptions::volatile()).await
    }

    pub async fn with(options: RedisOptions) -> Self {
        Pair::on(options, mysql().await).await
    }

    pub async fn on(options: RedisOptions, mysql: &MysqlServer) -> Self {
        let pool = database_on(mysql).await;
        let plain = Plain::on(options, MysqlStore::new(&pool).unwrap()).await;
        Pair { pool, plain }
    }

    /// Starts a pair with this family open.
    pub async fn of<H: FamilyHandle>(family: FamilyBuilder<H>) -> (Self, H) {
        let pair = Pair::new().await;
        let counters = pair.open(family).await;
        (pair, counters)
    }

    /// Starts a pair on a MySQL that the test may stop.
    pub async fn on_own_mysql() -> (MysqlServer, Self) {
        let mysql = MysqlServer::start().await;
        let pair = Pair::on(RedisOptions::volatile(), &mysql).await;
        (mysql, pair)
    }

    pub fn mysql(&self) -> &MysqlStore {
        &self.store
    }

    /// Runs SQL that returns nothing.
    pub async fn sql(&self, sql: &str) {
        run_sql(&self.pool, sql).await;
    }

    /// Returns the only number of the query; 0 for none.
    pub async fn number(&self, sql: &str) -> i64 {
        number(&self.pool, sql).await.unwrap_or(0)
    }

    /// Returns the sum of counterfoil's own values.
    pub async fn stored(&self) -> i64 {
        self.number("SELECT SUM(value) FROM counterfoil_values")
            .await
    }

    /// Waits until this sum of counterfoil's own values has arrived.
    pub async fn arrives(&self, sum: i64) {
        let what = format!("{sum} in the database");
        eventually(&what, async || self.stored().await == sum).await;
    }

    /// Creates a table of visitors by store and day.
    pub async fn visitors_by_day(&self) -> Table {
        let columns = "store_id INT UNSIGNED, day DATE, n BIGINT NOT NULL";
        self.sql(&format!(
            "CREATE TABLE visitors ({columns}, PRIMARY KEY (store_id, day))"
        ))
        .await;
        let keys = [("store_id", Unsigned), ("day", Date)];
        keyed(Table::upsert("visitors"), keys)
    }

    /// Creates the table `sales` of texts by `id`.
    pub async fn sales(&self, verb: fn(&'static str) -> Table) -> Table {
        let columns = "id VARBINARY(255) PRIMARY KEY, n BIGINT NOT NULL DEFAULT 0";
        self.sql(&format!("CREATE TABLE sales ({columns})")).await;
        keyed(verb("sales"), [("id", Text)])
    }

    /// Sends a command to Redis. Single spaces separate its words.
    pub async fn command<T: FromRedisValue>(&self, words: &str) -> T {
        self.redis.run(words).await.expect(words)
    }

    /// Returns the number of batches in Redis.
    pub async fn batches(&self) -> usize {
        self.command::<Vec<String>>("KEYS *:batch").await.len()
    }
}

/// Starts a Redis that persists nothing.
pub async fn new_redis() -> RedisServer {
    RedisServer::start(RedisOptions::volatile()).await
}

impl Deref for Pair {
    type Target = Plain<MysqlStore>;

    fn deref(&self) -> &Plain<MysqlStore> {
        &self.plain
    }
}

impl<S> Deref for Plain<S> {
    type Target = Counterfoil;

    fn deref(&self) -> &Counterfoil {
        &self.counterfoil
    }
}

/// Counterfoils whose calls must succeed.
pub trait Use {
    async fn opened<H: FamilyHandle>(&self, family: FamilyBuilder<H>) -> H;
    async fn drained(&self);
    /// Starts a reconciler.
    async fn reconcile(&self) -> Reconciler;
}

impl Use for Counterfoil {
    async fn opened<H: FamilyHandle>(&self, family: FamilyBuilder<H>) -> H {
        self.open(family).await.unwrap()
    }

    async fn drained(&self) {
        self.drain().await.unwrap();
    }

    async fn reconcile(&self) -> Reconciler {
        self.reconciler().start().await.unwrap()
    }
}

/// Commands without a reply, which must succeed.
pub trait Must {
    async fn does(&self, words: &str);
}

impl Must for RedisServer {
    async fn does(&self, words: &str) {
        self.run::<()>(words).await.unwrap();
    }
}

/// Reconcilers that end without an error.
pub trait Stopping {
    async fn stop(self);
}

impl Stopping for Reconciler {
    async fn stop(self) {
        self.shutdown().await.unwrap();
    }
}

/// Asserts that these deltas were rejected, each with a reason that contains the text.
pub async fn expect_rejects(store: &MysqlStore, expected: &[(&str, i64, &str)]) {
    let rejects = store.rejects(None, None, 100_000).await.unwrap();
    let is_expected = |(reject, (id, delta, reason)): (&Reject, &(&str, i64, &str))| {
        reject.id == *id && reject.delta == (*delta).into() && reject.reason.contains(reason)
    };
    assert!(
        rejects.len() == expected.len() && rejects.iter().zip(expected).all(is_expected),
        "{rejects:#?} are not {expected:?}"
    );
}

/// Asserts that a check found no errors.
#[track_caller]
pub fn has_no_errors(findings: &[Finding]) {
    assert!(!is_found(findings, Severity::Error, &[]), "{findings:?}");
}

/// Returns whether a check found something of this severity with all these words.
pub fn is_found(findings: &[Finding], severity: Severity, words: &[&str]) -> bool {
    let mut found = findings.iter().filter(|found| found.severity == severity);
    found.any(|found| {
        let text = format!("{}: {}", found.subject, found.message);
        words.iter().all(|word| text.contains(word))
    })
}

/// Asserts that a check found something of this severity with all these words.
#[track_caller]
pub fn assert_found(findings: &[Finding], severity: Severity, words: &[&str]) {
    let is_found = is_found(findings, severity, words);
    assert!(is_found, "{severity:?} {words:?} in {findings:#?}");
}

/// Returns the pending value of a hit that was counted.
pub fn counted(added: Outcome) -> i64 {
    match added {
        Counted(pending) => pending,
        refused => panic!("{refused:?}"),
    }
}

/// Counters whose calls must succeed.
pub trait Count {
    /// Counts, and returns the value in the reply.
    async fn count(&self, id: &str, n: i64) -> i64;
}

impl Count for BufferedCounters {
    async fn count(&self, id: &str, n: i64) -> i64 {
        counted(self.add(id, n).await.expect(id))
    }
}

impl Count for CachedCounters {
    async fn count(&self, id: &str, n: i64) -> i64 {
        counted(self.incr(id, n).await.expect(id))
    }
}

impl Count for Series {
    async fn count(&self, id: &str, n: i64) -> i64 {
        counted(self.add(id, n.cast_unsigned()).await.expect(id))
    }
}

/// Counters whose exact reads must succeed.
pub trait ExactRead {
    async fn value(&self, id: &str) -> i64;
}

impl ExactRead for BufferedCounters {
    async fn value(&self, id: &str) -> i64 {
        self.get(id).await.expect(id)
    }
}

impl ExactRead for CachedCounters {
    async fn value(&self, id: &str) -> i64 {
        self.get(id).await.expect(id)
    }
}

/// Returns the sum of a series' slices.
pub fn sum(slices: &[Slice]) -> i64 {
    slices.iter().map(|slice| slice.count).sum()
}

/// Returns how often a server has executed a command.
pub async fn calls(redis: &RedisServer, command: &str) -> u64 {
    let info: String = redis.run("INFO commandstats").await.unwrap();
    let prefix = format!("cmdstat_{command}:calls=");
    let line = info.lines().find_map(|line| line.strip_prefix(&prefix));
    line.and_then(|line| line.split(',').next())
        .map_or(0, |calls| calls.parse().unwrap())
}

/// Asserts that the error is of this kind and contains this text.
#[track_caller]
pub fn refused<T: Debug>(result: Result<T>, kind: ErrorKind, text: &str) -> Error {
    let error = result.expect_err(text);
    assert!(
        error.kind() == kind && format!("{error:#}").contains(text),
        "{error:#} is not {kind:?} with {text:?}"
    );
    error
}

/// Awaits the future, and asserts that it took less than this time.
pub async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> T {
    let (started, output) = (Instant::now(), future.await);
    let took = started.elapsed();
    assert!(took < limit, "{took:?} of {limit:?}");
    output
}

/// Returns this number of ids of one partition.
pub fn ids_of(family: &Family, partition: u32, many: usize) -> Vec<String> {
    let ids = (0..).map(|number| format!("page/{number}"));
    ids.filter(|id| family.partition_of(id) == partition)
        .take(many)
        .collect()
}

/// Returns this number of ids.
pub fn pages(many: usize) -> Vec<String> {
    (0..many).map(|number| format!("page/{number}")).collect()
}

/// Returns the home's epoch. A family that Redis does not know is configured first.
pub async fn epoch(home: &counterfoil::test_hooks::Partition, family: &Family) -> Result<String> {
    loop {
        match home.epoch(family, "").await? {
            Some(epoch) => return Ok(epoch.now.to_string()),
            None => {
                let to = &Destination::UNKNOWN;
                home.configure(family, to, 0..family.partitions()).await?;
            }
        }
    }
}

/// Returns the range of times between these Unix seconds.
pub fn times(seconds: Range<i64>) -> Range<SystemTime> {
    let time = |seconds: i64| match u64::try_from(seconds) {
        Ok(after) => UNIX_EPOCH + secs(after),
        Err(_) => UNIX_EPOCH - secs(seconds.unsigned_abs()),
    };
    time(seconds.start)..time(seconds.end)
}

/// Returns a time in whole Unix seconds.
pub fn unix(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
        .cast_signed()
}

/// Parses a day.
pub fn day(text: &str) -> Day {
    text.parse().unwrap()
}

pub const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

pub async fn pause(ms: u64) {
    tokio::time::sleep(millis(ms)).await;
}

/// Creates a database with counterfoil's tables, on the test program's one MySQL.
pub async fn database() -> MySqlPool {
    database_on(mysql().await).await
}

async fn database_on(mysql: &MysqlServer) -> MySqlPool {
    let (_, pool) = mysql.database("test").await;
    MysqlStore::new(&pool)
        .unwrap()
        .create_tables()
        .await
        .unwrap();
    pool
}

/// Returns a family that by default is durable immediately and due at every hit.
pub fn family(name: &str) -> FamilyBuilder<BufferedCounters> {
    Family::buffered("test", name)
        .partitions(4)
        .durability(Durability::Immediate)
        .sync_hits(1)
        .sync_time(millis(50))
}

/// A family whose batches are durable immediately.
pub trait AtOnce {
    fn at_once(self) -> Self;

    /// Makes batches durable after this time in ms.
    fn settle(self, ms: u64) -> Self;
}

impl<H> AtOnce for FamilyBuilder<H> {
    fn at_once(self) -> Self {
        self.durability(Durability::Immediate)
    }

    fn settle(self, ms: u64) -> Self {
        self.durability(Durability::Settle(millis(ms)))
    }
}

/// Returns a cached family that is durable immediately.
pub fn votes() -> FamilyBuilder<CachedCounters> {
    Family::cached("test", "votes").at_once()
}

/// Returns a series of days that is durable immediately.
pub fn days() -> FamilyBuilder<Series> {
    Family::series("test", "hits")
        .windows([(Precision::Day, 3)])
        .keep([Precision::Day])
        .at_once()
}

/// Adds these key columns and the value column `n` to the table.
pub fn keyed<'k>(table: Table, keys: impl IntoIterator<Item = (&'k str, KeyType)>) -> Table {
    keys.into_iter()
        .fold(table, |table, (column, kind)| table.key(column, kind))
        .value("n")
}

/// Waits for a condition that becomes true soon.
pub async fn eventually<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    let started = Instant::now();
    while !is_so().await {
        assert!(started.elapsed() < secs(20), "waited for: {what}");
        tokio::time::sleep(millis(5)).await;
    }
}

/// Returns a runtime that runs its tasks on the thread that waits.
pub fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Returns a runtime with this number of threads of its own.
pub fn threads(many: usize) -> Runtime {
    let mut threads = Builder::new_multi_thread();
    let threads = threads.worker_threads(many).enable_all();
    threads.build().unwrap()
}

/// Polls the future once. Returns `None` if it is not ready.
pub fn poll_once<F: Future + ?Sized>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    futures_util::FutureExt::now_or_never(future)
}

/// Returns whether this step, or something of the family with this name, fails with these words.
pub fn is_failing(reconciler: &Reconciler, what: &str, words: &str) -> bool {
    reconciler.failing().iter().any(|one| {
        let family = one.family.as_deref().unwrap_or_default();
        let is_named = one.step == what || family.split('/').next_back() == Some(what);
        is_named && format!("{:#}", one.error).contains(words)
    })
}

/// Waits until this step, or something of the family with this name, fails with these words.
pub async fn fails(reconciler: &Reconciler, what: &str, words: &str) {
    let is_failing = async || is_failing(reconciler, what, words);
    eventually(&format!("{what} fails: {words}"), is_failing).await;
}

/// Connects to Redis. A call waits for its reply for at most this time.
pub async fn manager_within(limit: Duration, client: redis::Client) -> ConnectionManager {
    let config = ConnectionManagerConfig::new().set_response_timeout(Some(limit));
    let manager = ConnectionManager::new_with_config(client, config).await;
    manager.unwrap()
}

/// Gives calls time on a busy machine.
pub fn patient(counterfoil: Counterfoil) -> Counterfoil {
    counterfoil.write_timeout(secs(5)).read_timeout(secs(5))
}

/// Retries the rejects of this family. Returns how many were applied, refused and left.
pub async fn retry_all(store: &MysqlStore, family: &Family) -> (u64, u64, u64) {
    outcomes(store.retry_rejects(family, None).await.unwrap())
}

/// Returns how many rejects were applied, refused and left.
pub fn outcomes(retried: RetrySummary) -> (u64, u64, u64) {
    (retried.applied, retried.refused, retried.left)
}

/// Runs SQL that returns nothing.
pub async fn run_sql(pool: &MySqlPool, sql: &str) {
    let run = sqlx::raw_sql(AssertSqlSafe(sql.to_owned()));
    let run = run.execute(pool).await;
    run.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

/// Returns the only number of the query, if any.
pub async fn number(pool: &MySqlPool, sql: &str) -> Option<i64> {
    let number = format!("SELECT CAST(({sql}) AS SIGNED)");
    let number = sqlx::query_scalar(AssertSqlSafe(number));
    let number = number.fetch_one(pool).await;
    number.unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// Waits until a statement in this database sleeps in a trigger, and returns its session.
pub async fn sleeping(pool: &MySqlPool) -> i64 {
    let session = "SELECT MAX(ID) FROM information_schema.PROCESSLIST \
         WHERE STATE = 'User sleep' AND DB = DATABASE()";
    let session = async || number(pool, session).await;
    eventually("a statement sleeps", async || session().await.is_some()).await;
    session().await.unwrap()
}
