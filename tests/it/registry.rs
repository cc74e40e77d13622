//! Families that a process serves without having opened them: what the database knows of them.

use std::time::Duration;

use crate::support::{Pair, eventually, family};
use counterfoil::{Counterfoil, Counting, Durability, Family, KeyType, MysqlStore, Precision, SeriesFamily, Table};
use redis::aio::ConnectionManager;

const MOMENT: Duration = Duration::from_millis(20);
const HOUR: Duration = Duration::from_secs(3600);

/// As another process has it, which opened nothing.
async fn another(pair: &Pair) -> Counterfoil<ConnectionManager> {
    Counterfoil::new(pair.redis.manager().await, MysqlStore::new(pair.pool.clone()))
}

/// The sum of what the database has of the family.
async fn stored(pair: &Pair, name: &str) -> i64 {
    let sum = "SELECT CAST(COALESCE(SUM(value), 0) AS SIGNED) FROM counterfoil_values JOIN counterfoil_families \
               ON number = family WHERE name = ?";
    sqlx::query_scalar(sum).bind(name).fetch_one(&pair.pool).await.unwrap()
}

async fn arrives(pair: &Pair, name: &str, sum: i64) {
    eventually(name, async || stored(pair, name).await == sum).await;
}

#[tokio::test]
async fn a_process_that_opened_nothing_serves_all_kinds() {
    let pair = Pair::new().await;
    let now = Durability::Immediate;
    pair.sql("CREATE TABLE gone (id INT PRIMARY KEY, n INT NOT NULL)").await;
    pair.sql("CREATE TABLE item (id INT PRIMARY KEY, n INT NOT NULL); INSERT INTO item VALUES (1, 0)").await;
    let gone = family("gone").table(Table::upsert("gone").key("id", KeyType::Signed).value("n")).build().unwrap();
    let gone = pair.counterfoil.open(gone).await.unwrap();
    let views = pair.counterfoil.open(family("views").wide(true).build().unwrap()).await.unwrap();
    let table = Table::update("item").key("id", KeyType::Signed).value("n");
    let votes = Family::cached("test", "votes").durability(now).save_after(MOMENT).max(2).table(table).build().unwrap();
    let votes = pair.counterfoil.open_cached(votes).await.unwrap();
    let hits = Family::series("test", "hits").windows([(Precision::SECOND, 9), (Precision::Day, 3)]);
    let hits = hits.keep([Precision::SECOND]).durability(now).sync_after(MOMENT).time_zone("Europe/Berlin");
    let hits = pair.counterfoil.open_series(hits.build().unwrap()).await.unwrap();
    let online = Family::activity("test", "online").durability(now).keep_minutes(true).stripes(3);
    let online = online.visitors(Counting::HyperLogLog).build().unwrap();
    let online = pair.counterfoil.open_activity(online).await.unwrap();
    let visitors = Family::visitors("test", "visitors").durability(now).build().unwrap();
    let visitors = pair.counterfoil.open_visitors(visitors).await.unwrap();
    for number in 0..3 {
        let _ = gone.add("1", 1).await.unwrap();
        let _ = views.add("page", 1).await.unwrap();
        let _ = votes.incr("1", 1).await.unwrap();
        hits.add("page", 1).await.unwrap();
        online.touch("page", "visitor").await.unwrap();
        visitors.first_visit("shop", "2014-09-20", format!("visitor {number}")).await.unwrap();
    }
    pair.sql("DROP TABLE gone").await;

    let other = another(&pair).await;
    let _running = other.reconciler().all().start().await.unwrap();
    for name in ["views", "hits", "visitors"] {
        arrives(&pair, name, 3).await;
    }
    eventually("votes", async || pair.number("SELECT CAST(n AS SIGNED) FROM item").await == 2).await;
    assert_eq!(gone.pending(&["1"]).await.unwrap(), [3], "it waits by itself");
    pair.sql("CREATE TABLE gone (id INT PRIMARY KEY, n INT NOT NULL)").await;
    other.drain_all().await.unwrap();
    let kept = stored(&pair, "online").await;
    assert!((4..=5).contains(&kept), "3 views and the visitor, who counts again in another minute: {kept}");
    assert_eq!(pair.number("SELECT CAST(n AS SIGNED) FROM gone").await, 3);
}

#[tokio::test]
async fn families_that_come_later_or_change_are_served_and_an_open_one_keeps_its_settings() {
    let pair = Pair::new().await;
    let opened =
        async |builder: counterfoil::FamilyBuilder| pair.counterfoil.open(builder.build().unwrap()).await.unwrap();
    let other = another(&pair).await;
    let _own = other.open(family("own").sync_after(1000, MOMENT).build().unwrap()).await.unwrap();
    let own = opened(family("own").sync_after(1000, HOUR)).await;
    let slow = opened(family("slow").sync_after(1000, HOUR)).await;
    let foreign = pair.counterfoil.open(Family::buffered("foreign", "foreign").build().unwrap()).await.unwrap();
    for views in [&own, &slow, &foreign] {
        let _ = views.add("page", 1).await.unwrap();
    }
    let _running = other.reconciler().namespace("test").start().await.unwrap();
    // the first hit of all is due at once, the next ones are not
    arrives(&pair, "slow", 1).await;
    arrives(&pair, "own", 1).await;
    let _ = slow.add("page", 1).await.unwrap();
    let later = opened(family("later")).await;
    let _ = later.add("page", 1).await.unwrap();
    arrives(&pair, "later", 1).await;
    assert_eq!(stored(&pair, "slow").await, 1, "as it was opened");
    let _ = own.add("page", 1).await.unwrap();
    arrives(&pair, "own", 2).await;
    let _ = opened(family("slow").sync_after(1, MOMENT)).await;
    arrives(&pair, "slow", 2).await;
    assert_eq!(stored(&pair, "foreign").await, 0, "a namespace of others");
}
