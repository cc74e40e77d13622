//! The connection to Redis is cut after every single byte of what goes over it.
#![allow(missing_docs)]

mod support;

use std::time::Duration;

use counterfoil::test_hooks::{Guard, take_out};
use counterfoil::{Added, CachedCounters, Durability, Family, MysqlStore};
use redis::aio::ConnectionManager;
use support::{Pair, eventually, family};
use testkit::Proxy;

type Counterfoil = counterfoil::Counterfoil<ConnectionManager>;
type Counters = counterfoil::Counters<ConnectionManager>;

const STORED: &str = "SELECT value FROM counterfoil_values";

/// A pair whose Redis is reached over a network that can be cut, and once more by a way that is never cut.
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
        Frail { pair, proxy, redis, exact }
    }

    /// Over the frail network, with producers of its own.
    fn counterfoil(&self) -> Counterfoil {
        Counterfoil::new(self.redis.clone(), MysqlStore::new(self.pair.pool.clone()))
    }

    async fn open(counterfoil: &Counterfoil) -> Counters {
        counterfoil.open(family("views").partitions(1).build().unwrap()).await.unwrap()
    }

    /// A cut must hit what is tried and not the making of a connection, so there has to be one.
    async fn reconnected(&self) {
        eventually("a connection", || async {
            redis::cmd("PING").query_async::<()>(&mut self.redis.clone()).await.is_ok()
        })
        .await;
    }

    /// How often a hit was counted.
    async fn add(&self, counters: &Counters) -> i64 {
        let before = self.exact.get("page").await.unwrap();
        let added = counters.add("page", 1).await.unwrap();
        assert!(matches!(added, Added::Counted { .. }), "{added:?}");
        self.exact.get("page").await.unwrap() - before
    }

    async fn script_flush(&self) {
        redis::cmd("SCRIPT").arg("FLUSH").query_async::<()>(&mut self.pair.redis.manager().await).await.unwrap();
    }

    async fn is_in_mysql(&self, hits: usize) {
        self.pair.counterfoil.drain().await.unwrap();
        assert_eq!(self.pair.number(STORED).await, i64::try_from(hits).unwrap());
    }
}

/// Tries something with a cut after no byte, after `step` bytes and so on, until it is over before the cut. Answers how
/// many cuts there were.
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

/// Both directions: how many bytes went over the network, and how to cut it after so many.
type Direction = (fn(&Proxy) -> usize, fn(&Proxy, usize));
const DIRECTIONS: [Direction; 2] =
    [(Proxy::request_bytes, Proxy::cut_requests_after), (Proxy::reply_bytes, Proxy::cut_replies_after)];

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
        // after none, and after each
        assert!(cuts > length, "{cuts} cuts in {length} bytes");
        println!("a hit of {length} bytes was cut {cuts} times");
        hits += 2 + cuts;
    }
    frail.is_in_mysql(hits).await;
}

#[tokio::test]
async fn without_the_producer_fence_it_is_counted_twice() {
    take_out(Some(Guard::ProducerFence));
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
async fn a_producer_is_registered_wherever_its_first_calls_are_cut() {
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
    // the scripts are long, so only every so many of their bytes
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

/// A cached family over this pair.
async fn votes(counterfoil: &Counterfoil) -> CachedCounters<ConnectionManager> {
    let family = Family::cached("test", "votes").partitions(1).durability(Durability::Immediate);
    counterfoil.open_cached(family.build().unwrap()).await.unwrap()
}

impl Frail {
    /// Saves all cached counters and lets them leave Redis.
    async fn cached_counters_leave(&self) {
        self.pair.counterfoil.drain().await.unwrap();
        let keys = ["values", "rows", "agenda"].map(|kind| format!("cf1:{{test/votes/0}}:{kind}"));
        self.pair.redis.run::<()>(&format!("DEL {}", keys.join(" "))).await.unwrap();
    }
}

#[tokio::test]
async fn a_cached_counter_answers_each_value_once_wherever_its_calls_are_cut() {
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
