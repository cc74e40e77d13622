//! The daemon over a long time: memory and file descriptors stay constant, and each hit is counted
//! once. A short run is part of the other tests. The command for a long one:
//! `COUNTERFOIL_SOAK_SECONDS=600 ./dev test -p counterfoil-cli --test it -- soak --nocapture`

use std::time::{Duration, Instant};

use counterfoil::{Counterfoil, Durability, Family, MysqlStore, Primary};

use crate::client::get;
use crate::support::{Daemon, Site, eventually};

/// The number of families that applications count in, while clients request the page, the metrics
/// and the API.
const TENANTS: usize = 20;
const ALL: &str = "SELECT CAST(COALESCE(SUM(value), 0) AS SIGNED) FROM counterfoil_values";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_and_files_stay_as_they_are() {
    let seconds = std::env::var("COUNTERFOIL_SOAK_SECONDS")
        .map_or(6, |seconds| seconds.parse().expect("seconds"));
    let (whole, warm) = (
        Duration::from_secs(seconds),
        Duration::from_secs(seconds) / 3,
    );
    let site = Site::new().await;
    site.configure("[[family]]\nname = \"shop-*/views\"\nkind = \"buffered\"\nsync_hits = 1\nsync_time = \"50ms\"");
    let daemon = site.daemon().await;
    daemon.logs(&["started"]).await;
    let redis = Primary::connect(site.redis.url()).await.unwrap();
    let application = Counterfoil::new(redis, MysqlStore::new(&site.pool).unwrap());
    let mut families = Vec::new();
    for tenant in 0..TENANTS {
        let views =
            Family::buffered(format!("shop-{tenant}"), "views").durability(Durability::Immediate);
        let views = views.sync_hits(1).sync_time(Duration::from_millis(50));
        families.push(application.open(views).await.unwrap());
    }
    let (begun, mut told, mut round) = (Instant::now(), 0, 0);
    let mut before = None;
    while begun.elapsed() < whole {
        for views in &families {
            for page in 0..10 {
                let _ = views.add(&format!("page/{page}"), 1).await.unwrap();
                told += 1;
            }
        }
        for path in [
            "/",
            "/metrics",
            "/api/v1/state",
            "/api/v1/values?family=shop-3/views&id=page/1",
        ] {
            assert_ne!(get(&daemon, path).await.status, 500, "{path}");
        }
        if before.is_none() && begun.elapsed() > warm {
            before = Some(uses(&daemon));
        }
        round += 1;
        if round % 50 == 0 {
            // break connections now and then
            let _: i64 = site
                .redis
                .run("CLIENT KILL TYPE normal SKIPME yes")
                .await
                .unwrap();
        }
    }
    let ((memory, files), (memory_after, files_after)) =
        (before.expect("it is warm"), uses(&daemon));
    eventually("every hit", async || site.number(ALL).await == told).await;
    println!(
        "soak: {seconds} s, {told} hits, {round} rounds of 4 requests: {:.1} MB and {files} files after a third of the time, \
         {:.1} MB and {files_after} files at the end",
        memory / 1e6,
        memory_after / 1e6
    );
    assert!(
        files_after <= files + 15,
        "{files} files became {files_after}"
    );
    if seconds >= 60 {
        assert!(
            memory_after < memory * 1.2,
            "{memory} bytes became {memory_after}"
        );
    }
    daemon.signal("TERM");
    let (status, log) = daemon.ended().await;
    assert!(status.success(), "{log}");
}

/// Returns the daemon's memory in bytes and its number of file descriptors.
fn uses(daemon: &Daemon) -> (f64, usize) {
    let folder = format!("/proc/{}", daemon.process.id().expect("it runs"));
    let status = std::fs::read_to_string(format!("{folder}/status")).expect("a process");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .expect("its memory");
    let kb: f64 = line
        .trim()
        .trim_end_matches("kB")
        .trim()
        .parse()
        .expect("a number");
    (
        kb * 1024.0,
        std::fs::read_dir(format!("{folder}/fd"))
            .expect("its files")
            .count(),
    )
}
