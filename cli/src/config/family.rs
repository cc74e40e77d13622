//! A family, or the families in all namespaces that match a pattern.

use std::num::NonZeroU32;

use counterfoil::recount::{RecountIds, Rows, Source};
use counterfoil::{Error, ErrorKind, Family, FamilySettings, MysqlStore};
use serde::Deserialize;
use serde_json::Value;
use toml::Spanned;
use toml::de::{DeValue, ValueDeserializer};

use super::{PairConfig, Time, Wrong, mysql, unknown};

/// A family, or one in each namespace that matches a pattern.
#[derive(Clone)]
pub struct FamilyConfig {
    /// The namespace, or a pattern with one `*` in it.
    pub namespace: String,
    pub family: String,
    pub recount: Option<Recount>,
    settings: FamilySettings,
}

/// The settings of a family that are not the library's.
#[derive(Deserialize)]
struct Header {
    /// NAMESPACE/FAMILY, with a pattern or without.
    name: String,
    pair: Option<String>,
    recount: Option<Recount>,
}

/// The comparison of a family's counters with rows.
#[derive(Clone, Deserialize)]
#[serde(try_from = "RecountSettings")]
pub struct Recount {
    pub source: Source,
    pub rows: Rows,
    pub settings: RecountSettings,
}

/// The settings of a recount, as written in the file.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecountSettings {
    /// The table with the rows; `None` if the source is SQL.
    pub table: Option<String>,
    pub keys: Option<Vec<String>>,
    pub filter: Option<String>,
    pub sum: Option<String>,
    sql: Option<String>,
    rows: Option<Rows>,
    pub within: Time,
    pub every: Time,
    #[serde(default)]
    pub only_report: bool,
    #[serde(default)]
    pub ids: RecountIds,
    pub at_most: Option<u64>,
    pub ids_per_second: Option<NonZeroU32>,
}

impl TryFrom<RecountSettings> for Recount {
    type Error = &'static str;

    fn try_from(settings: RecountSettings) -> Result<Self, Self::Error> {
        let Some(rows) = settings.rows else {
            return Err(
                "recount: rows is missing: \"added\" if rows stay as they were added and none counts \
                 less than 0, \"added_and_deleted\" if they are also deleted or changed",
            );
        };
        if settings.within.0.is_zero() || settings.every.0.is_zero() {
            return Err("recount: within and every must be greater than 0");
        }
        let mut source = match (&settings.table, &settings.keys, &settings.sql) {
            (Some(table), Some(keys), None) => Source::table(table, keys),
            (None, None, Some(sql)) => Source::sql(sql),
            _ => return Err("recount: either table and keys, or sql, are expected"),
        };
        let is_for_table = settings.filter.is_some()
            || settings.sum.is_some()
            || settings.ids != RecountIds::Counters;
        if settings.sql.is_some() && is_for_table {
            return Err("recount: filter, sum and ids go with a table");
        }
        if let Some(filter) = &settings.filter {
            source = source.filter(filter);
        }
        if let Some(column) = &settings.sum {
            source = source.sum(column);
        }
        Ok(Recount {
            source,
            rows,
            settings,
        })
    }
}

/// The text that replaces the `*` of a pattern in a sample namespace.
const SAMPLE: &str = "x";

impl FamilyConfig {
    /// Returns the name as written: `NAMESPACE/FAMILY`.
    pub fn name(&self) -> String {
        format!("{}/{}", self.namespace, self.family)
    }

    pub fn is_pattern(&self) -> bool {
        self.namespace.contains('*')
    }

    /// Returns whether it describes the family of this namespace and name.
    pub fn describes(&self, namespace: &str, family: &str) -> bool {
        let fits = match self.namespace.split_once('*') {
            Some((before, after)) => namespace
                .strip_prefix(before)
                .and_then(|rest| rest.strip_suffix(after))
                .is_some_and(|rest| !rest.is_empty()),
            None => self.namespace == namespace,
        };
        fits && self.family == family
    }

    /// Returns how specific its namespace is. Of several that describe a family, the one with the
    /// greatest value applies.
    pub fn precedence(&self) -> (bool, usize, usize) {
        match self.namespace.split_once('*') {
            None => (true, 0, 0),
            Some((before, after)) => (false, before.len() + after.len(), before.len()),
        }
    }

    /// Returns whether there are families that both describe.
    pub fn overlaps(&self, other: &FamilyConfig) -> bool {
        let parts = [&self.namespace, &other.namespace].map(|namespace| namespace.split_once('*'));
        match parts {
            [Some((before, after)), Some((other_before, other_after))] => {
                self.family == other.family
                    && (before.starts_with(other_before) || other_before.starts_with(before))
                    && (after.ends_with(other_after) || other_after.ends_with(after))
            }
            [Some(_), None] => self.describes(&other.namespace, &other.family),
            [None, _] => other.describes(&self.namespace, &self.family),
        }
    }

