//! The kinds of families, and all that depends on them.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use super::Family;
use crate::error::Result;
use crate::family::calendar::{Calendar, Precision};
use crate::family::time::Time;

/// The kind of a family, which decides how it counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Deltas that are summed in Redis (docs/protocol.md, section 3).
    Buffered,
    /// Values that stay in Redis while they are used (docs/protocol.md, section 4).
    Cached(Retention),
    /// Slices of time. What is kept is a buffered delta at once (docs/protocol.md, section 5).
    Series(Arc<Windows>),
    /// Layers of time, with the visitors. Minutes may be kept like slices.
    Activity(SlidingWindow),
    /// Visitors, each counted once for an id and remembered for this time. The sums become buffered
    /// deltas.
    Visitors(Duration),
}

/// The time for which a cached family's counters stay in Redis, and their bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retention {
    /// The time in Redis after a counter was read from the database or last saved.
    pub(crate) retain: Duration,
    pub(crate) min: Option<i64>,
    pub(crate) max: Option<i64>,
}

/// The windows of a series in Redis, and which of them are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    pub(crate) windows: Vec<Window>,
    pub(crate) calendar: Calendar,
    /// The age up to which a hit counts in what is kept, once it has left a window.
    pub(crate) late: Duration,
}

/// The slices of one precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub(crate) precision: Precision,
    /// The number of slices, including the current one.
    pub(crate) slices: u32,
    /// True if slices are kept in the database.
    pub(crate) kept: bool,
}

/// A window that slides over time in layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    pub(crate) layer: Duration,
    /// The number of layers, including the current one.
    pub(crate) layers: u32,
    /// The number of stripes of a page.
    pub(crate) stripes: u32,
    /// True if minutes are kept in the database.
    pub(crate) keep_minutes: bool,
}

impl Retention {
    /// The size that the values of cached counters, and their bounds, stay below: numbers of Lua
    /// are exact there.
    pub(crate) const LIMIT: i64 = 1 << 53;

    /// Returns whether a cached counter cannot have this value.
    pub(crate) fn is_beyond(value: i64) -> bool {
        value.unsigned_abs() >= Retention::LIMIT.unsigned_abs()
    }

    /// Returns the bounds of values in rows of this range.
    pub(crate) fn bounds(&self, rows: &RangeInclusive<i64>) -> RangeInclusive<i64> {
        let (min, max) = (self.min.unwrap_or(i64::MIN), self.max.unwrap_or(i64::MAX));
        let low = min.max(*rows.start()).max(1 - Retention::LIMIT);
        low..=max.min(*rows.end()).min(Retention::LIMIT - 1)
    }
}

impl Windows {
    /// Returns the window of that precision.
    pub(crate) fn of(&self, precision: Precision) -> Option<&Window> {
        self.windows
            .iter()
            .find(|window| window.precision == precision)
    }

    /// Returns the labels, in their order.
    pub(crate) fn labels(&self) -> Vec<Precision> {
        self.windows.iter().map(|window| window.precision).collect()
    }

    /// Returns the starts and dates of a window's days or months around this time, in Unix seconds:
    /// those of the window, those in which late hits may count, and those of the next 14 days or 3
    /// months.
    pub(crate) fn boundaries(&self, window: &Window, now: i64) -> Result<Vec<(i64, String)>> {
        const DAY: i64 = 86_400;
        let (precision, calendar) = (window.precision, &self.calendar);
        let ahead = match precision {
            Precision::Month => 100 * DAY,
            _ => 15 * DAY,
        };
        let late = i64::try_from(self.late.as_secs()).unwrap_or(i64::MAX);
        let mut starts = calendar.window(precision, window.slices, now)?;
        let mut earlier = Vec::new();
        let mut first = starts[0];
        while first > now.saturating_sub(late) {
            first = calendar.slice(precision, first - 1)?.start;
            earlier.push(first);
        }
        while let Some(last) = starts.last().filter(|last| **last < now + ahead) {
            starts.push(calendar.slice(precision, *last)?.end);
        }
        earlier
            .into_iter()
            .rev()
            .chain(starts)
            .map(|start| Ok((start, calendar.called(precision, start)?)))
            .collect()
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

    /// Returns the series that a kept id belongs to.
    fn series_of<'id>(&self, kept: &'id str) -> &'id str {
        let before = if self.kept().nth(1).is_some() { 2 } else { 1 };
        kept.splitn(before + 1, '/').nth(before).unwrap_or(kept)
    }
}

impl SlidingWindow {
    /// Returns the stripe that a visitor belongs to.
    pub(crate) fn stripe_of(&self, visitor: &[u8]) -> u32 {
        crc32fast::hash(visitor) % self.stripes
    }

