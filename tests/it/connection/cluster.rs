//! A Redis Cluster whose slots move and whose nodes die, under load.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::hits::{Hit, Hits, Reckoning};
use crate::support::{database, day, eventually, family};
use counterfoil::admin::{Backlog, Script};
use counterfoil::{
    BufferedCounters, Counterfoil, Durability, Error, Family, MysqlStore, Outcome, Precision,
    Series, Slice, cluster_settings,
};
use redis::aio::ConnectionLike;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::{Cmd, Pipeline, RedisFuture, Value};
use sqlx::MySqlPool;
use testkit::{RedisCluster, RedisOptions};
use tokio::task::JoinSet;

/// The number of partitions, enough for each primary to have some.
const PARTITIONS: u32 = 6;

/// The node timeout in ms for tests without failovers, even on a busy machine.
const NO_FAILOVER: &str = "4000";

/// A time longer than any disruption. Nodes write their configuration to a shared disk, and each
/// attempt at a manual failover blocks writes for five seconds.
const LONG: Duration = Duration::from_secs(45);

struct Rig {
    cluster: RedisCluster,
    pool: MySqlPool,
    counterfoil: Counterfoil,
    views: BufferedCounters,
}

impl Rig {
    async fn start(options: RedisOptions, durability: Durability) -> Self {
        let (cluster, pool) = tokio::join!(RedisCluster::start(options), database());
        let client = cluster_settings(ClusterClient::builder(cluster.urls()))
            .build()
            .unwrap();
        let redis = client.get_async_connection().await.unwrap();
        let counterfoil = Counterfoil::new(redis, MysqlStore::new(pool.clone()));
        let views = family("views")
            .partitions(PARTITIONS)
            .durability(durability);
        let views = counterfoil.open(views).await.unwrap().write_timeout(LONG);
        Rig {
            cluster,
            pool,
            counterfoil,
            views,
        }
    }

    /// Disrupts the cluster under load, and returns the hits with their outcomes.
    async fn under_load(&self, trouble: impl AsyncFnOnce()) -> Vec<Hit> {
        let reconciler = self.counterfoil.reconciler().start().await.unwrap();
        // a writer counts nothing while it waits for a read
        let load = Hits::on(&self.views.clone().read_timeout(Duration::from_millis(300)));
        load.more(700).await;
        trouble().await;
        load.more(700).await;
        let hits = load.end().await;
        self.cluster.wait_until_ok().await;
        let drained = tokio::time::timeout(Duration::from_secs(30), self.counterfoil.drain()).await;
        drained.expect("a drain ends").unwrap();
        reconciler.shutdown().await.unwrap();
        hits
    }

    async fn reckoning(&self, hits: &[Hit]) -> Reckoning {
        Reckoning::of(hits, &self.pool).await
    }

    async fn slots(&self) -> Vec<u16> {
        self.slots_of("views").await
    }

    /// Returns the slots of the family.
    async fn slots_of(&self, family: &str) -> Vec<u16> {
        let mut slots = Vec::new();
        for partition in 0..PARTITIONS {
            let ask = format!("CLUSTER KEYSLOT {{test/{family}/{partition}}}");
            slots.push(self.cluster.node(0).run(&ask).await.unwrap());
        }
        slots
    }
}

