//! A site that counts with all kinds.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Range, RangeInclusive};
use std::path::Path;
use std::time::Duration;

use counterfoil::recount::{RecountBuilder, RecountIds, Rows, Source};
use counterfoil::{
    Activity, BufferedCounters, CachedCounters, Day, Durability, ErrorKind, Family, FamilyBuilder,
    KeyType, MysqlStore, Outcome, Precision, Series, Store, Table, Visitors,
};
use sqlx::{AssertSqlSafe, MySqlPool};
use tokio::time::{Instant, sleep};

use super::journal::{Counter, Hit, Ms, now};
use super::persistence::Persistence;
use super::{likes, seats};
use crate::Result;
use crate::families::{NAMESPACE, Pair, Place};
use crate::zipf::Random;

/// The families. Jobs are requests that are made again until their outcome is known. Saves are rows,
/// each of which is counted once it is committed.
pub const FAMILIES: [&str; 7] = [
    "views", "votes", "hits", "active", "visitors", "jobs", "saves",
];
pub const VIEWS: usize = 0;
pub const VOTES: usize = 1;
pub const SERIES: usize = 2;
pub const ACTIVITY: usize = 3;
pub const VISITORS: usize = 4;
pub const JOBS: usize = 5;
pub const SAVES: usize = 6;
/// The views of a tenant, whose family the daemon knows by a pattern.
pub const TENANT: usize = 7;
/// The hits that another program adds to the column of votes, as if they were of a family.
pub const OUTSIDE: usize = 8;
/// The namespace of the tenant.
pub const TENANT_NAMESPACE: &str = "tenant-1";
/// The partitions of each family, and the most of the tenant's, which change.
const PARTITIONS: [u32; 8] = [4, 4, 2, 1, 1, 2, 2, 3];
/// The least partitions of the tenant's family.
const TENANT_PARTITIONS: u32 = 2;
/// The families whose counters have one value each.
pub const READABLE: [usize; 3] = [VIEWS, VOTES, JOBS];
/// The families that count in windows.
pub const SLIDING: [usize; 2] = [SERIES, ACTIVITY];
/// The seconds of these windows, which are slices of a series, or layers of an activity: so few that each
/// is opened and leaves within a round.
pub const SLICES: u32 = 5;
/// The days that another window of the series has, in this time zone.
const DAYS: u32 = 3;
pub const ZONE: &str = "Europe/Berlin";
/// The counter of each of these families that is used all the time.
pub const LASTING: u64 = 0;
/// The number of counters of each family at a time.
const IDS: u64 = 10;
/// The time for which a counter is used, in ms. A hit that is doubled cannot hide behind one that a
/// crash loses, unless both are counted in the same time.
const USED: u64 = 250;

/// The seconds of a day in the least.
const DAY: i64 = 23 * 3600;
/// A layer of an activity.
const LAYER: Duration = Duration::from_secs(1);
const SYNC_TIME: Duration = Duration::from_millis(200);
/// The time that a saved vote stays in Redis: far too short for an application.
const RETAIN: Duration = Duration::from_millis(50);
/// The time within which a call ends.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The time after which a row is left to the recount.
pub const TOO_LATE: Duration = Duration::from_secs(1);
/// The time within which a row is counted, if it is: until it is too late, while the writer is paused,
/// within the limit of a call, and while Redis is paused.
pub const WITHIN: Duration = Duration::from_secs(7);
/// The time within which a row is counted once all writers have ended.
const WITHIN_AT_THE_END: Duration = Duration::from_millis(300);
const RECOUNT_EVERY: RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_millis(300);
/// The time within which a recount begins and comes to its corrections.
const BEGUN: Duration = Duration::from_secs(60);
/// The time before a correction from which it is awaited.
const SOON: Duration = Duration::from_millis(300);
/// The lease of a recount, and the limit of its steps.
pub const LEASE: Duration = Duration::from_secs(1);

/// The settings of the families as the daemon reads them, with the durability in place of `DURABILITY`.
const DAEMON_FAMILIES: &str = r#"
[[family]]
name = "demo/views"
kind = "buffered"
partitions = 4
table = { name = "views", write = "upsert", keys = [["id", "unsigned"]], value = "hits" }
sync_time = "SYNC"

