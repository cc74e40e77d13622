//! The settings of a family in their one written form, which the database, Redis and the daemon's
//! file share.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::kind::Kind;
use super::{Durability, Family};
use crate::error::{Error, Result};
use crate::family::calendar::Precision;
use crate::family::row_id::Columns;
use crate::family::table::Table;
use crate::family::time::Time;

/// The settings of a [`Family`], as a configuration file or the database holds them. Each is
/// optional, except the kind. [`Family::new`] checks them.
///
/// They implement serde's traits. Times are text with a unit, such as `2.5s` or `10m`. An unknown
/// setting is an error.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FamilySettings {
    pub(crate) kind: KindName,
    pub(crate) partitions: Option<u32>,
    pub(crate) durability: Option<Durability>,
    pub(crate) table: Option<Table>,
    pub(crate) sync_time: Option<Time>,
    pub(crate) sync_hits: Option<u64>,
    pub(crate) max_pending: Option<u64>,
    pub(crate) wide: Option<bool>,
    pub(crate) remember_requests: Option<Time>,
    pub(crate) retain: Option<Time>,
    pub(crate) min: Option<i64>,
    pub(crate) max: Option<i64>,
    pub(crate) windows: Option<Vec<(Precision, u32)>>,
    pub(crate) keep: Option<Vec<Precision>>,
    pub(crate) time_zone: Option<String>,
    pub(crate) late: Option<Time>,
    pub(crate) window: Option<Time>,
    pub(crate) layer: Option<Time>,
    pub(crate) stripes: Option<u32>,
    pub(crate) keep_minutes: Option<bool>,
    pub(crate) remember: Option<Time>,
}

/// The name of a kind, with which its scripts begin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KindName {
    #[default]
    Buffered,
    Cached,
    Series,
    Activity,
    Visitors,
}

impl FamilySettings {
    /// Sets the durability unless it is given.
    #[must_use]
    pub fn or_durability(mut self, durability: Durability) -> Self {
        self.durability.get_or_insert(durability);
        self
    }

    /// Returns the settings that are given.
    fn given(&self) -> Map<String, Value> {
        let Ok(Value::Object(mut all)) = serde_json::to_value(self) else {
            return Map::new();
        };
        all.retain(|_, value| !value.is_null());
        all
    }

    /// Refuses a setting that families of this kind do not have.
    pub(super) fn refuse_others(&self, family: &Family) -> Result<()> {
        let known = family.all_settings().given();
        match self.given().keys().find(|name| !known.contains_key(*name)) {
            Some(other) => {
                let wrong = format!("is not a setting of {} families", family.kind());
                Err(family.refused(other, wrong))
            }
            None => Ok(()),
        }
    }
}

impl Family {
    /// Returns all settings as a JSON object, for a [`Store`](crate::Store) to keep. They include
    /// more than the [identity](Self::identity), and come from the process that last opened the
    /// family.
    pub fn settings(&self) -> String {
        Value::Object(self.all_settings().given()).to_string()
    }

    /// Returns what a client in another language must know of the family, as a JSON object.
    pub(crate) fn description(&self, columns: Option<&Columns>) -> String {
        let ids = self.given_ids(columns);
        let needed: &[_] = match self.kind {
            Kind::Buffered => &["wide"],
            Kind::Cached(_) => &[],
            Kind::Series(_) => &[],
            Kind::Activity(_) => &["stripes"],
            Kind::Visitors(_) => &[],
        };
        let mut all = self.all_settings().given();
        all.retain(|name, _| needed.contains(&&**name));
        if let Kind::Series(series) = &self.kind {
            let labels = series
                .labels()
                .iter()
                .map(|label| label.to_string().into())
                .collect();
            all.insert("labels".into(), Value::Array(labels));
        }
        all.insert("separator".into(), self.separator().to_string().into());
        all.insert("ids".into(), ids.pattern().into());
        all.insert("ids_in_words".into(), ids.words().into());
        Value::Object(all).to_string()
    }

