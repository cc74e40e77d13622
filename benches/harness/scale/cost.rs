//! The costs of one Redis and one MySQL.

use counterfoil::Counterfoil;
use counterfoil::test_hooks::{CallReply, Fence, Partition, PartitionCall, Update};
use redis::aio::MultiplexedConnection;
use testkit::{RedisOptions, RedisServer};

use crate::measuring::{Bench, Pending, Stage, process, redis_cpu};

/// The pending ids that calls change.
const IDS: u32 = 100_000;
/// What Redis does besides.
#[derive(Clone, Copy)]
pub struct Setting {
    pub name: &'static str,
    aof: bool,
    replica: bool,
}

pub const SETTINGS: [Setting; 3] = [
    Setting {
        name: "memory only",
        aof: false,
        replica: false,
    },
    Setting {
        name: "appendfsync everysec",
        aof: true,
        replica: false,
    },
    Setting {
        name: "a replica",
        aof: false,
        replica: true,
    },
];

/// Microseconds of Redis.
pub struct Redis {
    pub call: f64,
    /// A partition in a call.
    pub partition: f64,
    /// A distinct id in a call.
    pub id: f64,
    /// The sync of a partition.
    pub sync: f64,
    /// A row of a sync: the id comes into Redis, and leaves it.
    pub row: f64,
}

/// Microseconds of MySQL.
pub struct Mysql {
    pub sync: f64,
    /// A row that exists.
    pub row: f64,
    pub new_row: f64,
}

pub struct Costs {
    pub redis: Redis,
    pub mysql: Mysql,
}

/// Seconds of CPU time.
struct Spent {
    redis: f64,
    mysql: f64,
}

impl Costs {
    pub async fn measure(bench: &Bench, setting: Setting) -> Self {
        let (pending, _replica) = pending(bench, setting, 4).await;
        let filled = fill(&pending).await;
        let calls = bench.size(30_000, 6_000);
        let lone = add(&pending, 1, 1, calls).await;
        let hundred = add(&pending, 1, 100, calls / 10).await;
        let spread = add(&pending, 4, 25, calls / 10).await;
        let id = (hundred - lone) / 99.0;
        let partition = ((spread - hundred) / 3.0).max(0.0);
        let mysql = mysql_pid(&pending).await;
        let rows = f64::from(IDS);
        let inserted = flush(&pending, mysql).await;
        fill(&pending).await;
        let updated = flush(&pending, mysql).await;
        // a pending id costs this much already
        let row = (filled + updated.redis) * 1e6 / rows - id;
        let mysql_row = updated.mysql * 1e6 / rows;
        let synced = syncs(bench, setting, mysql).await;
        Costs {
            redis: Redis {
                call: lone - id - partition,
                partition,
                id,
                sync: synced.redis - SPARSE * updated.redis * 1e6 / rows,
                row,
            },
            mysql: Mysql {
                sync: synced.mysql - SPARSE * mysql_row,
                row: mysql_row,
                new_row: inserted.mysql * 1e6 / rows,
            },
        }
    }

    /// Keeps the figures for the summary and `--json`.
    pub fn record(&self, bench: &mut Bench, setting: &str) {
        for (name, value) in self.named() {
            let name = format!("scale_{setting}_{name}_us").replace(": ", "_");
            bench.absolute(name.replace(' ', "_").to_lowercase(), value);
        }
    }