[[family]]
name = "demo/votes"
kind = "cached"
partitions = 4
table = { name = "votes", write = "upsert", keys = [["id", "unsigned"]], value = "votes" }
retain = "RETAIN"
sync_time = "SYNC"

[[family]]
name = "demo/hits"
kind = "series"
partitions = 2
windows = [["1s", SLICES], ["day", DAYS]]
time_zone = "ZONE"
keep = ["1s"]
sync_time = "SYNC"

[[family]]
name = "demo/active"
kind = "activity"
partitions = 1
window = "SLICESs"
layer = "1s"
keep_minutes = true
sync_time = "SYNC"

[[family]]
name = "demo/visitors"
kind = "visitors"
partitions = 1
sync_time = "SYNC"

[[family]]
name = "demo/jobs"
kind = "buffered"
partitions = 2
sync_time = "SYNC"

[[family]]
name = "demo/saves"
kind = "buffered"
partitions = 2
sync_time = "SYNC"

[[family]]
name = "demo/seats"
kind = "cached"
partitions = 1
table = { name = "seats", write = "upsert", keys = [["id", "unsigned"]], value = "taken" }
max = 100
retain = "10s"
sync_time = "SYNC"

[[family]]
name = "demo/likes"
kind = "buffered"
partitions = 1
sync_time = "SYNC"

[[family]]
name = "tenant-*/views"
kind = "buffered"
partitions = TENANT
sync_time = "SYNC"
"#;

/// A partition of a family, which has the hits of some counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Home {
    family: usize,
    pub partition: u32,
}

impl Home {
    /// Returns the partitions of all families.
    pub fn all() -> impl Iterator<Item = Home> {
        let families = PARTITIONS.iter().enumerate();
        families.flat_map(|(family, partitions)| {
            (0..*partitions).map(move |partition| Home { family, partition })
        })
    }

    pub fn is_of(self, family: usize) -> bool {
        self.family == family
    }

    pub fn find(namespace: &str, name: &str, partition: u32) -> Option<Home> {
        let is_it =
            |home: &Home| names(home.family) == (namespace, name) && home.partition == partition;
        Home::all().find(is_it)
    }

    /// Returns the place of what another program writes, which is not in Redis.
    pub fn outside() -> Home {
        let (family, partition) = (OUTSIDE, 0);
        Home { family, partition }
    }

    /// Returns whether the counter is in this partition.
    pub fn has(self, family: usize, id: u64) -> bool {
        let most = PARTITIONS.get(family).copied().unwrap_or(1);
        let least = if family == TENANT {
            TENANT_PARTITIONS
        } else {
            most
        };
        let hash = crc32fast::hash(id.to_string().as_bytes());
        let is_its = |partitions| hash % partitions == self.partition;
        family == self.family && (least..=most).any(is_its)
    }

    /// Returns the name of a key of the partition.
    pub fn key(self, name: &str) -> String {
        let (namespace, family) = names(self.family);
        format!("cf1:{{{namespace}/{family}/{}}}:{name}", self.partition)
    }
}

/// Returns namespace and name of a family.
fn names(family: usize) -> (&'static str, &'static str) {
    if family == TENANT {
        (TENANT_NAMESPACE, FAMILIES[VIEWS])
    } else {
        (NAMESPACE, FAMILIES[family])
    }
}

/// Returns one of the buffered families.
fn buffered(family: usize, persistence: Persistence) -> FamilyBuilder<BufferedCounters> {
    let all = Family::buffered(NAMESPACE, FAMILIES[family])
        .partitions(PARTITIONS[family])
        .durability(persistence.durability())
        .sync_time(SYNC_TIME);
    match family {
        VIEWS => all.table(in_table("views", "hits")),
        _ => all,
    }
}

pub fn in_table(table: &str, value: &str) -> Table {
    Table::upsert(table)
        .key("id", KeyType::Unsigned)
        .value(value)
}

/// Registers one of the buffered families, as its first use does.
pub async fn register(mysql: &MySqlPool, family: usize, persistence: Persistence) -> Result<()> {
    let family = buffered(family, persistence).build()?;
    MysqlStore::new(mysql)?.register(&family).await?;
    Ok(())
}

