//! The configuration of a family of series.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::settings::{self, Settings};
use super::{Durability, Family, Kind, OfKind};
use crate::error::{Error, Result};
use crate::family::calendar::{Calendar, Precision};
use crate::family::table::Table;

/// A [`Family`] of series: named counters at several precisions at once. Redis holds the last
/// slices of each precision.
///
/// ```
/// use counterfoil::{Family, Precision};
/// # fn main() -> counterfoil::Result<()> {
/// let hits = Family::series("shop", "hits")
///     .windows([(Precision::MINUTE, 120), (Precision::Day, 400)])
///     .time_zone("Europe/Berlin")
///     .keep([Precision::Day])
///     .build()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeriesFamily {
    pub(crate) family: Family,
}

/// The windows of a series in Redis, and which of them are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    pub(crate) windows: Vec<Window>,
    pub(crate) calendar: Calendar,
}

/// The slices of one precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub(crate) precision: Precision,
    /// The number of slices, including the current one.
    pub(crate) slices: u32,
    /// True if finished slices are kept in the database.
    pub(crate) kept: bool,
}

impl Windows {
    /// Returns the window of that precision.
    pub(crate) fn of(&self, precision: Precision) -> Option<&Window> {
        self.windows
            .iter()
            .find(|window| window.precision == precision)
    }

    pub(crate) fn kept(&self) -> impl Iterator<Item = &Window> {
        self.windows.iter().filter(|window| window.kept)
    }

    /// Returns the beginning of a kept id: the precision, if several are kept, and the slice.
    pub(crate) fn kept_as(&self, precision: Precision, slice: &str) -> String {
        match self.kept().nth(1) {
            Some(_) => format!("{precision}/{slice}/"),
            None => format!("{slice}/"),
        }
    }
}

impl OfKind for Windows {
    fn name(&self) -> &'static str {
        "series"
    }

    fn scripts(&self) -> &'static [&'static str] {
        &["series_", "buffered_"]
    }

    fn settings(&self) -> Value {
        let each = |window: &Window| json!([window.precision.to_string(), window.slices]);
        json!({
            "windows": self.windows.iter().map(each).collect::<Vec<_>>(),
            "keep": self.kept().map(|window| window.precision.to_string()).collect::<Vec<_>>(),
            "time_zone": self.calendar.name(),
        })
    }

    /// Describes the kept precisions, and the time zone if a precision depends on it.
    fn describe(&self) -> String {
        let labels: Vec<_> = self
            .kept()
            .map(|window| window.precision.to_string())
            .collect();
        let is_local = |window: &Window| !matches!(window.precision, Precision::Seconds(_));
        let zone = if self.windows.iter().any(is_local) {
            self.calendar.name()
        } else {
            ""
        };
        format!("keeps {:?} zone {zone:?}", labels.join(" "))
    }

    fn keeps_slices(&self) -> bool {
        self.kept().next().is_some()
    }

    fn has_expiring_keys(&self) -> bool {
        true
    }

    /// Returns fewer pairs for more precisions: a pair counts once for each, and once more where
    /// that is kept.
    fn pairs_a_call(&self) -> usize {
        (700 / (self.windows.len() + self.kept().count())).clamp(1, 100)
    }

    /// Returns the series that a kept id belongs to.
    fn key_of_row<'id>(&self, kept: &'id str) -> &'id str {
        let before = if self.kept().nth(1).is_some() { 2 } else { 1 };
        kept.splitn(before + 1, '/').nth(before).unwrap_or(kept)
    }
}

impl Family {
    /// The largest number of slices of a precision in Redis.
    pub const MAX_SLICES: u32 = 1000;
    /// The largest number of slices, or minutes, that one read returns.
    pub const MAX_RANGE: usize = 10_000;
    /// The largest number of precisions of a series.
    pub const MAX_PRECISIONS: usize = 16;

