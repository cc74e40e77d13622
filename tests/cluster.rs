//! A Redis Cluster whose slots move and whose nodes die, under load.
#![allow(missing_docs)]

mod support;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use counterfoil::{Counterfoil, Counters, Durability, ErrorKind, Family, MysqlStore, Script, cluster_settings};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use sqlx::MySqlPool;
use support::hits::{Hit, Hits, Reckoning};
use support::{database, eventually, family};
use testkit::{RedisCluster, RedisOptions};
use tokio::task::JoinSet;

/// Enough for each primary to have some.
const PARTITIONS: u32 = 6;

/// For tests in which no node is taken for dead, however busy the machine.
const NO_FAILOVER: &str = "4000";

struct Rig {
    cluster: RedisCluster,
    pool: MySqlPool,
    counterfoil: Counterfoil<ClusterConnection>,
    views: Counters<ClusterConnection>,
}

impl Rig {
    async fn start(options: RedisOptions, durability: Durability) -> Self {
        let (cluster, pool) = tokio::join!(RedisCluster::start(options), database());
        let client = cluster_settings(ClusterClient::builder(cluster.urls())).build().unwrap();
        let redis = client.get_async_connection().await.unwrap();
        let counterfoil = Counterfoil::new(redis, MysqlStore::new(pool.clone()));
        let views = family("views").partitions(PARTITIONS).durability(durability).build().unwrap();
        // longer than any of the troubles
        let views = counterfoil.open(views).await.unwrap().write_timeout(Duration::from_secs(15));
        Rig { cluster, pool, counterfoil, views }
    }

