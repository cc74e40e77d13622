//! Hits until they are committed in MySQL: counterfoil as a whole, compared with one upsert per
//! hit.

use std::time::Duration;

use counterfoil::{Durability, Family};
use sqlx::MySqlPool;
use sqlx::mysql::MySqlPoolOptions;

use crate::measuring::{
    Acked, AtLeast, Bench, Counters, Figure, Ids, Load, Pair, Side, Stage, alternate, connect,
    median,
};

const FIGURE: Figure = Figure {
    name: "acked_vs_mysql",
    what: "hits/s of add().await until committed in MySQL, 256 tasks : an upsert per hit, 64 connections",
    target: AtLeast(15.0),
};
const CONNECTIONS: u16 = 64;

/// `add().await` with a reconciler running. At the end everything is brought to the database.
#[derive(Clone)]
struct Through {
    acked: Acked,
    pair: Pair,
}

impl Side for Through {
    async fn hit(&mut self, id: &str) {
        self.acked.hit(id).await;
    }

    async fn finish(self) {
        self.pair.drain().await.unwrap();
    }
}

/// The alternative without counterfoil and without Redis.
#[derive(Clone)]
struct Upsert(MySqlPool);

impl Side for Upsert {
    async fn hit(&mut self, id: &str) {
        const UPSERT: &str = "INSERT INTO plain (family, id, value) VALUES (1, ?, 1) \
                              ON DUPLICATE KEY UPDATE value = value + 1";
        sqlx::query(UPSERT).bind(id).execute(&self.0).await.unwrap();
    }
}

pub async fn measure(bench: &mut Bench) {
    if !bench.wants(&[FIGURE.name]) {
        return;
    }
    let ids = Ids::zipf(100_000);
    // longer than elsewhere, because the time includes the drain at the end
    let time = bench.time() * 2;
    let Stage {
        pair,
        pool,
        redis,
        mut probe,
    } = Stage::set(bench).await;
    let mut other_probe = probe.clone();
    let upsert = Upsert(plain_table(bench, &pool).await);
    let reconciler = pair
        .reconciler()
        .redis(connect(&redis).await)
        .start()
        .await
        .unwrap();
    let mut round = 0;
    let ours = async || {
        round += 1;
        let side = Through {
            acked: Acked(counters(&pair, round).await),
            pair: pair.clone(),
        };
        Load::run(&side, &ids, 256, time, &mut probe).await
    };
    let theirs =
        async || Load::run(&upsert, &ids, CONNECTIONS.into(), time, &mut other_probe).await;
    let rounds = alternate(bench.size(6, 2), ours, theirs).await;
    reconciler.shutdown().await.unwrap();
    bench.figure(FIGURE, rounds.ratio(Load::per_second));
    bench.absolute(
        "committed_per_second",
        median(rounds.ours.iter().map(Load::per_second)),
    );
    bench.absolute(
        "upserts_per_second",
        median(rounds.theirs.iter().map(Load::per_second)),
    );
}

async fn counters(pair: &Pair, round: u32) -> Counters {
    // this Redis has no persistence
    let family =
        Family::buffered("bench", format!("round-{round}")).durability(Durability::Immediate);
    pair.open(family).await.unwrap()
}

/// Creates a table with the same columns, and a pool with a connection for each task.
async fn plain_table(bench: &Bench, pool: &MySqlPool) -> MySqlPool {
    sqlx::raw_sql("CREATE TABLE plain LIKE counterfoil_values")
        .execute(pool)
        .await
        .unwrap();
    let name: String = sqlx::query_scalar("SELECT DATABASE()")
        .fetch_one(pool)
        .await
        .unwrap();
    let options = MySqlPoolOptions::new()
        .min_connections(CONNECTIONS.into())
        .max_connections(CONNECTIONS.into())
        .acquire_timeout(Duration::from_secs(30));
    options
        .connect(&bench.servers.mysql().await.url(&name))
        .await
        .unwrap()
}
