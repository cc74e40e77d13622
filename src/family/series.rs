//! The configuration of a family of series.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::settings::{self, Settings};
use super::{Durability, Family, Kind, OfKind};
use crate::error::{Error, Result};
use crate::family::calendar::{Calendar, Precision};
use crate::family::table::Table;

/// A [`Family`] of series: named counters at several precisions at once, of each of which the last slices are in Redis.
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

/// What of a series is in Redis, and what of it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    pub(crate) windows: Vec<Window>,
    pub(crate) calendar: Calendar,
}

/// The slices of one precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub(crate) precision: Precision,
    /// How many, the current one included.
    pub(crate) slices: u32,
    /// Whether those that are over are kept in the database.
    pub(crate) kept: bool,
}

impl Windows {
    /// Of that precision.
    pub(crate) fn of(&self, precision: Precision) -> Option<&Window> {
        self.windows.iter().find(|window| window.precision == precision)
    }

    pub(crate) fn kept(&self) -> impl Iterator<Item = &Window> {
        self.windows.iter().filter(|window| window.kept)
    }

    /// How a kept id begins: with the precision, where several are kept, and the slice.
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

    /// Where slices begin that are no multiples, and what is kept.
    fn describe(&self) -> String {
        let labels: Vec<_> = self.kept().map(|window| window.precision.to_string()).collect();
        let is_local = |window: &Window| !matches!(window.precision, Precision::Seconds(_));
        let zone = if self.windows.iter().any(is_local) { self.calendar.name() } else { "" };
        format!("keeps {:?} zone {zone:?}", labels.join(" "))
    }

    fn keeps_slices(&self) -> bool {
        self.kept().next().is_some()
    }

    fn has_expiring_keys(&self) -> bool {
        true
    }

    /// A pair is counted once for each precision, and once more where that is kept.
    fn pairs_a_call(&self) -> usize {
        (700 / (self.windows.len() + self.kept().count())).clamp(1, 100)
    }

    /// The series that a kept id belongs to.
    fn key_of_row<'id>(&self, kept: &'id str) -> &'id str {
        let before = if self.kept().nth(1).is_some() { 2 } else { 1 };
        kept.splitn(before + 1, '/').nth(before).unwrap_or(kept)
    }
}

impl Family {
    /// The largest number of slices of a precision that are in Redis.
    pub const MAX_SLICES: u32 = 1000;
    /// The most slices, or minutes, that one read returns.
    pub const MAX_RANGE: usize = 10_000;
    /// The largest number of precisions of a series.
    pub const MAX_PRECISIONS: usize = 16;