    /// Returns the partition of a page's stripe, out of `partitions`.
    pub(crate) fn partition_of(&self, page: &[u8], stripe: u32, partitions: u32) -> u32 {
        (crc32fast::hash(page) % partitions + stripe % partitions) % partitions
    }

    pub(crate) fn layer_ms(&self) -> i64 {
        i64::try_from(self.layer.as_millis()).unwrap_or(i64::MAX)
    }
}

/// A visit: a visitor of a page, or of a scope and day. A call groups its visits by both.
pub mod visit {
    /// Returns both as one key: the length of the first, the first, and the visitor, which may be
    /// any bytes.
    pub fn key(at: &str, visitor: &[u8]) -> Vec<u8> {
        let mut key = Vec::with_capacity(1 + at.len() + visitor.len());
        // the length fits into one byte, because ids have at most 255 bytes
        key.push(at.len() as u8);
        key.extend_from_slice(at.as_bytes());
        key.extend_from_slice(visitor);
        key
    }

    /// Returns the parts of a [`key`].
    pub fn split(key: &[u8]) -> (&[u8], &[u8]) {
        match key.split_first() {
            Some((&length, rest)) => rest
                .split_at_checked(usize::from(length))
                .unwrap_or((rest, &[])),
            None => (&[], &[]),
        }
    }
}

/// A hit on a series: its name, and its time in Unix milliseconds if it brings one. A call sums
/// those in which both are equal.
pub mod timed {
    /// Returns both as one key: the length of the time's digits, these, and the name.
    pub fn key(name: &str, at_ms: Option<u64>) -> Vec<u8> {
        let at = at_ms.map(|at| at.to_string()).unwrap_or_default();
        super::visit::key(&at, name.as_bytes())
    }

    /// Returns the digits of the time, or nothing for now, and the name.
    pub fn split(key: &[u8]) -> (&[u8], &[u8]) {
        super::visit::split(key)
    }
}