    /// Starts the configuration of a family of series (docs/protocol.md, section 5). Namespace and
    /// name are of `[a-z0-9_.-]{1,64}`.
    pub fn series(namespace: impl Into<String>, name: impl Into<String>) -> SeriesFamilyBuilder {
        let window = |precision| Window {
            precision,
            slices: 120,
            kept: false,
        };
        let windows = Windows {
            windows: Precision::DEFAULT.map(window).into(),
            calendar: Calendar::utc(),
        };
        let kind = Kind::Series(Arc::new(windows.clone()));
        let mut family = Family::new(namespace.into(), name.into(), Duration::from_secs(60), kind);
        // finished slices go to the database with the next check
        family.sync_hits = 1;
        SeriesFamilyBuilder {
            family,
            windows,
            keep: Vec::new(),
            zone: None,
        }
    }
}

/// A [`SeriesFamily`] being configured; [`build`](Self::build) checks it.
#[derive(Clone, Debug)]
#[must_use = "a family is made by build()"]
pub struct SeriesFamilyBuilder {
    family: Family,
    windows: Windows,
    keep: Vec<Precision>,
    zone: Option<String>,
}

impl SeriesFamilyBuilder {
    /// Sets the precisions, each with its number of slices in Redis, including the current one: 1
    /// to [`Family::MAX_SLICES`]. Defaults to [`Precision::DEFAULT`] with 120 each. Redis keeps up
    /// to 512 slices in a compact list; more take several times the memory. Windows may change with
    /// a deploy; while old and new processes run, Redis holds the shorter one.
    pub fn windows(mut self, windows: impl IntoIterator<Item = (Precision, u32)>) -> Self {
        let window = |(precision, slices)| Window {
            precision,
            slices,
            kept: false,
        };
        self.windows.windows = windows.into_iter().map(window).collect();
        self
    }

    /// Sets the time zone of days and months, by its name in the IANA database, such as
    /// `Europe/Berlin`. Defaults to UTC. Fixed for the life of the family.
    pub fn time_zone(mut self, name: impl Into<String>) -> Self {
        self.zone = Some(name.into());
        self
    }

    /// Sets the precisions whose finished slices the database keeps for good. Defaults to none.
    /// Fixed for the life of the family.
    ///
    /// The row of a slice has the id `PRECISION/SLICE/NAME`, such as `60s/1410134400/site`, or
    /// `SLICE/NAME` if one precision is kept. `SLICE` is its start in Unix seconds, or the date of
    /// its first day: `2014-09-08/site`.
    pub fn keep(mut self, precisions: impl IntoIterator<Item = Precision>) -> Self {
        self.keep = precisions.into_iter().collect();
        self
    }

    /// Keeps the finished slices in a table of the application instead of counterfoil's own. Its
    /// key columns take the segments of the [kept ids](Self::keep).
    pub fn table(mut self, table: Table) -> Self {
        self.family.table = Some(table);
        self
    }

    /// Sets the time within which the reconciler checks for finished slices four times. Defaults to
    /// 60 s. The [settle time](Durability::Settle) comes on top.
    pub fn sync_after(mut self, time: Duration) -> Self {
        self.family.sync_time = time;
        self
    }

    common_settings!();

    /// Checks the configuration.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput), naming the setting that is wrong.
    pub fn build(self) -> Result<SeriesFamily> {
        let SeriesFamilyBuilder {
            mut family,
            mut windows,
            keep,
            zone,
        } = self;
        family.check()?;
        family.check_time("sync_after", family.sync_time)?;
        if let Some(zone) = zone {
            windows.calendar = Calendar::of(&zone)
                .map_err(|error| Error::invalid(format!("{family}: {error}")))?;
        }
        let count = windows.windows.len();
        if !(1..=Family::MAX_PRECISIONS).contains(&count) {
            return Err(family.refused(
                "windows",
                format!("{count} precisions: 1 to {}", Family::MAX_PRECISIONS),
            ));
        }
        for (
            at,
            Window {
                precision, slices, ..
            },
        ) in windows.windows.iter().enumerate()
        {
            if let Precision::Seconds(seconds) = precision
                && !(1..=Precision::MAX_SECONDS).contains(seconds)
            {
                let wrong = format!("precision of {seconds} s: 1 to {}", Precision::MAX_SECONDS);
                return Err(family.refused("windows", wrong));
            }
            if !(1..=Family::MAX_SLICES).contains(slices) {
                let wrong = format!(
                    "{slices} slices of {precision}: 1 to {}",
                    Family::MAX_SLICES
                );
                return Err(family.refused("windows", wrong));
            }
            if windows.windows[..at]
                .iter()
                .any(|earlier| earlier.precision == *precision)
            {
                return Err(family.refused("windows", format!("{precision} is named twice")));
            }
        }
        for precision in keep {
            let window = windows
                .windows
                .iter_mut()
                .find(|window| window.precision == precision);
            let absent = || family.refused("keep", format!("{precision} is none of the windows"));
            window.ok_or_else(absent)?.kept = true;
        }
        family.check_slices_table(windows.kept().next().is_some())?;
        family.kind = Kind::Series(Arc::new(windows));
        Ok(SeriesFamily { family })
    }
}

