//! A family, or the families in all namespaces that match a pattern.

use std::ops::Range;
use std::time::Duration;

use counterfoil::recount::{Mode, RecountIds, Source};
use counterfoil::{AnyFamily, Counting, Durability, Error, Family, KeyType, Precision, Table};
use indexmap::IndexMap;
use serde::Deserialize;
use toml::Spanned;

use super::value::{Settling, Time};
use super::{PairConfig, Wrong};

/// A family of one pair, or one in each namespace that matches a pattern.
#[derive(Clone, Debug)]
pub struct FamilyConfig {
    pub pair: String,
    /// The namespace, or a pattern with one `*` in it.
    pub namespace: String,
    pub family: String,
    pub recount: Option<Recount>,
    /// The kind and its settings.
    described: Described,
    /// The byte range of the entry in the file.
    pub(super) at: Range<usize>,
}

/// The comparison of a family's counters with rows.
#[derive(Clone, Debug)]
pub struct Recount {
    pub source: Source,
    /// The table with the rows; `None` if the source is SQL.
    pub table: Option<String>,
    pub within: Duration,
    pub every: Duration,
    pub mode: Mode,
    pub ids: RecountIds,
    pub rows_are_deleted: bool,
    pub at_most: Option<u64>,
    pub ids_per_second: Option<u32>,
}

/// The text that replaces the `*` of a pattern for a check.
const SAMPLE: &str = "x";

impl FamilyConfig {
    /// Returns the name as written: `NAMESPACE/FAMILY`.
    pub fn name(&self) -> String {
        format!("{}/{}", self.namespace, self.family)
    }

    pub(super) fn is_same(&self, other: &FamilyConfig) -> bool {
        self.pair == other.pair && self.namespace == other.namespace && self.family == other.family
    }

    /// Returns whether the namespace is a pattern.
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

    /// Builds the family in one matching namespace, to use what all families of a pattern share.
    pub fn sample(&self) -> Result<AnyFamily, Error> {
        self.in_namespace(&self.namespace.replace('*', SAMPLE))
    }

    /// Builds the family in `namespace`.
    pub fn in_namespace(&self, namespace: &str) -> Result<AnyFamily, Error> {
        self.described.build(namespace, &self.family)
    }
}

/// Defines the settings of all kinds, each optional, with their positions in the file.
macro_rules! settings {
    ($($name:ident: $type:ty,)*) => {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct FamilyEntry {
            name: Spanned<String>,
            kind: Spanned<Kind>,
            pair: Option<Spanned<String>>,
            recount: Option<Spanned<RecountEntry>>,
            $($name: Option<Spanned<$type>>,)*
        }

        /// The settings of a family, without its name.
        #[derive(Clone, Debug)]
        struct Described {
            kind: Kind,
            $($name: Option<$type>,)*
        }

        impl FamilyEntry {
            fn described(&self, kind: Kind) -> Described {
                Described { kind, $($name: self.$name.as_ref().map(|setting| setting.get_ref().clone()),)* }
            }

            /// Returns the name and the position of the first given setting that `is_meant`
            /// accepts.
            fn place(&self, is_meant: impl Fn(&str) -> bool) -> Option<(&'static str, Range<usize>)> {
                $(if let Some(setting) = self.$name.as_ref().filter(|_| is_meant(stringify!($name))) {
                    return Some((stringify!($name), setting.span()));
                })*
                None
            }
        }
    };
}

settings! {
    partitions: u32,
    durability: Settling,
    table: TableEntry,
    wide: bool,
    sync_hits: u64,
    sync_time: Time,
    max_pending: u64,
    save_after: Time,
    retain: Time,
    min: i64,
    max: i64,
    windows: IndexMap<String, u32>,
    keep: Vec<String>,
    time_zone: String,
    window: Time,
    layer: Time,
    stripes: u32,
    visitors: CountingEntry,
    keep_minutes: bool,
    remember: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Buffered,
    Cached,
    Series,
    Activity,
    Visitors,
}

impl Kind {
    /// Returns the settings of this kind, beyond those of all kinds.
    fn settings(self) -> &'static [&'static str] {
        match self {
            Kind::Buffered => &["wide", "sync_hits", "sync_time", "max_pending", "recount"],
            Kind::Cached => &["save_after", "retain", "min", "max", "recount"],
            Kind::Series => &["windows", "keep", "time_zone", "sync_time"],
            Kind::Activity => &[
                "window",
                "layer",
                "stripes",
                "visitors",
                "keep_minutes",
                "sync_time",
            ],
            Kind::Visitors => &["remember", "sync_hits", "sync_time"],
        }
    }
}

