//! The ids per second that a recount checks, compared with the plain reads that it consists of. And
//! the cost of a recount for concurrent hits.

use std::time::{Duration, Instant};

use counterfoil::recount::{Mode, Rows, Source};
use redis::aio::MultiplexedConnection;
use sqlx::{AssertSqlSafe, MySqlPool};

use crate::measuring::{
    Acked, AtLeast, Bench, Figure, Ids, Load, Pending, alternate, connect, median,
};

const PER_SECOND: Figure = Figure {
    name: "recount_ids_per_second",
    what: "ids/s that a recount checks : a plain loop of HMGET, SELECT of the values, and COUNT(*) of the rows",
    target: AtLeast(0.8),
};
const ADDS: Figure = Figure {
    name: "adds_while_recounting",
    what: "acknowledged hits/s of 256 tasks while a recount runs, at its default rate : without it",
    target: AtLeast(0.9),
};
/// The number of ids in a query, equal to a recount's.
const PAGE: usize = 1_000;
const ROWS_OF_ID: usize = 3;
const HASH: &str = "plain";

pub async fn measure(bench: &mut Bench) {
    if !bench.wants(&[PER_SECOND.name, ADDS.name]) {
        return;
    }
    let ids = bench.size(100_000, 20_000);
    let stage = Pending::set(bench).await;
    set(&stage, ids).await;
    let recount = async || {
        let recount = stage
            .pair
            .recount(&stage.counters, Rows::Added)
            .source(Source::table("saves", ["page"]));
        let recount = recount.within(Duration::ZERO).ids_per_second(u32::MAX);
        let started = Instant::now();
        let done = recount.run_once().await.unwrap();
        assert_eq!((done.checked, done.drifted), (ids as u64, 0), "{done:?}");
        ids as f64 / started.elapsed().as_secs_f64()
    };
    let redis = connect(&stage.redis).await;
    let names: Vec<String> = (0..ids).map(name).collect();
    let plain = async || {
        let started = Instant::now();
        for page in names.chunks(PAGE) {
            plain_page(&mut redis.clone(), &stage.pool, page).await;
        }
        ids as f64 / started.elapsed().as_secs_f64()
    };
    let rounds = alternate(bench.rounds(), recount, plain).await;
    bench.figure(PER_SECOND, rounds.ratio(|ids| *ids));
    bench.absolute("recounted_ids_per_second", median(rounds.ours));
    bench.absolute("plain_recounted_ids_per_second", median(rounds.theirs));

    let (time, load, probe) = (bench.time(), Ids::even(10_000), &stage.probe);
    let acked = Acked(stage.counters.clone());
    let hits = async || {
        Load::run(&acked, &load, 256, time, &mut probe.clone())
            .await
            .per_second()
    };
    let beside = async || {
        let source = || Source::table("saves", ["page"]);
        let recounting = tokio::spawn({
            let (pair, counters) = (stage.pair.clone(), stage.counters.clone());
            async move {
                loop {
                    // the hits have no rows here, so the recount only reports
                    let recount = pair.recount(&counters, Rows::Added).source(source());
                    let recount = recount.mode(Mode::Report);
                    recount.within(Duration::ZERO).run_once().await.unwrap();
                }
            }
        });
        let hits = hits().await;
        recounting.abort();
        let _ = recounting.await;
        sqlx::raw_sql("UPDATE counterfoil_recounts SET holder = 0")
            .execute(&stage.pool)
            .await
            .unwrap();
        hits
    };
    let rounds = alternate(bench.rounds(), beside, hits).await;
    bench.figure(ADDS, rounds.ratio(|hits| *hits));
}

fn name(number: usize) -> String {
    format!("page/{number}")
}

/// Gives each id its rows, one hit fewer in the database, and one hit in Redis.
async fn set(stage: &Pending, ids: usize) {
    let create = "CREATE TABLE saves (event BIGINT AUTO_INCREMENT PRIMARY KEY, page VARBINARY(32) NOT NULL, KEY (page))";
    sqlx::raw_sql(create).execute(&stage.pool).await.unwrap();
    let (names, mut redis) = (
        (0..ids).map(name).collect::<Vec<_>>(),
        connect(&stage.redis).await,
    );
    for page in names.chunks(PAGE) {
        let rows = vec!["(?)"; page.len() * ROWS_OF_ID].join(", ");
        let insert = sqlx::query(AssertSqlSafe(format!(
            "INSERT INTO saves (page) VALUES {rows}"
        )))
        .persistent(false);
        let insert = page
            .iter()
            .cycle()
            .take(page.len() * ROWS_OF_ID)
            .fold(insert, |insert, id| insert.bind(id));
        insert.execute(&stage.pool).await.unwrap();
        let mut set = redis::cmd("HSET");
        set.arg(HASH);
        for id in page {
            set.arg(id).arg(1);
        }
        set.exec_async(&mut redis).await.unwrap();
    }
    for _ in 1..ROWS_OF_ID {
        stage.fill(names.iter().cloned()).await;
        stage.flush().await;
    }
    stage.fill(names.into_iter()).await;
}

async fn plain_page(redis: &mut MultiplexedConnection, pool: &MySqlPool, page: &[String]) {
    let marks = vec!["?"; page.len()].join(", ");
    let pending: Vec<i64> = redis::cmd("HMGET")
        .arg(HASH)
        .arg(page)
        .query_async(redis)
        .await
        .unwrap();
    let select = async |text: String| {
        let query = sqlx::query_as::<_, (Vec<u8>, i64)>(AssertSqlSafe(text)).persistent(false);
        page.iter()
            .fold(query, |query, id| query.bind(id))
            .fetch_all(pool)
            .await
            .unwrap()
    };
    let stored = select(format!(
        "SELECT id, value FROM counterfoil_values WHERE family = 1 AND id IN ({marks})"
    ))
    .await;
    let rows = select(format!(
        "SELECT page, COUNT(*) FROM saves WHERE page IN ({marks}) GROUP BY page"
    ))
    .await;
    assert_eq!(
        (pending.len(), stored.len(), rows.len()),
        (page.len(), page.len(), page.len())
    );
}
