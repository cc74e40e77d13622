//! Interleavings of recounts (docs/protocol.md, section 9). Rows are inserted and counted, some
//! never and some twice, while two recounters die and take over each other's runs. No counter
//! leaves the range that its rows explain, and a quiet run ends the drift. Without one of the
//! guards it does leave it.

use counterfoil::test_hooks::Recounting;

use super::At;
use crate::support::*;

const USERS: usize = 2;
/// The most rows of a user that are never counted, and that are counted twice.
const WRONG: usize = 2;

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A row that will be counted later.
    Insert(usize),
    /// An uncounted row is counted once, never or twice.
    Count(usize),
    Never(usize),
    Twice(usize),
    /// Everything in Redis reaches the database.
    Flush,
    /// Redis loses everything, or all but this share of what followed the last fsync. Lost hits are
    /// never counted.
    Emptied,
    Crash(u8),
    /// The recounter's next step.
    Recount(usize),
    Die(usize),
}

fn steps(crashes: bool) -> impl Strategy<Value = Vec<Step>> {
    let user = 0..USERS;
    let loss = if crashes {
        any::<u8>().prop_map(Step::Crash).boxed()
    } else {
        Just(Step::Emptied).boxed()
    };
    let step = prop_oneof![
        4 => user.prop_map(Step::Insert),
        4 => (0..8_usize).prop_map(Step::Count),
        1 => (0..8_usize).prop_map(Step::Never),
        1 => (0..8_usize).prop_map(Step::Twice),
        2 => Just(Step::Flush),
        1 => loss,
        8 => (0..2_usize).prop_map(Step::Recount),
        1 => (0..2_usize).prop_map(Step::Die),
    ];
    prop::collection::vec(step, 1..60)
}

/// The guard that is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    /// The recounter does not wait for the counts of the rows that it found.
    Wait,
    Guard(Guard),
    /// The number of rows overwrites the counter.
    Delta,
}

enum Counters {
    Buffered(BufferedCounters),
    Cached(CachedCounters),
}

/// The counter values that a user's rows explain.
#[derive(Clone, Copy, Debug, Default)]
struct Explained {
    rows: i64,
    /// Rows that are never counted: by the application, or because Redis lost them.
    never: usize,
    /// Rows that the application never counts.
    left: usize,
    twice: usize,
}

struct World {
    pair: Pair,
    counters: Counters,
    without: Option<Without>,
    recounters: [(Recounting, At); 2],
    /// The rows that are not counted yet, by number and user.
    coming: Vec<(u64, usize)>,
    next: u64,
    explained: [Explained; USERS],
    /// The lengths of Redis's file, if any, since the last flush. The first one is durable.
    lengths: Vec<u64>,
}

fn id(user: usize) -> String {
    (user + 1).to_string()
}

impl World {
    /// Opens buffered counters, or cached ones that stay in Redis for the time `retain`.
    async fn new(retain: Option<Duration>, without: Option<Without>, redis: RedisOptions) -> Self {
        let pair = Pair::with(redis).await;
        pair.sql(
            "CREATE TABLE saves (event BIGINT PRIMARY KEY, user_id BIGINT NOT NULL, KEY (user_id)) ENGINE=InnoDB;
             CREATE TABLE users (id BIGINT PRIMARY KEY, n BIGINT NOT NULL DEFAULT 0) ENGINE=InnoDB;
             INSERT INTO users (id) VALUES (1), (2)",
        )
        .await;
        let counters = match retain {
            None => Counters::Buffered(pair.open(family("saves")).await),
            Some(retain) => Counters::Cached(
                pair.open(
                    votes()
                        .table(keyed(Table::update("users"), [("id", Unsigned)]))
                        .sync_time(millis(1))
                        .retain(retain),
                )
                .await,
            ),
        };
        let recounter = || (recounting(&pair, &counters), At::Idle);
        World {
            recounters: [recounter(), recounter()],
            counters,
            without,
            coming: vec![],
            next: 0,
            explained: [Explained::default(); USERS],
            lengths: vec![],
            pair,
        }
    }

    async fn take(&mut self, step: Step) {
        match step {
            Step::Insert(user) => {
                let insert = sqlx::query("INSERT INTO saves VALUES (?, ?)").bind(self.next);
                let insert = insert.bind(user as u64 + 1).execute(&self.pair.pool);
                insert.await.unwrap();
                self.coming.push((self.next, user));
                self.next += 1;
                self.explained[user].rows += 1;
            }
            Step::Count(which) => self.count(which, 1).await,
            Step::Never(which) => self.count(which, 0).await,
            Step::Twice(which) => self.count(which, 2).await,
            Step::Flush => self.pair.drain().await,
            Step::Emptied | Step::Crash(_) => {
                let mut before = [0; USERS];
                for (user, before) in before.iter_mut().enumerate() {
                    *before = self.counted(user).await;
                }
                self.lose(step).await;
                for (user, before) in before.into_iter().enumerate() {
                    self.explained[user].never +=
                        usize::try_from(before - self.counted(user).await).unwrap_or(0);
                }
            }
            Step::Die(who) => self.recounters[who].1 = At::Idle,
            Step::Recount(who) => {
                let at = std::mem::replace(&mut self.recounters[who].1, At::Idle);
                self.recounters[who].1 = self.recount(who, at).await;
            }
        }
    }

