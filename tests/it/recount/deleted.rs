//! Recounts of rows that are also deleted (docs/protocol.md, section 9).

use counterfoil::recount::{RecountIds, Rows, Source};
use tokio::time::sleep;

use crate::support::*;

/// Likes are added and taken back all the time, and no counter drifts except two that receive none
/// meanwhile. A reconciler would cut every 50 ms.
#[tokio::test(flavor = "multi_thread")]
async fn likes_that_come_and_go_are_not_corrected() {
    const COUNTERS: u64 = 100;
    const LATEST: u64 = 100;
    let (pair, likes) = Pair::of(family("likes")).await;
    pair.saves(&[1001, 1002]).await;
    likes.count("1002", 3).await;
    for user in 1..=COUNTERS {
        likes.count(&user.to_string(), 0).await;
    }
    pair.drain().await;
    let reconciler = pair.reconciler().start().await.unwrap();
    let seed = random::numbers().random::<u64>();
    let people = Load::start(16, |person, stop| {
        let mut random = StdRng::seed_from_u64(seed.wrapping_add(person as u64));
        let (likes, pool) = (likes.clone(), pair.pool.clone());
        async move {
            let mut events = 0;
            while !stop.is_set() {
                let user = random.random_range(1..=COUNTERS);
                let liked = sqlx::query("INSERT INTO saves (user_id) VALUES (?)").bind(user);
                let row = liked.execute(&pool).await.unwrap().last_insert_id();
                sleep(millis(random.random_range(0..LATEST))).await;
                likes.count(&user.to_string(), 1).await;
                let unliked = sqlx::query("DELETE FROM saves WHERE event = ?").bind(row);
                unliked.execute(&pool).await.unwrap();
                sleep(millis(random.random_range(0..LATEST))).await;
                likes.count(&user.to_string(), -1).await;
                events += 2;
            }
            events
        }
    });
    let mut corrected = 0;
    let runs = (random::cases(40) / 20).clamp(1, 20);
    for _ in 0..runs {
        let run = pair.recount_of(&likes, Rows::AddedAndDeleted);
        let run = run.ids(RecountIds::Both).within(millis(1500));
        let done = run.timeout(secs(2)).run_once().await.unwrap();
        corrected += done.raised + done.lowered;
    }
    let events: u64 = people.end().await.into_iter().sum();
    reconciler.stop().await;
    println!("{events} likes added or taken back in {runs} runs, {corrected} corrections");
    assert_eq!(corrected, 2);
    for user in 1..=COUNTERS {
        assert_eq!(likes.value(&user.to_string()).await, 0, "{user}");
    }
    assert_eq!(likes.value("1001").await, 1);
    assert_eq!(likes.value("1002").await, 1);
}

/// Votes of +1 and -1, whose sum may be below 0, and falls while a row is added.
#[tokio::test]
async fn a_sum_of_both_signs_needs_counters_that_do_not_move() {
    let (pair, scores) = Pair::of(family("scores")).await;
    pair.sql(
        "CREATE TABLE votes (id INT AUTO_INCREMENT PRIMARY KEY, item INT NOT NULL, vote INT NOT NULL, KEY (item));
         INSERT INTO votes (item, vote) VALUES (1, -1), (1, -1), (2, 1), (2, 1), (2, -1)",
    )
    .await;
    scores.count("1", -1).await;
    scores.count("2", 2).await;
    pair.drain().await;
    let votes = |rows| {
        let votes = Source::table("votes", ["item"]).sum("vote");
        let recount = pair.recount_of(&scores, rows);
        recount.source(votes).within(millis(100))
    };
    // the vote against 2 may be counted yet
    refused(
        votes(Rows::Added).run_once().await,
        InvalidInput,
        "so its rows are not \"added\" but \"added_and_deleted\"",
    );
    assert_eq!(scores.get_many(["1", "2"]).await.unwrap(), [-1, 2]);
    let done = votes(Rows::AddedAndDeleted).run_once().await.unwrap();
    assert_eq!((done.raised, done.lowered), (0, 2), "{done:?}");
    assert_eq!(scores.get_many(["1", "2"]).await.unwrap(), [-2, 1]);
}
