//! The connection to Redis, cut after every single byte.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::support::{Pair, day, eventually, family, times};
use counterfoil::test_hooks::{Guard, take_out};
use counterfoil::{
    CachedCounters, Counting, Durability, Family, MysqlStore, Outcome, Precision, Series,
    VisitorCount, Visitors,
};
use redis::aio::ConnectionManager;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use testkit::{Proxy, RedisOptions, RedisServer};

type Counterfoil = counterfoil::Counterfoil;
type Counters = counterfoil::BufferedCounters;

const STORED: &str = "SELECT value FROM counterfoil_values";

/// A pair with a frail network to Redis that can be cut, and a safe one that is never cut.
struct Frail {
    pair: Pair,
    proxy: Proxy,
    redis: ConnectionManager,
    exact: Counters,
}

impl Frail {
    async fn new() -> Self {
        let pair = Pair::new().await;
        let proxy = Proxy::to(&pair.redis);
        let redis = proxy.manager().await;
        let exact = Self::open(&pair.counterfoil).await;
        Frail {
            pair,
            proxy,
            redis,
            exact,
        }
    }

    /// Returns a counterfoil over the frail network, with its own callers.
    fn counterfoil(&self) -> Counterfoil {
        Counterfoil::new(self.redis.clone(), MysqlStore::new(self.pair.pool.clone()))
    }

    async fn open(counterfoil: &Counterfoil) -> Counters {
        counterfoil
            .open(family("views").partitions(1))
            .await
            .unwrap()
    }

    /// Waits for a connection, since a cut must hit the attempt and not the connecting.
    async fn reconnected(&self) {
        eventually("a connection", || async {
            redis::cmd("PING")
                .query_async::<()>(&mut self.redis.clone())
                .await
                .is_ok()
        })
        .await;
    }

    /// Counts a hit, and returns how often it was counted.
    async fn add(&self, counters: &Counters) -> i64 {
        let before = self.exact.get("page").await.unwrap();
        let added = counters.add("page", 1).await.unwrap();
        assert!(matches!(added, Outcome::Counted(_)), "{added:?}");
        self.exact.get("page").await.unwrap() - before
    }

    async fn script_flush(&self) {
        redis::cmd("SCRIPT")
            .arg("FLUSH")
            .query_async::<()>(&mut self.pair.redis.manager().await)
            .await
            .unwrap();
    }

    async fn is_in_mysql(&self, hits: usize) {
        self.pair.counterfoil.drain().await.unwrap();
        assert_eq!(self.pair.number(STORED).await, i64::try_from(hits).unwrap());
    }
}

/// Runs the attempt with a cut after 0 bytes, after `step` bytes and so on, until it ends before
/// the cut. Returns the number of cuts.
async fn cut_after_each(
    step: usize,
    proxy: &Proxy,
    cut: impl Fn(&Proxy, usize),
    mut attempt: impl AsyncFnMut(&dyn Fn()),
) -> usize {
    for cuts in 0.. {
        attempt(&|| cut(proxy, step * cuts)).await;
        if proxy.call_off() {
            return cuts;
        }
    }
    unreachable!("nothing goes on for ever")
}

/// A direction: the number of bytes that it has carried, and a cut after a number of bytes.
type Direction = (fn(&Proxy) -> usize, fn(&Proxy, usize));
const DIRECTIONS: [Direction; 2] = [
    (Proxy::request_bytes, Proxy::cut_requests_after),
    (Proxy::reply_bytes, Proxy::cut_replies_after),
];

