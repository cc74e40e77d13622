//! The faults of the daemon and its configuration.

use std::fs;
use std::time::Duration;

use counterfoil::MysqlStore;
use tokio::time::timeout;

use super::super::daemon::{self, Daemon};
use super::super::fault::Fault;
use super::super::hand;
use super::super::site;
use super::super::way::Means;
use super::{PAUSED, Stage, pause};
use crate::Result;
use crate::child::Worker;
use crate::families::{self, Place};
use crate::reconcilers::{Reconcilers, arguments};
use crate::zipf::Random;

impl Stage<'_> {
    pub(super) async fn strike_daemon(&mut self, fault: Fault, random: &mut Random) -> Result<()> {
        let Some((daemon, _)) = &mut self.daemon else {
            return Ok(());
        };
        match fault {
            Fault::DaemonKilled => {
                daemon.kill().await?;
                daemon.keep_running()
            }
            Fault::DaemonPaused => {
                daemon.signal("STOP")?;
                pause(random).await;
                daemon.signal("CONT")
            }
            Fault::DaemonReloaded => {
                self.reloads += 1;
                self.reload_daemon()
            }
            _ => self.change_partitions().await,
        }
    }

    /// Runs a daemon with another database, or in a round without a daemon a reconciler.
    pub(super) async fn serve_elsewhere(&self, random: &mut Random) -> Result<()> {
        let (database, pool) = self.mysql.database("another").await;
        MysqlStore::new(&pool)?.create_tables().await?;
        hand::create_table(&pool).await?;
        site::create_tables(&pool).await?;
        let place = Place {
            redis: self.place.redis.clone(),
            mysql: self.mysql.url(&database),
        };
        if self.daemon.is_none() {
            let role = self.way.role(self.persistence);
            let start = Reconcilers::start(&role, &place);
            // an error means that it was refused
            let _others = timeout(Duration::from_millis(PAUSED), start).await;
            pause(random).await;
            return Ok(());
        }
        let config = self.configure("another", &place, "off")?;
        let program = daemon::program().ok_or("the daemon was not built")?;
        let mut another = Daemon::start(&program, &config)?;
        pause(random).await;
        another.kill().await
    }

    /// Runs a reconciler for which days begin at other times.
    pub(super) async fn serve_in_other_zones(&self) -> Result<()> {
        let zones = self.redis.directory().join("zones");
        let file = zones.join(site::ZONE);
        fs::create_dir_all(file.parent().unwrap_or(&zones))?;
        fs::write(&file, zone())?;
        let args = arguments(&self.way.role(self.persistence), &self.place);
        // it has written when days begin once it is ready
        let (worker, _reports) = Worker::start_with(&args, Some(("TZDIR", &zones))).await?;
        worker.kill().await
    }

    /// Has the daemon read its configuration again.
    fn reload_daemon(&mut self) -> Result<()> {
        if let Some((daemon, address)) = self.daemon.take() {
            self.configure("daemon", &self.place, &address.to_string())?;
            let (daemon, _) = self.daemon.insert((daemon, address));
            daemon.signal("HUP")?;
        }
        Ok(())
    }

    /// Changes the partitions of the tenant's family as docs/operations.md tells it, "Changing a family".
    async fn change_partitions(&mut self) -> Result<()> {
        let (Means::Library(site), Some(package)) = (&self.means, self.packages.pop()) else {
            return Ok(());
        };
        let (client, installed) = (package.client, package.installed.clone());
        package.stop().await?;
        let family = site::tenant(self.persistence, self.changes + 1)?;
        let change = async || {
            site.pair.drain().await?;
            site.pair.reconfigure(&family).await
        };
        families::patiently(change).await?;
        self.changes += 1;
        self.reload_daemon()?;
        self.start_package(client, installed, true).await
    }
}

/// Returns the file of a time zone that is 9 hours ahead of UTC, in the format of RFC 9636.
fn zone() -> Vec<u8> {
    let seconds = (9_u32 * 3600).to_be_bytes();
    // one type, and the four bytes of its name
    let numbers = [[0; 4], [0; 4], [0; 4], [0; 4], [0, 0, 0, 1], [0, 0, 0, 4]].concat();
    let block = [
        b"TZif2",
        &[0; 15][..],
        &numbers,
        &seconds,
        &[0, 0],
        b"ZON\0",
    ]
    .concat();
    [&block[..], &block, b"\nZON-9\n"].concat()
}
