//! The configuration of a family of buffered counters.

use std::time::Duration;

use super::{Durability, Family, Kind};
use crate::error::Result;
use crate::family::table::Table;

impl Family {
    /// Starts the configuration of a family of buffered counters: deltas are summed in Redis and reach the database
    /// in batches. Namespace and name are of `[a-z0-9_.-]{1,64}`.
    pub fn buffered(namespace: impl Into<String>, name: impl Into<String>) -> FamilyBuilder {
        let time = Duration::from_secs(60);
        FamilyBuilder { family: Family::new(namespace.into(), name.into(), time, Kind::Buffered) }
    }
}

/// A [`Family`] being configured; [`build`](Self::build) checks it.
#[derive(Clone, Debug)]
#[must_use = "a family is made by build()"]
pub struct FamilyBuilder {
    family: Family,
}

impl FamilyBuilder {
    common_settings!();

    /// Lets increments go to any partition, which spreads one hot counter over all of them; a read sums over all.
    pub fn wide(mut self, wide: bool) -> Self {
        self.family.wide = wide;
        self
    }

    /// A partition is brought to the database at its first hit, then after so many hits or this time, whichever
    /// comes first: 50 hits and 60 s unless said otherwise. Add the [settle time](Durability::Settle). A reconciler in
    /// another process than the writer notices it within a quarter of this time.
    pub fn sync_after(mut self, hits: u64, time: Duration) -> Self {
        (self.family.sync_hits, self.family.sync_time) = (hits, time);
        self
    }

    /// How many distinct ids may wait in one partition's buffer; beyond it a hit on a further id is answered
    /// [`Added::Full`](crate::Added::Full). 1,000,000 unless said otherwise.
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
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput), naming the setting.
    pub fn build(self) -> Result<Family> {
        let family = self.family;
        family.check()?;
        family.check_sync()?;
        if family.max_pending == 0 {
            return Err(family.refused("max_pending", "0: at least 1"));
        }
        Ok(family)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_setting_is_named() {
        let wrong = |builder: FamilyBuilder| builder.build().expect_err("refused").to_string();
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
