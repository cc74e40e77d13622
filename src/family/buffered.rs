//! The configuration of a family of buffered counters.

use std::time::Duration;

use serde_json::{Value, json};

use super::settings::Settings;
use super::{Durability, Family, Kind, OfKind};
use crate::error::Result;
use crate::family::table::Table;

/// A [`Family`] of buffered counters.
///
/// ```
/// use std::time::Duration;
/// use counterfoil::Family;
/// # fn main() -> counterfoil::Result<()> {
/// let views = Family::buffered("shop-12345", "product_views")
///     .partitions(4)
///     .sync_after(50, Duration::from_secs(60))
///     .build()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferedFamily {
    pub(crate) family: Family,
}

/// The kind of buffered families, which has no settings of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffered;

impl OfKind for Buffered {
    fn name(&self) -> &'static str {
        "buffered"
    }

    fn scripts(&self) -> &'static [&'static str] {
        &["buffered_"]
    }

    fn settings(&self) -> Value {
        json!({})
    }

    fn spans_partitions(&self) -> bool {
        true
    }
}

impl Family {
    /// Starts the configuration of a family of buffered counters: deltas are summed in Redis and
    /// reach the database in batches. Namespace and name are of `[a-z0-9_.-]{1,64}`.
    pub fn buffered(
        namespace: impl Into<String>,
        name: impl Into<String>,
    ) -> BufferedFamilyBuilder {
        let time = Duration::from_secs(60);
        BufferedFamilyBuilder {
            family: Family::new(
                namespace.into(),
                name.into(),
                time,
                Kind::Buffered(Buffered),
            ),
        }
    }
}

/// A [`BufferedFamily`] being configured; [`build`](Self::build) checks it.
#[derive(Clone, Debug)]
#[must_use = "a family is made by build()"]
pub struct BufferedFamilyBuilder {
    family: Family,
}

impl BufferedFamilyBuilder {
    common_settings!();

    /// Lets increments go to any partition, which spreads one hot counter over all of them. A read
    /// sums over all.
    pub fn wide(mut self, wide: bool) -> Self {
        self.family.wide = wide;
        self
    }

    /// Sets when a partition is synced to the database: at its first hit, then after this many hits
    /// or this time, whichever comes first. Defaults to 50 hits and 60 s. The [settle
    /// time](Durability::Settle) comes on top. A reconciler in another process than the writer
    /// notices hits within a quarter of this time.
    pub fn sync_after(mut self, hits: u64, time: Duration) -> Self {
        (self.family.sync_hits, self.family.sync_time) = (hits, time);
        self
    }

    /// Limits the distinct ids that wait in one partition's buffer. Beyond it, a hit on a further
    /// id returns [`Outcome::Full`](crate::Outcome::Full). Defaults to 1,000,000.
    pub fn max_pending(mut self, ids: u64) -> Self {
        self.family.max_pending = ids;
        self
    }

    /// Keeps the values in a table of the application instead of counterfoil's own.
    pub fn table(mut self, table: Table) -> Self {
        self.family.table = Some(table);
        self
    }

    /// Checks the configuration.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput), naming the setting that is wrong.
    pub fn build(self) -> Result<BufferedFamily> {
        let BufferedFamilyBuilder { family } = self;
        family.check()?;
        family.check_sync()?;
        if family.max_pending == 0 {
            return Err(family.refused("max_pending", "0: at least 1"));
        }
        Ok(BufferedFamily { family })
    }
}

impl BufferedFamily {
    /// Returns the family with stored settings.
    pub(super) fn read(namespace: &str, name: &str, all: &Settings<'_>) -> Result<Self, String> {
        let family = Family::buffered(namespace, name)
            .with_common(all)?
            .wide(all.flag("wide")?);
        let family = family.sync_after(all.number("sync_hits")?, all.time("sync_ms")?);
        family
            .max_pending(all.number("max_pending")?)
            .build()
            .map_err(|error| error.to_string())
    }
}

family_of_kind!(BufferedFamily);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_setting_is_named() {
        let wrong =
            |builder: BufferedFamilyBuilder| builder.build().expect_err("refused").to_string();
        let ok = || Family::buffered("shop", "views");
        assert!(wrong(Family::buffered("Shop", "views")).contains("namespace \"Shop\""));
        assert!(wrong(Family::buffered("shop", "v/iews")).contains("family \"v/iews\""));
        assert!(wrong(Family::buffered("", "views")).contains("namespace"));
        assert!(wrong(Family::buffered("s".repeat(65), "views")).contains("namespace"));
        assert!(wrong(ok().partitions(0)).contains("partitions 0"));
        assert!(wrong(ok().sync_after(0, Duration::from_secs(1))).contains("sync_after"));
        assert!(wrong(ok().sync_after(1, Duration::ZERO)).contains("sync_after"));
        assert!(wrong(ok().durability(Durability::Settle(Duration::ZERO))).contains("settle"));
        assert!(wrong(ok().max_pending(0)).contains("max_pending"));
    }
}
