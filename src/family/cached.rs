//! The configuration of a family of cached counters.

use std::time::Duration;

use serde_json::{Value, json};

use super::settings::{Settings, millis};
use super::{Durability, Family, Kind, OfKind};
use crate::error::Result;
use crate::family::table::Table;

/// How a cached family's counters stay in Redis. They are saved after the family's `sync_time`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retention {
    /// How long after the last increment.
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
        let given = bounds.iter().filter_map(|(name, bound)| bound.map(|bound| format!("{name} {bound}")));
        given.collect::<Vec<_>>().join(", ")
    }

    fn spans_partitions(&self) -> bool {
        true
    }
}

/// A [`Family`] of cached counters: a type of its own, since they are counted and read by other calls than buffered ones.
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
    /// Starts the configuration of a family of cached counters: the value lives in Redis for as long as it is used, comes
    /// back with each increment, and what was added to it reaches its row like a buffered counter's (docs/protocol.md,
    /// section 4). Namespace and name are of `[a-z0-9_.-]{1,64}`.
    pub fn cached(namespace: impl Into<String>, name: impl Into<String>) -> CachedFamilyBuilder {
        let retention = Retention { retain: Duration::from_secs(600), min: None, max: None };
        let mut family =
            Family::new(namespace.into(), name.into(), Duration::from_secs(2), Kind::Cached(retention.clone()));
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

    /// Keeps the values in a table of the application: [`Table::upsert`] creates rows that do not exist yet,
    /// [`Table::update`] refuses their increments ([`Changed::NoRow`](crate::Changed::NoRow)). Counterfoil's own table
    /// unless said otherwise.
    pub fn table(mut self, table: Table) -> Self {
        self.family.table = Some(table);
        self
    }

    /// Counters that changed are saved at most this long after the save before, so many increments make one save; defaults
    /// to 2 s. Add the [settle time](Durability::Settle).
    pub fn save_after(mut self, time: Duration) -> Self {
        self.family.sync_time = time;
        self
    }

    /// A counter stays in Redis for this long, or up to a quarter longer, after it was read from the database or saved last.
    /// Then the reconciler deletes it, and the next use reads it from the database again. Defaults to 10 min.
    pub fn retain(mut self, time: Duration) -> Self {
        self.retention.retain = time;
        self
    }

    /// Refuses increments that lead below this value, such as a stock below 0; one that leads up is let through also
    /// from below it. The bound must be smaller than 2^53 in size; values may be larger. Every process has to come with the
    /// same bounds, or is refused; [`reconfigure`](crate::Counterfoil::reconfigure) changes them.
    pub fn min(mut self, value: i64) -> Self {
        self.retention.min = Some(value);
        self
    }

    /// Refuses increments that lead above this value; one that leads down is let through also from above it. The bound must
    /// be smaller than 2^53 in size; values may be larger. It is the same for every process, as [`min`](Self::min) is.
    pub fn max(mut self, value: i64) -> Self {
        self.retention.max = Some(value);
        self
    }

    /// Checks the configuration.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput), naming the setting.
    pub fn build(self) -> Result<CachedFamily> {
        let CachedFamilyBuilder { mut family, retention } = self;
        family.check()?;
        family.check_time("save_after", family.sync_time)?;
        family.check_time("retain", retention.retain)?;
        for (setting, bound) in [("min", retention.min), ("max", retention.max)] {
            if let Some(bound) = bound.filter(|bound| bound.unsigned_abs() >= 1 << 53) {
                return Err(family.refused(setting, format!("{bound} is not smaller than 2^53 in size")));
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
    /// The family with the settings that the database keeps.
    pub(super) fn read(namespace: &str, name: &str, all: &Settings<'_>, own: &Settings<'_>) -> Result<Self, String> {
        let family = Family::cached(namespace, name).with_common(all)?.save_after(all.time("sync_ms")?);
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
        let wrong = |builder: CachedFamilyBuilder| builder.build().expect_err("refused").to_string();
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