pub struct Site {
    pub pair: Pair,
    views: BufferedCounters,
    votes: CachedCounters,
    hits: Series,
    active: Activity,
    visitors: Visitors,
    jobs: BufferedCounters,
    saves: BufferedCounters,
    pub seats: CachedCounters,
    pub likes: BufferedCounters,
    mysql: MySqlPool,
}

impl Site {
    pub async fn open(place: &Place, persistence: Persistence) -> counterfoil::Result<Self> {
        let pair = connect(place).await?.write_timeout(TIMEOUT);
        macro_rules! open {
            ($family:expr) => {{
                let family = $family.durability(persistence.durability());
                pair.open(family.sync_time(SYNC_TIME)).await?
            }};
        }
        macro_rules! family {
            ($kind:ident, $index:expr) => {
                Family::$kind(NAMESPACE, FAMILIES[$index]).partitions(PARTITIONS[$index])
            };
        }
        let votes = family!(cached, VOTES).table(in_table("votes", "votes"));
        let hits = family!(series, SERIES).keep([Precision::SECOND]);
        let windows = [(Precision::SECOND, SLICES), (Precision::Day, DAYS)];
        let active = family!(activity, ACTIVITY).window(SLICES * LAYER, LAYER);
        Ok(Site {
            views: pair.open(buffered(VIEWS, persistence)).await?,
            votes: open!(votes.retain(RETAIN)),
            hits: open!(hits.windows(windows).time_zone(ZONE)),
            active: open!(active.keep_minutes(true)).cache_for(Duration::ZERO),
            visitors: open!(family!(visitors, VISITORS)),
            jobs: pair.open(buffered(JOBS, persistence)).await?,
            saves: pair.open(buffered(SAVES, persistence)).await?,
            seats: open!(seats::family()),
            likes: open!(likes::family()),
            mysql: pair.mysql()?.pool().clone(),
            pair,
        })
    }

    /// Returns the families that may be refused.
    pub fn refused(&self) -> [&Family; 2] {
        [self.views.family(), self.saves.family()]
    }

    /// Counts hits of one family, which are no jobs. Returns of each whether it was counted.
    pub async fn count(&self, hits: &[Hit]) -> Vec<counterfoil::Result<bool>> {
        let ids = || hits.iter().map(|hit| hit.id.to_string());
        // no other hit has its name, so only an earlier attempt may have counted it before
        let is_counted =
            |outcome| matches!(outcome, Outcome::Counted(_) | Outcome::CountedBefore(_));
        let all = |outcomes: Vec<counterfoil::Result<Outcome>>| {
            let outcomes = outcomes.into_iter();
            outcomes.map(|outcome| outcome.map(is_counted)).collect()
        };
        let (id, name) = (hits[0].id.to_string(), &hits[0].name);
        let one = match hits[0].family {
            VIEWS => return all(self.views.add_many(ids().map(|id| (id, 1))).await),
            VOTES => self.votes.incr(&id, 1).await.map(is_counted),
            SERIES => return all(self.hits.add_many(ids().map(|id| (id, 1))).await),
            ACTIVITY => self.active.touch(&id, name).await.map(|()| true),
            VISITORS => {
                let visit = self.visitors.first_visit(&id, Day::today(), name).await;
                visit.map(is_counted)
            }
            _ => self.save(&id, name).await,
        };
        vec![one]
    }

    /// Inserts a row, and counts it.
    async fn save(&self, id: &str, name: &str) -> counterfoil::Result<bool> {
        let started = Instant::now();
        let insert = sqlx::query("INSERT INTO saves VALUES (?, ?)").bind(id);
        if insert.bind(name).execute(&self.mysql).await.is_err() || started.elapsed() > TOO_LATE {
            return Ok(false);
        }
        let outcome = self.saves.add(id, 1).await?;
        Ok(matches!(outcome, Outcome::Counted(_)))
    }

    /// Returns the epoch in which a job is counted if it is made now.
    pub async fn job_epoch(&self, job: &Hit) -> counterfoil::Result<String> {
        self.jobs
            .request_epoch(&job.name, &job.id.to_string())
            .await
    }

