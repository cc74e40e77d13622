//! The sample applications of frameworks, `examples/NAME`, under load. Servers, workers and the daemon are killed, and the
//! application is restarted. The rows in MySQL must equal the journal of what was acknowledged.
//!
//! `COUNTERFOIL_FRAMEWORK_SECONDS` is the time of the faults. Each is injected at least once.

mod app;
mod families;
mod journal;
mod load;
mod trouble;

use std::time::Duration;

use testkit::{MysqlServer, RedisOptions, RedisServer, Sample};
use tokio::task::spawn_blocking;

use self::app::App;
use self::families::Families;
use self::journal::Journal;
use self::load::{Load, Rows};
use self::trouble::Trouble;
use crate::support::{Daemon, Site};

/// The time of the load before the first fault, when everything has to be counted.
const CALM: Duration = Duration::from_secs(2);

/// A sample that runs, with its servers.
struct Stage {
    site: Site,
    mysql: MysqlServer,
    families: Families,
    daemon: Daemon,
    app: App,
}

impl Stage {
    /// Installs a sample and starts it on its own servers, or returns why it cannot be installed.
    async fn start(sample: Sample) -> Result<Self, String> {
        let installed = spawn_blocking(move || sample.install())
            .await
            .expect("it runs")?;
        let redis = RedisServer::start(RedisOptions::aof("always").tcp()).await;
        let mysql = MysqlServer::start_tcp(None).await;
        let (database, pool) = mysql.database("shop").await;
        let url = mysql.url(&database);
        let site = Site::of(redis, pool, url);
        // the same when it is started again
        let listen = format!("127.0.0.1:{}", testkit::free_port());
        let mut app = App::new(sample, installed, &site, &mysql, &database, &listen);
        app.prepare().await;
        let families = Families::of(sample, &site, &listen);
        let daemon = site.daemon().await;
        app.start().await;
        Ok(Stage {
            site,
            mysql,
            families,
            daemon,
            app,
        })
    }

    fn load(&self) -> Load {
        let rows = match self.app.name() {
            _ if !self.families.has_saves() => Rows::None,
            "wordpress" => Rows::AddedAndDeleted,
            _ => Rows::AlsoMoved,
        };
        Load::start(self.app.address(), rows)
    }

    /// Waits until everything is in MySQL.
    async fn drain(&self) {
        let drained = self.site.run(&["drain"]).await;
        assert_eq!(drained.code, 0, "{drained:?}\n{}", self.daemon.log());
    }
}

async fn rows_equal_the_journal(sample: &'static str) {
    let mut stage = match Stage::start(Sample(sample)).await {
        Ok(stage) => stage,
        Err(reason) => return eprintln!("{sample} is skipped: {}", reason.trim()),
    };
    let mut journal = Journal::default();
    let load = stage.load();
    tokio::time::sleep(CALM).await;
    journal.merge(load.stop().await);
    stage.drain().await;
    assert_eq!(journal.unknown(), 0, "without a fault");
    stage.families.check(&stage.site, &journal).await;
    assert_eq!(
        stage.families.drift(&stage.site).await,
        0,
        "rows on commit, without a fault"
    );

    let load = stage.load();
    let mut trouble = Trouble::default();
    trouble.go_on(&mut stage).await;
    journal.merge(load.stop().await);
    stage.app.end().await;
    stage.drain().await;
    println!("{sample}: {journal}, {trouble}");
    stage.families.check(&stage.site, &journal).await;
    if stage.families.has_saves() {
        let drift = stage.families.drift(&stage.site).await;
        stage.families.recount(&stage.site).await;
        stage.drain().await;
        let after = stage.families.drift(&stage.site).await;
        println!(
            "{sample}: rows whose count was lost in a crash: {drift}, after the recount: {after}"
        );
        assert_eq!(after, 0);
    }
    stage.app.tests().await;
}

macro_rules! samples {
    ($($name:ident)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            rows_equal_the_journal(stringify!($name)).await;
        }
    )*};
}

samples! { django express fastapi fastify laravel nethttp next rails serverless wordpress }
