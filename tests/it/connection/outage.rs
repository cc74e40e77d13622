//! A Redis that does not reply: the first call waits for its time limit, the others do not wait.

use crate::support::*;

/// A handle of each kind, with the default time limits.
struct Page {
    views: BufferedCounters,
    votes: CachedCounters,
    hits: Series,
    readers: Activity,
    daily: Visitors,
}

impl Page {
    async fn open(counterfoil: &Counterfoil) -> Self {
        Page {
            views: counterfoil.open(family("views")).await.unwrap(),
            votes: counterfoil.open(votes()).await.unwrap(),
            hits: counterfoil.open(days()).await.unwrap(),
            readers: counterfoil
                .open(Family::activity("test", "readers"))
                .await
                .unwrap(),
            daily: counterfoil
                .open(Family::visitors("test", "daily"))
                .await
                .unwrap(),
        }
    }

    /// Makes a call of each kind, and reads. Nothing is counted.
    async fn is_refused(&self) {
        let day = day("2026-11-25");
        let counted = [
            self.views.add("page", 1).await.map(drop),
            self.views.add_once("job", "page", 1).await.map(drop),
            self.votes.incr("page", 1).await.map(drop),
            self.hits.add("page", 1).await.map(drop),
            self.readers.touch("page", "visitor").await,
            self.daily
                .first_visit("page", day, "visitor")
                .await
                .map(drop),
        ];
        let read = [
            self.views.get("page").await.map(drop),
            self.votes.get("page").await.map(drop),
            self.hits.get("page", Precision::Day).await.map(drop),
            self.readers.now("page").await.map(drop),
        ];
        for result in counted.into_iter().chain(read) {
            refused(result, ErrorKind::Redis, "has not replied for");
        }
    }

    /// Reads the database, which replies meanwhile.
    async fn shows_what_is_stored(&self) {
        let hour = secs(3600);
        self.views.stored(["page"]).await.unwrap();
        for shown in [
            self.views.get_or_stored(["page"], hour).await,
            self.votes.get_or_stored(["page"], hour).await,
        ] {
            assert!(!shown.unwrap().exact);
        }
    }
}

/// Ends the replies, shows that one call waits and no other, and that calls count soon after Redis
/// replies again.
async fn costs_one_call(page: &Page, end: impl AsyncFnOnce(), begin: impl AsyncFnOnce()) {
    assert_eq!(page.views.count("page", 1).await, 1);
    counted(page.votes.incr("page", 1).await.unwrap());
    end().await;
    let started = Instant::now();
    page.views.add("page", 1).await.unwrap_err();
    let waited = started.elapsed();
    assert!(waited < millis(1500), "{waited:?}");
    let started = Instant::now();
    for _ in 0..20 {
        page.is_refused().await;
    }
    let waited = started.elapsed();
    assert!(waited < millis(1000), "200 calls took {waited:?}");
    timeout(secs(20), page.shows_what_is_stored())
        .await
        .unwrap();
    // its sums wait
    page.views.record("recorded", 1).unwrap();
    begin().await;
    let started = Instant::now();
    eventually("calls count again", async || {
        page.views.add("other", 1).await.is_ok()
    })
    .await;
    let waited = started.elapsed();
    assert!(waited < secs(10), "{waited:?}");
    counted(page.votes.incr("page", 1).await.unwrap());
    eventually("recorded hits count", async || {
        page.views.flush().await.is_ok() && page.views.value("recorded").await == 1
    })
    .await;
}