    /// Counts a job of this epoch, unless it was counted before.
    pub async fn count_job(&self, job: &Hit, epoch: &str) -> counterfoil::Result<()> {
        let (name, id) = (&job.name, job.id.to_string());
        let outcome = self.jobs.add_once_since(epoch, name, &id, 1).await?;
        // the bounds of jobs are those of 64 bits
        match outcome {
            Outcome::OutOfRange(_) => Err(counterfoil::Error::new(ErrorKind::Range, "a job")),
            _ => Ok(()),
        }
    }

    /// Returns the recount of saves while they are counted, or `at_the_end`.
    fn recount(&self, at_the_end: bool) -> RecountBuilder {
        let within = if at_the_end {
            WITHIN_AT_THE_END
        } else {
            WITHIN
        };
        let recount = self.pair.recount(&self.saves, Rows::Added);
        let recount = recount.source(Source::table("saves", ["id"]));
        let recount = recount.ids(RecountIds::Both).within(within);
        recount.timeout(LEASE).lease(LEASE)
    }

    /// Recounts saves and likes until the rows and their counters must be equal. Writers and recounters
    /// have ended.
    pub async fn recount_at_the_end(&self) -> Result<()> {
        // the first run may continue one that was left, which checked some ids earlier
        for _ in 0..2 {
            finish(|| self.recount(true)).await?;
            finish(|| likes::recount(self)).await?;
        }
        Ok(())
    }

    /// Returns the values of counters of one of the [`READABLE`] families.
    pub async fn values(&self, family: usize, ids: &[u64]) -> counterfoil::Result<Vec<i64>> {
        let ids = ids.iter().map(u64::to_string);
        match family {
            VIEWS => self.views.get_many(ids).await,
            VOTES => self.votes.get_many(ids).await,
            _ => self.jobs.get_many(ids).await,
        }
    }

    /// Returns the hits in the windows of a counter of one of the [`SLIDING`] families, each with the least
    /// time of its window in seconds. Visitors are as many as hits, since none comes twice.
    pub async fn windows(&self, family: usize, id: u64) -> counterfoil::Result<[(i64, i64); 2]> {
        let (id, seconds) = (id.to_string(), i64::from(SLICES));
        if family == ACTIVITY {
            let now = self.active.now(&id).await?;
            let (views, visitors) = (now.views.cast_signed(), now.visitors.cast_signed());
            return Ok([(views, seconds), (visitors, seconds)]);
        }
        let sum = async |precision| {
            let slices = self.hits.get(&id, precision).await?;
            Ok::<_, counterfoil::Error>(slices.iter().map(|slice| slice.count).sum())
        };
        let days = i64::from(DAYS - 1) * DAY;
        Ok([
            (sum(Precision::SECOND).await?, seconds),
            (sum(Precision::Day).await?, days),
        ])
    }
}

/// Completes a run of a recount.
async fn finish(recount: impl Fn() -> RecountBuilder) -> Result<()> {
    loop {
        match recount().run_once().await {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::Busy => sleep(LEASE).await,
            Err(error) => return Err(error.into()),
        }
    }
}

/// Draws the id of a counter of the family.
pub fn draw_id(family: usize, random: &mut Random) -> u64 {
    let id = random.below(IDS);
    if id == LASTING && SLIDING.contains(&family) {
        return LASTING;
    }
    now() / USED * IDS + id
}

/// Returns the ids that are drawn between these times.
pub fn ids_in_use(from: Ms, to: Ms) -> Range<u64> {
    from / USED * IDS..(to / USED + 1) * IDS
}

/// Recounts saves and likes from now on, and returns the pair for a reconciler.
pub async fn serve(place: &Place, persistence: Persistence) -> counterfoil::Result<Pair> {
    let site = Site::open(place, persistence).await?;
    for recount in [site.recount(false), likes::recount(&site)] {
        recount.every(RECOUNT_EVERY).start()?.detach();
    }
    Ok(site.pair)
}

/// Connects to the servers, of which Redis may be a cluster.
pub async fn connect(place: &Place) -> counterfoil::Result<Pair> {
    let Place { redis, mysql } = place;
    match redis.split(',').collect::<Vec<_>>()[..] {
        [one] => Pair::connect(one, mysql).await,
        ref nodes => Pair::connect_cluster(nodes.iter().copied(), mysql).await,
    }
}

