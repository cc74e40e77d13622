//! A pair of private servers with a configuration, and the program that runs on them.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use counterfoil::admin::Script;
use counterfoil::redis::cmd;
use counterfoil::sqlx::{self, AssertSqlSafe, MySqlPool};
use counterfoil::{Counterfoil, MemoryStore, MysqlStore};
use tempfile::TempDir;
use testkit::{MysqlServer, RedisOptions, RedisServer};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::OnceCell;
use tokio::time::{sleep, timeout};

static MYSQL: OnceCell<MysqlServer> = OnceCell::const_new();

/// A private Redis, a private database, and a folder with a configuration.
pub struct Site {
    pub redis: RedisServer,
    pub pool: MySqlPool,
    pub mysql_url: String,
    folder: TempDir,
}

/// The output and the exit code of a command.
#[derive(Debug)]
pub struct Output {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Site {
    /// Creates a site with counterfoil's tables, on the shared MySQL.
    pub async fn new() -> Self {
        let site = Site::on(MYSQL.get_or_init(MysqlServer::start).await).await;
        MysqlStore::new(&site.pool)
            .unwrap()
            .create_tables()
            .await
            .expect("counterfoil's tables");
        site
    }

    /// Creates a site without counterfoil's tables.
    pub async fn without_tables() -> Self {
        Site::on(MYSQL.get_or_init(MysqlServer::start).await).await
    }

    /// Creates a site with an empty database on `mysql`.
    pub async fn on(mysql: &MysqlServer) -> Self {
        let redis = RedisServer::start(RedisOptions::volatile()).await;
        let (database, pool) = mysql.database("cli").await;
        Site::of(redis, pool, mysql.url(&database))
    }

    /// Creates a site on existing servers.
    pub fn of(redis: RedisServer, pool: MySqlPool, mysql_url: String) -> Self {
        Site {
            redis,
            pool,
            mysql_url,
            folder: TempDir::new().expect("a folder"),
        }
    }

    /// Writes the configuration: the pair `main`, and `more`.
    pub fn configure(&self, more: &str) -> PathBuf {
        self.configure_pair("", more)
    }

    /// Writes the configuration with more settings of the pair.
    pub fn configure_pair(&self, of_pair: &str, more: &str) -> PathBuf {
        let (redis, mysql) = (self.redis.url(), &self.mysql_url);
        self.write(&format!(
            "listen = \"127.0.0.1:0\"\n[pair.main]\nredis = {redis:?}\nmysql = {mysql:?}\n\
             durability = \"immediate\"\n{of_pair}\n{more}"
        ))
    }

    pub fn write(&self, text: &str) -> PathBuf {
        let path = self.folder.path().join("counterfoil.toml");
        fs::write(&path, text).expect("written");
        path
    }

    /// Writes the daemon's port into the configuration, so that commands reach it.
    pub fn listens_at(&self, daemon: &Daemon) {
        let path = self.folder.path().join("counterfoil.toml");
        let text = fs::read_to_string(path).expect("the configuration");
        let address = daemon.address().expect("it listens");
        self.write(&text.replace("127.0.0.1:0", &address.to_string()));
    }

    pub fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// Returns a process that counts and has no access to the database.
    pub async fn writer(&self) -> Counterfoil {
        Counterfoil::new(self.redis.manager().await, MemoryStore::new())
    }

    pub async fn sql(&self, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&self.pool)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    /// Ends the sessions of a user of the database. Only MariaDB has KILL USER.
    pub async fn end_sessions(&self, user: &str) {
        let select = "SELECT CAST(id AS SIGNED) FROM information_schema.processlist WHERE user = ?";
        let mut connection = self.pool.acquire().await.unwrap();
        let ids: Result<Vec<i64>, _> = sqlx::query_scalar(select)
            .bind(user)
            .fetch_all(&mut *connection)
            .await;
        for id in ids.unwrap() {
            // one that has just ended is unknown
            let kill = AssertSqlSafe(format!("KILL {id}"));
            let _ = sqlx::raw_sql(kill).execute(&mut *connection).await;
        }
    }

