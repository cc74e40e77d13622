//! A network that fails silently, and a Redis that is up and refuses to work.

use redis::AsyncConnectionConfig;

use crate::support::*;

/// The longest delay of a timer on this machine so far.
struct Lateness(tokio::sync::watch::Sender<Duration>);

impl Lateness {
    fn measure() -> Self {
        const DUE: Duration = millis(10);
        let most = tokio::sync::watch::Sender::new(Duration::ZERO);
        let noted = most.clone();
        tokio::spawn(async move {
            loop {
                let began = Instant::now();
                tokio::time::sleep(DUE).await;
                noted.send_modify(|most| *most = began.elapsed().saturating_sub(DUE).max(*most));
            }
        });
        Lateness(most)
    }

    fn most(&self) -> Duration {
        *self.0.borrow()
    }
}

/// Drops all traffic for four seconds under load. It then either arrives late or never.
async fn vanishes(held: Held) {
    const TIMEOUT: Duration = secs(1);
    let pair = Pair::new().await;
    let proxy = Proxy::to(&pair.redis);
    let counterfoil = pair.over(proxy.manager().await);
    let views = counterfoil.opened(family("views")).await;
    let views = views.write_timeout(TIMEOUT);
    let reconciler = counterfoil.reconcile().await;
    let (load, lateness) = (Hits::on(&views), Lateness::measure());
    load.more(300).await;
    proxy.black_hole();
    pause(4_000).await;
    proxy.heal(held);
    let healed = Instant::now();
    load.more(3_000).await;
    let hits = load.end().await;
    counterfoil.drained().await;
    let reckoning = Reckoning::of(&hits, &pair.pool).await;
    reckoning.is_exact();
    // calls were in the air when the network went
    assert!(reckoning.unknown > 0);
    match held {
        Held::Delivered => assert!(
            reckoning.unknown_counted > 0,
            "what arrives late is executed"
        ),
        // except for one of each writer, of which only the reply was lost
        Held::Lost => assert!(
            reckoning.unknown_counted <= 8,
            "what is lost is not executed"
        ),
    }
    let waited = hits.iter().map(|hit| hit.told - hit.asked).max().unwrap();
    let late = lateness.most();
    assert!(
        waited < TIMEOUT + millis(500) + late,
        "a caller waited {waited:?}, the machine is {late:?} late"
    );
    let again = hits
        .iter()
        .filter(|hit| hit.asked > healed && hit.outcome == HitOutcome::Acknowledged)
        .count();
    assert!(again > 100, "{again} hits after the network had healed");
    reconciler.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_vanishes_and_arrives_late() {
    vanishes(Held::Delivered).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_vanishes_for_good() {
    vanishes(Held::Lost).await;
}

/// Delays replies under load for longer than a call waits for them. Each delay is shorter than the
/// 400 ms of silence that begin an outage, in which calls would fail at once.
#[tokio::test(flavor = "multi_thread")]
async fn replies_come_later_than_a_call_waits() {
    let pair = Pair::new().await;
    let proxy = Proxy::to(&pair.redis);
    let counterfoil = pair.over(manager_within(millis(50), proxy.client()).await);
    let views = counterfoil.opened(family("views")).await;
    let reconciler = counterfoil.reconcile().await;
    let load = Hits::on(&views);
    for _ in 0..8 {
        pause(200).await;
        proxy.delay_replies(millis(80));
        pause(150).await;
        proxy.delay_replies(Duration::ZERO);
    }
    pause(200).await;
    let hits = load.end().await;
    counterfoil.drained().await;
    reconciler.stop().await;
    let waited = hits
        .iter()
        .filter(|hit| hit.told - hit.asked > millis(50))
        .count();
    assert!(waited > 4, "{waited} calls had to wait");
    let reckoning = Reckoning::of(&hits, &pair.pool).await;
    reckoning.is_exact();
    // each call was repeated until its outcome was known
    let refused = hits.iter().filter_map(|hit| match &hit.outcome {
        HitOutcome::Refused(why) => Some(why.as_str()),
        _ => None,
    });
    assert_eq!(refused.collect::<Vec<_>>(), [""; 0]);
    assert_eq!(reckoning.unknown, 0);
}

/// A Redis that is up and refuses to work for a while, under load. Callers with a shorter timeout
/// receive the reason, and their hits are definitely not counted.
struct Refusal {
    pair: Pair,
    load: Hits,
}

impl Refusal {
    async fn new(options: RedisOptions) -> Self {
        let pair = Pair::with(options).await;
        let views = pair.open(family("views")).await;
        // together shorter than the refusal, so that a writer that reads first also makes a call that
        // is refused; longer than a reply takes on a busy machine, which would leave the outcome open
        let load = Hits::on(&views.write_timeout(secs(2)).read_timeout(secs(1)));
        load.more(300).await;
        Refusal { pair, load }
    }

    /// Checks that all acknowledged hits are in the database, and that the others were refused with
    /// `code`.
    async fn ends(self, code: &str) {
        self.load.more(300).await;
        let hits = self.load.end().await;
        self.pair.drain().await;
        let reckoning = Reckoning::of(&hits, &self.pair.pool).await;
        reckoning.is_exact();
        assert_eq!(reckoning.unknown, 0);
        let mut refused = 0;
        for hit in &hits {
            if let HitOutcome::Refused(why) = &hit.outcome {
                refused += 1;
                assert!(why.contains(code), "says nothing of {code}: {why}");
            }
        }
        assert!(refused > 4, "{refused} hits refused");
        // the last hits were counted again
        assert_eq!(
            hits.iter().max_by_key(|hit| hit.asked).unwrap().outcome,
            HitOutcome::Acknowledged
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_is_busy_with_a_script() {
    // the name of "busy-reply-threshold" before Redis 7, which knows both
    let refusal = Refusal::new(RedisOptions::volatile().arg("lua-time-limit", "20")).await;
    let unlimited = AsyncConnectionConfig::new().set_response_timeout(None);
    let client = refusal.pair.redis.client();
    let busy = client.get_multiplexed_async_connection_with_config(&unlimited);
    let mut busy = busy.await.unwrap();
    let mut endless = cmd("EVAL");
    endless.arg("while true do end").arg(0);
    let endless =
        tokio::spawn(async move { endless.query_async::<()>(&mut busy).await.unwrap_err() });
    pause(3_500).await;
    refusal.pair.redis.does("SCRIPT KILL").await;
    let killed = endless.await.unwrap().to_string();
    assert!(killed.contains("killed"), "{killed}");
    refusal.ends("BUSY").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_has_no_memory_left() {
    let refusal = Refusal::new(RedisOptions::volatile()).await;
    let pair = &refusal.pair;
    let limit = async |bytes: u8| {
        let set = format!("CONFIG SET maxmemory {bytes}");
        pair.redis.does(&set).await;
    };
    limit(1).await;
    pause(3_500).await;
    // a drain makes room, so it still works
    timeout(secs(10), pair.drain()).await.unwrap();
    let counted = pair.stored().await;
    assert!(counted > 100, "{counted} hits came to the database");
    limit(0).await;
    refusal.ends("OOM").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_cannot_write_its_snapshot() {
    let refusal = Refusal::new(RedisOptions::volatile()).await;
    // a Redis without configured snapshots refuses nothing
    let redis = &refusal.pair.redis;
    let mut snapshots = cmd("CONFIG");
    snapshots.arg("SET").arg("save").arg("3600 1000000");
    snapshots
        .exec_async(&mut redis.manager().await)
        .await
        .unwrap();
    let snapshot = async |status: &str| {
        redis.does("BGSAVE").await;
        let status = format!("rdb_last_bgsave_status:{status}\r");
        eventually("a snapshot with this status", || async {
            let info: String = redis.run("INFO persistence").await.unwrap();
            info.contains(&status)
        })
        .await;
    };
    // a directory in the file's place, since permissions would not stop root
    let file = redis.socket().with_file_name("dump.rdb");
    fs::create_dir_all(file.join("in the way")).unwrap();
    snapshot("err").await;
    let findings = refusal.pair.check().await;
    assert_found(&findings, Severity::Error, &["redis writes", "snapshot"]);
    pause(3_500).await;
    fs::remove_dir_all(&file).unwrap();
    // the error lasts until a snapshot succeeds
    snapshot("ok").await;
    refusal.ends("MISCONF").await;
}

/// An operator reads what failed and why.
#[tokio::test]
async fn an_error_names_what_failed_in_words() {
    let pair = Pair::new().await;
    let redis = Primary::connect(pair.redis.url()).await.unwrap();
    let client = pair.over(redis);
    client.opened(family("views")).await;
    let read = async || {
        let failed = client.backlogs().await.unwrap_err();
        assert!(failed.is_retryable());
        let text = format!("{failed:#}");
        println!("{text}");
        text
    };
    pair.redis.pause();
    let silent = read().await;
    pair.redis.resume();
    pair.redis.kill();
    let mut gone = read().await;
    // the first call over the broken connection has another cause
    while !gone.contains("Redis is unreachable") {
        gone = read().await;
    }
    assert!(silent.contains("Redis did not reply to the script "));
    for text in [silent, gone] {
        assert!(!text.contains("UNSENT") && !text.contains("lost"), "{text}");
    }
}

/// A call whose time ends while the primary is searched for was not sent.
#[tokio::test]
async fn no_call_is_in_doubt_before_there_is_a_connection() {
    let redis = new_redis().await;
    let proxy = Proxy::to(&redis);
    let primary = Primary::connect(proxy.url()).await.unwrap();
    let counterfoil = Counterfoil::new(primary.clone(), MemoryStore::new());
    let views = counterfoil.opened(family("views")).await;
    views.count("page", 1).await;
    // which does not know that an outage begins
    let other = Counterfoil::new(primary, MemoryStore::new());
    let other = other.opened(family("views")).await;
    proxy.black_hole();
    // sent over the connection, which is found to be lost
    let sent = views.clone().write_timeout(secs(3)).add("page", 1).await;
    assert!(sent.unwrap_err().outcome_unknown());
    let hasty = other.clone().write_timeout(millis(300));
    for late in [
        hasty.add("page", 1).await,
        hasty.add_once("request", "page", 1).await,
    ] {
        let error = late.unwrap_err();
        assert!(error.is_retryable(), "{error:#}");
    }
    proxy.heal(Held::Lost);
    let patient = other.write_timeout(secs(10)).read_timeout(secs(10));
    patient.count("page", 1).await;
    assert_eq!(patient.value("page").await, 2);
}