    /// Returns the family of that name with stored [settings](Self::settings).
    ///
    /// # Errors
    /// [`Mismatch`](crate::ErrorKind::Mismatch), naming the family, if the settings are invalid or of a
    /// later version.
    pub fn from_settings(namespace: &str, name: &str, settings: &str) -> Result<Family> {
        let family = match serde_json::from_str::<FamilySettings>(settings) {
            Ok(read) => Family::new(namespace, name, &read).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        family.map_err(|wrong| {
            Error::mismatch(format!(
                "{namespace}/{name}: invalid settings in the database: {wrong}"
            ))
        })
    }

    /// Returns the settings that scripts read, which `family_configure` writes beside the epoch.
    /// The bounds of cached counters depend on the columns of the family's table, if they are
    /// known.
    pub(crate) fn script_settings(&self, columns: Option<&Columns>) -> Vec<(&'static str, String)> {
        let mut settings = vec![("max_pending", self.max_pending.to_string())];
        if self.takes_requests() {
            let millis = self.remember_requests.as_millis().to_string();
            settings.push(("remember_requests", millis));
        }
        if let Some(retention) = self.retention() {
            let bounds = retention.bounds(&Columns::values(columns));
            let no_row = if self.makes_rows() { "0" } else { "refused" };
            settings.extend([
                ("min", bounds.start().to_string()),
                ("max", bounds.end().to_string()),
                ("retain", retention.retain.as_millis().to_string()),
                ("no_row", no_row.to_owned()),
            ]);
        }
        match &self.kind {
            Kind::Series(series) => {
                let windows: Vec<_> = series
                    .windows
                    .iter()
                    .map(|it| format!("{} {}", it.precision, it.slices))
                    .collect();
                let kept: Vec<_> = series.kept().map(|it| it.precision.to_string()).collect();
                settings.extend([
                    ("windows", windows.join(" ")),
                    ("keep", kept.join(" ")),
                    ("late", series.late.as_millis().to_string()),
                ]);
            }
            Kind::Activity(sliding) => settings.extend([
                ("layer", sliding.layer_ms().to_string()),
                ("layers", sliding.layers.to_string()),
                ("keep_minutes", u8::from(sliding.keep_minutes).to_string()),
                ("stripes", sliding.stripes.to_string()),
            ]),
            Kind::Visitors(remember) => {
                settings.push(("remember", remember.as_millis().to_string()));
            }
            _ => {}
        }
        settings
    }

    /// Returns the number of hits after which a partition is synced; `None` if time alone decides.
    fn given_sync_hits(&self) -> Option<u64> {
        Some(self.sync_hits).filter(|hits| *hits != u64::MAX)
    }

    /// Returns the settings with the defaults filled in.
    fn all_settings(&self) -> FamilySettings {
        let common = FamilySettings {
            partitions: Some(self.partitions),
            durability: Some(self.durability),
            table: self.table.clone(),
            sync_time: Some(Time(self.sync_time)),
            ..FamilySettings::default()
        };
        match &self.kind {
            Kind::Buffered => FamilySettings {
                kind: KindName::Buffered,
                sync_hits: Some(self.sync_hits),
                max_pending: Some(self.max_pending),
                wide: Some(self.wide),
                remember_requests: Some(Time(self.remember_requests)),
                ..common
            },
            Kind::Cached(retention) => FamilySettings {
                kind: KindName::Cached,
                remember_requests: Some(Time(self.remember_requests)),
                retain: Some(Time(retention.retain)),
                min: retention.min,
                max: retention.max,
                ..common
            },
            Kind::Series(series) => FamilySettings {
                kind: KindName::Series,
                windows: Some(
                    series
                        .windows
                        .iter()
                        .map(|it| (it.precision, it.slices))
                        .collect(),
                ),
                keep: Some(series.kept().map(|window| window.precision).collect()),
                time_zone: Some(series.calendar.name().to_owned()),
                late: Some(Time(series.late)),
                sync_hits: self.given_sync_hits(),
                max_pending: Some(self.max_pending),
                ..common
            },
            Kind::Activity(sliding) => FamilySettings {
                kind: KindName::Activity,
                window: Some(Time(sliding.layer * sliding.layers)),
                layer: Some(Time(sliding.layer)),
                stripes: Some(sliding.stripes),
                keep_minutes: Some(sliding.keep_minutes),
                sync_hits: self.given_sync_hits(),
                max_pending: Some(self.max_pending),
                ..common
            },
            Kind::Visitors(remember) => FamilySettings {
                kind: KindName::Visitors,
                sync_hits: Some(self.sync_hits),
                remember: Some(Time(*remember)),
                ..common
            },
        }
    }
}
