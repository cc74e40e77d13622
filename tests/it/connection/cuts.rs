//! The connection to Redis, cut after every single byte.

use redis::cluster::ClusterClient;

use crate::support::*;

const STORED: &str = "SELECT value FROM counterfoil_values";

/// A direction: the number of bytes that it has carried, and a cut after a number of bytes.
type Direction = (fn(&Proxy) -> usize, fn(&Proxy, usize));
const DIRECTIONS: [Direction; 2] = [
    (Proxy::request_bytes, Proxy::cut_requests_after),
    (Proxy::reply_bytes, Proxy::cut_replies_after),
];

/// Returns the number of bytes from one cut to the next, 1 if `COUNTERFOIL_CASES` is set.
fn step() -> usize {
    if random::cases(0) > 0 { 1 } else { 3 }
}

/// The networks on which a long test runs at a time, since most of its time is waiting.
const LANES: usize = 4;

/// Runs the attempt with a cut after a random byte of the first `step`, then `step` bytes later and
/// so on, until it ends before the cut. Each lane makes one of several cuts. Returns after how many
/// bytes the last one would have been.
async fn cut_after_each(
    (lane, lanes): (usize, usize),
    step: usize,
    proxy: &Proxy,
    (_, cut): Direction,
    mut attempt: impl AsyncFnMut(&dyn Fn()),
) -> usize {
    let first = random::numbers().random_range(0..step) + lane * step;
    for bytes in (first..).step_by(step * lanes) {
        attempt(&|| cut(proxy, bytes)).await;
        if proxy.call_off() {
            return bytes;
        }
    }
    unreachable!("nothing goes on for ever")
}

/// A pair with a frail network to Redis that can be cut, and a safe one that is never cut.
struct Frail {
    /// The number of the lane, and of all lanes of the test.
    lane: (usize, usize),
    pair: Pair,
    proxy: Proxy,
    redis: ConnectionManager,
    exact: BufferedCounters,
}

impl Frail {
    /// Runs the test on each of so many lanes.
    async fn each(lanes: usize, test: impl AsyncFn(Frail)) {
        let run = async |lane| {
            let pair = Pair::new().await;
            let proxy = Proxy::to(&pair.redis);
            let frail = Frail {
                lane: (lane, lanes),
                redis: proxy.manager().await,
                exact: Self::open(&pair.counterfoil).await,
                pair,
                proxy,
            };
            test(frail).await;
        };
        join_all((0..lanes).map(run)).await;
    }

    /// Opens the family over the frail network, and over the safe one.
    async fn both<H: FamilyHandle + Clone>(&self, family: FamilyBuilder<H>) -> (H, H) {
        let family = family.partitions(1).at_once();
        let frail = self.counterfoil().opened(family.clone()).await;
        (frail, self.pair.open(family).await)
    }

    /// Returns a counterfoil over the frail network, with its own callers.
    fn counterfoil(&self) -> Counterfoil {
        self.pair.over(self.redis.clone())
    }

    async fn open(counterfoil: &Counterfoil) -> BufferedCounters {
        counterfoil.opened(family("views").partitions(1)).await
    }

    /// Waits for a connection, since a cut must hit the attempt and not the connecting.
    async fn reconnected(&self) {
        eventually("a connection", || async {
            let mut redis = self.redis.clone();
            let pong = cmd("PING").query_async::<()>(&mut redis).await;
            pong.is_ok()
        })
        .await;
    }

    /// Runs the attempt with each cut of both directions. Each time it waits for a connection after
    /// the preparations.
    async fn cut_each<T>(
        &self,
        steps: [usize; 2],
        mut prepare: impl AsyncFnMut() -> T,
        mut attempt: impl AsyncFnMut(T),
    ) {
        for (direction, step) in DIRECTIONS.into_iter().zip(steps) {
            cut_after_each(self.lane, step, &self.proxy, direction, async |arm| {
                let prepared = prepare().await;
                self.reconnected().await;
                arm();
                attempt(prepared).await;
            })
            .await;
        }
    }

    /// Runs the attempt with cuts over all of both directions, and without cuts.
    async fn cut_all(&self, mut attempt: impl AsyncFnMut()) {
        attempt().await;
        for direction @ (bytes, _) in DIRECTIONS {
            let before = bytes(&self.proxy);
            attempt().await;
            let length = bytes(&self.proxy) - before;
            let cut = cut_after_each(self.lane, step(), &self.proxy, direction, async |arm| {
                self.reconnected().await;
                arm();
                attempt().await;
            })
            .await;
            assert!(cut > length, "no cut after {cut} of {length} bytes");
        }
    }

