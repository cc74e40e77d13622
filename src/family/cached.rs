//! The configuration of a family of cached counters.

use std::time::Duration;

use serde_json::{Value, json};

use super::settings::{Settings, millis};
use super::{Durability, Family, Kind, OfKind};
use crate::error::Result;
use crate::family::table::Table;

/// The time for which a cached family's counters stay in Redis, and their bounds. They are saved
/// after `sync_time`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retention {
    /// The time in Redis after a counter was read from the database or last saved.
    pub(crate) retain: Duration,
    pub(crate) min: Option<i64>,
    pub(crate) max: Option<i64>,
}

impl OfKind for Retention {
    fn name(&self) -> &'static str {
        "cached"
    }

    fn scripts(&self) -> &'static [&'static str] {
        &["cached_", "buffered_"]
    }

    fn settings(&self) -> Value {
        json!({ "retain_ms": millis(self.retain), "min": self.min, "max": self.max })
    }

    fn describe(&self) -> String {
        let bounds = [("min", self.min), ("max", self.max)];
        let given = bounds
            .iter()
            .filter_map(|(name, bound)| bound.map(|bound| format!("{name} {bound}")));
        given.collect::<Vec<_>>().join(", ")
    }

    fn spans_partitions(&self) -> bool {
        true
    }
}

/// A [`Family`] of cached counters. It has a type of its own because its calls differ from those of
/// buffered counters.
///
/// ```
/// use std::time::Duration;
/// use counterfoil::{Family, KeyType, Table};
/// # fn main() -> counterfoil::Result<()> {
/// let votes = Family::cached("forum", "votes")
///     .table(Table::update("item").key("id", KeyType::Unsigned).value("vote_count"))
///     .save_after(Duration::from_secs(2))
///     .min(0)
///     .build()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedFamily {
    pub(crate) family: Family,
}

impl Family {
    /// Starts the configuration of a family of cached counters. The value stays in Redis while it
    /// is used, and each increment returns it. Increments reach the row like those of a buffered
    /// counter (docs/protocol.md, section 4). Namespace and name are of `[a-z0-9_.-]{1,64}`.
    pub fn cached(namespace: impl Into<String>, name: impl Into<String>) -> CachedFamilyBuilder {
        let retention = Retention {
            retain: Duration::from_secs(600),
            min: None,
            max: None,
        };
        let mut family = Family::new(
            namespace.into(),
            name.into(),
            Duration::from_secs(2),
            Kind::Cached(retention.clone()),
        );
        // saves are due by time alone
        family.sync_hits = u64::MAX;
        CachedFamilyBuilder { family, retention }
    }
}

/// A [`CachedFamily`] being configured; [`build`](Self::build) checks it.
#[derive(Clone, Debug)]
#[must_use = "a family is made by build()"]
pub struct CachedFamilyBuilder {
    family: Family,
    retention: Retention,
}

impl CachedFamilyBuilder {
    common_settings!();

    /// Keeps the values in a table of the application. [`Table::upsert`] creates missing rows,
    /// [`Table::update`] refuses their increments ([`Outcome::NoRow`](crate::Outcome::NoRow)).
    /// Defaults to counterfoil's own table.
    pub fn table(mut self, table: Table) -> Self {
        self.family.table = Some(table);
        self
    }

    /// Sets the longest time between two saves of a counter that changes, so that one save covers
    /// many increments. Defaults to 2 s. The [settle time](Durability::Settle) comes on top.
    pub fn save_after(mut self, time: Duration) -> Self {
        self.family.sync_time = time;
        self
    }

    /// Sets how long a counter stays in Redis after it was read from the database or last saved; it
    /// may stay up to a quarter longer. Then the reconciler deletes it, and the next use reads it
    /// from the database. Defaults to 10 min.
    pub fn retain(mut self, time: Duration) -> Self {
        self.retention.retain = time;
        self
    }

    /// Refuses increments that lead below this value, such as a stock below 0. An upward increment
    /// passes even below it. The bound must be smaller than 2^53 in magnitude; values may be
    /// larger. Every process must use the same bounds, or is refused;
    /// [`reconfigure`](crate::Counterfoil::reconfigure) changes them.
    pub fn min(mut self, value: i64) -> Self {
        self.retention.min = Some(value);
        self
    }

    /// Refuses increments that lead above this value. A downward increment passes even above it.
    /// The limits on the bound are those of [`min`](Self::min), and every process must use the same
    /// one.
    pub fn max(mut self, value: i64) -> Self {
        self.retention.max = Some(value);
        self
    }

    /// Checks the configuration.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput), naming the setting that is wrong.
    pub fn build(self) -> Result<CachedFamily> {
        let CachedFamilyBuilder {
            mut family,
            retention,
        } = self;
        family.check()?;
        family.check_time("save_after", family.sync_time)?;
        family.check_time("retain", retention.retain)?;
        for (setting, bound) in [("min", retention.min), ("max", retention.max)] {
            if let Some(bound) = bound.filter(|bound| bound.unsigned_abs() >= 1 << 53) {
                return Err(
                    family.refused(setting, format!("{bound} is not smaller than 2^53 in size"))
                );
            }
        }
        if let (Some(min), Some(max)) = (retention.min, retention.max)
            && min > max
        {
            return Err(family.refused("min", format!("{min} is above max {max}")));
        }
        family.kind = Kind::Cached(retention);
        Ok(CachedFamily { family })
    }
}

impl CachedFamily {
    /// Returns the family with stored settings.
    pub(super) fn read(
        namespace: &str,
        name: &str,
        all: &Settings<'_>,
        own: &Settings<'_>,
    ) -> Result<Self, String> {
        let family = Family::cached(namespace, name)
            .with_common(all)?
            .save_after(all.time("sync_ms")?);
        let mut family = family.retain(own.time("retain_ms")?);
        (family.retention.min, family.retention.max) = (own.bound("min")?, own.bound("max")?);
        family.build().map_err(|error| error.to_string())
    }
}

family_of_kind!(CachedFamily);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_setting_of_a_cached_family_is_named() {
        let wrong =
            |builder: CachedFamilyBuilder| builder.build().expect_err("refused").to_string();
        let ok = || Family::cached("shop", "votes");
        assert!(wrong(Family::cached("Shop", "votes")).contains("namespace \"Shop\""));
        assert!(wrong(ok().partitions(5000)).contains("partitions 5000"));
        assert!(wrong(ok().save_after(Duration::ZERO)).contains("save_after"));
        assert!(wrong(ok().retain(Duration::from_secs(90_000))).contains("retain"));
        assert!(wrong(ok().min(2).max(1)).contains("min 2"));
        assert!(wrong(ok().max(1 << 53)).contains("max"));
        assert!(ok().min(1).max(1).build().is_ok());
    }
}