async fn pause(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_main_path() {
    let options = RedisOptions::volatile().arg("cluster-node-timeout", NO_FAILOVER);
    let rig = Rig::start(options, Durability::Immediate).await;
    let mut used = HashSet::new();
    for slot in rig.slots().await {
        used.insert(rig.cluster.primary_of_slot(slot).await);
    }
    assert_eq!(used.len(), 3, "partitions lie on the nodes {used:?} only");

    let ids: Vec<_> = (0..200).map(|number| format!("page/{number:03}")).collect();
    for round in 1..=2 {
        for id in &ids {
            let _ = rig.views.add(id, 1).await.unwrap();
        }
        assert_eq!(rig.views.get("page/007").await.unwrap(), round);
        assert_eq!(
            rig.views.get_many(&ids).await.unwrap(),
            vec![round; ids.len()]
        );
        let listed = rig.views.list("page/", Some("page/099"), 50).await.unwrap();
        let expected: Vec<_> = ids[100..150].iter().map(|id| (id.clone(), round)).collect();
        assert_eq!(listed, expected);
        // all primaries know the scripts, and learn them again
        let add = &Script::named("buffered_add").unwrap().sha1;
        for primary in rig.cluster.primaries().await {
            let node = rig.cluster.node(primary);
            assert_eq!(
                node.run::<Vec<bool>>(&format!("SCRIPT EXISTS {add}"))
                    .await
                    .unwrap(),
                [true],
                "node {primary}"
            );
            node.run::<()>("SCRIPT FLUSH").await.unwrap();
        }
    }
    let reconciler = rig.counterfoil.reconciler().start().await.unwrap();
    let all = "SELECT COUNT(*) FROM counterfoil_values WHERE value = 2";
    let stored = async || {
        sqlx::query_scalar::<_, i64>(all)
            .fetch_one(&rig.pool)
            .await
            .unwrap()
    };
    eventually("what the reconciler brings", async || stored().await == 200).await;
    reconciler.shutdown().await.unwrap();
    let _ = rig.views.add("page/000", -2).await.unwrap();
    rig.counterfoil.drain().await.unwrap();
    assert_eq!(stored().await, 199);
    assert_eq!(rig.views.get("page/000").await.unwrap(), 0);
}

/// A process may take the server for a single node at first. The cluster refuses a call with the
/// wrong home as a whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_counts_once_whoever_makes_it_again() {
    let options = RedisOptions::volatile().arg("cluster-node-timeout", NO_FAILOVER);
    let rig = Rig::start(options, Durability::Immediate).await;
    let client = cluster_settings(ClusterClient::builder(rig.cluster.urls()))
        .build()
        .unwrap();
    let unknown = Unknown(client.get_async_connection().await.unwrap());
    let unknown = Counterfoil::new(unknown, MysqlStore::new(rig.pool.clone()));
    for wide in [false, true] {
        let views = || {
            family(&format!("wide_{wide}"))
                .partitions(PARTITIONS)
                .wide(wide)
        };
        let (here, there) = (
            rig.counterfoil.open(views()).await.unwrap(),
            unknown.open(views()).await.unwrap(),
        );
        for number in 0..20 {
            let (request, id) = (format!("job/{number}"), format!("page/{number}"));
            let first = there.add_once(&request, &id, 1).await.unwrap();
            assert_eq!(first, Outcome::Counted(1), "{request}");
            let again = here.add_once(&request, &id, 1).await.unwrap();
            assert_eq!(again, Outcome::CountedBefore(1), "{request}");
            assert_eq!(here.get(&id).await.unwrap(), 1);
        }
    }
}