    /// Announces a family, as a client does that Redis does not know it for.
    pub async fn want(&self, family: &str) {
        let script = Script::named("family_want").expect("a script");
        let mut call = cmd("EVAL");
        call.arg(script.source).arg(1).arg("cf1:wanted").arg(family);
        let mut redis = self.redis.manager().await;
        let called = call.exec_async(&mut redis).await;
        called.expect("it is announced");
    }

    /// Returns the number that the query selects, or 0 if there is none.
    pub async fn number(&self, sql: &str) -> i64 {
        let query = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_optional(&self.pool);
        query
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"))
            .unwrap_or(0)
    }

    pub fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_counterfoil"));
        command
            // advice then names it like this, wherever it was built
            .arg0("counterfoil")
            .current_dir(self.folder.path())
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    /// Runs a command of the program to its end.
    pub async fn run(&self, args: &[&str]) -> Output {
        self.run_with(args, &[]).await
    }

    /// Runs a command with more variables in the environment.
    pub async fn run_with(&self, args: &[&str], environment: &[(&str, &str)]) -> Output {
        let mut command = self.command();
        command.args(args).envs(environment.iter().copied());
        let ended = timeout(Duration::from_secs(60), command.output()).await;
        let ended = ended
            .unwrap_or_else(|_| panic!("{args:?} did not end"))
            .expect("it runs");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        Output {
            code: ended.status.code().unwrap_or(-1),
            out: text(ended.stdout),
            err: text(ended.stderr),
        }
    }

    /// Starts the daemon, and returns when it listens.
    pub async fn daemon(&self) -> Daemon {
        self.daemon_with(|command| command).await
    }

    pub async fn daemon_with(&self, change: impl FnOnce(&mut Command) -> &mut Command) -> Daemon {
        let mut command = self.command();
        change(command.arg("run"));
        Daemon::start(command).await
    }
}

/// A running daemon.
pub struct Daemon {
    pub process: Child,
    log: Arc<Mutex<String>>,
}

impl Daemon {
    /// Starts a command that runs a daemon, and returns when it listens.
    pub async fn start(mut command: Command) -> Daemon {
        command.stderr(Stdio::piped());
        let mut process = command.spawn().expect("it starts");
        let mut lines = BufReader::new(process.stderr.take().expect("piped")).lines();
        let log = Arc::new(Mutex::new(String::new()));
        let written = log.clone();
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                let mut log = written.lock().expect("the log");
                *log += &line;
                log.push('\n');
            }
        });
        let daemon = Daemon { process, log };
        eventually("the daemon listens", async || daemon.address().is_some()).await;
        daemon
    }

    /// Returns the log so far.
    pub fn log(&self) -> String {
        self.log.lock().expect("the log").clone()
    }

    fn address(&self) -> Option<SocketAddr> {
        let log = self.log();
        let address = log
            .split_once("listening address=")?
            .1
            .split_whitespace()
            .next()?;
        address.parse().ok()
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address().expect("it listens"))
    }

    /// Returns the number of log lines with all of these words.
    pub fn lines(&self, words: &[&str]) -> usize {
        self.log()
            .lines()
            .filter(|line| words.iter().all(|word| line.contains(word)))
            .count()
    }

    /// Waits for a line with these words.
    pub async fn logs(&self, words: &[&str]) {
        self.logs_times(1, words).await;
    }

    pub async fn logs_times(&self, times: usize, words: &[&str]) {
        let started = Instant::now();
        while self.lines(words) < times {
            assert!(
                started.elapsed() < Duration::from_secs(20),
                "waited for {words:?} in\n{}",
                self.log()
            );
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// Returns the number of the process.
    pub fn id(&self) -> u32 {
        self.process.id().expect("it runs")
    }

    /// Sends a signal, such as TERM, HUP or KILL.
    pub fn signal(&self, signal: &str) {
        testkit::signal(&self.process, signal);
    }

    /// Waits for the end, and returns the exit status and the log.
    pub async fn ended(mut self) -> (ExitStatus, String) {
        let status = timeout(Duration::from_secs(40), self.process.wait())
            .await
            .expect("it ends");
        sleep(Duration::from_millis(50)).await;
        (status.expect("its status"), self.log())
    }
}

/// Waits for a condition that becomes true soon.
pub async fn eventually(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !is_so().await {
        assert!(
            started.elapsed() < Duration::from_secs(30),
            "waited for: {what}"
        );
        sleep(Duration::from_millis(10)).await;
    }
}
