//! All settings of a family as one text in the database, so that a reconciler can serve a family
//! that it never opened.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::{Durability, Family, Kind};
use crate::error::{Error, ErrorKind, Result};
use crate::family::table::{KeyType, Missing, Table};

/// The version of the format. It increases when a setting is added or changes its meaning.
const FORMAT: u64 = 1;

impl Family {
    /// Returns all settings as a JSON object, for a [`Store`](crate::Store) to keep. They include
    /// more than the [identity](Self::identity), and come from the process that last opened the
    /// family.
    pub fn settings(&self) -> String {
        let Family {
            namespace: _,
            name: _,
            partitions,
            wide,
            durability,
            table,
            ..
        } = self;
        let mut settings = json!({
            "format": FORMAT,
            "kind": self.kind(),
            "partitions": partitions,
            "wide": wide,
            "settle_ms": millis(durability.settle()),
            "table": table.as_ref().map(table_settings),
            "sync_hits": self.sync_hits,
            "sync_ms": millis(self.sync_time),
            "max_pending": self.max_pending,
        });
        settings["of_kind"] = self.kind.own().settings();
        settings.to_string()
    }

    /// Returns the family of that name with stored [settings](Self::settings).
    ///
    /// # Errors
    /// [`Mismatch`](ErrorKind::Mismatch), naming the family, if the settings are invalid or of a
    /// later version.
    pub fn from_settings(namespace: &str, name: &str, settings: &str) -> Result<Family> {
        parse(namespace, name, settings).map_err(|wrong| {
            let what = format!(
                "{namespace}/{name}: its settings in the database are not understood: {wrong}"
            );
            Error::new(ErrorKind::Mismatch, what)
        })
    }
}

fn table_settings(table: &Table) -> Value {
    let keys = table
        .keys
        .iter()
        .map(|key| json!([key.name, format!("{:?}", key.kind)]));
    json!({
        "name": table.name,
        "inserts": table.missing == Missing::Insert,
        "keys": keys.collect::<Vec<_>>(),
        "value": table.value,
        "separator": table.separator,
    })
}

fn parse(namespace: &str, name: &str, settings: &str) -> Result<Family, String> {
    let all = serde_json::from_str(settings).map_err(|error| error.to_string())?;
    let all = Settings::of(&all, "settings")?;
    match all.number("format")? {
        FORMAT => {}
        other => {
            return Err(format!(
                "they have the format {other}, and this version reads {FORMAT}"
            ));
        }
    }
    let own = all.get("of_kind", |value| Settings::of(value, "of_kind").ok())?;
    Kind::read(all.text("kind")?, namespace, name, &all, &own)
}

/// An object of named settings.
pub(super) struct Settings<'a>(&'a Map<String, Value>);

impl<'a> Settings<'a> {
    fn of(value: &'a Value, what: &str) -> Result<Self, String> {
        value
            .as_object()
            .map(Settings)
            .ok_or_else(|| format!("{what} is no object"))
    }

    /// Returns the setting, if it exists and has the wanted type.
    pub(super) fn get<T>(
        &self,
        name: &str,
        wanted: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<T, String> {
        let value = self
            .0
            .get(name)
            .ok_or_else(|| format!("{name} is not there"))?;
        wanted(value).ok_or_else(|| format!("{name} is {value}"))
    }

    pub(super) fn number(&self, name: &str) -> Result<u64, String> {
        self.get(name, Value::as_u64)
    }

    pub(super) fn small(&self, name: &str) -> Result<u32, String> {
        self.get(name, small)
    }

    pub(super) fn text(&self, name: &str) -> Result<&'a str, String> {
        self.get(name, Value::as_str)
    }

    pub(super) fn flag(&self, name: &str) -> Result<bool, String> {
        self.get(name, Value::as_bool)
    }

    pub(super) fn time(&self, name: &str) -> Result<Duration, String> {
        self.number(name).map(Duration::from_millis)
    }

    pub(super) fn bound(&self, name: &str) -> Result<Option<i64>, String> {
        self.get(name, |value| {
            if value.is_null() {
                Some(None)
            } else {
                value.as_i64().map(Some)
            }
        })
    }

