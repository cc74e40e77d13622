//! The configuration of a family of activity, which counts recent views and visitors.

use std::time::Duration;

use serde_json::{Value, json};

use super::settings::{Settings, millis};
use super::{Durability, Family, Kind, OfKind};
use crate::error::Result;
use crate::family::table::Table;
use crate::family::visit;

/// A [`Family`] of activity: views and distinct visitors of pages over the last minutes.
///
/// ```
/// use std::time::Duration;
/// use counterfoil::Family;
/// # fn main() -> counterfoil::Result<()> {
/// let online = Family::activity("forum", "online")
///     .window(Duration::from_secs(600), Duration::from_secs(3))
///     .stripes(4)
///     .build()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ActivityFamily {
    pub(crate) family: Family,
    /// The cache time of its handles; not a setting that the database stores.
    pub(crate) cache_for: Duration,
}

/// The method of counting visitors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Counting {
    /// Counts ids: exact. A visitor takes the length of the id and about 100 bytes more in each
    /// page viewed, until the window has passed.
    Exact,
    /// Counts with HyperLogLogs, one for each layer and stripe, of at most 12 KiB for any number of
    /// visitors. Their standard error is [0.81 %](Counting::STANDARD_ERROR).
    HyperLogLog,
}

impl Counting {
    const ALL: [Counting; 2] = [Counting::Exact, Counting::HyperLogLog];

    /// The standard error of a HyperLogLog in Redis: 1.04 / sqrt(16384).
    pub const STANDARD_ERROR: f64 = 0.008_125;
}

/// A window that slides over time in layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sliding {
    pub(crate) layer: Duration,
    /// The number of layers, including the current one.
    pub(crate) layers: u32,
    /// The number of stripes of a page.
    pub(crate) stripes: u32,
    pub(crate) counting: Counting,
    /// True if finished minutes are kept in the database.
    pub(crate) keep_minutes: bool,
}

impl Sliding {
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

impl OfKind for Sliding {
    fn name(&self) -> &'static str {
        "activity"
    }

    fn scripts(&self) -> &'static [&'static str] {
        &["activity_", "series_close", "buffered_"]
    }

    fn settings(&self) -> Value {
        json!({
            "layer_ms": millis(self.layer),
            "layers": self.layers,
            "stripes": self.stripes,
            "visitors": format!("{:?}", self.counting),
            "keep_minutes": self.keep_minutes,
        })
    }

    fn describe(&self) -> String {
        let Sliding {
            layer,
            stripes,
            counting,
            keep_minutes,
            ..
        } = self;
        let kept = if *keep_minutes {
            "keeps minutes"
        } else {
            "keeps nothing"
        };
        format!(
            "{stripes} stripes, layers of {} ms, {counting:?}, {kept}",
            layer.as_millis()
        )
    }

    fn keeps_slices(&self) -> bool {
        self.keep_minutes
    }

    fn has_expiring_keys(&self) -> bool {
        true
    }

    fn home_of(&self, family: &Family, visit: &[u8]) -> Option<u32> {
        let (page, visitor) = visit::split(visit);
        Some(self.partition_of(page, self.stripe_of(visitor), family.partitions))
    }
}

impl Family {
    /// The largest number of layers of a window.
    pub const MAX_LAYERS: u32 = 1000;
    /// The largest number of stripes of a page.
    pub const MAX_STRIPES: u32 = 4096;

    /// Starts the configuration of a family of activity (docs/protocol.md, section 5). Namespace
    /// and name are of `[a-z0-9_.-]{1,64}`.
    pub fn activity(
        namespace: impl Into<String>,
        name: impl Into<String>,
    ) -> ActivityFamilyBuilder {
        let sliding = Sliding {
            layer: Duration::from_secs(3),
            layers: 200,
            stripes: 1,
            counting: Counting::Exact,
            keep_minutes: false,
        };
        let mut family = Family::new(
            namespace.into(),
            name.into(),
            Duration::from_secs(60),
            Kind::Activity(sliding),
        );
        // the stripes of a page, and so the parts of a minute, lie in several partitions
        family.wide = true;
        family.sync_hits = 1;
        let window = Duration::from_secs(600);
        ActivityFamilyBuilder {
            family,
            sliding,
            window,
            cache_for: CACHE_FOR,
        }
    }
}

