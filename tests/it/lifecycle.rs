//! From start to shutdown: what a service does with a pair before it counts, and before it ends.

use std::time::{Duration, Instant};

use crate::support::{Pair, family, pause};
use testkit::{MysqlServer, RedisOptions};

const OWN: &str = "SELECT CAST(COALESCE(SUM(value), 0) AS SIGNED) FROM counterfoil_values";

/// How long a database is waited for by a reconciler that is to stop, and a second for what a busy machine takes.
const SOON: Duration = Duration::from_secs(3);

#[tokio::test]
async fn a_reconciler_stops_soon_also_while_the_database_is_away_or_silent() {
    let mysql = MysqlServer::start().await;
    let pair = Pair::on(RedisOptions::volatile(), &mysql).await;
    let views = pair.counterfoil.open(family("views").build().unwrap()).await.unwrap();
    for silent in [false, true] {
        let reconciler = pair.counterfoil.reconciler().start().await.unwrap();
        if silent {
            mysql.pause()
        } else {
            mysql.kill()
        }
        let _ = views.add("page", 1).await.unwrap();
        pause(500).await;
        let began = Instant::now();
        reconciler.shutdown().await.unwrap();
        assert!(began.elapsed() < SOON, "silent: {silent}, it took {:?}", began.elapsed());
        if silent { mysql.resume() } else { mysql.start_again().await }
    }
    pair.counterfoil.drain().await.unwrap();
    assert_eq!(pair.number(OWN).await, 2);
}
