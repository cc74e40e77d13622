//! The expected counts, the counts in MySQL, and the differences between them.

use std::collections::{BTreeMap, HashSet};
use std::io::{self, Write};
use std::ops::Range;

use sqlx::MySqlPool;

use crate::Result;
use crate::families::{DAILY_HITS, NAMESPACE, PAGE_VIEWS, REQUESTS, STATUS_CODES, VISITORS};
use crate::log::{Hit, Log, SITE};

/// Values by family and id.
#[derive(Debug, Default)]
pub struct Totals(BTreeMap<(&'static str, String), i64>);

/// A counter whose value differs from the plain count.
pub struct Difference<'a> {
    pub family: &'a str,
    pub id: &'a str,
    pub found: Option<i64>,
    pub counted: Option<i64>,
}

/// A plain count of the log: one thread, no library, no servers.
#[derive(Debug, Default)]
pub struct PlainCount {
    pub totals: Totals,
    pub lines: u64,
    /// Lines that are not access-log lines.
    pub skipped: u64,
    /// The time from the start of the first hour with a hit to the end of the last one, in Unix
    /// seconds.
    pub time: Option<Range<i64>>,
    /// Each day with each visitor of that day.
    visits: HashSet<(String, String)>,
}

impl PlainCount {
    pub fn of(log: &Log) -> io::Result<Self> {
        let mut count = PlainCount::default();
        for line in log.lines()? {
            count.lines += 1;
            match Hit::parse(&line?) {
                None => count.skipped += 1,
                Some(hit) => count.add(hit),
            }
        }
        Ok(count)
    }

    fn add(&mut self, hit: Hit) {
        for name in hit.series() {
            self.one(REQUESTS, hour_id(hit.hour, &name));
            self.one(
                REQUESTS,
                day_id(hit.hour.div_euclid(86_400) * 86_400, &name),
            );
        }
        let Hit {
            visitor,
            path,
            day,
            hour,
            status,
        } = hit;
        let time = self.time.get_or_insert(hour..hour);
        *time = time.start.min(hour)..time.end.max(hour + 3600);
        if self.visits.insert((day.clone(), visitor)) {
            self.one(VISITORS, format!("{SITE}/{day}"));
        }
        self.one(PAGE_VIEWS, path);
        self.one(DAILY_HITS, day);
        self.one(STATUS_CODES, status);
    }

    fn one(&mut self, family: &'static str, id: String) {
        *self.totals.0.entry((family, id)).or_insert(0) += 1;
    }

    /// Returns the number of visits that were the visitor's first of the day.
    pub fn first_visits(&self) -> u64 {
        self.visits.len() as u64
    }
}

/// Returns the id under which an hour of a series is stored.
pub fn hour_id(start: i64, name: &str) -> String {
    format!("3600s/{start}/{name}")
}

/// Returns the id under which a day of a series is stored.
pub fn day_id(start: i64, name: &str) -> String {
    format!("86400s/{start}/{name}")
}

impl Totals {
    /// Reads the tables with plain SQL, without the library.
    pub async fn in_mysql(mysql: &MySqlPool) -> Result<Self> {
        let mut totals = Totals::default();
        for family in [PAGE_VIEWS, REQUESTS] {
            let values = sqlx::query_as(
                "SELECT v.id, v.value FROM counterfoil_values v JOIN counterfoil_families f ON f.number = v.family \
                 WHERE f.namespace = ? AND f.name = ?",
            );
            totals.add(
                family,
                values.bind(NAMESPACE).bind(family).fetch_all(mysql).await?,
            )?;
        }
        let days = sqlx::query_as("SELECT CAST(CAST(day AS CHAR) AS BINARY), hits FROM daily_hits");
        totals.add(DAILY_HITS, days.fetch_all(mysql).await?)?;
        let codes =
            sqlx::query_as("SELECT CAST(CAST(status AS CHAR) AS BINARY), hits FROM status_codes");
        totals.add(STATUS_CODES, codes.fetch_all(mysql).await?)?;
        let visitors =
            sqlx::query_as("SELECT CONCAT(scope, '/', CAST(day AS CHAR)), count FROM visitors");
        totals.add(VISITORS, visitors.fetch_all(mysql).await?)?;
        Ok(totals)
    }

    fn add(&mut self, family: &'static str, rows: Vec<(Vec<u8>, i64)>) -> Result<()> {
        for (id, value) in rows {
            self.insert(family, String::from_utf8(id)?, value);
        }
        Ok(())
    }

    pub fn insert(&mut self, family: &'static str, id: String, value: i64) {
        self.0.insert((family, id), value);
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the values of these families.
    pub fn only(&self, families: &[&str]) -> Totals {
        let own = self
            .0
            .iter()
            .filter(|((family, _), _)| families.contains(family));
        Totals(own.map(|(key, value)| (key.clone(), *value)).collect())
    }

    /// Returns the counters of a family, ordered by id.
    pub fn of(&self, family: &str) -> impl Iterator<Item = (&str, i64)> {
        let own = self.0.iter().filter(move |((of, _), _)| *of == family);
        own.map(|((_, id), value)| (id.as_str(), *value))
    }

    /// Compares these values, which were found, with the counted ones and returns the differences.
    pub fn differences<'a>(&'a self, counted: &'a Totals) -> Vec<Difference<'a>> {
        let missing = counted.0.keys().filter(|key| !self.0.contains_key(*key));
        let difference = |key: &'a (&'static str, String)| {
            let (found, counted) = (self.0.get(key).copied(), counted.0.get(key).copied());
            (found != counted).then_some(Difference {
                family: key.0,
                id: &key.1,
                found,
                counted,
            })
        };
        self.0
            .keys()
            .chain(missing)
            .filter_map(difference)
            .collect()
    }

    /// Writes lines of `family TAB id TAB value`, sorted as `LC_ALL=C sort` does.
    pub fn dump(&self, mut to: impl Write) -> io::Result<()> {
        let mut lines: Vec<_> = self
            .0
            .iter()
            .map(|((family, id), value)| format!("{family}\t{id}\t{value}\n"))
            .collect();
        lines.sort_unstable();
        to.write_all(lines.concat().as_bytes())
    }
}
