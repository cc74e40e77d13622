//! Tests of the servers that the rest of the project's tests rely on.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use redis::AsyncCommands;
use testkit::{MysqlServer, RedisOptions, RedisServer};

/// The variable that is set for the child that is killed below.
const OWNER: &str = "TESTKIT_TEST_OWNER";

#[test]
fn versions_are_one_line_each() {
    let versions = testkit::versions();
    println!("{versions}");
    let lines: Vec<&str> = versions.lines().collect();
    assert_eq!(lines.len(), 2);
    assert!(
        lines[0].starts_with("redis: ") && lines[0].contains("v="),
        "{versions}"
    );
    assert!(
        lines[1].starts_with("mysql: ") && lines[1].contains("Ver"),
        "{versions}"
    );
}

#[tokio::test]
async fn redis_loses_exactly_what_was_cut_off() {
    for fsync in ["always", "no"] {
        let server = RedisServer::start(RedisOptions::aof(fsync)).await;
        let mut redis = server.manager().await;
        let _: () = redis.set("earlier", "here").await.unwrap();
        let length = server.aof_len();
        let _: () = redis.set("later", "gone").await.unwrap();
        assert!(server.aof_len() > length);

        // A kill alone loses nothing.
        server.kill();
        server.start_again().await;
        let mut redis = server.manager().await;
        assert_eq!(redis.get::<_, String>("later").await.unwrap(), "gone");

        server.kill();
        server.cut_aof(length);
        server.start_again().await;
        let mut redis = server.manager().await;
        assert_eq!(redis.get::<_, String>("earlier").await.unwrap(), "here");
        assert_eq!(redis.get::<_, Option<String>>("later").await.unwrap(), None);
    }
}

#[tokio::test]
async fn redis_loads_a_write_that_was_cut_in_two_as_not_written() {
    let server = RedisServer::start(RedisOptions::aof("always")).await;
    let mut redis = server.manager().await;
    let _: () = redis.set("earlier", "here").await.unwrap();
    let length = server.aof_len();
    let script = |keys: [&str; 2]| {
        let script = "redis.call('SET', KEYS[1], 'a') redis.call('SET', KEYS[2], 'b')";
        redis::cmd("EVAL").arg(script).arg(2).arg(&keys).to_owned()
    };
    let _: () = script(["later", "last"])
        .query_async(&mut redis)
        .await
        .unwrap();
    server.kill();
    // A cut in the middle of the script's second write also drops its first one.
    server.cut_aof(server.aof_len() - 20);
    assert!(server.aof_len() > length);
    // At a second start Redis would execute the first one after all.
    for _ in 0..2 {
        server.start_again().await;
        let mut redis = server.manager().await;
        let found: Vec<Option<String>> = redis.mget(&["earlier", "later", "last"]).await.unwrap();
        assert_eq!(found, [Some("here".to_owned()), None, None]);
        let more = script(["more", "most"]);
        let _: () = more.query_async(&mut redis).await.unwrap();
        server.kill();
    }
}

#[tokio::test]
async fn a_server_that_ends_at_once_shows_its_log() {
    let started = tokio::spawn(RedisServer::start(
        RedisOptions::volatile().arg("no-such-setting", "1"),
    ));
    let panic = match started.await {
        Ok(_) => panic!("a setting that does not exist was accepted"),
        Err(error) => error.into_panic(),
    };
    let message = panic.downcast_ref::<String>().expect("a message");
    assert!(message.contains("no-such-setting"), "{message}");
    // The panic keeps the directory on purpose; its path is in the message.
    let log = message
        .lines()
        .find_map(|line| line.trim().strip_prefix("end of ")?.strip_suffix(":"))
        .unwrap();
    std::fs::remove_dir_all(Path::new(log).parent().unwrap()).unwrap();
}

