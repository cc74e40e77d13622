//! The comparison of all reads, and of the values stored at the end, with the rows.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

use counterfoil::BufferedCounters;
use sqlx::MySqlPool;
use tokio::time::sleep;

use super::journal::Journals;
use super::saves;
use crate::Result;

const PAUSE: Duration = Duration::from_millis(10);
/// The maximum number of wrong reads that are described.
const DESCRIBED: usize = 10;

/// The exact reads during the whole run.
#[derive(Default)]
pub struct Reads {
    pub checked: u64,
    /// Reads that failed.
    pub failed: u64,
    /// Values that the rows do not explain.
    pub outside: u64,
    /// Values below the previous one by more than was counted twice.
    pub fell: u64,
    pub described: Vec<String>,
}

/// Reads all counters repeatedly until `is_over` is set.
pub async fn watch(
    saves: &BufferedCounters,
    journals: &RefCell<Journals>,
    is_over: &Cell<bool>,
) -> Result<Reads> {
    let mut reads = Reads::default();
    let ids = saves::ids(journals.borrow().least().len().try_into()?);
    let mut last = vec![i64::MIN; ids.len()];
    loop {
        let is_last = is_over.get();
        journals.borrow_mut().read()?;
        let least = journals.borrow().least();
        let values = saves.get_many(&ids).await;
        journals.borrow_mut().read()?;
        let (most, surplus) = (journals.borrow().most(), journals.borrow().surplus());
        match values {
            Ok(values) => {
                for (at, value) in values.into_iter().enumerate() {
                    reads.check(
                        at + 1,
                        value,
                        (least[at], most[at]),
                        (last[at], surplus[at]),
                    );
                    last[at] = value;
                }
            }
            Err(_) => reads.failed += 1,
        }
        if is_last {
            return Ok(reads);
        }
        sleep(PAUSE).await;
    }
}

impl Reads {
    pub fn is_exact(&self) -> bool {
        self.outside == 0 && self.fell == 0
    }

    fn check(
        &mut self,
        user: usize,
        value: i64,
        (least, most): (i64, i64),
        (last, twice): (i64, i64),
    ) {
        self.checked += 1;
        if !(least..=most).contains(&value) {
            self.outside += 1;
            self.describe(format!(
                "user {user}: {value} was read, the rows explain {least} to {most}"
            ));
        }
        if value < last.saturating_sub(twice) {
            self.fell += 1;
            self.describe(format!(
                "user {user}: {value} was read after {last}, and {twice} were counted twice"
            ));
        }
    }

    fn describe(&mut self, wrong: String) {
        if self.described.len() < DESCRIBED {
            self.described.push(wrong);
        }
    }
}

/// All counters and rows in MySQL.
pub struct Stored {
    pub rows: i64,
    pub users: u32,
    /// User, value and rows, where the latter two differ.
    pub wrong: Vec<(u32, i64, i64)>,
}

impl Stored {
    pub async fn read(mysql: &MySqlPool, users: u32) -> Result<Self> {
        let (values, rows) = (saves::stored(mysql).await?, saves::rows(mysql).await?);
        let of = |map: &BTreeMap<_, _>, user: u32| map.get(&user).copied().unwrap_or(0);
        let both = (1..=users).map(|user| (user, of(&values, user), of(&rows, user)));
        let wrong = both.filter(|(_, value, rows)| value != rows).collect();
        Ok(Stored {
            rows: rows.values().sum(),
            users,
            wrong,
        })
    }

    /// Returns the sum of all differences.
    pub fn off(&self) -> u64 {
        self.wrong
            .iter()
            .map(|(_, value, rows)| value.abs_diff(*rows))
            .sum()
    }
}