const OF_ALL: [&str; 3] = ["partitions", "durability", "table"];

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum CountingEntry {
    Exact,
    Estimated,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TableEntry {
    upsert: Option<String>,
    update: Option<String>,
    keys: IndexMap<String, KeyEntry>,
    value: String,
    separator: Option<char>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum KeyEntry {
    Unsigned,
    Signed,
    Date,
    Text,
    Char,
    Uuid,
}

impl TableEntry {
    fn build(&self) -> Result<Table, Error> {
        let table = match (&self.upsert, &self.update) {
            (Some(name), None) => Table::upsert(name),
            (None, Some(name)) => Table::update(name),
            _ => {
                return Err(invalid(
                    "table: one of upsert = \"NAME\" and update = \"NAME\" is expected",
                ));
            }
        };
        let table = self.keys.iter().fold(table, |table, (column, kind)| {
            let kind = match kind {
                KeyEntry::Unsigned => KeyType::Unsigned,
                KeyEntry::Signed => KeyType::Signed,
                KeyEntry::Date => KeyType::Date,
                KeyEntry::Text => KeyType::Text,
                KeyEntry::Char => KeyType::Char,
                KeyEntry::Uuid => KeyType::Uuid,
            };
            table.key(column, kind)
        });
        let table = table.value(&self.value);
        Ok(match self.separator {
            Some(separator) => table.separator(separator),
            None => table,
        })
    }
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecountEntry {
    table: Option<String>,
    keys: Option<Vec<String>>,
    filter: Option<String>,
    sum: Option<String>,
    sql: Option<String>,
    within: Time,
    every: Time,
    #[serde(default)]
    only_report: bool,
    #[serde(default)]
    ids: IdsEntry,
    #[serde(default)]
    rows_are_deleted: bool,
    at_most: Option<u64>,
    ids_per_second: Option<u32>,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum IdsEntry {
    #[default]
    Counters,
    Source,
    Both,
}

impl RecountEntry {
    fn build(&self) -> Result<Recount, String> {
        let mut source = match (&self.table, &self.keys, &self.sql) {
            (Some(table), Some(keys), None) => Source::table(table, keys),
            (None, None, Some(sql)) => Source::sql(sql),
            _ => return Err("either table and keys, or sql, are expected".into()),
        };
        if self.sql.is_some() && (self.filter.is_some() || self.sum.is_some()) {
            return Err("filter and sum go with a table".into());
        }
        if let Some(filter) = &self.filter {
            source = source.filter(filter);
        }
        if let Some(column) = &self.sum {
            source = source.sum(column);
        }
        Ok(Recount {
            source,
            table: self.table.clone(),
            within: self.within.0,
            every: self.every.0,
            mode: if self.only_report {
                Mode::Report
            } else {
                Mode::Correct
            },
            ids: match self.ids {
                IdsEntry::Counters => RecountIds::Counters,
                IdsEntry::Source => RecountIds::Source,
                IdsEntry::Both => RecountIds::Both,
            },
            rows_are_deleted: self.rows_are_deleted,
            at_most: self.at_most,
            ids_per_second: self.ids_per_second,
        })
    }
}

/// Passes each given setting to the builder's method of the same name.
macro_rules! with {
    ($builder:expr, $described:ident: $($setting:ident),*) => {{
        let mut builder = $builder;
        $(if let Some(value) = &$described.$setting {
            builder = builder.$setting(Set::set(value)?);
        })*
        builder
    }};
}

impl Described {
    fn build(&self, namespace: &str, family: &str) -> Result<AnyFamily, Error> {
        let described = self;
        let minute = Time(Duration::from_secs(60));
        let (hits, time) = (
            self.sync_hits.unwrap_or(50),
            self.sync_time.unwrap_or(minute).0,
        );
        Ok(match self.kind {
            Kind::Buffered => {
                let builder = Family::buffered(namespace, family).sync_after(hits, time);
                let builder =
                    with!(builder, described: partitions, durability, table, wide, max_pending);
                AnyFamily::Buffered(builder.build()?)
            }
            Kind::Cached => {
                let builder = Family::cached(namespace, family);
                let builder = with!(builder, described: partitions, durability, table, save_after, retain, min, max);
                AnyFamily::Cached(builder.build()?)
            }
            Kind::Series => {
                let builder = Family::series(namespace, family).sync_after(time);
                let builder = with!(builder, described: partitions, durability, table, windows, keep, time_zone);
                AnyFamily::Series(builder.build()?)
            }
            Kind::Activity => {
                let [window, layer] =
                    [(self.window, 600), (self.layer, 3)].map(|(written, seconds)| {
                        written.map_or(Duration::from_secs(seconds), |Time(time)| time)
                    });
                let builder = Family::activity(namespace, family)
                    .sync_after(time)
                    .window(window, layer);
                let builder = with!(builder, described: partitions, durability, table, stripes, visitors, keep_minutes);
                AnyFamily::Activity(builder.build()?)
            }
            Kind::Visitors => {
                let builder = Family::visitors(namespace, family).sync_after(hits, time);
                let builder = with!(builder, described: partitions, durability, table, remember);
                AnyFamily::Visitors(builder.build()?)
            }
        })
    }
}

/// The conversion from a setting as written to the builder's argument.
trait Set {
    type To;
    fn set(&self) -> Result<Self::To, Error>;
}

macro_rules! set {
    ($($from:ty => $to:ty, $value:ident: $made:expr;)*) => {
        $(impl Set for $from {
            type To = $to;
            fn set(&self) -> Result<$to, Error> {
                let $value = self;
                Ok($made)
            }
        })*
    };
}

set! {
    u32 => u32, value: *value;
    u64 => u64, value: *value;
    i64 => i64, value: *value;
    bool => bool, value: *value;
    String => String, value: value.clone();
    Time => Duration, value: value.0;
    Settling => Durability, value: value.0;
    TableEntry => Table, value: value.build()?;
    IndexMap<String, u32> => Vec<(Precision, u32)>,
        value: value.iter().map(|(name, &slices)| Ok((name.parse()?, slices))).collect::<Result<_, Error>>()?;
    Vec<String> => Vec<Precision>, value: value.iter().map(|name| name.parse()).collect::<Result<_, _>>()?;
    CountingEntry => Counting, value: match value {
        CountingEntry::Exact => Counting::Exact,
        CountingEntry::Estimated => Counting::HyperLogLog,
    };
}

impl FamilyEntry {
    pub(super) fn check(
        entry: Spanned<FamilyEntry>,
        pairs: &[PairConfig],
    ) -> Result<FamilyConfig, Wrong> {
        let at = entry.span();
        let entry = entry.into_inner();
        let (written, name_at) = (entry.name.get_ref(), entry.name.span());
        let wrong =
            |at: &Range<usize>, what: String| Wrong::new(at, format!("family {written:?}: {what}"));
        let Some((namespace, family)) = written
            .split_once('/')
            .filter(|(namespace, _)| namespace.matches('*').count() < 2)
        else {
            let expected =
                "expected NAMESPACE/FAMILY, or one * in the namespace for many".to_owned();
            return Err(wrong(&name_at, expected));
        };
        let pair = match (&entry.pair, pairs) {
            (Some(named), _) => pairs
                .iter()
                .find(|pair| pair.name == *named.get_ref())
                .ok_or_else(|| {
                    wrong(
                        &named.span(),
                        format!("there is no [pair.{}]", named.get_ref()),
                    )
                })?,
            (None, [only]) => only,
            (None, _) => {
                return Err(wrong(
                    &name_at,
                    "pair = \"NAME\" is missing, and there are several".into(),
                ));
            }
        };
        let kind = *entry.kind.get_ref();
        if let Some((setting, at)) =
            entry.place(|name| !kind.settings().contains(&name) && !OF_ALL.contains(&name))
        {
            let known = [kind.settings(), &OF_ALL].concat().join(", ");
            return Err(wrong(
                &at,
                format!("{setting} is no setting of its kind, which has {known}"),
            ));
        }
        let recount = match &entry.recount {
            Some(recount) if !kind.settings().contains(&"recount") => {
                return Err(wrong(
                    &recount.span(),
                    "only buffered and cached counters are recounted".into(),
                ));
            }
            Some(recount) => {
                let built = recount.get_ref().build();
                Some(built.map_err(|what| wrong(&recount.span(), format!("recount: {what}")))?)
            }
            None => None,
        };
        let mut described = entry.described(kind);
        described
            .durability
            .get_or_insert(Settling(pair.durability));
        let config = FamilyConfig {
            pair: pair.name.clone(),
            namespace: namespace.to_owned(),
            family: family.to_owned(),
            recount,
            described,
            at,
        };
        // the error's message names the setting
        config.sample().map_err(|error| {
            let message = format!("{error:#}");
            let place = entry
                .place(|name| message.contains(name))
                .map_or(name_at.clone(), |(_, at)| at);
            wrong(&place, message)
        })?;
        Ok(config)
    }
}

fn invalid(message: &'static str) -> Error {
    Error::new(counterfoil::ErrorKind::InvalidInput, message)
}
