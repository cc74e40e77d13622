//! The process of a sample, with its workers.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use rand::seq::IndexedRandom;
use testkit::{MysqlServer, Sample};
use tokio::process::{Child, Command};
use tokio::time::{sleep, timeout};

use super::load::ask;
use crate::support::Site;

/// The exit code of `dev restart` where a server is restarted by stopping it.
const NO_ROLLING_RESTART: i32 = 77;
const COMMAND_LIMIT: Duration = Duration::from_secs(240);
const START_LIMIT: Duration = Duration::from_secs(60);
const END_LIMIT: Duration = Duration::from_secs(30);

pub struct App {
    sample: Sample,
    installed: PathBuf,
    environment: Vec<(&'static str, String)>,
    port: u16,
    log: PathBuf,
    process: Option<Child>,
    /// The first process, which names the process group.
    group: u32,
}

impl App {
    pub fn new(
        sample: Sample,
        installed: PathBuf,
        site: &Site,
        mysql: &MysqlServer,
        database: &str,
        daemon: &str,
    ) -> Self {
        let port = testkit::free_port();
        let environment = vec![
            ("PORT", port.to_string()),
            ("COUNTERFOIL_REDIS", site.redis.tcp_url()),
            ("COUNTERFOIL_DAEMON", format!("http://{daemon}")),
            ("MYSQL_HOST", "127.0.0.1".to_owned()),
            ("MYSQL_PORT", mysql.port().to_string()),
            ("MYSQL_SOCKET", mysql.socket().display().to_string()),
            ("MYSQL_DATABASE", database.to_owned()),
            ("MYSQL_USER", "root".to_owned()),
        ];
        App {
            sample,
            installed,
            environment,
            port,
            log: site.folder().join("app.log"),
            process: None,
            group: 0,
        }
    }

    pub fn name(&self) -> &'static str {
        self.sample.0
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Creates the tables and the products of the sample.
    pub async fn prepare(&self) {
        self.runs("prepare").await;
    }

    /// Runs the sample's own tests, which may use its servers.
    pub async fn tests(&self) {
        self.runs("tests").await;
    }

    async fn runs(&self, command: &str) {
        let ended = timeout(COMMAND_LIMIT, self.dev(command).output()).await;
        let ended =
            ended.unwrap_or_else(|_| panic!("{}: dev {command} does not end", self.sample.0));
        let Output {
            status,
            stdout,
            stderr,
        } = ended.expect("it runs");
        let printed = String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned();
        assert!(
            status.success(),
            "{}: dev {command}: {status}\n{printed}",
            self.sample.0
        );
    }

    /// Starts the application, and returns when it serves.
    pub async fn start(&mut self) {
        let log = File::options()
            .create(true)
            .append(true)
            .open(&self.log)
            .expect("a log");
        let errors = log.try_clone().expect("a log");
        let process = self
            .dev("run")
            .stdout(log)
            .stderr(errors)
            .process_group(0)
            .spawn();
        self.process = Some(process.expect("it starts"));
        self.group = self.id();
        self.serves().await;
    }

    /// Waits until the list of products is served.
    async fn serves(&mut self) {
        let started = Instant::now();
        loop {
            let list = ask(&self.address(), "GET", "/products", "", "").await;
            if list.is_ok_and(|reply| reply.status == 200) {
                return;
            }
            let ended = self
                .process
                .as_mut()
                .and_then(|process| process.try_wait().expect("its state"));
            assert!(
                ended.is_none() && started.elapsed() < START_LIMIT,
                "{} does not serve ({ended:?}): {}",
                self.sample.0,
                self.log()
            );
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Kills a process of the application that has no children: a worker. If the application ends, it is started again.
    pub async fn kill_worker(&mut self) {
        let worker = leaves(self.id()).choose(&mut rand::rng()).copied();
        let worker = worker.expect("at least the application itself");
        kill(&["-KILL", &worker.to_string()]);
        sleep(Duration::from_millis(100)).await;
        let process = self.process.as_mut().expect("it runs");
        if process.try_wait().expect("its state").is_some() {
            self.kill_the_rest();
            self.start().await;
        } else {
            self.serves().await;
        }
    }

    /// Replaces all workers, one after the other if the server can.
    pub async fn restart(&mut self) {
        let mut restart = self.dev("restart");
        let restarted = restart
            .arg(self.id().to_string())
            .output()
            .await
            .expect("it runs");
        match restarted.status.code() {
            Some(0) => self.serves().await,
            Some(NO_ROLLING_RESTART) => {
                self.end().await;
                self.start().await;
            }
            _ => panic!("dev restart: {restarted:?}"),
        }
    }

    /// Ends the application by SIGTERM.
    pub async fn end(&mut self) {
        let process = self.process.as_mut().expect("it runs");
        testkit::signal(process, "TERM");
        let ended = timeout(END_LIMIT, process.wait()).await;
        assert!(
            ended.is_ok(),
            "{} does not end: {}",
            self.sample.0,
            self.log()
        );
        self.kill_the_rest();
    }

    /// Kills what the application left in its process group.
    fn kill_the_rest(&self) {
        if self.group > 0 {
            kill(&["-KILL", "--", &format!("-{}", self.group)]);
        }
    }

    fn id(&self) -> u32 {
        let process = self.process.as_ref().and_then(Child::id);
        process.unwrap_or_else(|| panic!("{} has ended: {}", self.sample.0, self.log()))
    }

    fn dev(&self, command: &str) -> Command {
        let mut dev = Command::from(self.sample.dev(command, &self.installed));
        dev.envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .kill_on_drop(true);
        dev
    }

    /// Returns the end of the log.
    fn log(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log).into_owned();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }
}

impl Drop for App {
    fn drop(&mut self) {
        self.kill_the_rest();
    }
}

/// Returns the processes below `root` that have no children, or `root` if it has none.
fn leaves(root: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{root}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let children = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let children: Vec<u32> = children
        .flat_map(|ids| ids.split_whitespace().map(str::parse).collect::<Vec<_>>())
        .flatten()
        .collect();
    if children.is_empty() {
        return vec![root];
    }
    children.into_iter().flat_map(leaves).collect()
}

fn kill(args: &[&str]) {
    let kill = std::process::Command::new("kill")
        .args(args)
        .stderr(Stdio::null())
        .status();
    // its status tells only whether the process was still there
    kill.expect("kill runs");
}
