//! Reads of values during the faults, by the crate and by the daemon, compared with the journals before
//! and after each of them.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use sqlx::MySqlPool;
use tokio::time::sleep;
use tokio::try_join;

use super::clock::Clock;
use super::daemon;
use super::journal::{Counted, Journals, Ms, Time, now};
use super::persistence::Persistence;
use super::site::{self, FAMILIES, LASTING, OUTSIDE, READABLE, SLIDING, Site, VOTES};
use super::window::Windows;
use super::{likes, seats};
use crate::Result;
use crate::families::{NAMESPACE, Place, patiently};

const PAUSE: Duration = Duration::from_millis(30);
/// The number of counters read at a time: those of the last seconds.
const RECENT: usize = 100;

/// The values that were read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reads {
    pub checked: u64,
    /// Those of them that the daemon replied.
    pub by_daemon: u64,
    /// Those that lack an acknowledged hit, or have one too many.
    pub wrong: u64,
}

impl Reads {
    /// Notes a value that was checked, and describes it if it is wrong.
    pub fn note(&mut self, is_right: bool, what: impl FnOnce() -> String) {
        self.checked += 1;
        if !is_right {
            self.wrong += 1;
            eprintln!("{}", what());
        }
    }

    fn add(&mut self, more: Reads) {
        self.checked += more.checked;
        self.by_daemon += more.by_daemon;
        self.wrong += more.wrong;
    }
}

/// The parameters of the reads, and what they are compared with.
pub struct Reader {
    pub place: Place,
    pub persistence: Persistence,
    pub directory: PathBuf,
    pub daemon: Option<SocketAddr>,
    pub windows: Rc<RefCell<Windows>>,
    pub clock: Rc<RefCell<Clock>>,
    /// The ids whose values may lack hits by a fault of the application.
    pub exempt: Rc<RefCell<Vec<Range<u64>>>>,
    /// The ids of which an older backup may lack rows.
    pub unsaved: Rc<RefCell<Vec<Range<u64>>>>,
    pub mysql: MySqlPool,
}

impl Reader {
    /// Reads the values of counters in use again and again until `is_over` is set.
    pub async fn run(self, is_over: &Cell<bool>) -> Result<Reads> {
        let open = async || Site::open(&self.place, self.persistence).await;
        let site = patiently(open).await?;
        let counters = self.check_counters(&site, is_over);
        let seats = async { Ok(seats::check(&site, &self, is_over).await) };
        let likes = async { Ok(likes::check(&site, &self, is_over).await) };
        let (mut reads, seats, likes) = try_join!(counters, seats, likes)?;
        reads.add(seats);
        reads.add(likes);
        Ok(reads)
    }

    /// Returns whether neither server was set back since then, and the clock of Redis did not step.
    pub fn is_calm_since(&self, time: Ms) -> bool {
        self.windows.borrow().are_over_by(time) && !self.clock.borrow().has_stepped_since(time)
    }

    async fn check_counters(&self, site: &Site, is_over: &Cell<bool>) -> Result<Reads> {
        let (mut journals, mut reads) = (Journals::new(self.directory.clone()), Reads::default());
        for (number, family) in READABLE.iter().cycle().enumerate() {
            if is_over.get() {
                break;
            }
            sleep(PAUSE).await;
            reads.wrong += self.overcounted().await;
            let sliding = SLIDING[number % SLIDING.len()];
            self.check_windows(site, sliding, &mut journals, &mut reads)
                .await?;
            journals.read()?;
            let all = journals.counters.range((*family, 0)..(family + 1, 0));
            let recent = all.rev().take(RECENT);
            let (ids, acknowledged): (Vec<_>, Vec<_>) = recent
                .map(|((_, id), counted)| (*id, counted.acknowledged()))
                .unzip();
            let was_unsettled = self.windows.borrow().is_unsettled();
            // a server may be unavailable, or a set-back not repaired yet
            let by_daemon = self.daemon.filter(|_| number % 2 == 1 && !ids.is_empty());
            let values = match by_daemon {
                Some(address) => {
                    let name = format!("{NAMESPACE}/{}", FAMILIES[*family]);
                    daemon::values(address, &name, &ids).await?
                }
                None => site.values(*family, &ids).await.ok(),
            };
            let Some(values) = values else {
                continue;
            };
            journals.read()?;
            if *family == VOTES && (was_unsettled || self.windows.borrow().is_unsettled()) {
                continue;
            }
            for ((id, acknowledged), value) in ids.iter().zip(acknowledged).zip(values) {
                if self.exempt.borrow().iter().any(|ids| ids.contains(id)) {
                    continue;
                }
                let counter = (*family, *id);
                let counted = &journals.counters[&counter];
                let exposed = counted.exposed(counter, &self.windows.borrow(), acknowledged);
                let outside = journals
                    .counters
                    .get(&(OUTSIDE, *id))
                    .map_or(0, Counted::most);
                let least = acknowledged - exposed.all();
                let most = counted.most() + if *family == VOTES { outside } else { 0 };
                reads.by_daemon += u64::from(by_daemon.is_some());
                reads.note((least..=most).contains(&value), || {
                    let (family, at) = (FAMILIES[*family], now());
                    let by = by_daemon.map_or("crate", |_| "daemon");
                    format!("{family} {id}: {value} by the {by} at {at}, which should be {least} to {most}")
                });
            }
        }
        Ok(reads)
    }

    /// Compares the windows of the counter of a family that is used all the time.
    async fn check_windows(
        &self,
        site: &Site,
        family: usize,
        journals: &mut Journals,
        reads: &mut Reads,
    ) -> Result<()> {
        let from = now();
        let Ok(windows) = site.windows(family, LASTING).await else {
            return Ok(());
        };
        let to = now();
        journals.read()?;
        let Some(counted) = journals.counters.get(&(family, LASTING)) else {
            return Ok(());
        };
        let most = counted.most();
        for (value, seconds) in windows {
            let is_in_window = |time| self.is_in_window(seconds, time, from, to);
            let least = counted.acknowledged_at(is_in_window);
            reads.note((least..=most).contains(&value), || {
                let family = FAMILIES[family];
                format!(
                    "{seconds} s of {family}: {value} at {from}, which should be {least} to {most}"
                )
            });
        }
        Ok(())
    }

    /// Returns whether a window of so many seconds that was read between these times must have an
    /// acknowledged hit: Redis was not set back since, its clock was never so late that the hit's slice had
    /// left the window, and it is not behind the hit now.
    fn is_in_window(&self, seconds: i64, time: Time, from: Ms, to: Ms) -> bool {
        if time.end >= from || time.begun <= self.windows.borrow().set_back() {
            return false;
        }
        let clock = self.clock.borrow();
        let (hit, read) = (clock.times(time.begun, time.end), clock.times(from, to));
        let is_left_by = |ms: i64| ms / 1000 - hit.start() / 1000 >= seconds;
        let is_ahead = hit.end() > read.start();
        !is_ahead && !is_left_by(*read.end()) && !is_left_by(*clock.times(time.begun, to).end())
    }

    /// Returns the number of saves that a recount has given more hits than rows, and names them.
    async fn overcounted(&self) -> u64 {
        // a server may be unavailable
        let mut ids = site::overcounted(&self.mysql).await.unwrap_or_default();
        let unsaved = self.unsaved.borrow();
        ids.retain(|id| !unsaved.iter().any(|ids| ids.contains(id)));
        if !ids.is_empty() {
            eprintln!("saves with more hits than rows at {}: {ids:?}", now());
        }
        ids.len() as u64
    }
}