    /// Starts the configuration of a family of series (docs/protocol.md, section 5). Namespace and name are of
    /// `[a-z0-9_.-]{1,64}`.
    pub fn series(namespace: impl Into<String>, name: impl Into<String>) -> SeriesFamilyBuilder {
        let window = |precision| Window { precision, slices: 120, kept: false };
        let windows = Windows { windows: Precision::DEFAULT.map(window).into(), calendar: Calendar::utc() };
        let kind = Kind::Series(Arc::new(windows.clone()));
        let mut family = Family::new(namespace.into(), name.into(), Duration::from_secs(60), kind);
        // whatever is over goes to the database with the next look
        family.sync_hits = 1;
        SeriesFamilyBuilder { family, windows, keep: Vec::new(), zone: None }
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
    /// The precisions, each with the number of slices that are in Redis, the current one included: 1 to
    /// [`Family::MAX_SLICES`]. [`Precision::DEFAULT`] with 120 each unless said otherwise. Redis keeps up to 512 slices
    /// in a compact list; more take several times the memory. They may change with a deploy: while processes of both kinds
    /// run, the shorter window is what Redis holds.
    pub fn windows(mut self, windows: impl IntoIterator<Item = (Precision, u32)>) -> Self {
        let window = |(precision, slices)| Window { precision, slices, kept: false };
        self.windows.windows = windows.into_iter().map(window).collect();
        self
    }

    /// The time zone of days and months, by its name in the IANA database, such as `Europe/Berlin`; UTC unless said
    /// otherwise. Fixed for the life of the family.
    pub fn time_zone(mut self, name: impl Into<String>) -> Self {
        self.zone = Some(name.into());
        self
    }

    /// The precisions whose slices are kept in the database for good, once they are over: none unless said otherwise.
    /// Fixed for the life of the family.
    ///
    /// The row of a slice has the id `PRECISION/SLICE/NAME`, such as `60s/1410134400/site`, or `SLICE/NAME` where one
    /// precision is kept. `SLICE` is its start in Unix seconds, or the date of its first day: `2014-09-08/site`.
    pub fn keep(mut self, precisions: impl IntoIterator<Item = Precision>) -> Self {
        self.keep = precisions.into_iter().collect();
        self
    }

    /// Keeps the finished slices in a table of the application instead of counterfoil's own. Its key columns take the
    /// segments of the [kept ids](Self::keep).
    pub fn table(mut self, table: Table) -> Self {
        self.family.table = Some(table);
        self
    }

    /// Slices that are over are looked for four times within this time: 60 s unless said otherwise. Add the
    /// [settle time](Durability::Settle).
    pub fn sync_after(mut self, time: Duration) -> Self {
        self.family.sync_time = time;
        self
    }

    common_settings!();

    /// Checks the configuration.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput), naming the setting.
    pub fn build(self) -> Result<SeriesFamily> {
        let SeriesFamilyBuilder { mut family, mut windows, keep, zone } = self;
        family.check()?;
        family.check_time("sync_after", family.sync_time)?;
        if let Some(zone) = zone {
            windows.calendar = Calendar::of(&zone).map_err(|error| Error::invalid(format!("{family}: {error}")))?;
        }
        let count = windows.windows.len();
        if !(1..=Family::MAX_PRECISIONS).contains(&count) {
            return Err(family.refused("windows", format!("{count} precisions: 1 to {}", Family::MAX_PRECISIONS)));
        }
        for (at, Window { precision, slices, .. }) in windows.windows.iter().enumerate() {
            if let Precision::Seconds(seconds) = precision
                && !(1..=Precision::MAX_SECONDS).contains(seconds)
            {
                let wrong = format!("precision of {seconds} s: 1 to {}", Precision::MAX_SECONDS);
                return Err(family.refused("windows", wrong));
            }
            if !(1..=Family::MAX_SLICES).contains(slices) {
                let wrong = format!("{slices} slices of {precision}: 1 to {}", Family::MAX_SLICES);
                return Err(family.refused("windows", wrong));
            }
            if windows.windows[..at].iter().any(|earlier| earlier.precision == *precision) {
                return Err(family.refused("windows", format!("{precision} is named twice")));
            }
        }
        for precision in keep {
            let window = windows.windows.iter_mut().find(|window| window.precision == precision);
            let absent = || family.refused("keep", format!("{precision} is none of the windows"));
            window.ok_or_else(absent)?.kept = true;
        }
        family.check_slices_table(windows.kept().next().is_some())?;
        family.kind = Kind::Series(Arc::new(windows));
        Ok(SeriesFamily { family })
    }
}

impl SeriesFamily {
    /// The family with the settings that the database keeps.
    pub(super) fn read(namespace: &str, name: &str, all: &Settings<'_>, own: &Settings<'_>) -> Result<Self, String> {
        let precision = |value: &Value| value.as_str()?.parse::<Precision>().ok();
        let window = |value: &Value| Some((precision(&value[0])?, settings::small(&value[1])?));
        let family = Family::series(namespace, name).with_common(all)?.sync_after(all.time("sync_ms")?);
        let family = family.windows(own.list("windows", window)?).keep(own.list("keep", precision)?);
        family.time_zone(own.text("time_zone")?).build().map_err(|error| error.to_string())
    }
}

family_of_kind!(SeriesFamily);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_setting_of_a_series_is_named() {
        let wrong = |builder: SeriesFamilyBuilder| builder.build().expect_err("refused").to_string();
        let ok = || Family::series("shop", "hits");
        assert!(wrong(Family::series("Shop", "hits")).contains("namespace \"Shop\""));
        assert!(wrong(ok().windows([])).contains("0 precisions"));
        assert!(wrong(ok().windows([(Precision::Seconds(0), 120)])).contains("precision of 0 s"));
        assert!(wrong(ok().windows([(Precision::Seconds(u32::MAX), 120)])).contains("precision of 4294967295 s"));
        assert!(wrong(ok().windows([(Precision::Day, 0)])).contains("0 slices of day"));
        assert!(wrong(ok().windows([(Precision::Day, 1001)])).contains("1001 slices of day"));
        assert!(wrong(ok().windows([(Precision::Day, 1), (Precision::Day, 2)])).contains("day is named twice"));
        assert!(wrong(ok().keep([Precision::Month])).contains("keep month is none of the windows"));
        assert!(wrong(ok().time_zone("Europe/Atlantis")).contains("Europe/Atlantis"));
        assert!(wrong(ok().table(Table::upsert("t").value("n"))).contains("no key column"));
        let table = Table::upsert("t").key("k", crate::KeyType::Text).value("n");
        assert!(wrong(ok().table(table)).contains("table is given, and nothing is kept"));
    }

    #[test]
    fn a_kept_id_names_the_precision_where_several_are_kept() {
        let built = |keep: &[Precision]| {
            let built = Family::series("shop", "hits").keep(keep.iter().copied()).build().expect("valid");
            let Kind::Series(windows) = built.family.kind else { panic!("{built}") };
            windows
        };
        let (one, two) = (built(&[Precision::Day]), built(&[Precision::Day, Precision::MINUTE]));
        assert_eq!(one.kept_as(Precision::Day, "2014-09-08"), "2014-09-08/");
        assert_eq!(two.kept_as(Precision::MINUTE, "*"), "60s/*/");
        assert_eq!(one.key_of_row("2014-09-08/a/b"), "a/b");
        assert_eq!(two.key_of_row("60s/1410134400/a/b"), "a/b");
    }
}