    async fn lose(&mut self, step: Step) {
        let redis = &self.pair.redis;
        let Step::Crash(kept) = step else {
            return redis.run("FLUSHALL").await.unwrap();
        };
        let left = self.lengths[(self.lengths.len() - 1) * usize::from(kept) / 255];
        redis.kill();
        redis.cut_aof(left);
        redis.start_again().await;
        self.lengths = vec![redis.aof_len()];
    }

    /// Notes the length of Redis's file. After a flush all of it must be durable.
    fn note_length(&mut self, step: Option<Step>) {
        if matches!(step, None | Some(Step::Flush)) {
            self.lengths.clear();
        }
        self.lengths.push(self.pair.redis.aof_len());
    }

    async fn count(&mut self, which: usize, times: i64) {
        if self.coming.is_empty() {
            return;
        }
        let at = which % self.coming.len();
        let number = self.coming[at].1;
        let user = &mut self.explained[number];
        match times {
            0 if user.left < WRONG => {
                user.left += 1;
                user.never += 1;
            }
            2 if user.twice < WRONG => user.twice += 1,
            1 => {}
            _ => return,
        }
        self.coming.remove(at);
        if times > 0 {
            match &self.counters {
                Counters::Buffered(saves) => saves.count(&id(number), times).await,
                Counters::Cached(saves) => saves.count(&id(number), times).await,
            };
        }
    }

    async fn recount(&self, who: usize, at: At) -> At {
        let recounting = &self.recounters[who].0;
        if let At::After(run, difference) = at {
            if self.without == Some(Without::Delta) {
                let write = "INSERT INTO counterfoil_values SELECT (SELECT number FROM counterfoil_families), user_id, COUNT(*) \
                     FROM saves GROUP BY user_id ON DUPLICATE KEY UPDATE value = VALUES(value)";
                self.pair.sql(write).await;
            } else if recounting.settle(&run, &difference).await.unwrap() {
                recounting.end(&run).await.unwrap();
            }
            return At::Idle;
        }
        let ids = (0..USERS).map(id).collect();
        let coming = self.coming.iter().map(|(event, _)| *event).collect();
        let waits = self.without != Some(Without::Wait);
        at.next(recounting, ids, coming, waits).await
    }

    async fn value(&self, user: usize) -> i64 {
        match &self.counters {
            Counters::Buffered(saves) => saves.value(&id(user)).await,
            Counters::Cached(saves) => saves.value(&id(user)).await,
        }
    }

    /// Returns the user's counter in the database, and what waits for it in Redis. After a crash the
    /// value of a cached counter may be that from before a correction.
    async fn counted(&self, user: usize) -> i64 {
        let Counters::Cached(saves) = &self.counters else {
            return self.value(user).await;
        };
        let (family, id) = (saves.family(), id(user));
        let buffer = format!("cf1:{{{family}/{}}}:buffer", family.partition_of(&id));
        let waits = self.pair.redis.run(&format!("HGET {buffer} {id}")).await;
        let waits: Option<i64> = waits.unwrap();
        let row = format!("SELECT n FROM users WHERE id = {id}");
        self.pair.number(&row).await + waits.unwrap_or(0)
    }

    /// Returns the description of a value that the rows do not explain.
    async fn wrong(&self) -> Option<String> {
        for user in 0..USERS {
            let (value, of_user) = (self.value(user).await, self.explained[user]);
            let coming = self.coming.iter().filter(|(_, of)| *of == user).count() as i64;
            let settled = of_user.rows - coming;
            let (least, most) = (
                settled - of_user.never as i64,
                settled + of_user.twice as i64,
            );
            if !(least..=most).contains(&value) {
                return Some(format!(
                    "user {user} has {value}, and {of_user:?} with {coming} coming explain {least} to {most}"
                ));
            }
        }
        None
    }