/// The decisions that depend on the kind.
impl Family {
    /// Returns the kind's name, with which its scripts begin, and which the database stores:
    /// `buffered`, `cached`, `series`, `activity` or `visitors`.
    pub fn kind(&self) -> &'static str {
        match self.kind {
            Kind::Buffered => "buffered",
            Kind::Cached(_) => "cached",
            Kind::Series(_) => "series",
            Kind::Activity(_) => "activity",
            Kind::Visitors(_) => "visitors",
        }
    }

    /// Returns the prefixes of the names of the scripts that it uses.
    pub(crate) fn scripts(&self) -> &'static [&'static str] {
        match self.kind {
            Kind::Buffered => &["buffered_"],
            Kind::Cached(_) => &["cached_", "buffered_"],
            Kind::Series(_) => &["series_", "buffered_"],
            Kind::Activity(_) => &["activity_", "buffered_"],
            Kind::Visitors(_) => &["visitors_", "buffered_"],
        }
    }

    /// Returns the settings of the kind on which all processes must agree, in one line.
    pub(super) fn shape(&self) -> String {
        match &self.kind {
            Kind::Buffered | Kind::Visitors(_) => String::new(),
            Kind::Cached(retention) => {
                let bounds: Vec<_> = [("min", retention.min), ("max", retention.max)]
                    .into_iter()
                    .filter_map(|(name, bound)| Some(format!("{name} = {}", bound?)))
                    .collect();
                bounds.join(", ")
            }
            Kind::Series(series) => {
                // windows may change, also in their order
                let kept: BTreeSet<_> = series.kept().map(|it| it.precision).collect();
                let names: Vec<_> = kept.iter().map(Precision::to_string).collect();
                let zone = series.calendar.name();
                format!("keep = {names:?}, time_zone = {zone:?}")
            }
            Kind::Activity(sliding) => format!(
                "stripes = {}, layer = \"{}\", keep_minutes = {}",
                sliding.stripes,
                Time(sliding.layer),
                sliding.keep_minutes,
            ),
        }
    }

    /// Returns true if it keeps slices or minutes in the database.
    pub(crate) fn keeps_slices(&self) -> bool {
        match &self.kind {
            Kind::Series(series) => series.kept().next().is_some(),
            Kind::Activity(sliding) => sliding.keep_minutes,
            _ => false,
        }
    }

    /// Returns what precedes a name in its kept ids, once for each way to keep it, with a slice as
    /// an example. Nothing for kinds whose callers give whole ids, or if nothing is kept.
    pub(super) fn kept_prefixes(&self) -> Vec<String> {
        match &self.kind {
            Kind::Series(series) => series
                .kept()
                .map(|window| match window.precision {
                    Precision::Seconds(_) => series.kept_as(window.precision, "1410134400"),
                    _ => series.kept_as(window.precision, "2014-09-01"),
                })
                .collect(),
            Kind::Activity(sliding) if sliding.keep_minutes => {
                ["views/1410134400/", "visitors/1410134400/"]
                    .map(str::to_owned)
                    .into()
            }
            _ => Vec::new(),
        }
    }

    /// Returns true if it counts with keys that expire: windows, their names, and visitors. Hits on
    /// their way to the database never expire.
    pub(crate) fn has_expiring_keys(&self) -> bool {
        !self.spans_partitions()
    }

    /// Returns true if its script takes several partitions that lie on one node.
    pub(crate) fn spans_partitions(&self) -> bool {
        matches!(self.kind, Kind::Buffered | Kind::Cached(_))
    }

    /// Returns how its counters stay in Redis, if it is a cached family.
    pub(crate) fn retention(&self) -> Option<&Retention> {
        match &self.kind {
            Kind::Cached(retention) => Some(retention),
            _ => None,
        }
    }

    /// Returns true for cached counters. All other kinds reach the database like buffered ones.
    pub(crate) fn is_cached(&self) -> bool {
        self.retention().is_some()
    }

    /// Returns the slice length of each window of a series; nothing for other kinds.
    pub fn precisions(&self) -> Vec<Precision> {
        match &self.kind {
            Kind::Series(series) => series.windows.iter().map(|it| it.precision).collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the number of pairs in a call: few enough for the script to stay below a
    /// millisecond.
    pub(crate) fn pairs_a_call(&self) -> usize {
        match &self.kind {
            // a pair counts once for each precision, and once more where that is kept
            Kind::Series(series) => {
                (700 / (series.windows.len() + series.kept().count())).clamp(1, 100)
            }
            _ => 400,
        }
    }

    /// Returns the partition that counts a hit on this key (an id, a series' name, or a visit), or
    /// `None` for any.
    pub(crate) fn home_of(&self, key: &[u8]) -> Option<u32> {
        match &self.kind {
            Kind::Activity(sliding) => {
                let (page, visitor) = visit::split(key);
                Some(sliding.partition_of(page, sliding.stripe_of(visitor), self.partitions))
            }
            Kind::Visitors(_) => Some(self.partition_by(visit::split(key).0)),
            Kind::Series(_) => Some(self.partition_by(timed::split(key).1)),
            _ => (!self.wide).then(|| self.partition_by(key)),
        }
    }

    /// Returns the id of a hit on this key, for messages.
    pub(crate) fn id_of<'k>(&self, key: &'k [u8]) -> &'k [u8] {
        match &self.kind {
            Kind::Series(_) => timed::split(key).1,
            _ => key,
        }
    }

    /// Returns the partitions in which a row's id may have anything pending.
    pub(crate) fn partitions_of_row(&self, id: &str) -> std::ops::Range<u32> {
        if self.wide {
            return 0..self.partitions;
        }
        let own = self.partition_of(match &self.kind {
            Kind::Series(series) => series.series_of(id),
            _ => id,
        });
        own..own + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_id_names_the_precision_where_several_are_kept() {
        let built = |keep: &[Precision]| {
            let hits = Family::series("shop", "hits").keep(keep.iter().copied());
            match hits.build().expect("valid").kind {
                Kind::Series(windows) => windows,
                other => panic!("{other:?}"),
            }
        };
        let one = built(&[Precision::Day]);
        let two = built(&[Precision::Day, Precision::MINUTE]);
        assert_eq!(one.kept_as(Precision::Day, "2014-09-08"), "2014-09-08/");
        assert_eq!(two.kept_as(Precision::MINUTE, "*"), "60s/*/");
        assert_eq!(one.series_of("2014-09-08/a/b"), "a/b");
        assert_eq!(two.series_of("60s/1410134400/a/b"), "a/b");
    }

    #[test]
    fn stripes_spread_over_the_partitions() {
        let family = Family::activity("forum", "online")
            .stripes(15)
            .partitions(8)
            .build()
            .expect("valid");
        let Kind::Activity(sliding) = family.kind else {
            panic!("{family}")
        };
        let homes: std::collections::BTreeSet<_> = (0..15)
            .map(|stripe| sliding.partition_of(b"/", stripe, 8))
            .collect();
        assert_eq!(homes.len(), 8);
        let home = sliding.partition_of(b"/", sliding.stripe_of(b"somebody"), 8);
        assert_eq!(family.home_of(&visit::key("/", b"somebody")), Some(home));
    }
}
