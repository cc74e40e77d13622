//! The faults: servers, workers and the daemon are killed, connections cut, the application is restarted.

use std::fmt;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::Stage;

/// The pause before a fault, and that before a killed server is started again.
const PAUSE: Duration = Duration::from_millis(700);
const AWAY: Duration = Duration::from_millis(300);

const FAULTS: [Fault; 6] = [
    Fault::Worker,
    Fault::Redis,
    Fault::Restart,
    Fault::Mysql,
    Fault::Daemon,
    Fault::Connections,
];

#[derive(Clone, Copy, Debug)]
enum Fault {
    Worker,
    Redis,
    Restart,
    Mysql,
    Daemon,
    Connections,
}

/// The number of faults so far.
#[derive(Default)]
pub struct Trouble(usize);

impl Trouble {
    /// Injects each fault in turn until the time is over, and each at least once.
    pub async fn go_on(&mut self, stage: &mut Stage) {
        let seconds = std::env::var("COUNTERFOIL_FRAMEWORK_SECONDS");
        let seconds = seconds.map_or(0, |seconds| seconds.parse().expect("seconds"));
        let started = Instant::now();
        for fault in FAULTS.iter().cycle() {
            if self.0 >= FAULTS.len() && started.elapsed() >= Duration::from_secs(seconds) {
                break;
            }
            sleep(PAUSE).await;
            strike(*fault, stage).await;
            self.0 += 1;
        }
        sleep(PAUSE).await;
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} faults", self.0)
    }
}

async fn strike(fault: Fault, stage: &mut Stage) {
    match fault {
        Fault::Worker => stage.app.kill_worker().await,
        Fault::Redis => {
            stage.site.redis.kill();
            sleep(AWAY).await;
            stage.site.redis.start_again().await;
        }
        Fault::Restart => stage.app.restart().await,
        Fault::Mysql => {
            stage.mysql.kill();
            sleep(AWAY).await;
            stage.mysql.start_again().await;
        }
        Fault::Daemon => {
            stage.daemon.signal("KILL");
            sleep(AWAY).await;
            stage.daemon = stage.site.daemon().await;
        }
        Fault::Connections => {
            let cut = stage.site.redis.run::<i64>("CLIENT KILL TYPE normal").await;
            cut.expect("connections are cut");
        }
    }
}
