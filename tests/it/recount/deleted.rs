//! Recounts of rows that are also deleted (docs/protocol.md, section 9): +1 and -1 cancel, so equal
//! values do not prove that a counter did not move.

use counterfoil::recount::{RecountIds, Source};
use counterfoil::test_hooks::Recounting;
use tokio::time::sleep;

use super::{At, breaks, exact};
use crate::support::*;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A row is inserted or deleted, and will be counted later.
    Insert,
    Delete,
    /// One of these events is counted, or never.
    Count(usize),
    Never(usize),
    /// Everything in Redis reaches the database.
    Flush,
    /// The recounter's next step.
    Recount,
}

/// The most events that are never counted.
const NEVER: i64 = 1;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => Just(Step::Insert),
        3 => Just(Step::Delete),
        6 => (0..4_usize).prop_map(Step::Count),
        1 => (0..4_usize).prop_map(Step::Never),
        1 => Just(Step::Flush),
        8 => Just(Step::Recount),
    ];
    prop::collection::vec(step, 1..60)
}

/// One counter, `1`, and its rows.
struct World {
    pair: Pair,
    likes: BufferedCounters,
    recounting: Recounting,
    at: At,
    /// The numbers of the rows that exist.
    rows: Vec<u64>,
    next: u64,
    /// The events that are not counted yet, by number, each with its delta.
    coming: Vec<(u64, i64)>,
    never: i64,
}

impl World {
    async fn new() -> Self {
        let (pair, likes) = Pair::of(family("likes").partitions(1)).await;
        pair.sql("CREATE TABLE saves (event BIGINT PRIMARY KEY, user_id BIGINT NOT NULL)")
            .await;
        let recounting = pair.recount(&likes).within(Duration::ZERO);
        let recounting = recounting.rows_are_deleted(true).steps().unwrap();
        World {
            pair,
            likes,
            recounting,
            at: At::Idle,
            rows: vec![],
            next: 0,
            coming: vec![],
            never: 0,
        }
    }

    async fn take(&mut self, step: Step) {
        match step {
            Step::Insert => {
                self.rows.push(self.next);
                self.write("INSERT INTO saves VALUES (?, 1)", self.next, 1)
                    .await;
            }
            Step::Delete => {
                if let Some(row) = self.rows.pop() {
                    self.write("DELETE FROM saves WHERE event = ?", row, -1)
                        .await;
                }
            }
            Step::Count(which) => {
                if let Some(delta) = self.settle(which) {
                    self.likes.count("1", delta).await;
                }
            }
            Step::Never(which) if self.never < NEVER => {
                self.never += i64::from(self.settle(which).is_some());
            }
            Step::Never(_) => {}
            Step::Flush => self.pair.drain().await,
            Step::Recount => {
                let at = std::mem::replace(&mut self.at, At::Idle);
                self.at = self.recount(at).await;
            }
        }
    }

    async fn write(&mut self, sql: &'static str, row: u64, delta: i64) {
        let write = sqlx::query(sql).bind(row).execute(&self.pair.pool);
        write.await.unwrap();
        self.coming.push((self.next, delta));
        self.next += 1;
    }

    fn settle(&mut self, which: usize) -> Option<i64> {
        let which = which.checked_rem(self.coming.len())?;
        Some(self.coming.remove(which).1)
    }

    async fn recount(&self, at: At) -> At {
        let recounting = &self.recounting;
        if let At::After(run, difference) = at {
            assert!(recounting.settle(&run, &difference).await.unwrap());
            recounting.end(&run).await.unwrap();
            return At::Idle;
        }
        let coming = self.coming.iter().map(|(event, _)| *event).collect();
        at.next(recounting, vec!["1".into()], coming, true).await
    }

    /// Returns the description of a value that the rows do not explain.
    async fn wrong(&self) -> Option<String> {
        let value = self.likes.value("1").await;
        let coming: i64 = self.coming.iter().map(|(_, delta)| delta).sum();
        let settled = self.rows.len() as i64 - coming;
        let is_explained = (value - settled).abs() <= self.never;
        (!is_explained).then(|| {
            format!(
                "{value}, and {settled} without {} that never comes",
                self.never
            )
        })
    }

    /// Counts everything, and makes one more run undisturbed.
    async fn quiet(&mut self) -> Option<String> {
        while !self.coming.is_empty() {
            self.take(Step::Count(0)).await;
        }
        self.at = At::Idle;
        // an abandoned run is finished first, and may have corrected the counter before
        for _ in 0..2 {
            self.pair.drain().await;
            for _ in 0..5 {
                self.take(Step::Recount).await;
            }
        }
        let (value, rows) = (self.likes.value("1").await, self.rows.len() as i64);
        (value != rows).then(|| format!("after a quiet run {value} of {rows} rows"))
    }
}

fn play(without: Option<Guard>, steps: &[Step]) -> Result<(), String> {
    runtime().block_on(async {
        let mut world = World::new().await;
        take_out(without);
        for &step in steps {
            world.take(step).await;
            if let Some(wrong) = world.wrong().await {
                return Err(format!("after {step:?}: {wrong}"));
            }
        }
        world.quiet().await.map_or(Ok(()), Err)
    })
}

#[test]
fn no_interleaving_corrects_a_counter_that_moved() {
    exact(steps(), |steps| play(None, steps));
}

/// A like is added and taken back between the two reads.
#[test]
fn equal_values_are_no_proof() {
    use Step::{Count, Delete, Insert, Recount};
    let steps = [
        Recount,
        Recount,
        Insert,
        Recount,
        Count(0),
        Delete,
        Count(0),
        Recount,
        Recount,
    ];
    breaks(play, Guard::RecountMoved, &steps);
}

/// Likes are added and taken back all the time, and no counter drifts except two that receive none
/// meanwhile. A reconciler would cut every 50 ms.
#[tokio::test(flavor = "multi_thread")]
async fn likes_that_come_and_go_are_not_corrected() {
    const COUNTERS: u64 = 100;
    const LATEST: u64 = 100;
    let (pair, likes) = Pair::of(family("likes")).await;
    pair.sql(
        "CREATE TABLE saves (event BIGINT AUTO_INCREMENT PRIMARY KEY, user_id BIGINT NOT NULL, KEY (user_id));
         INSERT INTO saves (user_id) VALUES (1001), (1002)",
    )
    .await;
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
        let run = pair.recount(&likes).rows_are_deleted(true);
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
    let votes = || {
        let votes = Source::table("votes", ["item"]).sum("vote");
        pair.recount(&scores).source(votes).within(millis(100))
    };
    // the vote against 2 may be counted yet
    refused(
        votes().run_once().await,
        InvalidInput,
        "rows_are_deleted(true)",
    );
    assert_eq!(scores.get_many(["1", "2"]).await.unwrap(), [-1, 2]);
    let done = votes().rows_are_deleted(true).run_once().await.unwrap();
    assert_eq!((done.raised, done.lowered), (0, 2), "{done:?}");
    assert_eq!(scores.get_many(["1", "2"]).await.unwrap(), [-2, 1]);
}