    /// Returns whether both have the same name and the same table.
    pub fn has_table_of(&self, other: &FamilyConfig) -> bool {
        let table = |config: &FamilyConfig| config.sample().ok()?.table().cloned();
        let own = table(self);
        self.name() == other.name() && own.is_some() && own == table(other)
    }

    /// Returns the family in a sample namespace that matches, for a use of what all families of a
    /// pattern share.
    pub fn sample(&self) -> Result<Family, Error> {
        self.in_namespace(&self.namespace.replace('*', SAMPLE))
    }

    /// Returns this configuration with missing rows inserted, for a store without the application's
    /// tables, where no row exists.
    pub fn with_any_rows(&self) -> Result<Self, Error> {
        let invalid = |error: serde_json::Error| {
            Error::new(ErrorKind::InvalidInput, format!("{}: {error}", self.name()))
        };
        let mut json = serde_json::to_value(&self.settings).map_err(invalid)?;
        if let Some(table) = json.get_mut("table").filter(|table| table.is_object()) {
            table["write"] = "upsert".into();
        }
        Ok(FamilyConfig {
            settings: serde_json::from_value(json).map_err(invalid)?,
            ..self.clone()
        })
    }

    pub fn in_namespace(&self, namespace: &str) -> Result<Family, Error> {
        Family::new(namespace, &self.family, &self.settings)
    }

    /// Reads a `[[family]]`, and adds it to its pair.
    pub(super) fn read(entry: Spanned<DeValue<'_>>, pairs: &mut [PairConfig]) -> Result<(), Wrong> {
        let at = entry.span();
        let header = Header::deserialize(ValueDeserializer::from(entry.clone()))?;
        let mut rest = entry.into_inner();
        let mut kind = None;
        if let DeValue::Table(table) = &mut rest {
            for name in ["name", "pair", "recount"] {
                table.remove(name);
            }
            let written = table.get("kind").and_then(|kind| kind.get_ref().as_str());
            kind = written.map(str::to_owned);
        }
        let deserializer = ValueDeserializer::from(Spanned::new(at.clone(), rest));
        let settings = FamilySettings::deserialize(deserializer).map_err(|error| Wrong {
            message: unknown::in_family(error.message(), kind.as_deref()),
            ..Wrong::from(error.clone())
        })?;
        let name = header.name.clone();
        FamilyConfig::add(header, settings, pairs).map_err(|what| Wrong {
            message: format!("family {name:?}: {what}"),
            at,
        })
    }

    fn add(
        Header {
            name,
            pair: pair_name,
            recount,
        }: Header,
        settings: FamilySettings,
        pairs: &mut [PairConfig],
    ) -> Result<(), String> {
        let (namespace, family) = name
            .split_once('/')
            .filter(|(namespace, _)| namespace.matches('*').count() < 2)
            .ok_or("expected NAMESPACE/FAMILY, or one * in the namespace for many")?;
        let pair = match (pair_name, pairs) {
            (None, [only]) => only,
            (None, _) => return Err("pair = \"NAME\" is missing, and there are several".to_owned()),
            (Some(named), pairs) => {
                let found = pairs.iter_mut().find(|pair| pair.name == named);
                found.ok_or_else(|| format!("there is no [pair.{named}]"))?
            }
        };
        let config = FamilyConfig {
            namespace: namespace.to_owned(),
            family: family.to_owned(),
            recount,
            settings: settings.or_durability(pair.durability),
        };
        let sample = config.sample().map_err(|error| format!("{error:#}"))?;
        refuse_foreign_table(&sample)?;
        if let Some(Recount { source, .. }) = &config.recount {
            if !["buffered", "cached"].contains(&sample.kind()) {
                return Err("only buffered and cached counters are recounted".to_owned());
            }
            source
                .check(&sample)
                .map_err(|error| format!("recount: {error:#}"))?;
        }
        let name = config.name();
        if pair.families.iter().any(|other| other.name() == name) {
            return Err(format!("is described twice for pair {:?}", pair.name));
        }
        pair.families.push(config);
        Ok(())
    }
}

/// Refuses a table that is no table of the application's: hits would overwrite what counterfoil or
/// the server keeps there.
fn refuse_foreign_table(family: &Family) -> Result<(), String> {
    let settings: Value = serde_json::from_str(&family.settings()).unwrap_or_default();
    let Some(name) = settings["table"]["name"].as_str() else {
        return Ok(());
    };
    let (schema, table) = name.rsplit_once('.').unwrap_or(("", name));
    let own = MysqlStore::schema().split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    if mysql::is_system_schema(schema) {
        Err(format!("table {name:?} is the server's own"))
    } else if own
        .filter(|word| word.starts_with("counterfoil_"))
        .any(|own| own.eq_ignore_ascii_case(table))
    {
        Err(format!(
            "table {name:?} is counterfoil's own: without `table` the values are in counterfoil_values"
        ))
    } else {
        Ok(())
    }
}