    fn named(&self) -> [(&'static str, f64); 8] {
        let Costs { redis, mysql } = self;
        [
            ("Redis: a call", redis.call),
            ("Redis: a partition in a call", redis.partition),
            ("Redis: an id in a call", redis.id),
            ("Redis: the sync of a partition", redis.sync),
            ("Redis: a row", redis.row),
            ("MySQL: the sync of a partition", mysql.sync),
            ("MySQL: a row that exists", mysql.row),
            ("MySQL: a new row", mysql.new_row),
        ]
    }
}

/// Prints a column for each setting.
pub fn print(all: &[(Setting, Costs)]) {
    let names = all.iter().map(|(setting, _)| setting.name);
    println!("| | {} |", names.collect::<Vec<_>>().join(" | "));
    println!("|---|{}", "---|".repeat(all.len()));
    for line in 0..8 {
        let values = all
            .iter()
            .map(|(_, costs)| format!("{:.2}", costs.named()[line].1));
        println!(
            "| {} | {} |",
            all[0].1.named()[line].0,
            values.collect::<Vec<_>>().join(" | ")
        );
    }
}

pub fn names(ids: u32) -> impl Iterator<Item = String> {
    (0..ids).map(|number| format!("page/{number}"))
}

/// Starts a Redis with that setting, and returns its replica as well.
async fn pending(
    bench: &Bench,
    setting: Setting,
    partitions: u32,
) -> (Pending, Option<RedisServer>) {
    let options = || match setting.aof {
        true => RedisOptions::aof("everysec").tcp(),
        false => RedisOptions::volatile().tcp(),
    };
    let redis = RedisServer::start(options()).await;
    let mut replica = None;
    if setting.replica {
        let started = RedisServer::start(options()).await;
        started.replica_of(&redis).await;
        replica = Some(started);
    }
    let mut stage = Stage::on(bench, redis).await;
    // as applications on other machines connect
    stage.probe = by_tcp(&stage.redis).await;
    let store = stage.pair.mysql().unwrap().clone();
    stage.pair = Counterfoil::new(by_tcp(&stage.redis).await, store);
    (Pending::on(stage, partitions).await, replica)
}

async fn by_tcp(redis: &RedisServer) -> MultiplexedConnection {
    let client = redis::Client::open(redis.tcp_url()).unwrap();
    client.get_multiplexed_async_connection().await.unwrap()
}

/// Makes all ids pending. Returns the CPU seconds of Redis.
async fn fill(pending: &Pending) -> f64 {
    let before = redis_cpu(&mut pending.probe.clone()).await;
    pending.fill(names(IDS)).await;
    redis_cpu(&mut pending.probe.clone()).await - before
}

/// Returns the microseconds of Redis of a fenced call with `ids` pending ids in each of so many
/// partitions. The calls follow each other: Redis wakes up for each one, as it does unless it is
/// overloaded.
async fn add(pending: &Pending, partitions: usize, ids: usize, calls: u64) -> f64 {
    let family = pending.counters.family();
    let of_family: Vec<Partition> = pending.partitions().collect();
    let mut names_of = vec![Vec::new(); of_family.len()];
    for name in names(IDS) {
        names_of[family.partition_of(&name) as usize].push(name);
    }
    let epoch = of_family[0].epoch(family, "").await.unwrap();
    let (epoch, home) = (epoch.unwrap().now, of_family[0].keys());
    let caller = format!("{partitions:08x}{ids:08x}-0");
    let before = redis_cpu(&mut pending.probe.clone()).await;
    for n in 1..=calls {
        let first = (n as usize * 101) % (names_of[0].len() / 2);
        let parts: Vec<_> = of_family[..partitions]
            .iter()
            .zip(&names_of)
            .map(|(partition, names)| PartitionCall {
                partition,
                hits: ids as u64,
                pairs: names[first..first + ids]
                    .iter()
                    .map(|name| (name.as_bytes(), Update::Add(1))),
                seeds: Vec::new(),
            })
            .collect();
        let fence = Fence {
            home,
            caller: &caller,
            n,
            epoch: &epoch,
        };
        let counted = Partition::add_to(family, fence, &parts, &[]).await.unwrap();
        assert!(
            matches!(
                counted,
                CallReply::Executed {
                    repeated: false,
                    ..
                }
            ),
            "{counted:?}"
        );
    }
    (redis_cpu(&mut pending.probe.clone()).await - before) * 1e6 / calls as f64
}

async fn mysql_pid(pending: &Pending) -> u32 {
    let file = sqlx::query_scalar::<_, String>("SELECT @@pid_file").fetch_one(&pending.pool);
    let pid = std::fs::read_to_string(file.await.unwrap()).unwrap();
    pid.trim().parse().unwrap()
}

/// Brings everything that is pending to MySQL.
async fn flush(pending: &Pending, mysql: u32) -> Spent {
    let mut probe = pending.probe.clone();
    let before = (redis_cpu(&mut probe).await, process::cpu(mysql));
    pending.pair.drain().await.unwrap();
    Spent {
        redis: redis_cpu(&mut probe).await - before.0,
        mysql: process::cpu(mysql) - before.1,
    }
}

/// The mean number of ids in a partition while partitions with few ids are measured.
const SPARSE: f64 = 4.0;

/// Returns the mean microseconds of the sync of a partition with few ids.
async fn syncs(bench: &Bench, setting: Setting, mysql: u32) -> Spent {
    const PARTITIONS: u32 = 512;
    let (pending, _replica) = pending(bench, setting, PARTITIONS).await;
    let rounds = bench.size(8, 2);
    let mut all = Spent {
        redis: 0.0,
        mysql: 0.0,
    };
    for round in 0..=rounds {
        pending.fill(names(PARTITIONS * SPARSE as u32)).await;
        let spent = flush(&pending, mysql).await;
        // the first one inserts the rows
        if round > 0 {
            all.redis += spent.redis;
            all.mysql += spent.mysql;
        }
    }
    let of_each = 1e6 / f64::from(PARTITIONS * rounds);
    Spent {
        redis: all.redis * of_each,
        mysql: all.mysql * of_each,
    }
}
