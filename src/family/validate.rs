//! From settings to a family: defaults and checks.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use super::kind::{Kind, Retention, SlidingWindow, Window, Windows};
use super::settings::{FamilySettings, KindName};
use super::{Durability, Family};
use crate::error::{Error, Result};
use crate::family::calendar::{Calendar, Precision};
use crate::family::row_id::Columns;
use crate::family::table::KeyType;
use crate::family::time::Time;

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

impl Family {
    /// The largest number of partitions of a family.
    pub const MAX_PARTITIONS: u32 = 4096;
    /// The largest number of slices of a precision in Redis.
    pub const MAX_SLICES: u32 = 1000;
    /// The largest number of slices, or minutes, that one read returns.
    pub const MAX_RANGE: usize = 10_000;
    /// The largest number of precisions of a series.
    pub const MAX_PRECISIONS: usize = 16;
    /// The largest number of layers of a window.
    pub const MAX_LAYERS: u32 = 1000;
    /// The largest number of stripes of a page.
    pub const MAX_STRIPES: u32 = 4096;

    /// Returns the family of that name with these settings. Namespace and name are of
    /// `[a-z0-9_.-]{1,64}`.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput), naming the family and the invalid setting.
    pub fn new(
        namespace: impl Into<String>,
        name: impl Into<String>,
        settings: &FamilySettings,
    ) -> Result<Self> {
        let mut family = Family {
            namespace: namespace.into(),
            name: name.into(),
            partitions: settings.partitions.unwrap_or(4),
            // the stripes of a page, and so the parts of a minute, lie in several partitions
            wide: settings.wide.unwrap_or(settings.kind == KindName::Activity),
            durability: settings.durability.unwrap_or_default(),
            table: settings.table.clone(),
            sync_hits: settings.sync_hits.unwrap_or(match settings.kind {
                KindName::Buffered | KindName::Visitors => 50,
                // syncs are due by time alone
                KindName::Cached | KindName::Series | KindName::Activity => u64::MAX,
            }),
            sync_time: or(
                settings.sync_time,
                match settings.kind {
                    KindName::Cached => 2 * SECOND,
                    _ => 60 * SECOND,
                },
            ),
            max_pending: settings.max_pending.unwrap_or(1_000_000),
            remember_requests: or(settings.remember_requests, HOUR),
            kind: Kind::Buffered,
        };
        family.check()?;
        family.kind = match settings.kind {
            KindName::Buffered => Kind::Buffered,
            KindName::Cached => Kind::Cached(family.retention_of(settings)?),
            KindName::Series => Kind::Series(Arc::new(family.windows_of(settings)?)),
            KindName::Activity => Kind::Activity(family.sliding_of(settings)?),
            KindName::Visitors => {
                let remember = or(settings.remember, 3 * DAY);
                family.check_range("remember", remember, SECOND..=365 * DAY)?;
                Kind::Visitors(remember)
            }
        };
        settings.refuse_others(&family)?;
        if family.has_expiring_keys() && settings.kind != KindName::Visitors {
            family.check_slices_table()?;
        }
        Ok(family)
    }

    /// Checks the settings that all kinds have.
    fn check(&self) -> Result<()> {
        for (what, name) in [("namespace", &self.namespace), ("family", &self.name)] {
            if !is_name(name) {
                let wrong = format!("{what} {name:?} does not match [a-z0-9_.-]{{1,64}}");
                return Err(Error::invalid(wrong));
            }
        }
        self.check_range("partitions", self.partitions, 1..=Family::MAX_PARTITIONS)?;
        if let Durability::Settle(settle) = self.durability {
            self.check_range("durability", settle, MILLISECOND..=DAY)?;
        }
        self.check_range("sync_time", self.sync_time, MILLISECOND..=DAY)?;
        self.check_range("sync_hits", self.sync_hits, 1..=u64::MAX)?;
        self.check_range("max_pending", self.max_pending, 1..=u64::MAX)?;
        let remember = self.remember_requests;
        self.check_range("remember_requests", remember, 60 * SECOND..=30 * DAY)?;
        match self.table.as_ref().map(|table| table.check()) {
            Some(Err(wrong)) => Err(self.refused("table", wrong)),
            _ => Ok(()),
        }
    }