    /// Does something to the cluster under load, and answers what became of the hits.
    async fn under_load(&self, trouble: impl AsyncFnOnce()) -> Vec<Hit> {
        let reconciler = self.counterfoil.reconciler().start().await.unwrap();
        let load = Hits::on(&self.views);
        pause(300).await;
        trouble().await;
        pause(500).await;
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

    /// The slots of the family.
    async fn slots(&self) -> Vec<u16> {
        let mut slots = Vec::new();
        for partition in 0..PARTITIONS {
            let ask = format!("CLUSTER KEYSLOT {{test/views/{partition}}}");
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

    // a client with its own retries, as it comes
    let client = ClusterClient::new(rig.cluster.urls()).unwrap();
    let resending = Counterfoil::new(client.get_async_connection().await.unwrap(), MysqlStore::new(rig.pool.clone()));
    let refused = resending.open(rig.views.family().clone()).await.err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Unsafe);

    let ids: Vec<_> = (0..200).map(|number| format!("page/{number:03}")).collect();
    for round in 1..=2 {
        for id in &ids {
            let _ = rig.views.add(id, 1).await.unwrap();
        }
        assert_eq!(rig.views.get("page/007").await.unwrap(), round);
        assert_eq!(rig.views.get_many(&ids).await.unwrap(), vec![round; ids.len()]);
        let listed = rig.views.list("page/", Some("page/099"), 50).await.unwrap();
        let expected: Vec<_> = ids[100..150].iter().map(|id| (id.clone(), round)).collect();
        assert_eq!(listed, expected);
        // all primaries know the scripts, and learn them again
        let add = &Script::named("buffered_add").unwrap().sha1;
        for primary in rig.cluster.primaries().await {
            let node = rig.cluster.node(primary);
            assert_eq!(node.run::<Vec<bool>>(&format!("SCRIPT EXISTS {add}")).await.unwrap(), [true], "node {primary}");
            node.run::<()>("SCRIPT FLUSH").await.unwrap();
        }
    }
    let reconciler = rig.counterfoil.reconciler().start().await.unwrap();
    let all = "SELECT COUNT(*) FROM counterfoil_values WHERE value = 2";
    let stored = async || sqlx::query_scalar::<_, i64>(all).fetch_one(&rig.pool).await.unwrap();
    eventually("what the reconciler brings", async || stored().await == 200).await;
    reconciler.shutdown().await.unwrap();
    let _ = rig.views.add("page/000", -2).await.unwrap();
    rig.counterfoil.drain().await.unwrap();
    assert_eq!(stored().await, 199);
    assert_eq!(rig.views.get("page/000").await.unwrap(), 0);
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
                    rig.cluster.move_slots(*slot..=*slot, to, Duration::from_millis(40)).await;
                }
            }
        })
        .await;
    let reckoning = rig.reckoning(&hits).await;
    reckoning.is_exact();
    // a slot is never half moved for as long as a caller waits, but callers had to wait
    assert_eq!((reckoning.refused, reckoning.unknown), (0, 0));
    let waited = hits.iter().filter(|hit| hit.told - hit.asked > Duration::from_millis(40)).count();
    println!("{waited} calls waited for a key that was moved");
    assert!(waited > 10, "{waited} calls waited for a key that was moved");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn primaries_hand_over_to_their_replicas() {
    let options = RedisOptions::volatile().arg("cluster-node-timeout", NO_FAILOVER);
    let rig = Rig::start(options, Durability::Immediate).await;
    let hits = rig
        .under_load(async || {
            for _ in 0..2 {
                for primary in rig.cluster.primaries().await {
                    rig.cluster.failover(rig.cluster.replica_of(primary).await).await;
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

/// What the death of primaries did to a load.
struct Deaths {
    reckoning: Reckoning,
    /// Lost, and counted while the replica that was promoted did not hear of it any more.
    forgotten: usize,
    /// Lost although the replica had them.
    wronged: usize,
}

/// How far a replica is behind when its primary dies, about.
const BEHIND: Duration = Duration::from_millis(150);

/// Primaries die whose replicas are behind, and are replaced by them.
async fn primaries_die(durability: Durability) -> Deaths {
    let rig = Rig::start(RedisOptions::volatile(), durability).await;
    let slots = rig.slots().await;
    let mut deaths = Vec::new();
    let hits = rig
        .under_load(async || {
            for slot in [slots[0], slots[2], slots[0]] {
                let primary = rig.cluster.primary_of_slot(slot).await;
                let replica = rig.cluster.replica_of(primary).await;
                let (dying, heir) = (rig.cluster.node(primary), rig.cluster.node(replica));
                let cut_off = Instant::now();
                heir.pause();
                dying.run::<()>("CLIENT KILL TYPE replica").await.unwrap();
                tokio::time::sleep(BEHIND).await;
                dying.kill();
                deaths.push((cut_off, Instant::now()));
                heir.resume();
                rig.cluster.wait_promoted(replica).await;
                // not before: with what it has it would be the primary again
                dying.start_again().await;
                rig.cluster.wait_until_ok().await;
                pause(300).await;
            }
        })
        .await;
    let reckoning = rig.reckoning(&hits).await;
    let taken_back = |hit: &&Hit| deaths.iter().any(|(cut_off, died)| hit.told >= *cut_off && hit.asked <= *died);
    let forgotten = reckoning.lost.iter().filter(taken_back).count();
    let wronged = reckoning.lost.len() - forgotten;
    println!("of the lost {forgotten} were counted while the replica was cut off");
    Deaths { reckoning, forgotten, wronged }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_death_of_a_primary_costs_what_its_replica_did_not_have() {
    let deaths = primaries_die(Durability::Settle(BEHIND + Duration::from_millis(250))).await;
    let reckoning = &deaths.reckoning;
    assert!(reckoning.doubled.is_empty() && reckoning.refused_counted.is_empty(), "{reckoning:?}");
    assert_eq!(deaths.wronged, 0, "{:?}", reckoning.lost);
    let is_lost = |hit: &Hit| reckoning.lost.iter().any(|lost| lost.id == hit.id);
    let misread: Vec<_> = reckoning.misread.iter().filter(|hit| !is_lost(hit)).collect();
    assert!(misread.is_empty(), "there, and not read: {misread:?}");
    assert!(deaths.forgotten > 0 && reckoning.acknowledged > 1000, "nothing was tried");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_settling_it_does_more_harm() {
    let deaths = primaries_die(Durability::Immediate).await;
    assert!(deaths.wronged > 0 || !deaths.reckoning.doubled.is_empty(), "{:?}", deaths.reckoning);
}

/// Cached counters come and go while their slots move and their primaries change.
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
        .save_after(Duration::from_millis(10))
        .retain(Duration::from_millis(20));
    let votes = rig.counterfoil.open_cached(votes.build().unwrap()).await.unwrap();
    let votes = votes.write_timeout(Duration::from_secs(15));
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
                // pauses that are longer than a counter stays
                pause(if turn % 50 == 0 { 60 } else { 1 }).await;
                let id = (task + turn) % IDS;
                told.push((id, votes.incr(&format!("item/{id}"), 1).await.unwrap().counted().unwrap()));
            }
            told
        });
    }
    for (round, slot) in slots.iter().enumerate() {
        let to = (rig.cluster.primary_of_slot(*slot).await + 1 + round) % 3;
        rig.cluster.move_slots(*slot..=*slot, to, Duration::from_millis(30)).await;
    }
    for primary in rig.cluster.primaries().await {
        rig.cluster.failover(rig.cluster.replica_of(primary).await).await;
        pause(100).await;
    }
    rig.cluster.wait_until_ok().await;
    stop.store(true, Ordering::Relaxed);
    let mut told: Vec<Vec<i64>> = vec![Vec::new(); IDS as usize];
    for (id, value) in voters.join_all().await.into_iter().flatten() {
        told[id as usize].push(value);
    }
    tokio::time::timeout(Duration::from_secs(30), rig.counterfoil.drain()).await.expect("a drain ends").unwrap();
    reconciler.shutdown().await.unwrap();
    for (id, mut told) in told.into_iter().enumerate() {
        told.sort_unstable();
        let votes = told.len() as i64;
        assert!(votes > 20, "nothing was tried");
        assert_eq!(told, (1..=votes).collect::<Vec<_>>(), "item/{id}");
        let stored = sqlx::query_scalar("SELECT value FROM counterfoil_values WHERE id = ?").bind(format!("item/{id}"));
        assert_eq!(stored.fetch_one(&rig.pool).await.map(|value: i64| value).unwrap(), votes, "item/{id}");
    }
}