/// Backlogs are read partition by partition, also by a process that takes the server for a single
/// node at first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backlogs_are_read_on_all_nodes() {
    let options = RedisOptions::volatile().arg("cluster-node-timeout", NO_FAILOVER);
    let rig = Rig::start(options, Durability::Immediate).await;
    let client = cluster_settings(ClusterClient::builder(rig.cluster.urls()))
        .build()
        .unwrap();
    let unknown = Unknown(client.get_async_connection().await.unwrap());
    let unknown = Counterfoil::new(unknown, MysqlStore::new(rig.pool.clone()));
    let (views, at_once) = (
        family("views").partitions(PARTITIONS),
        Durability::Immediate,
    );
    let votes = Family::cached("test", "votes")
        .partitions(PARTITIONS)
        .durability(at_once);
    let _views = unknown.open(views).await.unwrap();
    let _votes = unknown.open(votes.clone()).await.unwrap();
    let votes = rig.counterfoil.open(votes).await.unwrap();
    for number in 0..30 {
        let id = format!("page/{number}");
        let _ = (
            rig.views.add(&id, 1).await.unwrap(),
            rig.views.add(&id, 1).await.unwrap(),
        );
        let _ = votes.incr(&id, 1).await.unwrap();
    }
    let numbers = async || {
        let (here, there) = (
            rig.counterfoil.backlogs().await.unwrap(),
            unknown.backlogs().await.unwrap(),
        );
        let numbers = |(family, backlog): &(Family, Result<Backlog, Error>)| {
            let backlog = backlog.as_ref().unwrap();
            (
                family.name().to_owned(),
                backlog.ids,
                backlog.oldest.is_some(),
                backlog.counted,
            )
        };
        let [here, there] =
            [here, there].map(|found| found.iter().map(numbers).collect::<Vec<_>>());
        assert_eq!(here, there);
        here
    };
    assert_eq!(
        numbers().await,
        [
            ("views".to_owned(), 30, true, 60),
            ("votes".to_owned(), 30, true, 30)
        ]
    );
    rig.counterfoil.drain().await.unwrap();
    assert_eq!(
        numbers().await,
        [
            ("views".to_owned(), 0, false, 60),
            ("votes".to_owned(), 0, false, 30)
        ]
    );
}

/// A connection of a type that the crate does not know.
#[derive(Clone)]
struct Unknown(ClusterConnection);

impl From<Unknown> for counterfoil::Connection {
    fn from(connection: Unknown) -> Self {
        counterfoil::Connection::custom(connection)
    }
}