/// Returns the configuration of a daemon. A daemon without `listen` serves no requests. `sync_time` and the
/// bound of votes are what a reload changes.
pub fn configuration(
    place: &Place,
    persistence: Persistence,
    listen: &str,
    reloads: u64,
    tenant_partitions: u32,
) -> String {
    let Place { redis, mysql } = place;
    let redis = match redis.split(',').collect::<Vec<_>>()[..] {
        [one] => format!("redis = {one:?}"),
        ref nodes => format!("cluster = {nodes:?}"),
    };
    let durability = match persistence.durability() {
        Durability::Settle(time) => format!("{}ms", time.as_millis()),
        _ => "immediate".to_owned(),
    };
    let pair = format!(
        "listen = {listen:?}\n[pair.main]\n{redis}\nmysql = {mysql:?}\ndurability = {durability:?}\n"
    );
    let sync = SYNC_TIME.as_millis() + u128::from(reloads % 2) * 50;
    let families = DAEMON_FAMILIES.replace("SYNC", &format!("{sync}ms"));
    let families = families.replace("RETAIN", &format!("{}ms", RETAIN.as_millis()));
    let families = families.replace("SLICES", &SLICES.to_string());
    let families = families.replace("DAYS", &DAYS.to_string());
    let families = families.replace("ZONE", ZONE);
    let families = families.replace("TENANT", &tenant_partitions.to_string());
    let bounded = if reloads.is_multiple_of(2) {
        ""
    } else {
        "max = 1000000000\n"
    };
    // votes are the first family with one
    pair + &families.replacen("retain =", &format!("{bounded}retain ="), 1)
}

/// Returns the number of partitions of the tenant's family after so many changes.
pub fn tenant_partitions(changes: u32) -> u32 {
    TENANT_PARTITIONS + changes % (PARTITIONS[TENANT] - TENANT_PARTITIONS + 1)
}

/// Returns the tenant's family after so many changes.
pub fn tenant(persistence: Persistence, changes: u32) -> counterfoil::Result<Family> {
    let family = Family::buffered(TENANT_NAMESPACE, FAMILIES[VIEWS]);
    let family = family.partitions(tenant_partitions(changes));
    family.durability(persistence.durability()).build()
}

/// Creates the tables of the application.
pub async fn create_tables(mysql: &MySqlPool) -> Result<()> {
    let create = "CREATE TABLE votes (id BIGINT UNSIGNED PRIMARY KEY, votes BIGINT NOT NULL); \
                  CREATE TABLE saves (id BIGINT UNSIGNED, name VARBINARY(64), PRIMARY KEY (id, name)); \
                  CREATE TABLE seats (id BIGINT UNSIGNED PRIMARY KEY, taken BIGINT NOT NULL); \
                  CREATE TABLE likes (id BIGINT UNSIGNED PRIMARY KEY)";
    sqlx::raw_sql(create).execute(mysql).await?;
    Ok(())
}

/// Moves counterfoil's table of values to a disk.
pub async fn move_values(mysql: &MySqlPool, disk: &Path) -> Result<()> {
    let show = sqlx::query_as("SHOW CREATE TABLE counterfoil_values");
    let (_, create): (String, String) = show.fetch_one(mysql).await?;
    let place = format!(
        "DROP TABLE counterfoil_values; {create} DATA DIRECTORY = '{}'",
        disk.display()
    );
    sqlx::raw_sql(AssertSqlSafe(place)).execute(mysql).await?;
    Ok(())
}

/// Returns the number of saves and likes whose rows and counters differ.
pub async fn miscounted(mysql: &MySqlPool) -> Result<u64> {
    let counted: Vec<(String, String, i64)> = sqlx::query_as(
        "SELECT CAST(f.name AS CHAR), CAST(v.id AS CHAR), v.value FROM counterfoil_values AS v \
         JOIN counterfoil_families AS f ON f.number = v.family \
         WHERE f.name IN ('saves', 'likes') AND v.value <> 0",
    )
    .fetch_all(mysql)
    .await?;
    let rows: Vec<(String, String, i64)> = sqlx::query_as(
        "SELECT 'saves', CAST(id AS CHAR), COUNT(*) FROM saves GROUP BY id \
         UNION ALL SELECT 'likes', CAST(id AS CHAR), 1 FROM likes",
    )
    .fetch_all(mysql)
    .await?;
    let (counted, rows) = (BTreeSet::from_iter(counted), BTreeSet::from_iter(rows));
    for differing in counted.symmetric_difference(&rows) {
        let of = if rows.contains(differing) {
            "rows"
        } else {
            "counted"
        };
        let (family, id, number) = differing;
        eprintln!("{family} {id}: {number} {of}");
    }
    Ok(counted.symmetric_difference(&rows).count() as u64)
}

