//! A family, or the families in all namespaces that match a pattern.

use std::ops::Range;

use counterfoil::recount::{RecountIds, Source};
use counterfoil::{Error, Family, FamilySettings};
use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use super::value::Time;
use super::{PairConfig, Wrong};

/// A family of one pair, or one in each namespace that matches a pattern.
#[derive(Clone, Debug)]
pub struct FamilyConfig {
    pub pair: String,
    /// The namespace, or a pattern with one `*` in it.
    pub namespace: String,
    pub family: String,
    pub recount: Option<Recount>,
    settings: FamilySettings,
}

/// The comparison of a family's counters with rows.
#[derive(Clone, Debug)]
pub struct Recount {
    pub source: Source,
    pub settings: RecountSettings,
}

/// The text that replaces the `*` of a pattern for a check.
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
            Some((before, after)) => {
                let rest = namespace
                    .strip_prefix(before)
                    .and_then(|rest| rest.strip_suffix(after));
                rest.is_some_and(|rest| !rest.is_empty())
            }
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

    /// Returns the family in one matching namespace, to use what all families of a pattern share.
    pub fn sample(&self) -> Result<Family, Error> {
        self.in_namespace(&self.namespace.replace('*', SAMPLE))
    }

    pub fn in_namespace(&self, namespace: &str) -> Result<Family, Error> {
        Family::new(namespace, &self.family, &self.settings)
    }

    /// Reads a `[[family]]`. What is neither its name, its pair nor its recount is a setting of the
    /// library.
    pub(super) fn read(
        entry: Spanned<DeValue<'_>>,
        pairs: &[PairConfig],
    ) -> Result<FamilyConfig, Wrong> {
        let at = entry.span();
        let DeValue::Table(mut table) = entry.into_inner() else {
            return Err(Wrong::new(&at, "expected a table, [[family]]"));
        };
        let name: Spanned<String> =
            take(&mut table, "name")?.ok_or_else(|| Wrong::new(&at, "missing field `name`"))?;
        let (written, name_at) = (name.get_ref(), name.span());
        let wrong = |at: &Range<usize>, what: &str| {
            Err(Wrong::new(at, format!("family {written:?}: {what}")))
        };
        let Some((namespace, family)) = written
            .split_once('/')
            .filter(|(namespace, _)| namespace.matches('*').count() < 2)
        else {
            let expected = "expected NAMESPACE/FAMILY, or one * in the namespace for many";
            return wrong(&name_at, expected);
        };
        let named: Option<Spanned<String>> = take(&mut table, "pair")?;
        let pair = match (&named, pairs) {
            (Some(named), _) => match pairs.iter().find(|pair| pair.name == *named.get_ref()) {
                Some(pair) => pair,
                None => {
                    let absent = format!("there is no [pair.{}]", named.get_ref());
                    return wrong(&named.span(), &absent);
                }
            },
            (None, [only]) => only,
            (None, _) => {
                return wrong(
                    &name_at,
                    "pair = \"NAME\" is missing, and there are several",
                );
            }
        };
        let in_recount = table
            .get("recount")
            .map_or(Vec::new(), |recount| spans(recount.get_ref()));
        let recount: Option<Spanned<RecountSettings>> = take(&mut table, "recount")?;
        let entry = Spanned::new(at, DeValue::Table(table));
        let settings = spans(entry.get_ref());
        let read = FamilySettings::deserialize(ValueDeserializer::from(entry))?;
        let mut config = FamilyConfig {
            pair: pair.name.clone(),
            namespace: namespace.to_owned(),
            family: family.to_owned(),
            recount: None,
            settings: read.or_durability(pair.durability),
        };
        let sample = config.sample().map_err(|error| {
            // the library's error names the family, and then the setting
            let message = format!("{error:#}");
            let sample = format!("{}/{family}: ", namespace.replace('*', SAMPLE));
            let what = message.strip_prefix(&sample).unwrap_or(&message);
            let named = what.split(' ').next();
            let setting = settings.iter().find(|(name, _)| named == Some(name));
            let at = setting.map_or(&name_at, |(_, at)| at);
            Wrong::new(at, format!("family {written:?}: {what}"))
        })?;
        if let Some(recount) = recount {
            if !["buffered", "cached"].contains(&sample.kind()) {
                let others = "only buffered and cached counters are recounted";
                return wrong(&recount.span(), others);
            }
            let wrong = |setting: &str, what: String| {
                let at = in_recount.iter().find(|(name, _)| name == setting);
                let at = at.map_or(recount.span(), |(_, at)| at.clone());
                Wrong::new(&at, format!("family {written:?}: recount: {what}"))
            };
            let settings = recount.get_ref();
            settings
                .check()
                .map_err(|(setting, what)| wrong(setting, format!("{setting} {what}")))?;
            let source = settings
                .source()
                .map_err(|what| wrong("", what.to_owned()))?;
            source
                .check(&sample)
                .map_err(|what| wrong("sql", format!("{what:#}")))?;
            config.recount = Some(Recount {
                source,
                settings: recount.into_inner(),
            });
        }
        Ok(config)
    }
}

/// Returns the settings in a table, each with its part of the text.
fn spans(table: &DeValue<'_>) -> Vec<(String, Range<usize>)> {
    let settings = table.as_table().into_iter().flat_map(DeTable::keys);
    settings
        .map(|key| (key.get_ref().to_string(), key.span()))
        .collect()
}

/// Removes an entry from the table, and reads it.
fn take<'i, T: Deserialize<'i>>(
    table: &mut DeTable<'i>,
    name: &str,
) -> Result<Option<T>, toml::de::Error> {
    let value = table.remove(name).map(ValueDeserializer::from);
    value.map(T::deserialize).transpose()
}

/// The settings of a recount, as written in the file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecountSettings {
    /// The table with the rows; `None` if the source is SQL.
    pub table: Option<String>,
    keys: Option<Vec<String>>,
    filter: Option<String>,
    sum: Option<String>,
    sql: Option<String>,
    pub within: Time,
    pub every: Time,
    #[serde(default)]
    pub only_report: bool,
    #[serde(default)]
    pub ids: RecountIds,
    #[serde(default)]
    pub rows_are_deleted: bool,
    pub at_most: Option<u64>,
    pub ids_per_second: Option<u32>,
}

impl RecountSettings {
    /// Refuses what no recount can begin with: returns the setting, and what is wrong.
    fn check(&self) -> Result<(), (&'static str, &'static str)> {
        let zero = "must be greater than 0";
        if self.within.0.is_zero() {
            Err(("within", zero))
        } else if self.every.0.is_zero() {
            Err(("every", zero))
        } else if self.ids_per_second == Some(0) {
            Err(("ids_per_second", zero))
        } else if self.sql.is_some() && self.ids != RecountIds::Counters {
            Err(("ids", "is for a table: sql lists no ids"))
        } else {
            Ok(())
        }
    }

    fn source(&self) -> Result<Source, &'static str> {
        let mut source = match (&self.table, &self.keys, &self.sql) {
            (Some(table), Some(keys), None) => Source::table(table, keys),
            (None, None, Some(sql)) => Source::sql(sql),
            _ => return Err("either table and keys, or sql, are expected"),
        };
        if self.sql.is_some() && (self.filter.is_some() || self.sum.is_some()) {
            return Err("filter and sum go with a table");
        }
        if let Some(filter) = &self.filter {
            source = source.filter(filter);
        }
        if let Some(column) = &self.sum {
            source = source.sum(column);
        }
        Ok(source)
    }
}
