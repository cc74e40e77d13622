//! What should be in MySQL, what is, and where the two differ.

use std::collections::BTreeMap;
use std::io::{self, Write};

use sqlx::MySqlPool;

use crate::Result;
use crate::families::{DAILY_HITS, NAMESPACE, PAGE_VIEWS, STATUS_CODES};
use crate::log::{Hit, Log};

/// Values by family and id.
#[derive(Debug, Default)]
pub struct Totals(BTreeMap<(&'static str, String), i64>);

/// A counter that is not what it should be.
pub struct Difference<'a> {
    pub family: &'a str,
    pub id: &'a str,
    pub mysql: Option<i64>,
    pub counted: Option<i64>,
}

/// The log, counted in one thread and without any of what the demo is about.
#[derive(Debug, Default)]
pub struct PlainCount {
    pub totals: Totals,
    pub lines: u64,
    /// Lines that are not of an access log.
    pub skipped: u64,
}

impl PlainCount {
    pub fn of(log: &Log) -> io::Result<Self> {
        let mut count = PlainCount::default();
        for line in log.lines()? {
            count.lines += 1;
            match Hit::parse(&line?) {
                None => count.skipped += 1,
                Some(Hit { path, day, status }) => {
                    for (family, id) in [(PAGE_VIEWS, path), (DAILY_HITS, day), (STATUS_CODES, status)] {
                        *count.totals.0.entry((family, id)).or_insert(0) += 1;
                    }
                }
            }
        }
        Ok(count)
    }
}

impl Totals {
    /// Reads the tables as anybody could, without the library.
    pub async fn in_mysql(mysql: &MySqlPool) -> Result<Self> {
        let mut totals = Totals::default();
        let views = sqlx::query_as(
            "SELECT v.id, v.value FROM counterfoil_values v JOIN counterfoil_families f ON f.number = v.family \
             WHERE f.namespace = ? AND f.name = ?",
        );
        totals.add(PAGE_VIEWS, views.bind(NAMESPACE).bind(PAGE_VIEWS).fetch_all(mysql).await?)?;
        let days = sqlx::query_as("SELECT CAST(CAST(day AS CHAR) AS BINARY), hits FROM daily_hits");
        totals.add(DAILY_HITS, days.fetch_all(mysql).await?)?;
        let codes = sqlx::query_as("SELECT CAST(CAST(status AS CHAR) AS BINARY), hits FROM status_codes");
        totals.add(STATUS_CODES, codes.fetch_all(mysql).await?)?;
        Ok(totals)
    }

    fn add(&mut self, family: &'static str, rows: Vec<(Vec<u8>, i64)>) -> Result<()> {
        for (id, value) in rows {
            self.0.insert((family, String::from_utf8(id)?), value);
        }
        Ok(())
    }

    /// A family's counters in the order of their ids.
    pub fn of(&self, family: &str) -> impl Iterator<Item = (&str, i64)> {
        let own = self.0.iter().filter(move |((of, _), _)| *of == family);
        own.map(|((_, id), value)| (id.as_str(), *value))
    }

    /// Where these, which are MySQL's, are not what was counted.
    pub fn differences<'a>(&'a self, counted: &'a Totals) -> Vec<Difference<'a>> {
        let missing = counted.0.keys().filter(|key| !self.0.contains_key(*key));
        let difference = |key: &'a (&'static str, String)| {
            let (mysql, counted) = (self.0.get(key).copied(), counted.0.get(key).copied());
            (mysql != counted).then_some(Difference { family: key.0, id: &key.1, mysql, counted })
        };
        self.0.keys().chain(missing).filter_map(difference).collect()
    }

    /// `family TAB id TAB value`, sorted as `LC_ALL=C sort` does.
    pub fn dump(&self, mut to: impl Write) -> io::Result<()> {
        let mut lines: Vec<_> =
            self.0.iter().map(|((family, id), value)| format!("{family}\t{id}\t{value}\n")).collect();
        lines.sort_unstable();
        to.write_all(lines.concat().as_bytes())
    }
}