    /// Counts a hit, and returns how often it was counted.
    async fn add(&self, counters: &BufferedCounters) -> i64 {
        let before = self.exact.value("page").await;
        counters.count("page", 1).await;
        self.exact.value("page").await - before
    }

    /// Brings everything to the database over the frail network.
    async fn drain(&self, counterfoil: &Counterfoil) {
        timeout(secs(20), counterfoil.drain())
            .await
            .unwrap()
            .unwrap();
    }

    async fn is_in_mysql(&self, hits: i64) {
        self.pair.drain().await;
        assert_eq!(self.pair.stored().await, hits);
    }
}

#[tokio::test]
async fn a_hit_is_counted_once_wherever_its_call_is_cut() {
    Frail::each(1, async |frail| {
        let counters = Frail::open(&frail.counterfoil()).await;
        let mut hits = 0;
        let hit = async || {
            assert_eq!(frail.add(&counters).await, 1);
            hits += 1;
        };
        frail.cut_all(hit).await;
        frail.is_in_mysql(hits).await;
    })
    .await;
}

/// Turns Redis into a cluster of one node that announces the proxy's address.
async fn cluster_behind(proxy: &Proxy, redis: &RedisServer) -> Cluster {
    let port = proxy.listen_on_port().await;
    let slots: Vec<_> = (0..testkit::SLOTS).map(|slot| slot.to_string()).collect();
    for command in [
        "CONFIG SET cluster-announce-ip 127.0.0.1".to_owned(),
        format!("CONFIG SET cluster-announce-port {port}"),
        format!("CLUSTER ADDSLOTS {}", slots.join(" ")),
    ] {
        redis.does(&command).await;
    }
    eventually("it takes calls as a cluster", async || {
        let info: String = redis.run("CLUSTER INFO").await.unwrap();
        info.contains("cluster_state:ok")
    })
    .await;
    // the default client, with shorter pauses between its retries
    super::connect(
        ClusterClient::builder([format!("redis://127.0.0.1:{port}")])
            .min_retry_wait(1)
            .max_retry_wait(20),
    )
    .await
}

/// The redis crate's cluster client resends calls by itself. The scripts recognize a repeat from
/// any sender.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_resends_counts_once_wherever_its_call_is_cut() {
    let pair = Pair::with(RedisOptions::volatile().tcp().arg("cluster-enabled", "yes")).await;
    let proxy = Proxy::to(&pair.redis);
    let counterfoil = pair.over(cluster_behind(&proxy, &pair.redis).await);
    let counters = Frail::open(&counterfoil).await;
    let mut hits = 0;
    for direction in DIRECTIONS {
        let bytes = cut_after_each((0, 1), step(), &proxy, direction, async |arm| {
            // there is a connection
            counters.count("page", 0).await;
            arm();
            counters.count("page", 1).await;
            hits += 1;
            let pending = counters.pending(&["page"]).await.unwrap();
            // after a cut
            assert_eq!(pending, [hits]);
        })
        .await;
        assert!(bytes > 5 * step(), "{bytes} bytes");
    }
    counterfoil.drained().await;
    assert_eq!(pair.number(STORED).await, hits);
}

/// The first calls of a new caller are its requests for the epoch. Without the scripts, they also
/// load them.
#[tokio::test]
async fn first_calls_count_once_wherever_they_are_cut() {
    Frail::each(LANES, async |frail| {
        let mut hits = 0;
        // scripts are long, so they are cut less often
        for (flushes, steps) in [(false, [step(); 2]), (true, [31, step()])] {
            let prepare = async || {
                let counters = Frail::open(&frail.counterfoil()).await;
                if flushes {
                    frail.pair.redis.does("SCRIPT FLUSH").await;
                }
                counters
            };
            frail
                .cut_each(steps, prepare, async |counters| {
                    assert_eq!(frail.add(&counters).await, 1, "flushed: {flushes}");
                    hits += 1;
                })
                .await;
        }
        frail.is_in_mysql(hits).await;
    })
    .await;
}