    pub(super) fn list<T>(
        &self,
        name: &str,
        each: impl FnMut(&'a Value) -> Option<T>,
    ) -> Result<Vec<T>, String> {
        self.get(name, |value| value.as_array()?.iter().map(each).collect())
    }

    pub(super) fn durability(&self) -> Result<Durability, String> {
        let settle = self.time("settle_ms")?;
        Ok(if settle.is_zero() {
            Durability::Immediate
        } else {
            Durability::Settle(settle)
        })
    }

    pub(super) fn table(&self) -> Result<Option<Table>, String> {
        let table = self.get("table", Some)?;
        if table.is_null() {
            return Ok(None);
        }
        let table = Settings::of(table, "table")?;
        let name = table.text("name")?;
        let made = if table.flag("inserts")? {
            Table::upsert(name)
        } else {
            Table::update(name)
        };
        let keys = table.list("keys", |key| {
            Some((key[0].as_str()?, KeyType::named(key[1].as_str()?)?))
        })?;
        let made = keys
            .into_iter()
            .fold(made, |made, (name, kind)| made.key(name, kind));
        let separator = table.get("separator", |value| value.as_str()?.parse().ok())?;
        Ok(Some(made.value(table.text("value")?).separator(separator)))
    }
}

pub(super) fn small(value: &Value) -> Option<u32> {
    value.as_u64()?.try_into().ok()
}

pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::Counting;
    use crate::family::calendar::Precision;

    pub(super) fn table() -> Table {
        Table::update("shop.day")
            .key("store", KeyType::Unsigned)
            .key("id", KeyType::Uuid)
            .value("n")
    }

    #[test]
    fn settings_bring_every_kind_back() {
        let (second, settle) = (
            Duration::from_secs(1),
            Durability::Settle(Duration::from_millis(70)),
        );
        let families = [
            Family::buffered("a", "b").build().map(|built| built.family),
            Family::buffered("a", "b")
                .partitions(9)
                .durability(settle)
                .wide(true)
                .max_pending(7)
                .build()
                .map(|built| built.family),
            Family::buffered("a", "b")
                .durability(Durability::Immediate)
                .table(table().separator('|'))
                .build()
                .map(|built| built.family),
            Family::buffered("a", "b")
                .sync_after(3, second)
                .table(Table::upsert("t").key("k", KeyType::Text).value("v"))
                .build()
                .map(|built| built.family),
            Family::cached("a", "b").build().map(|built| built.family),
            Family::cached("a", "b")
                .min(-5)
                .max(1 << 52)
                .retain(second)
                .save_after(second)
                .table(table())
                .build()
                .map(|built| built.family),
            Family::series("a", "b").build().map(|built| built.family),
            Family::series("a", "b")
                .windows([
                    (Precision::HOUR, 3),
                    (Precision::Month, 4),
                    (Precision::Day, 5),
                ])
                .keep([Precision::Day, Precision::HOUR])
                .time_zone("Europe/Berlin")
                .sync_after(second)
                .table(table())
                .build()
                .map(|built| built.family),
            Family::activity("a", "b").build().map(|built| built.family),
            Family::activity("a", "b")
                .window(60 * second, 2 * second)
                .stripes(3)
                .visitors(Counting::HyperLogLog)
                .keep_minutes(true)
                .table(table())
                .build()
                .map(|built| built.family),
            Family::visitors("a", "b")
                .remember(77 * second)
                .sync_after(3, second)
                .table(table())
                .build()
                .map(|built| built.family),
        ];
        for family in families.map(|family| family.expect("valid")) {
            assert_eq!(
                Family::from_settings("a", "b", &family.settings()).expect("understood"),
                family
            );
        }
    }

    #[test]
    fn settings_that_are_not_understood_name_the_family_and_what_is_wrong() {
        let known = Family::cached("a", "b")
            .build()
            .expect("valid")
            .family
            .settings();
        for (from, to, what) in [
            ("\"format\":1", "\"format\":2", "the format 2"),
            ("cached", "sampled", "kind \"sampled\""),
            ("partitions", "parts", "partitions is not there"),
            ("\"partitions\":4", "\"partitions\":0", "partitions 0"),
            ("\"min\":null", "\"min\":\"none\"", "min is \"none\""),
            ("{\"", "", "expected"),
        ] {
            let wrong = known.replacen(from, to, 1);
            let error = Family::from_settings("a", "b", &wrong).expect_err(to);
            assert!(
                error.to_string().contains("a/b") && error.to_string().contains(what),
                "{error}"
            );
        }
    }
}