/// Makes a call that a busy Redis refuses until `hole`, after which nothing replies. Shows that the
/// call is no outage.
async fn is_refused_until<T: std::fmt::Debug>(
    hole: u64,
    call: impl AsyncFnOnce(BufferedCounters) -> Result<T>,
) {
    let options = RedisOptions::volatile().arg("lua-time-limit", "20");
    let pair = Pair::with(options).await;
    let proxy = Proxy::to(&pair.redis);
    let views = pair
        .over(proxy.manager().await)
        .opened(family("views"))
        .await;
    assert_eq!(views.count("page", 1).await, 1);
    let unlimited = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let client = pair.redis.client();
    let busy = client.get_multiplexed_async_connection_with_config(&unlimited);
    let mut busy = busy.await.unwrap();
    let mut endless = redis::cmd("EVAL");
    endless.arg("while true do end").arg(0);
    let endless = tokio::spawn(async move { endless.query_async::<()>(&mut busy).await });
    pause(200).await;
    let cut = async {
        pause(hole).await;
        proxy.black_hole();
    };
    let (refused, ()) = tokio::join!(call(views.clone()), cut);
    let refused = refused.unwrap_err().to_string();
    let next = views.clone().read_timeout(millis(50)).get("page").await;
    let next = next.unwrap_err().to_string();
    proxy.heal(Held::Delivered);
    pair.redis.does("SCRIPT KILL").await;
    endless.await.unwrap().unwrap_err();
    assert!(
        !next.contains("has not replied for"),
        "{refused}; then {next}"
    );
}

/// The pause before its last attempt is long, and that attempt has no time for a reply.
#[tokio::test]
async fn a_redis_that_refuses_a_read_until_its_last_moment_is_no_outage() {
    is_refused_until(1400, async |views: BufferedCounters| {
        views.read_timeout(millis(1500)).get("page").await
    })
    .await;
}

#[tokio::test]
async fn a_redis_that_refuses_a_write_until_its_last_moment_is_no_outage() {
    is_refused_until(400, async |views: BufferedCounters| {
        views.write_timeout(millis(600)).add("page", 1).await
    })
    .await;
}

#[tokio::test]
async fn a_redis_that_is_down_costs_one_call_its_time_limit() {
    let pair = Pair::with(RedisOptions::aof("always")).await;
    let page = Page::open(&Counterfoil::new(
        pair.redis.manager().await,
        pair.store.clone(),
    ))
    .await;
    let (kill, start) = (
        async || pair.redis.kill(),
        async || pair.redis.start_again().await,
    );
    costs_one_call(&page, kill, start).await;
}

#[tokio::test]
async fn a_redis_that_is_silent_costs_one_call_its_time_limit() {
    let pair = Pair::new().await;
    let page = Page::open(&Counterfoil::new(
        pair.redis.manager().await,
        pair.store.clone(),
    ))
    .await;
    let (suspend, resume) = (async || pair.redis.pause(), async || pair.redis.resume());
    costs_one_call(&page, suspend, resume).await;
}

#[tokio::test]
async fn a_network_that_drops_everything_costs_one_call_its_time_limit() {
    let pair = Pair::new().await;
    let proxy = Proxy::to(&pair.redis);
    let primary = Primary::connect(proxy.url()).await.unwrap();
    let page = Page::open(&Counterfoil::new(primary, pair.store.clone())).await;
    let (hold, free) = (async || proxy.black_hole(), async || proxy.heal(Held::Lost));
    costs_one_call(&page, hold, free).await;
}

/// A refusal that Redis itself sends is one of a call: others are tried.
#[tokio::test]
async fn a_full_redis_is_no_outage() {
    let pair = Pair::new().await;
    let views = pair.open(family("views")).await;
    views.count("page", 1).await;
    pair.redis.does("CONFIG SET maxmemory 1").await;
    let full = views.clone().write_timeout(millis(600));
    full.add("page", 1).await.unwrap_err();
    pair.redis.does("CONFIG SET maxmemory 0").await;
    assert_eq!(views.count("page", 1).await, 2);
}

/// The probe runs on the runtime of the call that found the outage.
#[test]
fn an_outage_ends_with_the_runtime_that_probes() {
    let (home, doomed) = (threads(1), threads(1));
    let redis = home.block_on(new_redis());
    let hits = home.block_on(async {
        let pair = Counterfoil::new(redis.manager().await, MemoryStore::new());
        pair.opened(days()).await
    });
    let read = async || hits.get("page", Precision::Day).await;
    home.block_on(read()).unwrap();
    redis.pause();
    doomed.block_on(read()).unwrap_err();
    let known = home.block_on(read());
    refused(known, ErrorKind::Redis, "has not replied for");
    doomed.shutdown_background();
    redis.resume();
    home.block_on(eventually("reads go on", async || read().await.is_ok()));
}