#[tokio::test]
async fn a_batch_reaches_the_database_once_wherever_its_calls_are_cut() {
    Frail::each(LANES, async |frail| {
        let counterfoil = frail.counterfoil();
        let _to_drain = Frail::open(&counterfoil).await;
        let mut hits = 0;
        let hit = async || assert_eq!(frail.add(&frail.exact).await, 1);
        frail
            .cut_each([3, 3], hit, async |()| {
                frail.drain(&counterfoil).await;
                hits += 1;
                assert_eq!(frail.pair.number(STORED).await, hits);
            })
            .await;
    })
    .await;
}

#[tokio::test]
async fn a_cached_counter_is_saved_once_wherever_the_calls_are_cut() {
    Frail::each(LANES, async |frail| {
        let counterfoil = frail.counterfoil();
        let _to_drain = counterfoil.opened(votes().partitions(1)).await;
        let exact = frail.pair.open(votes().partitions(1)).await;
        let incr = async || exact.count("page", 1).await;
        frail
            .cut_each([3, 3], incr, async |value| {
                frail.drain(&counterfoil).await;
                assert_eq!(frail.pair.number(STORED).await, value);
            })
            .await;
        assert!(exact.value("page").await > 100 / LANES as i64);
    })
    .await;
}

#[tokio::test]
async fn a_cached_counter_returns_each_value_once_wherever_its_calls_are_cut() {
    Frail::each(LANES, async |frail| {
        let (votes, _to_drain) = frail.both(votes()).await;
        let mut value = 1;
        assert_eq!(votes.count("page", 1).await, value);
        for is_warm in [true, false] {
            let prepare = async || {
                if !is_warm {
                    frail.pair.drain().await;
                    let delete = "DEL cf1:{test/votes/0}:base";
                    frail.pair.redis.does(delete).await;
                }
            };
            frail
                .cut_each([step(); 2], prepare, async |()| {
                    value += 1;
                    assert_eq!(votes.count("page", 1).await, value, "warm: {is_warm}");
                })
                .await;
        }
        frail.is_in_mysql(value).await;
    })
    .await;
}

#[tokio::test]
async fn a_hit_of_a_series_is_counted_once_wherever_its_call_is_cut() {
    Frail::each(1, async |frail| {
        let hits = Family::series("test", "hits")
            .windows([(Precision::SECOND, 2), (Precision::Day, 3)])
            .keep([Precision::SECOND]);
        let (hits, exact) = frail.both(hits).await;
        let mut counted = 0;
        let hit = async || {
            hits.count("a", 1).await;
            counted += 1;
            let days = exact.get("a", Precision::Day).await.unwrap();
            assert_eq!(sum(&days), counted);
        };
        frail.cut_all(hit).await;
        pause(1100).await;
        frail.is_in_mysql(counted).await;
    })
    .await;
}

#[tokio::test]
async fn a_visitor_is_new_once_wherever_the_call_is_cut() {
    Frail::each(1, async |frail| {
        let (daily, exact) = frail.both(Family::visitors("test", "daily")).await;
        let (mut visitors, today) = (0, day("2014-09-20"));
        let visit = async || {
            let visitor = format!("visitor {visitors}");
            for (daily, expected) in [(&daily, Counted(1)), (&exact, CountedBefore(0))] {
                let visit = daily.first_visit("site", today, &visitor).await;
                assert_eq!(visit.unwrap(), expected);
            }
            visitors += 1;
            assert_eq!(exact.get("site", today).await.unwrap(), visitors);
        };
        frail.cut_all(visit).await;
        frail.is_in_mysql(visitors).await;
    })
    .await;
}

/// Checks that a touch counts once, for a new visitor and for a known one.
#[tokio::test]
async fn a_touch_is_counted_once_wherever_its_call_is_cut() {
    Frail::each(1, async |frail| {
        // no layer leaves the window during the test
        let online = Family::activity("test", "online")
            .window(secs(1800), secs(60))
            .keep_minutes(true);
        let (online, exact) = frail.both(online).await;
        let exact = exact.cache_for(Duration::ZERO);
        let mut views = 0u64;
        let touch = async || {
            let visitor = (views / 2).to_be_bytes();
            online.touch("page", visitor).await.unwrap();
            views += 1;
            let now = exact.now("page").await.unwrap();
            assert_eq!((now.views, now.visitors), (views, views.div_ceil(2)));
        };
        frail.cut_all(touch).await;
        let now = unix(SystemTime::now());
        let minutes = exact.minutes("page", times(now - 600..now + 1)).await;
        let counted: i64 = minutes.unwrap().iter().map(|minute| minute.views).sum();
        assert_eq!(counted, views.cast_signed());
    })
    .await;
}