/// The default time for which a result is cached.
const CACHE_FOR: Duration = Duration::from_secs(1);

/// An [`ActivityFamily`] being configured; [`build`](Self::build) checks it.
#[derive(Clone, Debug)]
#[must_use = "a family is made by build()"]
pub struct ActivityFamilyBuilder {
    family: Family,
    sliding: Sliding,
    window: Duration,
    cache_for: Duration,
}

impl ActivityFamilyBuilder {
    /// Sets the length of the window, and of the layers in which it slides; it has up to
    /// [`Family::MAX_LAYERS`] of them. Defaults to 10 min in layers of 3 s: a result covers the
    /// last 9:57 to 10:00 minutes. The number of layers may change with a deploy; while old and new
    /// processes run, Redis holds the shorter window. The length of a layer is fixed for the life
    /// of the family.
    pub fn window(mut self, window: Duration, layer: Duration) -> Self {
        (self.window, self.sliding.layer) = (window, layer);
        self
    }

    /// Spreads each page over this many stripes by the CRC-32 of the visitor, and the stripes over
    /// the partitions. Defaults to 1, at most [`Family::MAX_STRIPES`]. For pages that are hotter
    /// than one Redis can take. Fixed for the life of the family.
    pub fn stripes(mut self, width: u32) -> Self {
        self.sliding.stripes = width;
        self
    }

    /// Sets how visitors are counted. Defaults to [`Counting::Exact`].
    pub fn visitors(mut self, counting: Counting) -> Self {
        self.sliding.counting = counting;
        self
    }

    /// Keeps the views and the visitors of each finished minute in the database. Off by default.
    ///
    /// Their rows have the ids `views/MINUTE/PAGE` and `visitors/MINUTE/PAGE`, with the minute's
    /// start in Unix seconds.
    pub fn keep_minutes(mut self, keep: bool) -> Self {
        self.sliding.keep_minutes = keep;
        self
    }

    /// Keeps the minutes in a table of the application instead of counterfoil's own. Its key
    /// columns take the segments of the [ids](Self::keep_minutes).
    pub fn table(mut self, table: Table) -> Self {
        self.family.table = Some(table);
        self
    }

    /// Sets how long this process returns a cached result without asking Redis. Defaults to 1 s, at
    /// most a day; zero disables the cache.
    pub fn cache_for(mut self, time: Duration) -> Self {
        self.cache_for = time;
        self
    }

    /// Sets the time within which the reconciler checks for finished minutes four times. Defaults
    /// to 60 s. The [settle time](Durability::Settle) comes on top.
    pub fn sync_after(mut self, time: Duration) -> Self {
        self.family.sync_time = time;
        self
    }

    common_settings!();

    /// Checks the configuration.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput), naming the setting that is wrong.
    pub fn build(self) -> Result<ActivityFamily> {
        let ActivityFamilyBuilder {
            mut family,
            mut sliding,
            window,
            cache_for,
        } = self;
        family.check()?;
        family.check_time("sync_after", family.sync_time)?;
        sliding.layers = layers(&family, window, sliding.layer)?;
        if !(1..=Family::MAX_STRIPES).contains(&sliding.stripes) {
            let wrong = format!("{} is not 1 to {}", sliding.stripes, Family::MAX_STRIPES);
            return Err(family.refused("stripes", wrong));
        }
        if sliding.keep_minutes && !60_000_u128.is_multiple_of(sliding.layer.as_millis()) {
            let wrong = format!(
                "is on, and layers of {:?} do not divide a minute",
                sliding.layer
            );
            return Err(family.refused("keep_minutes", wrong));
        }
        family.check_slices_table(sliding.keep_minutes)?;
        if cache_for > Duration::from_secs(86_400) {
            return Err(family.refused("cache_for", format!("{cache_for:?} is more than a day")));
        }
        family.kind = Kind::Activity(sliding);
        Ok(ActivityFamily { family, cache_for })
    }
}

