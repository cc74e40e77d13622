//! A Redis Cluster whose slots move and whose nodes die, under load.

use std::ops::Deref;

use super::{Clustered, builder, connect};

use crate::support::*;

/// The number of partitions, enough for each primary to have some.
const PARTITIONS: u32 = 6;

/// A time longer than any disruption. Nodes write their configuration to a shared disk, and each
/// attempt at a manual failover blocks writes for five seconds.
const LONG: Duration = secs(45);

/// A cluster with an open family.
struct Rig {
    clustered: Clustered,
    views: BufferedCounters,
}

impl Deref for Rig {
    type Target = Clustered;

    fn deref(&self) -> &Clustered {
        &self.clustered
    }
}

impl Rig {
    async fn start(options: RedisOptions, durability: Durability) -> Self {
        let clustered = Clustered::start(options).await;
        let views = family("views").partitions(PARTITIONS);
        let views = clustered.open(views.durability(durability)).await;
        Rig {
            clustered,
            views: views.write_timeout(LONG),
        }
    }

    /// Starts a cluster in which no replica takes over by itself, even on a busy machine.
    async fn steady() -> Self {
        Rig::without_failover(RedisOptions::volatile()).await
    }

    async fn without_failover(options: RedisOptions) -> Self {
        Rig::start(
            options.arg("cluster-node-timeout", "4000"),
            Durability::Immediate,
        )
        .await
    }

    /// Returns the client of another process, over a connection of the application's own.
    async fn other(&self) -> Counterfoil {
        let connection = connect(builder(&self.cluster)).await;
        let is = CustomConnection {
            resends: true,
            is_cluster: true,
        };
        self.over(Connection::custom(connection, is))
    }

    /// Disrupts the cluster under load, and returns the hits with their outcomes.
    async fn under_load(&self, trouble: impl AsyncFnOnce()) -> Vec<Hit> {
        let reconciler = self.counterfoil.reconcile().await;
        // a writer counts nothing while it waits for a read
        let load = Hits::on(&self.views.clone().read_timeout(millis(300)));
        load.more(700).await;
        trouble().await;
        load.more(700).await;
        let hits = load.end().await;
        self.cluster.wait_until_ok().await;
        self.drain().await;
        reconciler.stop().await;
        hits
    }

    /// Disrupts the cluster under load. Each hit is counted once.
    async fn counts_all_under_load(&self, trouble: impl AsyncFnOnce()) -> Vec<Hit> {
        let hits = self.under_load(trouble).await;
        let reckoning = Reckoning::of(&hits, &self.pool).await;
        reckoning.is_exact();
        assert_eq!((reckoning.refused, reckoning.unknown), (0, 0));
        hits
    }

    /// Returns the slots of the family.
    async fn slots(&self, family: &str) -> Vec<u16> {
        let mut slots = vec![];
        for partition in 0..PARTITIONS {
            let ask = format!("CLUSTER KEYSLOT {{test/{family}/{partition}}}");
            slots.push(self.cluster.node(0).run(&ask).await.unwrap());
        }
        slots
    }

    /// Moves all slots of the family key by key, each to one of the other primaries.
    async fn move_slots(&self, family: &str, pause_ms: u64) {
        for (round, slot) in self.slots(family).await.into_iter().enumerate() {
            let moved = self.cluster.move_slots(
                slot..=slot,
                (self.cluster.primary_of_slot(slot).await + 1 + round % 2) % 3,
                millis(pause_ms),
            );
            moved.await;
        }
    }

    /// Makes each primary hand over to its replica.
    async fn fail_over(&self) {
        for primary in self.cluster.primaries().await {
            self.cluster
                .failover(self.cluster.replica_of(primary).await)
                .await;
            pause(100).await;
        }
        self.cluster.wait_until_ok().await;
    }
}