#[tokio::test]
async fn nothing_is_left_after_a_drop() {
    let server = RedisServer::start(RedisOptions::aof("everysec")).await;
    let socket = server.socket().to_owned();
    drop(server);
    assert!(is_gone(&socket));
}

#[test]
fn nothing_is_left_after_the_owner_was_killed() {
    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args(["servers::owner", "--exact", "--ignored", "--nocapture"])
        .env(OWNER, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(owner.stdout.take().unwrap())
        .lines()
        .map(|line| line.unwrap());
    let sockets: Vec<PathBuf> = lines
        .filter_map(|line| line.split_once("socket=").map(|(_, path)| path.into()))
        .take(3)
        .collect();
    assert_eq!(sockets.len(), 3);
    assert!(UnixStream::connect(&sockets[0]).is_ok() && UnixStream::connect(&sockets[1]).is_ok());

    owner.kill().unwrap();
    owner.wait().unwrap();
    let killed = Instant::now();
    while !sockets.iter().all(|socket| is_gone(socket)) {
        assert!(
            killed.elapsed() < Duration::from_secs(5),
            "left over: {sockets:?}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    println!("gone after {:?}", killed.elapsed());
}

/// Not a test: the process that the test above kills. One of its servers is down at that time, one
/// is paused.
#[tokio::test]
#[ignore = "run by nothing_is_left_after_the_owner_was_killed"]
async fn owner() {
    if std::env::var_os(OWNER).is_none() {
        return;
    }
    let redis = RedisServer::start(RedisOptions::aof("always")).await;
    let mysql = MysqlServer::start().await;
    let down = RedisServer::start(RedisOptions::volatile()).await;
    down.kill();
    println!("\nsocket={}", redis.socket().display());
    println!("socket={}", mysql.socket().display());
    println!("socket={}", down.socket().display());
    redis.pause();
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn directories_are_kept_on_demand() {
    let keeper = Command::new(std::env::current_exe().unwrap())
        .args(["servers::keeper", "--exact", "--ignored", "--nocapture"])
        .env(OWNER, "1")
        .output()
        .unwrap();
    let (lines, told) = [keeper.stdout, keeper.stderr]
        .map(|text| String::from_utf8(text).unwrap())
        .into();
    let files = lines.lines().filter_map(|line| line.strip_prefix("file="));
    let files: Vec<_> = files.map(Path::new).collect();
    assert!((2..=3).contains(&files.len()), "{lines}{told}");
    for file in files {
        let directory = file.ancestors().find(|path| path.join("log").is_file());
        let directory = directory.unwrap_or_else(|| panic!("{file:?} is gone: {lines}{told}"));
        assert!(file.is_file(), "{file:?}");
        assert!(told.contains(directory.to_str().unwrap()), "{told}");
        std::fs::remove_dir_all(directory).unwrap();
    }
}

/// Not a test: a process whose servers are kept. It ends without dropping the last one.
#[tokio::test]
#[ignore = "run by directories_are_kept_on_demand"]
async fn keeper() {
    if std::env::var_os(OWNER).is_none() {
        return;
    }
    let dropped = RedisServer::start(RedisOptions::volatile()).await;
    let with_disk = RedisServer::start_with_disk(RedisOptions::volatile().arg("save", "60 1"));
    let with_disk = with_disk.await;
    testkit::keep();
    println!(
        "\nfile={}",
        dropped.socket().with_file_name("log").display()
    );
    drop(dropped);
    if let Ok(server) = with_disk {
        server.run::<()>("SAVE").await.unwrap();
        let disk = server.disk().unwrap();
        println!("file={}", disk.dir().join("dump.rdb").display());
        disk.fill();
    }
    let later = RedisServer::start(RedisOptions::volatile()).await;
    println!("file={}", later.socket().with_file_name("log").display());
    std::process::exit(0);
}

fn is_gone(socket: &Path) -> bool {
    UnixStream::connect(socket).is_err() && !socket.parent().unwrap().exists()
}