impl ConnectionLike for Unknown {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        self.0.req_packed_command(cmd)
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipe: &'a Pipeline,
        at: usize,
        n: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        self.0.req_packed_commands(pipe, at, n)
    }

    fn get_db(&self) -> i64 {
        self.0.get_db()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_move_key_by_key() {
    let options = RedisOptions::volatile().arg("cluster-node-timeout", NO_FAILOVER);
    let rig = Rig::start(options, Durability::Immediate).await;
    let slots = rig.slots().await;
    let hits = rig
        .under_load(async || {
            for round in 0..2 {
                for slot in &slots {
                    let to = (rig.cluster.primary_of_slot(*slot).await + 1 + round) % 3;
                    rig.cluster
                        .move_slots(*slot..=*slot, to, Duration::from_millis(40))
                        .await;
                }
            }
        })
        .await;
    let reckoning = rig.reckoning(&hits).await;
    reckoning.is_exact();
    // no slot is half moved for as long as a caller's timeout, but callers had to wait
    assert_eq!((reckoning.refused, reckoning.unknown), (0, 0));
    let waited = hits
        .iter()
        .filter(|hit| hit.told - hit.asked > Duration::from_millis(40))
        .count();
    println!("{waited} calls waited for a key that was moved");
    assert!(
        waited > 10,
        "{waited} calls waited for a key that was moved"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn primaries_hand_over_to_their_replicas() {
    let options = RedisOptions::volatile().arg("cluster-node-timeout", NO_FAILOVER);
    let rig = Rig::start(options, Durability::Immediate).await;
    let hits = rig
        .under_load(async || {
            for _ in 0..2 {
                for primary in rig.cluster.primaries().await {
                    rig.cluster
                        .failover(rig.cluster.replica_of(primary).await)
                        .await;
                    pause(100).await;
                }
                rig.cluster.wait_until_ok().await;
            }
        })
        .await;
    let reckoning = rig.reckoning(&hits).await;
    reckoning.is_exact();
    assert_eq!((reckoning.refused, reckoning.unknown), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_come_back_with_their_files() {
    let options = RedisOptions::aof("always").arg("cluster-node-timeout", NO_FAILOVER);
    let rig = Rig::start(options, Durability::Immediate).await;
    let hits = rig
        .under_load(async || {
            for primary in 0..3 {
                rig.cluster.node(primary).kill();
                pause(100).await;
                rig.cluster.node(primary).start_again().await;
                rig.cluster.wait_until_ok().await;
            }
            (0..6).for_each(|number| rig.cluster.node(number).kill());
            for number in 0..6 {
                rig.cluster.node(number).start_again().await;
            }
            rig.cluster.wait_until_ok().await;
        })
        .await;
    let reckoning = rig.reckoning(&hits).await;
    reckoning.is_exact();
    assert_eq!((reckoning.refused, reckoning.unknown), (0, 0));
}

/// The effect of dying primaries on a load.
struct Deaths {
    reckoning: Reckoning,
    /// Lost hits that were counted while the promoted replica was cut off.
    forgotten: usize,
    /// Lost hits that the replica had.
    wronged: usize,
}

/// The approximate lag of a replica when its primary dies.
const BEHIND: Duration = Duration::from_millis(150);

/// The moments when a replica was cut off and when its primary died.
type Death = (Instant, Instant);

/// Returns whether the replica may have missed a call of this period.
fn is_taken_back(deaths: &[Death], asked: Instant, told: Instant) -> bool {
    deaths
        .iter()
        .any(|(cut_off, died)| told >= *cut_off && asked <= *died)
}

/// Kills the primary of the slot while its replica lags, and waits until the replica is promoted.
async fn primary_dies(cluster: &RedisCluster, slot: u16) -> Death {
    let primary = cluster.primary_of_slot(slot).await;
    let replica = cluster.replica_of(primary).await;
    let (dying, heir) = (cluster.node(primary), cluster.node(replica));
    let cut_off = Instant::now();
    heir.pause();
    dying.run::<()>("CLIENT KILL TYPE replica").await.unwrap();
    tokio::time::sleep(BEHIND).await;
    dying.kill();
    let died = Instant::now();
    heir.resume();
    cluster.wait_promoted(replica).await;
    // not earlier: with its data it would become the primary again
    dying.start_again().await;
    cluster.wait_until_ok().await;
    pause(300).await;
    (cut_off, died)
}

/// Kills primaries whose replicas lag and then replace them.
async fn primaries_die(durability: Durability) -> Deaths {
    let rig = Rig::start(RedisOptions::volatile(), durability).await;
    let slots = rig.slots().await;
    let mut deaths = Vec::new();
    let hits = rig
        .under_load(async || {
            for slot in [slots[0], slots[2], slots[0]] {
                deaths.push(primary_dies(&rig.cluster, slot).await);
            }
        })
        .await;
    let reckoning = rig.reckoning(&hits).await;
    let taken_back = |hit: &&Hit| is_taken_back(&deaths, hit.asked, hit.told);
    let forgotten = reckoning.lost.iter().filter(taken_back).count();
    let wronged = reckoning.lost.len() - forgotten;
    println!("of the lost {forgotten} were counted while the replica was cut off");
    Deaths {
        reckoning,
        forgotten,
        wronged,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_death_of_a_primary_costs_what_its_replica_did_not_have() {
    let deaths = primaries_die(Durability::Settle(BEHIND + Duration::from_millis(250))).await;
    let reckoning = &deaths.reckoning;
    assert!(
        reckoning.doubled.is_empty() && reckoning.refused_counted.is_empty(),
        "{reckoning:?}"
    );
    assert_eq!(deaths.wronged, 0, "{:?}", reckoning.lost);
    let is_lost = |hit: &Hit| reckoning.lost.iter().any(|lost| lost.id == hit.id);
    let misread: Vec<_> = reckoning
        .misread
        .iter()
        .filter(|hit| !is_lost(hit))
        .collect();
    assert!(misread.is_empty(), "there, and not read: {misread:?}");
    assert!(
        deaths.forgotten > 0 && reckoning.acknowledged > 1000,
        "nothing was tried"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_settling_it_does_more_harm() {
    // harm needs a batch that was applied while the replica was cut off, which is likely but not
    // certain
    for _ in 0..4 {
        let deaths = primaries_die(Durability::Immediate).await;
        if deaths.wronged > 0 || !deaths.reckoning.doubled.is_empty() {
            return;
        }
    }
    panic!("no harm was done");
}

/// Opens a family of series that keeps its slices of a second.
async fn open(rig: &Rig, durability: Durability) -> Series {
    let family = Family::series("test", "hits")
        .windows([(Precision::SECOND, 300), (Precision::Day, 3)])
        .keep([Precision::SECOND])
        .partitions(PARTITIONS)
        .durability(durability)
        .sync_time(Duration::from_millis(400));
    let series = rig.counterfoil.open(family).await.unwrap();
    series.write_timeout(LONG)
}

fn sum(slices: &[Slice]) -> i64 {
    slices.iter().map(|slice| slice.count).sum()
}

/// Each hit is its own series, so its rows and its window show how often it was counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_window_outlives_its_primary_but_for_what_the_replica_did_not_have() {
    let settle = Durability::Settle(BEHIND + Duration::from_millis(250));
    let rig = Rig::start(RedisOptions::volatile(), settle).await;
    let series = open(&rig, settle).await;
    let slots = rig.slots_of("hits").await;
    let reconciler = rig.counterfoil.reconciler().start().await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = JoinSet::new();
    for writer in 0..6 {
        let (series, stop) = (series.clone(), stop.clone());
        writers.spawn(async move {
            let mut hits = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let (name, asked) = (format!("{writer}-{}", hits.len()), Instant::now());
                let added = series
                    .add(&name, 1)
                    .await
                    .map(|added| assert_eq!(added, Outcome::Counted(1)));
                hits.push((
                    name,
                    asked,
                    Instant::now(),
                    added.map_err(|error| error.outcome_unknown()),
                ));
                pause(2).await;
            }
            hits
        });
    }
    pause(1000).await;
    let mut deaths = Vec::new();
    for slot in [slots[0], slots[2]] {
        deaths.push(primary_dies(&rig.cluster, slot).await);
    }
    pause(500).await;
    stop.store(true, Ordering::Relaxed);
    let hits: Vec<_> = writers.join_all().await.into_iter().flatten().collect();
    // the last slice is over
    pause(1100).await;
    tokio::time::timeout(Duration::from_secs(30), rig.counterfoil.drain())
        .await
        .expect("a drain ends")
        .unwrap();
    reconciler.shutdown().await.unwrap();

    let names: Vec<_> = hits.iter().map(|(name, ..)| name).collect();
    let windows = series.get_many(&names, Precision::SECOND).await.unwrap();
    let query = "SELECT SUBSTRING_INDEX(CAST(id AS CHAR), '/', -1), CAST(SUM(value) AS SIGNED) \
         FROM counterfoil_values WHERE id NOT LIKE 'hit/%' GROUP BY 1";
    let rows: Vec<(String, i64)> = sqlx::query_as(query).fetch_all(&rig.pool).await.unwrap();
    let rows: HashMap<_, _> = rows.into_iter().collect();
    let (mut lost, mut counted) = (0, 0);
    for ((name, asked, told, added), window) in hits.iter().zip(&windows) {
        let times = rows.get(name).copied().unwrap_or(0);
        assert_eq!(sum(window), times, "{name} in its window, and in its rows");
        assert!(times == 0 || times == 1, "{name} was counted {times} times");
        match added {
            Ok(()) if times == 0 => {
                assert!(
                    is_taken_back(&deaths, *asked, *told),
                    "{name} is lost, and the replica had it"
                );
                lost += 1;
            }
            Err(false) => assert_eq!(times, 0, "{name} was refused, and counted"),
            _ => counted += times,
        }
    }
    println!(
        "{counted} of {} hits are in windows and rows, {lost} were lost",
        hits.len()
    );
    assert!(counted > 500 && lost > 0, "nothing was tried");
}

/// Slots move and primaries change under series, activity and visitors, whose calls have many keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn series_activity_and_visitors_go_along() {
    const VISITORS: u64 = 400;
    let options = RedisOptions::volatile().arg("cluster-node-timeout", NO_FAILOVER);
    let rig = Rig::start(options, Durability::Immediate).await;
    let series = open(&rig, Durability::Immediate).await;
    let online = Family::activity("test", "online")
        .window(Duration::from_secs(1800), Duration::from_secs(3))
        .stripes(10)
        .partitions(PARTITIONS)
        .durability(Durability::Immediate);
    let online = rig
        .counterfoil
        .open(online)
        .await
        .unwrap()
        .cache_for(Duration::ZERO)
        .write_timeout(LONG);
    let daily = Family::visitors("test", "daily")
        .partitions(PARTITIONS)
        .durability(Durability::Immediate);
    let daily = rig
        .counterfoil
        .open(daily)
        .await
        .unwrap()
        .write_timeout(LONG);
    let reconciler = rig.counterfoil.reconciler().start().await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for task in 0..6u64 {
        let (series, online, daily, stop) =
            (series.clone(), online.clone(), daily.clone(), stop.clone());
        tasks.spawn(async move {
            let (mut turns, mut firsts, mut been) = (0, 0, HashSet::new());
            while !stop.load(Ordering::Relaxed) {
                let (scope, number) = (
                    ["a", "b"][turns as usize % 2],
                    (turns / 6 * 6 + task) % VISITORS,
                );
                let visitor = number.to_be_bytes();
                let many = [
                    (format!("page/{}", turns % 7), 1),
                    (format!("page/{}", turns % 5), 2),
                ];
                let (added, touched, first) = tokio::join!(
                    series.add_many(many),
                    online.touch("/", visitor),
                    daily.first_visit(scope, day("2014-09-20"), visitor)
                );
                assert!(
                    added
                        .into_iter()
                        .all(|added| matches!(added, Ok(Outcome::Counted(_))))
                );
                touched.unwrap();
                firsts += u64::from(first.unwrap() == Outcome::Counted(1));
                been.insert((scope, number));
                turns += 1;
                pause(1).await;
            }
            (turns, firsts, been)
        });
    }
    for family in ["hits", "online", "daily"] {
        for (round, slot) in rig.slots_of(family).await.iter().enumerate() {
            let to = (rig.cluster.primary_of_slot(*slot).await + 1 + round) % 3;
            rig.cluster
                .move_slots(*slot..=*slot, to, Duration::from_millis(20))
                .await;
        }
    }
    for primary in rig.cluster.primaries().await {
        rig.cluster
            .failover(rig.cluster.replica_of(primary).await)
            .await;
        pause(100).await;
    }
    rig.cluster.wait_until_ok().await;
    stop.store(true, Ordering::Relaxed);
    let told = tasks.join_all().await;
    let turns: u64 = told.iter().map(|(turns, ..)| turns).sum();
    let firsts: u64 = told.iter().map(|(_, firsts, _)| firsts).sum();
    let been: HashSet<_> = told.iter().flat_map(|(.., been)| been).collect();
    let there: HashSet<_> = been.iter().map(|(_, visitor)| visitor).collect();
    assert!(turns > 300, "nothing was tried: {turns} turns");
    pause(1100).await;
    tokio::time::timeout(Duration::from_secs(30), rig.counterfoil.drain())
        .await
        .expect("a drain ends")
        .unwrap();
    reconciler.shutdown().await.unwrap();

    let hits = 3 * turns.cast_signed();
    let names: Vec<_> = (0..7).map(|page| format!("page/{page}")).collect();
    let seconds: i64 = series
        .get_many(&names, Precision::SECOND)
        .await
        .unwrap()
        .iter()
        .map(|window| sum(window))
        .sum();
    let days: i64 = series
        .get_many(&names, Precision::Day)
        .await
        .unwrap()
        .iter()
        .map(|window| sum(window))
        .sum();
    let number = async |sql: &'static str| {
        sqlx::query_scalar::<_, i64>(sql)
            .fetch_one(&rig.pool)
            .await
            .unwrap()
    };
    let kept = number(
        "SELECT CAST(SUM(value) AS SIGNED) FROM counterfoil_values WHERE id LIKE '%/page/%'",
    )
    .await;
    assert_eq!(
        (seconds, days, kept),
        (hits, hits, hits),
        "of seconds, of days, of the rows"
    );
    let now = online.now("/").await.unwrap();
    assert_eq!(now.views, turns);
    assert_eq!(now.visitors.count(), there.len() as u64);
    assert_eq!(
        firsts,
        been.len() as u64,
        "who was told to be the first, and who was there"
    );
    let visitors = number(
        "SELECT CAST(SUM(value) AS SIGNED) FROM counterfoil_values WHERE id LIKE '%/2014-09-20'",
    )
    .await;
    assert_eq!(visitors, firsts.cast_signed());
    let seen = daily
        .get_many([("a", day("2014-09-20")), ("b", day("2014-09-20"))])
        .await
        .unwrap();
    assert_eq!(seen.iter().sum::<i64>(), visitors);
    println!(
        "{turns} turns by {} visitors, {firsts} first visits",
        there.len()
    );
}

/// Slots move and primaries change while cached counters enter and leave Redis.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cached_counters_go_along() {
    const IDS: u64 = 12;
    const TASKS: u64 = 6;
    let options = RedisOptions::volatile().arg("cluster-node-timeout", NO_FAILOVER);
    let rig = Rig::start(options, Durability::Immediate).await;
    let slots = rig.slots().await;
    let votes = Family::cached("test", "votes")
        .partitions(PARTITIONS)
        .durability(Durability::Immediate)
        .sync_time(Duration::from_millis(10))
        .retain(Duration::from_millis(20));
    let votes = rig.counterfoil.open(votes).await.unwrap();
    let votes = votes.write_timeout(LONG);
    let reconciler = rig.counterfoil.reconciler().start().await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let mut voters = JoinSet::new();
    for task in 0..TASKS {
        let (votes, stop) = (votes.clone(), stop.clone());
        voters.spawn(async move {
            let mut told = Vec::new();
            for turn in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                // some pauses are longer than the retention of a counter
                pause(if turn % 50 == 0 { 60 } else { 1 }).await;
                let id = (task + turn) % IDS;
                told.push((
                    id,
                    votes
                        .incr(&format!("item/{id}"), 1)
                        .await
                        .unwrap()
                        .counted()
                        .unwrap(),
                ));
            }
            told
        });
    }
    for (round, slot) in slots.iter().enumerate() {
        let to = (rig.cluster.primary_of_slot(*slot).await + 1 + round) % 3;
        rig.cluster
            .move_slots(*slot..=*slot, to, Duration::from_millis(30))
            .await;
    }
    for primary in rig.cluster.primaries().await {
        rig.cluster
            .failover(rig.cluster.replica_of(primary).await)
            .await;
        pause(100).await;
    }
    rig.cluster.wait_until_ok().await;
    stop.store(true, Ordering::Relaxed);
    let mut told: Vec<Vec<i64>> = vec![Vec::new(); IDS as usize];
    for (id, value) in voters.join_all().await.into_iter().flatten() {
        told[id as usize].push(value);
    }
    tokio::time::timeout(Duration::from_secs(30), rig.counterfoil.drain())
        .await
        .expect("a drain ends")
        .unwrap();
    reconciler.shutdown().await.unwrap();
    for (id, mut told) in told.into_iter().enumerate() {
        told.sort_unstable();
        let votes = told.len() as i64;
        assert!(votes > 20, "nothing was tried");
        assert_eq!(told, (1..=votes).collect::<Vec<_>>(), "item/{id}");
        let stored = sqlx::query_scalar("SELECT value FROM counterfoil_values WHERE id = ?")
            .bind(format!("item/{id}"));
        assert_eq!(
            stored
                .fetch_one(&rig.pool)
                .await
                .map(|value: i64| value)
                .unwrap(),
            votes,
            "item/{id}"
        );
    }
}