#[tokio::test]
async fn a_hit_is_counted_once_wherever_its_call_is_cut() {
    let frail = Frail::new().await;
    let counters = Frail::open(&frail.counterfoil()).await;
    let mut hits = 1;
    assert_eq!(frail.add(&counters).await, 1);
    for (bytes, cut) in DIRECTIONS {
        let before = bytes(&frail.proxy);
        assert_eq!(frail.add(&counters).await, 1);
        let length = bytes(&frail.proxy) - before;
        let cuts = cut_after_each(1, &frail.proxy, cut, async |arm| {
            frail.reconnected().await;
            arm();
            assert_eq!(frail.add(&counters).await, 1);
        })
        .await;
        // after 0 bytes, and after each byte
        assert!(cuts > length, "{cuts} cuts in {length} bytes");
        println!("a hit of {length} bytes was cut {cuts} times");
        hits += 2 + cuts;
    }
    frail.is_in_mysql(hits).await;
}

/// Turns Redis into a cluster of one node that announces the proxy's address.
async fn cluster_behind(proxy: &Proxy, redis: &RedisServer) -> ClusterConnection {
    let port = proxy.listen_on_port().await;
    let slots: Vec<_> = (0..testkit::SLOTS).map(|slot| slot.to_string()).collect();
    for command in [
        "CONFIG SET cluster-announce-ip 127.0.0.1".to_owned(),
        format!("CONFIG SET cluster-announce-port {port}"),
        format!("CLUSTER ADDSLOTS {}", slots.join(" ")),
    ] {
        redis.run::<()>(&command).await.unwrap();
    }
    eventually("a cluster", || async {
        redis
            .run::<String>("CLUSTER INFO")
            .await
            .unwrap()
            .contains("cluster_state:ok")
    })
    .await;
    // the default client, with shorter pauses between its retries
    let client = ClusterClient::builder([format!("redis://127.0.0.1:{port}")])
        .min_retry_wait(1)
        .max_retry_wait(20);
    client
        .build()
        .unwrap()
        .get_async_connection()
        .await
        .unwrap()
}

/// The redis crate's cluster client resends calls by itself. The scripts recognize a repeat from
/// any sender.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_resends_counts_once_wherever_its_call_is_cut() {
    let pair = Pair::with(RedisOptions::volatile().tcp().arg("cluster-enabled", "yes")).await;
    let proxy = Proxy::to(&pair.redis);
    let redis = cluster_behind(&proxy, &pair.redis).await;
    let counterfoil = counterfoil::Counterfoil::new(redis, MysqlStore::new(pair.pool.clone()));
    let counters = counterfoil
        .open(family("views").partitions(1))
        .await
        .unwrap();
    let mut hits = 0;
    for (_, cut) in DIRECTIONS {
        let cuts = cut_after_each(1, &proxy, cut, async |arm| {
            assert!(
                matches!(counters.add("page", 0).await.unwrap(), Outcome::Counted(_)),
                "there is a connection"
            );
            arm();
            let added = counters.add("page", 1).await.unwrap();
            assert!(matches!(added, Outcome::Counted(_)), "{added:?}");
            hits += 1;
            let pending = counters.pending(&["page"]).await.unwrap();
            assert_eq!(pending, [hits], "after a cut");
        })
        .await;
        println!("a hit of a client that resends was cut {cuts} times");
        assert!(cuts > 5, "{cuts} cuts");
    }
    counterfoil.drain().await.unwrap();
    assert_eq!(pair.number(STORED).await, hits);
}

#[tokio::test]
async fn without_the_fence_it_is_counted_twice() {
    take_out(Some(Guard::Fence));
    let frail = Frail::new().await;
    let counters = Frail::open(&frail.counterfoil()).await;
    assert_eq!(frail.add(&counters).await, 1);
    let (mut hits, mut doubled) = (0, 0);
    cut_after_each(1, &frail.proxy, Proxy::cut_replies_after, async |arm| {
        frail.reconnected().await;
        arm();
        hits += 1;
        doubled += i64::from(frail.add(&counters).await > 1);
    })
    .await;
    take_out(None);
    println!("{doubled} of {hits} counted twice");
    assert!(doubled > 0, "none of {hits} hits was counted twice");
}