    /// Refuses a table for a family that keeps no slices, one with a separator other than `/`, and
    /// one whose columns cannot hold what precedes the name in a kept id.
    fn check_slices_table(&self) -> Result<()> {
        match &self.table {
            Some(_) if !self.keeps_slices() => {
                Err(self.refused("table", "is given, but nothing is kept"))
            }
            Some(table) if table.separator != '/' => {
                Err(self.refused("table", "has a separator that is not '/'"))
            }
            Some(table) => {
                for prefix in self.kept_prefixes() {
                    // an empty part is where the name begins
                    let unfit = table
                        .split(&prefix)
                        .zip(&table.keys)
                        .find(|(part, (_, kind))| !part.is_empty() && !kind.is_canonical(part));
                    if let Some((part, (column, kind))) = unfit {
                        let fitting: Vec<_> = KeyType::that_fit(part)
                            .map(|kind| format!("{kind:?}"))
                            .collect();
                        let wrong = format!(
                            "has a column {column} that cannot hold {part:?} of kept ids: it is \
                             {kind:?}, and {} would fit",
                            fitting.join(", ")
                        );
                        return Err(self.refused("table", wrong));
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn retention_of(&self, settings: &FamilySettings) -> Result<Retention> {
        let FamilySettings { min, max, .. } = *settings;
        let retain = or(settings.retain, 600 * SECOND);
        self.check_range("retain", retain, MILLISECOND..=DAY)?;
        for (setting, bound) in [("min", min), ("max", max)] {
            if let Some(bound) = bound.filter(|bound| Retention::is_beyond(*bound)) {
                let wrong = format!("{bound} is not smaller than 2^53 in magnitude");
                return Err(self.refused(setting, wrong));
            }
        }
        match (min, max) {
            (Some(min), Some(max)) if min > max => {
                Err(self.refused("min", format!("{min} is above max {max}")))
            }
            _ => Ok(Retention { retain, min, max }),
        }
    }

    /// Refuses a bound of a cached counter that no row in these columns can have.
    pub(crate) fn check_bounds(&self, columns: Option<&Columns>) -> Result<()> {
        let Some(Retention { min, max, .. }) = self.retention() else {
            return Ok(());
        };
        let values = Columns::values(columns);
        for (setting, bound) in [("min", min), ("max", max)] {
            if let Some(bound) = bound.filter(|bound| !values.contains(bound)) {
                let column = self.table.as_ref().map_or("value", |table| &table.value);
                let (low, high) = values.into_inner();
                let wrong = format!("{bound} is not a value of column {column}, {low} to {high}");
                return Err(Error::mismatch(format!("{self}: {setting} {wrong}")));
            }
        }
        Ok(())
    }

    fn windows_of(&self, settings: &FamilySettings) -> Result<Windows> {
        let given = settings
            .windows
            .clone()
            .unwrap_or_else(|| Precision::DEFAULT.map(|it| (it, 120)).into());
        let precisions = "windows: number of precisions";
        self.check_range(precisions, given.len(), 1..=Family::MAX_PRECISIONS)?;
        let mut windows: Vec<Window> = Vec::new();
        for (precision, slices) in given {
            if let Precision::Seconds(seconds) = precision {
                let length = "windows: seconds of a slice";
                self.check_range(length, seconds, 1..=Precision::MAX_SECONDS)?;
            }
            let number = format_args!("windows: number of slices of {precision}");
            self.check_range(number, slices, 1..=Family::MAX_SLICES)?;
            if windows.iter().any(|other| other.precision == precision) {
                return Err(self.refused("windows", format!("has {precision} twice")));
            }
            windows.push(Window {
                precision,
                slices,
                kept: false,
            });
        }
        for precision in settings.keep.iter().flatten() {
            match windows.iter_mut().find(|it| it.precision == *precision) {
                Some(window) => window.kept = true,
                None => {
                    let wrong = format!("{precision} is not one of the windows");
                    return Err(self.refused("keep", wrong));
                }
            }
        }
        let calendar = match &settings.time_zone {
            Some(zone) => Calendar::of(zone).map_err(|error| self.refused("time_zone", error))?,
            None => Calendar::utc(),
        };
        let late = or(settings.late, 7 * DAY);
        self.check_range("late", late, Duration::ZERO..=365 * DAY)?;
        Ok(Windows {
            windows,
            calendar,
            late,
        })
    }

    fn sliding_of(&self, settings: &FamilySettings) -> Result<SlidingWindow> {
        let (window, layer) = (
            or(settings.window, 600 * SECOND),
            or(settings.layer, 3 * SECOND),
        );
        self.check_range("layer", layer, MILLISECOND..=HOUR)?;
        if !layer.subsec_nanos().is_multiple_of(1_000_000) {
            return Err(self.refused("layer", format!("{layer:?} is not in whole milliseconds")));
        }
        if !window.as_nanos().is_multiple_of(layer.as_nanos()) {
            let remainder = format!("{window:?} is not a multiple of its layers of {layer:?}");
            return Err(self.refused("window", remainder));
        }
        let layers = u32::try_from(window.as_nanos() / layer.as_nanos()).unwrap_or(u32::MAX);
        self.check_range("window: number of layers", layers, 1..=Family::MAX_LAYERS)?;
        let sliding = SlidingWindow {
            layer,
            layers,
            stripes: settings.stripes.unwrap_or(1),
            keep_minutes: settings.keep_minutes.unwrap_or(false),
        };
        self.check_range("stripes", sliding.stripes, 1..=Family::MAX_STRIPES)?;
        if sliding.keep_minutes && !60_000_u128.is_multiple_of(layer.as_millis()) {
            let wrong = format!("is on, and layers of {layer:?} do not divide a minute");
            return Err(self.refused("keep_minutes", wrong));
        }
        Ok(sliding)
    }

    fn check_range<T: PartialOrd + fmt::Debug>(
        &self,
        setting: impl fmt::Display,
        value: T,
        allowed: RangeInclusive<T>,
    ) -> Result<()> {
        if allowed.contains(&value) {
            return Ok(());
        }
        let (least, most) = allowed.into_inner();
        Err(self.refused(setting, format!("{value:?} is not {least:?} to {most:?}")))
    }
}

fn or(given: Option<Time>, default: Duration) -> Duration {
    given.map_or(default, |Time(time)| time)
}

fn is_name(name: &str) -> bool {
    let allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_.-".contains(&byte);
    (1..=64).contains(&name.len()) && name.bytes().all(allowed)
}
