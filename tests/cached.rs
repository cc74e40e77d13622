//! Cached counters from the first increment to the row, as an application uses them.
#![allow(missing_docs)]

mod support;

use std::time::Duration;

use counterfoil::{CachedCounters, CachedFamilyBuilder, Changed, Durability, Family};
use redis::aio::ConnectionManager;
use support::reference::Reference;
use support::{Plain, eventually};

/// A family that is durable and due at once.
fn family(name: &str) -> CachedFamilyBuilder {
    Family::cached("test", name).partitions(4).durability(Durability::Immediate).save_after(Duration::from_millis(20))
}

async fn open(plain: &Plain, family: CachedFamilyBuilder) -> CachedCounters<ConnectionManager, Reference> {
    plain.counterfoil.open_cached(family.build().expect("a valid family")).await.expect("opened")
}

fn value(changed: Changed) -> i64 {
    changed.counted().unwrap_or_else(|| panic!("{changed:?}"))
}

#[tokio::test]
async fn the_value_comes_back_with_the_increment() {
    let plain = Plain::new().await;
    let votes = open(&plain, family("votes")).await;
    assert_eq!(votes.get("a").await.unwrap(), 0);
    assert_eq!(value(votes.incr("a", 1).await.unwrap()), 1);
    assert_eq!(value(votes.incr("a", 5).await.unwrap()), 6);
    assert_eq!(value(votes.incr("a", -2).await.unwrap()), 4);
    assert_eq!(votes.get("a").await.unwrap(), 4);
    assert_eq!(votes.stored(&["a"]).await.unwrap(), [None]);
    plain.counterfoil.drain().await.unwrap();
    assert_eq!(votes.stored(&["a"]).await.unwrap(), [Some(4)]);
    assert_eq!(value(votes.set("a", 100).await.unwrap()), 100);
    assert_eq!(value(votes.incr("a", 1).await.unwrap()), 101);
    plain.counterfoil.drain().await.unwrap();
    assert_eq!(votes.stored(&["a"]).await.unwrap(), [Some(101)]);
}

#[tokio::test]
async fn bounds_refuse_and_answer_the_value() {
    let plain = Plain::new().await;
    let stock = open(&plain, family("stock").min(0).max(10)).await;
    assert_eq!(stock.incr("a", -1).await.unwrap(), Changed::OutOfRange { value: 0 });
    assert_eq!(value(stock.set("a", 3).await.unwrap()), 3);
    assert_eq!(stock.set("a", 11).await.unwrap(), Changed::OutOfRange { value: 3 });
    // together more than there are: those that fit are let through
    let buys = (0..8).map(|_| stock.incr("a", -1));
    let sold = futures_util::future::try_join_all(buys).await.unwrap();
    let mut values: Vec<_> = sold.iter().filter_map(|changed| changed.counted()).collect();
    values.sort();
    assert_eq!(values, [0, 1, 2]);
    assert!(
        sold.iter()
            .filter(|changed| changed.counted().is_none())
            .all(|changed| *changed == Changed::OutOfRange { value: 0 })
    );
}

#[tokio::test]
async fn a_reconciler_saves_deletes_and_the_counter_comes_back() {
    let plain = Plain::new().await;
    let votes = open(&plain, family("votes").retain(Duration::from_millis(50))).await;
    let reconciler = plain.counterfoil.reconciler().start().await.unwrap();
    for round in 1..=5 {
        assert_eq!(value(votes.incr("a", 1).await.unwrap()), round);
        eventually("it is saved", || async { votes.stored(&["a"]).await.unwrap() == [Some(round)] }).await;
        eventually("it is deleted", || async {
            plain.redis.run::<Vec<String>>("KEYS *values").await.unwrap().is_empty()
        })
        .await;
        assert!(plain.redis.run::<Vec<String>>("KEYS *agenda").await.unwrap().is_empty());
        assert!(plain.redis.run::<Vec<String>>("KEYS *rows").await.unwrap().is_empty());
        assert_eq!(votes.get("a").await.unwrap(), round);
    }
    reconciler.shutdown().await.unwrap();
}
