//! Interleavings of recounts (docs/protocol.md, section 9). Rows are inserted and counted, some
//! never and some twice, while two recounters die and take over each other's runs. No counter
//! leaves the range that its rows explain, and a quiet run ends the drift. Without one of the
//! guards it does leave it. If rows are also deleted, +1 and -1 cancel, so equal values do not prove
//! that a counter did not move.

use counterfoil::recount::Rows;
use counterfoil::test_hooks::{Difference, InitialValues, Page, Recounting, Run};
use proptest::test_runner::Config;

use crate::support::*;

const USERS: usize = 2;
/// The most rows of a user that are never counted, and that are counted twice.
const WRONG: usize = 2;

/// The counters, and what happens to their rows.
#[derive(Clone, Copy)]
enum Of {
    Buffered,
    /// Buffered counters of rows that are also deleted.
    Deleted,
    /// Cached counters that stay in Redis for this time.
    Cached(Duration),
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// A row is inserted or deleted, which will be counted later.
    Insert(usize),
    Delete(usize),
    /// An uncounted event is counted once, never or twice.
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

fn steps(of: Of, crashes: bool) -> impl Strategy<Value = Vec<Step>> {
    let user = 0..USERS;
    let deleted = prop_oneof![
        3 => Just(Step::Insert(0)),
        3 => Just(Step::Delete(0)),
        6 => (0..4_usize).prop_map(Step::Count),
        1 => (0..4_usize).prop_map(Step::Never),
        1 => Just(Step::Flush),
        8 => Just(Step::Recount(0)),
    ];
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
    let step = match of {
        Of::Deleted => deleted.boxed(),
        _ => step.boxed(),
    };
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
    /// Insertions that are never counted: by the application, or because Redis lost them.
    never: usize,
    /// Deletions that are never counted.
    kept: usize,
    /// Events that the application never counts.
    left: usize,
    twice: usize,
}

/// A recounter after its last step.
enum At {
    Idle,
    Begun(Run),
    Before(Run, InitialValues),
    /// The rows are counted; these events' counts may still arrive.
    Counted(Run, Page, Vec<u64>),
    After(Run, Difference),
}

impl At {
    /// Takes the next step up to the difference. `coming` are the events that are not counted yet.
    /// The wait is longer than the application's time between a row and its count.
    async fn next(
        self,
        recounting: &Recounting,
        ids: Vec<String>,
        coming: Vec<u64>,
        waits: bool,
    ) -> Self {
        match self {
            At::Idle => recounting.take().await.unwrap().map_or(At::Idle, At::Begun),
            At::Begun(run) => {
                let cuts = recounting.cuts().await.unwrap();
                At::Before(run, recounting.before(ids, cuts).await.unwrap())
            }
            At::Before(run, before) => {
                At::Counted(run, recounting.count(before).await.unwrap(), coming)
            }
            At::Counted(_, _, ref due) if waits && due.iter().any(|one| coming.contains(one)) => {
                self
            }
            At::Counted(run, page, _) => At::After(run, recounting.after(&page).await.unwrap()),
            At::After(..) => self,
        }
    }
}

struct World {
    pair: Pair,
    of: Of,
    counters: Counters,
    without: Option<Without>,
    recounters: [(Recounting, At); 2],
    /// The rows that exist, by user.
    rows: [Vec<u64>; USERS],
    /// The events that are not counted yet, by number and user, each with its delta.
    coming: Vec<(u64, usize, i64)>,
    next: u64,
    explained: [Explained; USERS],
    /// The lengths of Redis's file, if any, since the last flush. The first one is durable.
    lengths: Vec<u64>,
}

fn id(user: usize) -> String {
    (user + 1).to_string()
}

impl World {
    async fn new(of: Of, without: Option<Without>, redis: RedisOptions) -> Self {
        let pair = Pair::with(redis).await;
        pair.sql(
            "CREATE TABLE saves (event BIGINT PRIMARY KEY, user_id BIGINT NOT NULL, KEY (user_id)) ENGINE=InnoDB;
             CREATE TABLE users (id BIGINT PRIMARY KEY, n BIGINT NOT NULL DEFAULT 0) ENGINE=InnoDB;
             INSERT INTO users (id) VALUES (1), (2)",
        )
        .await;
        let saves = family("saves");
        let counters = match of {
            Of::Buffered => Counters::Buffered(pair.open(saves).await),
            Of::Deleted => Counters::Buffered(pair.open(saves.partitions(1)).await),
            Of::Cached(retain) => Counters::Cached(
                pair.open(
                    votes()
                        .table(keyed(Table::update("users"), [("id", Unsigned)]))
                        .sync_time(millis(1))
                        .retain(retain),
                )
                .await,
            ),
        };
        let recounter = || (recounting(&pair, &counters, of), At::Idle);
        World {
            of,
            recounters: [recounter(), recounter()],
            counters,
            without,
            rows: Default::default(),
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
                let (row, of) = (self.next, user + 1);
                let insert = format!("INSERT INTO saves VALUES ({row}, {of})");
                self.rows[user].push(row);
                self.write(&insert, user, 1).await;
            }
            Step::Delete(user) => {
                if let Some(row) = self.rows[user].pop() {
                    let delete = format!("DELETE FROM saves WHERE event = {row}");
                    self.write(&delete, user, -1).await;
                }
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

    async fn write(&mut self, sql: &str, user: usize, delta: i64) {
        self.pair.sql(sql).await;
        self.coming.push((self.next, user, delta));
        self.next += 1;
        self.explained[user].rows += delta;
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
        let (_, number, delta) = self.coming[at];
        let user = &mut self.explained[number];
        match times {
            0 if user.left < WRONG => {
                user.left += 1;
                user.never += usize::from(delta > 0);
                user.kept += usize::from(delta < 0);
            }
            2 if user.twice < WRONG => user.twice += 1,
            1 => {}
            _ => return,
        }
        self.coming.remove(at);
        if times > 0 {
            match &self.counters {
                Counters::Buffered(saves) => saves.count(&id(number), times * delta).await,
                Counters::Cached(saves) => saves.count(&id(number), times * delta).await,
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
        let coming = self.coming.iter().map(|(event, ..)| *event).collect();
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
            let coming = self.coming.iter().filter(|(_, of, _)| *of == user);
            let coming: i64 = coming.map(|(.., delta)| delta).sum();
            let settled = of_user.rows - coming;
            let (least, most) = (
                settled - of_user.never as i64,
                settled + (of_user.twice + of_user.kept) as i64,
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
            if let Of::Deleted = self.of {
                self.pair.drain().await;
            }
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

fn recounting(pair: &Pair, counters: &Counters, of: Of) -> Recounting {
    let rows = match of {
        Of::Deleted => Rows::AddedAndDeleted,
        _ => Rows::Added,
    };
    let recount = match counters {
        Counters::Buffered(saves) => pair.recount_of(saves, rows),
        Counters::Cached(saves) => pair.recount_of(saves, rows),
    };
    recount.within(Duration::ZERO).steps().unwrap()
}

fn play(of: Of, without: Option<Without>, steps: &[Step]) -> Result<(), String> {
    let crashes = steps.iter().any(|step| matches!(step, Step::Crash(_)));
    runtime().block_on(async {
        let redis = if crashes {
            RedisOptions::aof("always")
        } else {
            RedisOptions::volatile()
        };
        let mut world = World::new(of, without, redis).await;
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

/// Plays random steps, none of which may go wrong.
fn exact(of: Of, crashes: bool) {
    let mut runner = TestRunner::new(Config {
        max_shrink_iters: 200,
        ..random::config(random::cases(12))
    });
    let result = runner.run(&steps(of, crashes), |steps| {
        play(of, None, &steps).map_err(TestCaseError::fail)
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn exact_where_rows_are_deleted() {
    exact(Of::Deleted, false);
}

#[test]
fn exact_for_buffered_counters() {
    exact(Of::Buffered, false);
}

/// The counters enter and leave Redis.
#[test]
fn exact_for_cached_counters() {
    exact(Of::Cached(millis(1)), false);
}

/// The values show a correction although the counters stay in Redis.
#[test]
fn exact_for_cached_counters_that_stay_in_redis() {
    exact(Of::Cached(secs(600)), false);
}

#[test]
fn exact_for_buffered_counters_when_redis_goes_back_to_its_last_fsync() {
    exact(Of::Buffered, true);
}

#[test]
fn exact_for_cached_counters_when_redis_goes_back_to_its_last_fsync() {
    exact(Of::Cached(millis(1)), true);
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
    let played = play(Of::Cached(millis(1)), None, &steps);
    played.unwrap_or_else(|error| panic!("{error}"));
}

/// Checks that the steps fail without the guard, and only then. They are the shortest ones that the
/// model knows.
fn breaks(of: Of, without: Without, steps: &[Step]) {
    let broken = play(of, Some(without), steps);
    take_out(None);
    assert!(broken.is_err(), "{without:?} is not missed");
    play(of, None, steps).unwrap();
}

/// A row is inserted and deleted between the two reads.
#[test]
fn equal_values_are_no_proof() {
    let steps = [
        &RECOUNT[..2],
        &[INSERT],
        &RECOUNT[2..3],
        &[COUNT, Step::Delete(0), COUNT],
        &RECOUNT[3..],
    ];
    breaks(
        Of::Deleted,
        Without::Guard(Guard::RecountMoved),
        &steps.concat(),
    );
}

const RECOUNT: [Step; 5] = [Step::Recount(0); 5];
const OTHER: [Step; 5] = [Step::Recount(1); 5];
const INSERT: Step = Step::Insert(0);
const COUNT: Step = Step::Count(0);

#[test]
fn without_the_wait_what_is_on_its_way_counts_twice() {
    breaks(
        Of::Buffered,
        Without::Wait,
        &[&[INSERT], &RECOUNT[..], &[COUNT]].concat(),
    );
}

#[test]
fn without_the_run_two_recounters_correct_twice() {
    let (first, second) = (&RECOUNT[..4], &OTHER[..4]);
    let never = [INSERT, Step::Never(0)];
    breaks(
        Of::Buffered,
        Without::Guard(Guard::RecountRun),
        &[&never[..], first, second, &RECOUNT[4..], &OTHER[4..]].concat(),
    );
}

#[test]
fn with_one_difference_in_place_of_two_bounds_a_count_meanwhile_is_doubled() {
    breaks(
        Of::Buffered,
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
    breaks(
        Of::Buffered,
        Without::Delta,
        &[&[INSERT, COUNT], &RECOUNT[..]].concat(),
    );
}