    /// Counts everything, and finishes one more run undisturbed.
    async fn quiet(&mut self) -> Option<String> {
        while !self.coming.is_empty() {
            self.count(0, 1).await;
        }
        self.recounters
            .iter_mut()
            .for_each(|(_, at)| *at = At::Idle);
        // an abandoned run is finished first, and may have corrected a counter before
        for _ in 0..2 {
            let mut at = At::Idle;
            for _ in 0..RECOUNT.len() {
                at = self.recount(0, at).await;
            }
        }
        self.pair.drain().await;
        for user in 0..USERS {
            let rows = self.explained[user].rows;
            let value = self.value(user).await;
            if value != rows {
                return Some(format!(
                    "after a quiet run user {user} has {value} of {rows} rows"
                ));
            }
        }
        None
    }
}

fn recounting(pair: &Pair, counters: &Counters) -> Recounting {
    let recount = match counters {
        Counters::Buffered(saves) => pair.recount(saves),
        Counters::Cached(saves) => pair.recount(saves),
    };
    recount.within(Duration::ZERO).steps().unwrap()
}

fn play(retain: Option<Duration>, without: Option<Without>, steps: &[Step]) -> Result<(), String> {
    let crashes = steps.iter().any(|step| matches!(step, Step::Crash(_)));
    runtime().block_on(async {
        let redis = if crashes {
            RedisOptions::aof("always")
        } else {
            RedisOptions::volatile()
        };
        let mut world = World::new(retain, without, redis).await;
        if crashes {
            world.note_length(None);
        }
        take_out(match without {
            Some(Without::Guard(guard)) => Some(guard),
            _ => None,
        });
        for &step in steps {
            world.take(step).await;
            if crashes {
                world.note_length(Some(step));
            }
            // a cached counter with a pending delta shows a correction with its next save
            if let Some(wrong) = world.wrong().await {
                return Err(format!("after {step:?}: {wrong}"));
            }
        }
        world.quiet().await.map_or(Ok(()), Err)
    })
}

fn exact(retain: Option<Duration>, crashes: bool) {
    super::exact(steps(crashes), |steps| play(retain, None, steps));
}

#[test]
fn exact_for_buffered_counters() {
    exact(None, false);
}

/// The counters enter and leave Redis.
#[test]
fn exact_for_cached_counters() {
    exact(Some(millis(1)), false);
}

/// The values show a correction although the counters stay in Redis.
#[test]
fn exact_for_cached_counters_that_stay_in_redis() {
    exact(Some(secs(600)), false);
}

#[test]
fn exact_for_buffered_counters_when_redis_goes_back_to_its_last_fsync() {
    exact(None, true);
}

#[test]
fn exact_for_cached_counters_when_redis_goes_back_to_its_last_fsync() {
    exact(Some(millis(1)), true);
}

/// Redis goes back to a value from before a correction, and loses a hit.
#[test]
fn a_correction_does_not_hide_what_a_crash_loses() {
    use Step::{Count, Crash, Flush, Insert, Recount, Twice};
    let corrected = [
        Recount(1),
        Insert(0),
        Twice(0),
        Recount(1),
        Recount(1),
        Flush,
        Recount(1),
        Recount(1),
    ];
    let steps = [&corrected[..], &[Insert(0), Count(0), Crash(0), Flush]].concat();
    let played = play(Some(millis(1)), None, &steps);
    played.unwrap_or_else(|error| panic!("{error}"));
}

/// Checks that the steps fail without the guard. They are the shortest ones that the model knows.
fn breaks(without: Without, steps: &[Step]) {
    super::breaks(|without, steps| play(None, without, steps), without, steps);
}

const RECOUNT: [Step; 5] = [Step::Recount(0); 5];
const OTHER: [Step; 5] = [Step::Recount(1); 5];
const INSERT: Step = Step::Insert(0);
const COUNT: Step = Step::Count(0);

#[test]
fn without_the_wait_what_is_on_its_way_counts_twice() {
    breaks(Without::Wait, &[&[INSERT], &RECOUNT[..], &[COUNT]].concat());
}

#[test]
fn without_the_run_two_recounters_correct_twice() {
    let (first, second) = (&RECOUNT[..4], &OTHER[..4]);
    let never = [INSERT, Step::Never(0)];
    breaks(
        Without::Guard(Guard::RecountRun),
        &[&never[..], first, second, &RECOUNT[4..], &OTHER[4..]].concat(),
    );
}

#[test]
fn with_one_difference_in_place_of_two_bounds_a_count_meanwhile_is_doubled() {
    breaks(
        Without::Guard(Guard::RecountBounds),
        &[
            &RECOUNT[..2],
            &[INSERT],
            &RECOUNT[2..3],
            &[COUNT],
            &RECOUNT[3..],
        ]
        .concat(),
    );
}

#[test]
fn a_value_that_is_written_takes_back_what_is_on_its_way_or_doubles_it() {
    breaks(Without::Delta, &[&[INSERT, COUNT], &RECOUNT[..]].concat());
}
