//! The configuration of a family that counts visitors.

use std::time::Duration;

use serde_json::{Value, json};

use super::settings::{Settings, millis};
use super::{Durability, Family, Kind, OfKind};
use crate::error::Result;
use crate::family::table::Table;
use crate::family::visit;

/// A [`Family`] of unique visitors, such as those of a shop on a day. Each visitor counts once.
///
/// ```
/// use counterfoil::{Family, KeyType, Table};
/// # fn main() -> counterfoil::Result<()> {
/// let table = Table::upsert("visitors").key("store_id", KeyType::Unsigned).key("day", KeyType::Date).value("count");
/// let visitors = Family::visitors("shop", "visitors").table(table).build()?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VisitorsFamily {
    pub(crate) family: Family,
}

/// The time for which visitors are remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remember(pub(crate) Duration);

impl OfKind for Remember {
    fn name(&self) -> &'static str {
        "visitors"
    }

    fn scripts(&self) -> &'static [&'static str] {
        &["visitors_", "buffered_"]
    }

    fn settings(&self) -> Value {
        json!({ "remember_ms": millis(self.0) })
    }

    fn has_expiring_keys(&self) -> bool {
        true
    }

    fn home_of(&self, family: &Family, visit: &[u8]) -> Option<u32> {
        Some(family.partition_by(visit::split(visit).0))
    }
}

impl Family {
    /// Starts the configuration of a family that counts the visitors of a scope and day, each once:
    /// a buffered family whose ids are `SCOPE/DAY` (docs/protocol.md, sections 3 and 5). Namespace
    /// and name are of `[a-z0-9_.-]{1,64}`.
    pub fn visitors(
        namespace: impl Into<String>,
        name: impl Into<String>,
    ) -> VisitorsFamilyBuilder {
        let remember = Duration::from_secs(3 * 86_400);
        let kind = Kind::Visitors(Remember(remember));
        let family = Family::new(namespace.into(), name.into(), Duration::from_secs(60), kind);
        VisitorsFamilyBuilder { family, remember }
    }
}

/// A [`VisitorsFamily`] being configured; [`build`](Self::build) checks it.
#[derive(Clone, Debug)]
#[must_use = "a family is made by build()"]
pub struct VisitorsFamilyBuilder {
    family: Family,
    remember: Duration,
}

impl VisitorsFamilyBuilder {
    /// Sets how long visitors are remembered after the last new visitor of the scope and day.
    /// Defaults to 3 days, at most a year. A later visit counts again.
    pub fn remember(mut self, time: Duration) -> Self {
        self.remember = time;
        self
    }

    /// Sets when to sync, like [a buffered family](super::BufferedFamilyBuilder::sync_after); hits
    /// are new visitors here.
    pub fn sync_after(mut self, visitors: u64, time: Duration) -> Self {
        (self.family.sync_hits, self.family.sync_time) = (visitors, time);
        self
    }

    common_settings!();

    /// Keeps the numbers in a table of the application, not in counterfoil's own. Its key columns
    /// take scope and day.
    pub fn table(mut self, table: Table) -> Self {
        self.family.table = Some(table);
        self
    }

    /// Checks the configuration.
    ///
    /// # Errors
    /// [`InvalidInput`](crate::ErrorKind::InvalidInput), naming the setting that is wrong.
    pub fn build(self) -> Result<VisitorsFamily> {
        let VisitorsFamilyBuilder {
            mut family,
            remember,
        } = self;
        family.check()?;
        family.check_sync()?;
        let year = Duration::from_secs(365 * 86_400);
        if !(Duration::from_secs(1)..=year).contains(&remember) {
            return Err(family.refused("remember", format!("{remember:?} is not 1 s to 365 days")));
        }
        family.kind = Kind::Visitors(Remember(remember));
        Ok(VisitorsFamily { family })
    }
}

impl VisitorsFamily {
    /// Returns the family with stored settings.
    pub(super) fn read(
        namespace: &str,
        name: &str,
        all: &Settings<'_>,
        own: &Settings<'_>,
    ) -> Result<Self, String> {
        let family = Family::visitors(namespace, name)
            .with_common(all)?
            .remember(own.time("remember_ms")?);
        let family = family.sync_after(all.number("sync_hits")?, all.time("sync_ms")?);
        family.build().map_err(|error| error.to_string())
    }
}

family_of_kind!(VisitorsFamily);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_setting_of_a_visitors_family_is_named() {
        let wrong =
            |builder: VisitorsFamilyBuilder| builder.build().expect_err("refused").to_string();
        let ok = || Family::visitors("shop", "visitors");
        assert!(wrong(Family::visitors("shop", "v/isitors")).contains("family \"v/isitors\""));
        assert!(wrong(ok().remember(Duration::ZERO)).contains("remember"));
        assert!(wrong(ok().sync_after(0, Duration::from_secs(1))).contains("sync_after"));
        assert!(wrong(ok().partitions(0)).contains("partitions 0"));
    }
}