/// Returns the number of layers of the window.
fn layers(family: &Family, window: Duration, layer: Duration) -> Result<u32> {
    let hour = Duration::from_secs(3600);
    let refused = |wrong: String| Err(family.refused("window", wrong));
    if !(Duration::from_millis(1)..=hour).contains(&layer)
        || !layer.subsec_nanos().is_multiple_of(1_000_000)
    {
        return refused(format!(
            "in layers of {layer:?}, which is not 1 ms to an hour in whole milliseconds"
        ));
    }
    if window.is_zero() || !window.as_nanos().is_multiple_of(layer.as_nanos()) {
        return refused(format!(
            "of {window:?} is no multiple of its layers of {layer:?}"
        ));
    }
    match u32::try_from(window.as_nanos() / layer.as_nanos()) {
        Ok(layers) if layers <= Family::MAX_LAYERS => Ok(layers),
        _ => refused(format!(
            "of {window:?} has more than {} layers of {layer:?}",
            Family::MAX_LAYERS
        )),
    }
}

impl ActivityFamily {
    /// Creates the family with the builder's default cache time.
    pub(super) fn new(family: Family) -> Self {
        ActivityFamily {
            family,
            cache_for: CACHE_FOR,
        }
    }

    /// Returns the family with stored settings.
    pub(super) fn read(
        namespace: &str,
        name: &str,
        all: &Settings<'_>,
        own: &Settings<'_>,
    ) -> Result<Self, String> {
        let named = |value: &Value| {
            Counting::ALL
                .into_iter()
                .find(|counting| value == &format!("{counting:?}"))
        };
        let layer = own.time("layer_ms")?;
        let family = Family::activity(namespace, name)
            .with_common(all)?
            .sync_after(all.time("sync_ms")?);
        let family = family
            .window(layer.saturating_mul(own.small("layers")?), layer)
            .stripes(own.small("stripes")?);
        let family = family
            .visitors(own.get("visitors", named)?)
            .keep_minutes(own.flag("keep_minutes")?);
        family.build().map_err(|error| error.to_string())
    }
}

family_of_kind!(ActivityFamily);

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_wrong_setting_of_activity_is_named() {
        let wrong =
            |builder: ActivityFamilyBuilder| builder.build().expect_err("refused").to_string();
        let ok = || Family::activity("forum", "online");
        assert!(wrong(Family::activity("Forum", "online")).contains("namespace \"Forum\""));
        assert!(
            wrong(ok().window(Duration::ZERO, SECOND)).contains("window of 0ns is no multiple")
        );
        assert!(wrong(ok().window(600 * SECOND, Duration::ZERO)).contains("layers of 0ns"));
        assert!(
            wrong(ok().window(600 * SECOND, 7 * SECOND)).contains("window of 600s is no multiple")
        );
        assert!(wrong(ok().window(1001 * SECOND, SECOND)).contains("more than 1000 layers"));
        assert!(wrong(ok().stripes(0)).contains("stripes 0"));
        assert!(
            wrong(ok().window(630 * SECOND, 7 * SECOND).keep_minutes(true))
                .contains("do not divide a minute")
        );
        assert!(wrong(ok().cache_for(86_401 * SECOND)).contains("cache_for"));
        let table = Table::upsert("t").key("k", crate::KeyType::Text).value("n");
        assert!(wrong(ok().table(table)).contains("table is given, and nothing is kept"));
    }

    #[test]
    fn stripes_spread_over_the_partitions() {
        let family = Family::activity("forum", "online")
            .stripes(15)
            .partitions(8)
            .build()
            .expect("valid")
            .family;
        let Kind::Activity(sliding) = family.kind else {
            panic!("{family}")
        };
        let homes: std::collections::BTreeSet<_> = (0..15)
            .map(|stripe| sliding.partition_of(b"/", stripe, 8))
            .collect();
        assert_eq!(homes.len(), 8);
        let visit = visit::key("/", b"somebody");
        let stripe = sliding.stripe_of(b"somebody");
        assert_eq!(
            family.home_of(&visit),
            Some(sliding.partition_of(b"/", stripe, 8))
        );
    }
}