/// Nothing is counted for a home that another process does not ask.
#[tokio::test(flavor = "multi_thread")]
async fn an_undeclared_cluster_is_refused() {
    let rig = Rig::steady().await;
    let undeclared = Connection::custom(connect(builder(&rig.cluster)).await, RESENDS);
    let node = Primary::connect(rig.cluster.node(0).tcp_url()).await;
    for connection in [undeclared, node.unwrap().into()] {
        let counterfoil = rig.over(connection);
        let views = counterfoil.open(family("views").partitions(PARTITIONS));
        refused(views.await, ErrorKind::InvalidInput, "Redis is a cluster");
        let one = counterfoil.open(Family::series("test", "hits").partitions(1));
        refused(one.await, ErrorKind::InvalidInput, "is_cluster: true");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_counts_once_whoever_makes_it_again() {
    let rig = Rig::steady().await;
    let other = rig.other().await;
    for wide in [false, true] {
        let views = family(&format!("wide_{wide}")).partitions(PARTITIONS);
        let views = views.wide(wide);
        let here = rig.open(views.clone()).await;
        let there = other.opened(views).await;
        for number in 0..20 {
            let (request, id) = (format!("job/{number}"), format!("page/{number}"));
            assert_eq!(
                there.add_once(&request, &id, 1).await.unwrap(),
                Counted(1),
                "{request}"
            );
            assert_eq!(
                here.add_once(&request, &id, 1).await.unwrap(),
                CountedBefore(1),
                "{request}"
            );
            assert_eq!(here.value(&id).await, 1);
        }
    }
}

/// Backlogs are read partition by partition.
#[tokio::test(flavor = "multi_thread")]
async fn backlogs_are_read_on_all_nodes() {
    let rig = Rig::steady().await;
    let other = rig.other().await;
    let views = family("views").partitions(PARTITIONS);
    let views = other.opened(views).await;
    let votes = Family::cached("test", "votes").partitions(PARTITIONS);
    let votes = votes.at_once();
    let _votes = other.opened(votes.clone()).await;
    let votes = rig.open(votes).await;
    let ids = pages(30);
    for n in 1..=2 {
        for added in views.add_many(ids.iter().map(|id| (id, 1))).await {
            assert_eq!(added.unwrap(), Counted(n));
        }
    }
    for id in &ids {
        votes.count(id, 1).await;
    }
    let numbers = async |counterfoil: &Counterfoil| {
        let numbers = |(family, backlog): (Family, Result<Backlog, Error>)| {
            let Backlog {
                ids,
                oldest,
                counted,
                ..
            } = backlog.unwrap();
            (family.name().to_owned(), ids, oldest.is_some(), counted)
        };
        counterfoil
            .backlogs()
            .await
            .unwrap()
            .into_iter()
            .map(numbers)
            .collect::<Vec<_>>()
    };
    for (left, has_oldest) in [(30, true), (0, false)] {
        let expected = [("views", 60), ("votes", 30)]
            .map(|(name, counted)| (name.to_owned(), left, has_oldest, counted));
        assert_eq!(numbers(&rig.counterfoil).await, expected);
        assert_eq!(numbers(&other).await, expected);
        other.drained().await;
    }
    assert_eq!(rig.stored("%").await, 90);
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_move_key_by_key_and_primaries_hand_over() {
    let rig = Rig::steady().await;
    let hits = rig
        .counts_all_under_load(async || {
            for _ in 0..2 {
                rig.move_slots("views", 40).await;
            }
            rig.fail_over().await;
        })
        .await;
    // no slot is half moved for as long as a caller's timeout, but callers had to wait
    let waited = hits.iter().map(|hit| hit.told - hit.asked);
    let waited = waited.filter(|time| *time > millis(40)).count();
    assert!(
        waited > 10,
        "{waited} calls waited for a key that was moved"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_come_back_with_their_files() {
    let rig = Rig::without_failover(RedisOptions::aof("always")).await;
    rig.counts_all_under_load(async || {
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
}

/// The approximate lag of a replica when its primary dies.
const BEHIND: Duration = millis(150);

/// Kills the primary of each slot while its replica lags, and waits until the replica is promoted.
async fn kill_primaries(cluster: &RedisCluster, slots: &[u16]) -> hits::Crashes {
    let mut deaths = vec![];
    for slot in slots {
        let primary = cluster.primary_of_slot(*slot).await;
        let replica = cluster.replica_of(primary).await;
        let (dying, heir) = (cluster.node(primary), cluster.node(replica));
        let cut_off = Instant::now();
        heir.pause();
        dying.does("CLIENT KILL TYPE replica").await;
        tokio::time::sleep(BEHIND).await;
        dying.kill();
        deaths.push((cut_off, Instant::now()));
        heir.resume();
        cluster.wait_promoted(replica).await;
        // not earlier: with its data it would become the primary again
        dying.start_again().await;
        cluster.wait_until_ok().await;
        pause(300).await;
    }
    deaths
}

#[tokio::test(flavor = "multi_thread")]
async fn the_death_of_a_primary_costs_what_its_replica_did_not_have() {
    let settle = Durability::Settle(BEHIND + millis(250));
    let rig = Rig::start(RedisOptions::volatile(), settle).await;
    let slots = rig.slots("views").await;
    let slots = [slots[0], slots[2], slots[0]];
    let mut deaths = vec![];
    let trouble = async || deaths = kill_primaries(&rig.cluster, &slots).await;
    let reckoning = Reckoning::of(&rig.under_load(trouble).await, &rig.pool).await;
    assert!(
        reckoning.doubled.is_empty() && reckoning.refused_counted.is_empty(),
        "{reckoning:?}"
    );
    let is_forgotten = |hit: &Hit| hit.is_taken_back(&deaths);
    assert!(
        reckoning.lost.iter().all(is_forgotten),
        "{:?}",
        reckoning.lost
    );
    let is_stored = |hit: &&Hit| reckoning.lost.iter().all(|lost| lost.id != hit.id);
    let misread: Vec<_> = reckoning.misread.iter().filter(is_stored).collect();
    assert!(misread.is_empty(), "stored, and not read: {misread:?}");
    // nothing was tried
    assert!(!reckoning.lost.is_empty() && reckoning.acknowledged > 1000);
}

/// Slots move and primaries change under all kinds, while cached counters enter and leave Redis.
#[tokio::test(flavor = "multi_thread")]
async fn all_kinds_count_while_slots_move() {
    let rig = Rig::steady().await;
    let handles = Handles::open(&rig.counterfoil, Durability::Immediate, PARTITIONS, LONG).await;
    let handles = handles.unwrap();
    let reconciler = rig.counterfoil.reconcile().await;
    let (site, load) = Site::start(&handles, &rig.pool);
    // those of the first one move in another test
    for family in &site::NAMES[1..] {
        rig.move_slots(family, 20).await;
    }
    rig.fail_over().await;
    load.end().await;
    reconciler.stop().await;
    rig.counterfoil.drain().await.unwrap();
    assert_eq!(site.is_exact(&handles).await, 0, "refused");
}

/// A node and its replica are down, and the cluster serves the other slots. Another process counts,
/// so that only a search finds the hits.
#[tokio::test]
async fn a_dead_node_holds_up_no_hits_on_others() {
    let options = RedisOptions::volatile().arg("cluster-require-full-coverage", "no");
    let rig = Rig::start(options, Durability::Immediate).await;
    let other = rig.over(connect(builder(&rig.cluster)).await);
    let views = other.opened(family("views").partitions(PARTITIONS)).await;
    let (mut alive, mut lost, dead) = (vec![], vec![], 0);
    for (partition, slot) in (0..).zip(rig.slots("views").await) {
        let is_lost = rig.cluster.primary_of_slot(slot).await == dead;
        let ids = if is_lost { &mut lost } else { &mut alive };
        ids.push(ids_of(views.family(), partition, 1).remove(0));
    }
    rig.drain().await;
    let reconciler = rig.counterfoil.reconcile().await;
    let replica = rig.cluster.replica_of(dead).await;
    rig.cluster.node(replica).kill();
    rig.cluster.node(dead).kill();
    fails(&reconciler, "search for hits", "").await;
    let number = alive.len() as i64;
    for round in 1..=2 {
        for id in &alive {
            views.count(id, 1).await;
        }
        let arrive = async || rig.stored("%").await == round * number;
        eventually("the hits on other nodes", arrive).await;
    }
    // once a read has waited for its limit, others of the dead node do not, whatever theirs is
    let patient = views.clone().read_timeout(LONG);
    eventually("its outage is known", async || {
        views.get(&lost[0]).await.unwrap_err();
        let read = timeout(secs(1), patient.get(&lost[0])).await;
        read.is_ok_and(|read| read.is_err())
    })
    .await;
    for id in &alive {
        assert_eq!(views.get(id).await.unwrap(), 2);
    }
    reconciler.stop().await;

    for id in &alive {
        views.count(id, 1).await;
    }
    let arrive = async || rig.stored("%").await == 3 * number;
    let arrive = eventually("the hits on other nodes", arrive);
    tokio::select! {
        drained = rig.counterfoil.drain() => panic!("a drain without the node ended: {drained:?}"),
        () = arrive => {}
    }
}