#[tokio::test]
async fn an_epoch_is_told_wherever_the_first_calls_are_cut() {
    let frail = Frail::new().await;
    assert_eq!(frail.add(&Frail::open(&frail.counterfoil()).await).await, 1);
    let mut hits = 1;
    for (_, cut) in DIRECTIONS {
        let cuts = cut_after_each(1, &frail.proxy, cut, async |arm| {
            let counters = Frail::open(&frail.counterfoil()).await;
            frail.reconnected().await;
            arm();
            assert_eq!(frail.add(&counters).await, 1);
        })
        .await;
        println!("the first hit was cut {cuts} times");
        hits += 1 + cuts;
    }
    frail.is_in_mysql(hits).await;
}

#[tokio::test]
async fn scripts_are_loaded_wherever_that_is_cut() {
    let frail = Frail::new().await;
    let mut hits = 0;
    // the scripts are long, so they are cut only after every 31st byte
    for ((_, cut), step) in DIRECTIONS.into_iter().zip([31, 1]) {
        let cuts = cut_after_each(step, &frail.proxy, cut, async |arm| {
            let counters = Frail::open(&frail.counterfoil()).await;
            frail.script_flush().await;
            frail.reconnected().await;
            arm();
            assert_eq!(frail.add(&counters).await, 1);
        })
        .await;
        println!("loading was cut {cuts} times");
        hits += 1 + cuts;
    }
    frail.is_in_mysql(hits).await;
}

#[tokio::test]
async fn a_batch_reaches_the_database_once_wherever_its_calls_are_cut() {
    let frail = Frail::new().await;
    let counterfoil = frail.counterfoil();
    let _ = Frail::open(&counterfoil).await;
    let mut hits = 0;
    for (_, cut) in DIRECTIONS {
        let cuts = cut_after_each(3, &frail.proxy, cut, async |arm| {
            hits += 1;
            assert_eq!(frail.add(&frail.exact).await, 1);
            frail.reconnected().await;
            arm();
            let drained = tokio::time::timeout(Duration::from_secs(20), counterfoil.drain()).await;
            drained.expect("a drain ends").unwrap();
            assert_eq!(frail.pair.number(STORED).await, hits);
        })
        .await;
        println!("a drain was cut {cuts} times");
    }
}

/// Opens a cached family over this pair.
async fn votes(counterfoil: &Counterfoil) -> CachedCounters {
    let family = Family::cached("test", "votes")
        .partitions(1)
        .durability(Durability::Immediate);
    counterfoil.open(family).await.unwrap()
}

impl Frail {
    /// Saves all cached counters and deletes them from Redis.
    async fn cached_counters_leave(&self) {
        self.pair.counterfoil.drain().await.unwrap();
        self.pair
            .redis
            .run::<()>("DEL cf1:{test/votes/0}:base")
            .await
            .unwrap();
    }
}

#[tokio::test]
async fn a_cached_counter_returns_each_value_once_wherever_its_calls_are_cut() {
    let frail = Frail::new().await;
    let _to_drain = votes(&frail.pair.counterfoil).await;
    let votes = votes(&frail.counterfoil()).await;
    let mut value = 1;
    assert_eq!(votes.incr("page", 1).await.unwrap().counted(), Some(value));
    for is_warm in [true, false] {
        for (_, cut) in DIRECTIONS {
            let cuts = cut_after_each(1, &frail.proxy, cut, async |arm| {
                if !is_warm {
                    frail.cached_counters_leave().await;
                }
                frail.reconnected().await;
                arm();
                value += 1;
                assert_eq!(votes.incr("page", 1).await.unwrap().counted(), Some(value));
            })
            .await;
            println!("an increment was cut {cuts} times, warm: {is_warm}");
        }
    }
    frail.is_in_mysql(usize::try_from(value).unwrap()).await;
}