impl SeriesFamily {
    /// Returns the family with stored settings.
    pub(super) fn read(
        namespace: &str,
        name: &str,
        all: &Settings<'_>,
        own: &Settings<'_>,
    ) -> Result<Self, String> {
        let precision = |value: &Value| value.as_str()?.parse::<Precision>().ok();
        let window = |value: &Value| Some((precision(&value[0])?, settings::small(&value[1])?));
        let family = Family::series(namespace, name)
            .with_common(all)?
            .sync_after(all.time("sync_ms")?);
        let family = family
            .windows(own.list("windows", window)?)
            .keep(own.list("keep", precision)?);
        family
            .time_zone(own.text("time_zone")?)
            .build()
            .map_err(|error| error.to_string())
    }
}

family_of_kind!(SeriesFamily);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_setting_of_a_series_is_named() {
        let wrong =
            |builder: SeriesFamilyBuilder| builder.build().expect_err("refused").to_string();
        let ok = || Family::series("shop", "hits");
        assert!(wrong(Family::series("Shop", "hits")).contains("namespace \"Shop\""));
        assert!(wrong(ok().windows([])).contains("0 precisions"));
        assert!(wrong(ok().windows([(Precision::Seconds(0), 120)])).contains("precision of 0 s"));
        assert!(
            wrong(ok().windows([(Precision::Seconds(u32::MAX), 120)]))
                .contains("precision of 4294967295 s")
        );
        assert!(wrong(ok().windows([(Precision::Day, 0)])).contains("0 slices of day"));
        assert!(wrong(ok().windows([(Precision::Day, 1001)])).contains("1001 slices of day"));
        assert!(
            wrong(ok().windows([(Precision::Day, 1), (Precision::Day, 2)]))
                .contains("day is named twice")
        );
        assert!(wrong(ok().keep([Precision::Month])).contains("keep month is none of the windows"));
        assert!(wrong(ok().time_zone("Europe/Atlantis")).contains("Europe/Atlantis"));
        assert!(wrong(ok().table(Table::upsert("t").value("n"))).contains("no key column"));
        let table = Table::upsert("t").key("k", crate::KeyType::Text).value("n");
        assert!(wrong(ok().table(table)).contains("table is given, and nothing is kept"));
    }

    #[test]
    fn a_kept_id_names_the_precision_where_several_are_kept() {
        let built = |keep: &[Precision]| {
            let built = Family::series("shop", "hits")
                .keep(keep.iter().copied())
                .build()
                .expect("valid");
            let Kind::Series(windows) = built.family.kind else {
                panic!("{built}")
            };
            windows
        };
        let (one, two) = (
            built(&[Precision::Day]),
            built(&[Precision::Day, Precision::MINUTE]),
        );
        assert_eq!(one.kept_as(Precision::Day, "2014-09-08"), "2014-09-08/");
        assert_eq!(two.kept_as(Precision::MINUTE, "*"), "60s/*/");
        assert_eq!(one.key_of_row("2014-09-08/a/b"), "a/b");
        assert_eq!(two.key_of_row("60s/1410134400/a/b"), "a/b");
    }
}