/// Waits until a recount that begins from now on will soon read the values that it corrects. Returns its
/// run.
pub async fn wait_for_correction(mysql: &MySqlPool) -> Result<u64> {
    let select = "SELECT run, TIMESTAMPDIFF(MICROSECOND, started_at, CURRENT_TIMESTAMP(3)) \
                  FROM counterfoil_recounts JOIN counterfoil_families AS f ON f.number = family \
                  WHERE f.name = 'saves' ORDER BY run DESC LIMIT 1";
    let begun = Instant::now();
    while begun.elapsed() < BEGUN {
        let last: Option<(u64, i64)> = sqlx::query_as(select).fetch_optional(mysql).await?;
        let (run, age) = last.unwrap_or_default();
        let age = Duration::from_micros(age.unsigned_abs());
        if age < begun.elapsed() && age > WITHIN - SOON {
            return Ok(run);
        }
        sleep(SOON / 10).await;
    }
    Err(format!("no recount has begun within {BEGUN:?}").into())
}

/// Waits until the run of a recount has ended, but no longer than it takes to continue it.
pub async fn wait_for_end(mysql: &MySqlPool, run: u64) -> sqlx::Result<()> {
    let select = "SELECT COUNT(*) FROM counterfoil_recounts JOIN counterfoil_families AS f \
                  ON f.number = family WHERE f.name = 'saves' AND run = ? AND finished_at IS NULL";
    let end = Instant::now() + 2 * (LEASE + WITHIN);
    while Instant::now() < end {
        let left: i64 = sqlx::query_scalar(select)
            .bind(run)
            .fetch_one(mysql)
            .await?;
        if left == 0 {
            break;
        }
        sleep(SOON / 10).await;
    }
    Ok(())
}

/// Returns the saves that have been counted more often than they have rows.
pub async fn overcounted(mysql: &MySqlPool) -> sqlx::Result<Vec<u64>> {
    let select = "SELECT CAST(v.id AS UNSIGNED) AS id FROM counterfoil_values AS v \
                  JOIN counterfoil_families AS f ON f.number = v.family WHERE f.name = 'saves' \
                  AND v.value > (SELECT COUNT(*) FROM saves AS s WHERE s.id = CAST(v.id AS UNSIGNED))";
    sqlx::query_scalar(select).fetch_all(mysql).await
}

/// Returns the hits in MySQL. Ids are `SECOND/ID` of a series, `views/MINUTE/ID` of an activity, and
/// `ID/DAY` of visitors. Votes include what another program added. Likes are not among them.
pub async fn stored(mysql: &MySqlPool) -> Result<BTreeMap<Counter, i64>> {
    let rows: Vec<(String, String, u64, i64)> = sqlx::query_as(
        "SELECT CAST(f.namespace AS CHAR), CAST(f.name AS CHAR), \
           CAST(SUBSTRING_INDEX(v.id, '/', IF(f.name = 'visitors', 1, -1)) AS UNSIGNED), \
           CAST(SUM(v.value) AS SIGNED) \
         FROM counterfoil_values AS v JOIN counterfoil_families AS f ON f.number = v.family \
         WHERE NOT (f.name = 'active' AND v.id LIKE 'visitors/%') AND f.name <> 'likes' \
         GROUP BY 1, 2, 3 \
         UNION ALL SELECT 'demo', 'views', id, hits FROM views \
         UNION ALL SELECT 'demo', 'votes', id, votes FROM votes",
    )
    .fetch_all(mysql)
    .await?;
    rows.into_iter()
        .map(|(namespace, name, id, value)| {
            let family = (0..PARTITIONS.len()).find(|family| names(*family) == (&namespace, &name));
            let family = family.ok_or_else(|| format!("a family {namespace}/{name} in MySQL"))?;
            Ok(((family, id), value))
        })
        .collect()
}