#[tokio::test]
async fn a_cached_counter_is_saved_once_wherever_the_calls_are_cut() {
    let frail = Frail::new().await;
    let exact = votes(&frail.pair.counterfoil).await;
    let counterfoil = frail.counterfoil();
    let _to_drain = votes(&counterfoil).await;
    let mut value = 0;
    for (_, cut) in DIRECTIONS {
        let cuts = cut_after_each(3, &frail.proxy, cut, async |arm| {
            value += 1;
            assert_eq!(exact.incr("page", 1).await.unwrap().counted(), Some(value));
            frail.reconnected().await;
            arm();
            let drained = tokio::time::timeout(Duration::from_secs(20), counterfoil.drain()).await;
            drained.expect("a drain ends").unwrap();
            assert_eq!(frail.pair.number(STORED).await, value);
        })
        .await;
        println!("a drain was cut {cuts} times");
    }
}

/// Runs the attempt with each cut of both directions, and without cuts. Returns the number of
/// attempts.
async fn tried_with_each_cut(frail: &Frail, mut attempt: impl AsyncFnMut()) -> usize {
    attempt().await;
    let mut attempts = 1;
    for (bytes, cut) in DIRECTIONS {
        let before = bytes(&frail.proxy);
        attempt().await;
        let length = bytes(&frail.proxy) - before;
        let cuts = cut_after_each(1, &frail.proxy, cut, async |arm| {
            frail.reconnected().await;
            arm();
            attempt().await;
        })
        .await;
        assert!(cuts >= length, "{cuts} cuts in {length} bytes");
        println!("a call of {length} bytes was cut {cuts} times");
        attempts += 2 + cuts;
    }
    attempts
}

/// Kinds on the frail network, and on the safe one, which shows what was counted.
struct Kinds {
    frail: Frail,
    hits: Series,
    exact_hits: Series,
    daily: Visitors,
    exact_daily: Visitors,
}

impl Kinds {
    async fn new() -> Self {
        let frail = Frail::new().await;
        let (over, safe) = (frail.counterfoil(), &frail.pair.counterfoil);
        let hits = || {
            let windows = [(Precision::SECOND, 2), (Precision::Day, 3)];
            let family = Family::series("test", "hits")
                .windows(windows)
                .keep([Precision::SECOND]);
            family.partitions(1).durability(Durability::Immediate)
        };
        let daily = || {
            Family::visitors("test", "daily")
                .partitions(1)
                .durability(Durability::Immediate)
        };
        Kinds {
            hits: over.open(hits()).await.unwrap(),
            exact_hits: safe.open(hits()).await.unwrap(),
            daily: over.open(daily()).await.unwrap(),
            exact_daily: safe.open(daily()).await.unwrap(),
            frail,
        }
    }

    /// Returns the sum of the days of the series.
    async fn hits(&self) -> i64 {
        self.exact_hits
            .get("a", Precision::Day)
            .await
            .unwrap()
            .iter()
            .map(|slice| slice.count)
            .sum()
    }
}

#[tokio::test]
async fn a_hit_of_a_series_is_counted_once_wherever_its_call_is_cut() {
    let kinds = Kinds::new().await;
    let mut counted = 0;
    let attempts = tried_with_each_cut(&kinds.frail, async || {
        let _ = kinds.hits.add("a", 1).await.unwrap();
        counted += 1;
        assert_eq!(kinds.hits().await, counted);
    })
    .await;
    assert_eq!(counted, i64::try_from(attempts).unwrap());
    tokio::time::sleep(Duration::from_millis(1100)).await;
    kinds.frail.pair.counterfoil.drain().await.unwrap();
    let sum = "SELECT CAST(SUM(value) AS SIGNED) FROM counterfoil_values";
    assert_eq!(kinds.frail.pair.number(sum).await, counted);
}

#[tokio::test]
async fn a_visitor_is_told_once_to_be_new_wherever_the_call_is_cut() {
    let kinds = Kinds::new().await;
    let mut visitors = 0u32;
    tried_with_each_cut(&kinds.frail, async || {
        assert_eq!(
            kinds
                .daily
                .first_visit("site", day("2014-09-20"), visitors.to_be_bytes())
                .await
                .unwrap(),
            Outcome::Counted(1)
        );
        assert_eq!(
            kinds
                .exact_daily
                .first_visit("site", day("2014-09-20"), visitors.to_be_bytes())
                .await
                .unwrap(),
            Outcome::CountedBefore(0)
        );
        visitors += 1;
        assert_eq!(
            kinds
                .exact_daily
                .get("site", day("2014-09-20"))
                .await
                .unwrap(),
            i64::from(visitors)
        );
    })
    .await;
    kinds.frail.is_in_mysql(visitors as usize).await;
}

/// Checks that a touch counts once, for a new visitor and for a known one.
async fn a_touch_is_counted_once(counting: Counting) {
    let frail = Frail::new().await;
    let family = || {
        // no layer leaves the window during the test
        let window = Family::activity("test", "online")
            .window(Duration::from_secs(1800), Duration::from_secs(60));
        let family = window.visitors(counting).keep_minutes(true);
        family.partitions(1).durability(Durability::Immediate)
    };
    let online = frail.counterfoil().open(family()).await.unwrap();
    let exact = frail.pair.counterfoil.open(family()).await.unwrap();
    let [online, exact] = [online, exact].map(|opened| opened.cache_for(Duration::ZERO));
    let mut views = 0u64;
    tried_with_each_cut(&frail, async || {
        online
            .touch("page", (views / 2).to_be_bytes())
            .await
            .unwrap();
        views += 1;
        let now = exact.now("page").await.unwrap();
        assert_eq!(now.views, views);
        match now.visitors {
            VisitorCount::Exact(visitors) => assert_eq!(visitors, views.div_ceil(2)),
            estimated => assert!(
                estimated.count().abs_diff(views.div_ceil(2)) <= 10 + views / 20,
                "{estimated:?}"
            ),
        }
    })
    .await;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs()
        .cast_signed();
    let minutes = exact
        .minutes("page", times(now - 600..now + 1))
        .await
        .unwrap();
    assert_eq!(
        minutes.iter().map(|minute| minute.views).sum::<i64>(),
        views.cast_signed()
    );
}

#[tokio::test]
async fn a_touch_is_counted_once_wherever_its_call_is_cut() {
    a_touch_is_counted_once(Counting::Exact).await;
}

#[tokio::test]
async fn a_touch_of_a_hyperloglog_is_counted_once_wherever_its_call_is_cut() {
    a_touch_is_counted_once(Counting::HyperLogLog).await;
}

#[tokio::test]
async fn without_the_fence_hits_double_and_visitors_are_not_told() {
    take_out(Some(Guard::Fence));
    let kinds = Kinds::new().await;
    let _ = kinds.hits.add("a", 1).await.unwrap();
    let (mut hits, mut doubled, mut untold) = (1, 0, 0);
    cut_after_each(
        1,
        &kinds.frail.proxy,
        Proxy::cut_replies_after,
        async |arm| {
            kinds.frail.reconnected().await;
            arm();
            let before = kinds.hits().await;
            let _ = kinds.hits.add("a", 1).await.unwrap();
            doubled += i32::from(kinds.hits().await > before + 1);
            hits += 1;
        },
    )
    .await;
    cut_after_each(
        1,
        &kinds.frail.proxy,
        Proxy::cut_replies_after,
        async |arm| {
            kinds.frail.reconnected().await;
            arm();
            hits += 1;
            let visitor = format!("visitor {hits}");
            untold += i32::from(
                kinds
                    .daily
                    .first_visit("site", day("2014-09-20"), visitor)
                    .await
                    .unwrap()
                    != Outcome::Counted(1),
            );
        },
    )
    .await;
    take_out(None);
    println!("{doubled} hits doubled, {untold} visitors were not told");
    assert!(doubled > 0 && untold > 0);
}
